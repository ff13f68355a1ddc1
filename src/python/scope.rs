//! What the names in an epilogue function mean to the function itself.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// What the names in a function mean, looked up where the function itself looks them up.
pub struct Scope<'py> {
    pub function: Bound<'py, PyAny>,
    /// Where the function has free variables: their names, and their cells.
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

    /// The object that a dotted name stands for; None where there is none.
    pub fn find(&self, names: &[Py<PyString>]) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = self.function.py();
        let Some((root, names)) = names.split_first() else { return Ok(None) };
        let mut object = self.root(root.bind(py))?;
        for name in names {
            let Some(owner) = object else { break };
            object = owner.getattr_opt(name)?;
        }
        Ok(object)
    }

    fn root(&self, name: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if let Some((free, cells)) = &self.closure
            && free.contains(name)?
        {
            let at: usize = free.call_method1("index", (name,))?.extract()?;
            // A variable that has no value yet raises ValueError.
            return Ok(cells.get_item(at)?.getattr("cell_contents").ok());
        }
        match self.globals.get_item(name)? {
            Some(object) => Ok(Some(object)),
            None => self.builtins.get_item(name),
        }
    }
}

/// The parts of a dotted name, and the object that it meant to a function; None where nothing.
pub type Meant = (Vec<Py<PyString>>, Option<Py<PyAny>>);

/// Where the functions are that an epilogue may call.
pub const MODULES: [&str; 7] = [
    "torch",
    "torch.nn.functional",
    "math",
    "numpy",
    "builtins",
    "cutlass_api.fusion",
    "cutlass_api.fusion.activation",
];

/// The name by which one of those modules has a function. What an object says of itself (`__module__`) anyone can copy.
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
