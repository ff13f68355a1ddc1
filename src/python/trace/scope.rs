//! Resolves the names that an epilogue function takes from outside.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// The scopes of a function: closure, globals, builtins. Python looks names up in this order.
pub struct Scope<'py> {
    pub function: Bound<'py, PyAny>,
    /// The names of the function's free variables, and their cells.
    closure: Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    globals: Bound<'py, PyDict>,
    builtins: Bound<'py, PyDict>,
}

impl<'py> Scope<'py> {
    pub fn of(function: &Bound<'py, PyAny>) -> PyResult<Scope<'py>> {
        let py = function.py();
        let cells = function.getattr(intern!(py, "__closure__"))?;
        let closure = match cells.is_none() {
            true => None,
            false => Some((function.getattr("__code__")?.getattr("co_freevars")?, cells)),
        };
        let globals = function.getattr(intern!(py, "__globals__"))?.cast_into()?;
        let builtins = function.getattr(intern!(py, "__builtins__"))?.cast_into()?;
        Ok(Scope { function: function.clone(), closure, globals, builtins })
    }

    /// The object that a dotted name resolves to; None if the name is undefined.
    pub fn find(&self, path: &[Py<PyString>]) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = self.function.py();
        let Some((root, attributes)) = path.split_first() else { return Ok(None) };
        let mut object = self.root(root.bind(py))?;
        for name in attributes {
            let Some(owner) = object else { break };
            object = owner.getattr_opt(name)?;
        }
        Ok(object)
    }

    fn root(&self, name: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if let Some((free, cells)) = &self.closure
            && free.contains(name)?
        {
            let index: usize = free.call_method1("index", (name,))?.extract()?;
            // An empty cell, of a variable without a value, raises ValueError.
            return Ok(cells.get_item(index)?.getattr("cell_contents").ok());
        }
        match self.globals.get_item(name)? {
            Some(object) => Ok(Some(object)),
            None => self.builtins.get_item(name),
        }
    }
}

/// A dotted name from outside a function, and the object that it resolved to.
pub struct ResolvedName {
    pub path: Vec<Py<PyString>>,
    /// None if the name was undefined.
    pub object: Option<Py<PyAny>>,
}

/// The modules whose functions an epilogue function may call.
pub const MODULES: [&str; 7] = [
    "torch",
    "torch.nn.functional",
    "math",
    "numpy",
    "builtins",
    "cutlass_api.fusion",
    "cutlass_api.fusion.activation",
];

/// The name of a function that one of `MODULES` holds; None for any other object.
///
/// Compares the object with the module's attribute. `__module__` is no evidence: `functools.wraps`
/// copies it.
pub fn known_function(object: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let Some(name) = object.getattr_opt("__name__")? else { return Ok(None) };
    let Ok(name) = name.extract::<String>() else { return Ok(None) };
    let modules = object.py().import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    for module in MODULES {
        if let Some(module) = modules.get_item(module)?
            && module.getattr_opt(name.as_str())?.is_some_and(|own| own.is(object))
        {
            return Ok(Some(name));
        }
    }
    Ok(None)
}
