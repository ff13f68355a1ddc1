//! Names that an epilogue function reads but does not define: torch's functions, dtypes, constants.

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::scope::{MODULES, ResolvedName, known_function};
use super::source::{kind, text};
use super::tracer::Tracer;
use crate::python::utils::shown;

/// Roots of dotted names that an epilogue function may use when it is passed as a string, or when
/// the module is not imported where the function is defined.
const ROOTS: [&str; 11] = [
    "torch",
    "F",
    "functional",
    "nn",
    "math",
    "np",
    "numpy",
    "cutlass_api",
    "cutlass",
    "fusion",
    "activation",
];

impl<'py> Tracer<'_, 'py> {
    /// Whether an attribute is a method of a value, as in `accum.relu`.
    pub fn is_method(&self, attribute: &Bound<'py, PyAny>) -> PyResult<bool> {
        let owner = attribute.getattr("value")?;
        match kind(&owner)?.as_str() {
            "Name" => Ok(self.locals.contains_key(&text(&owner, "id")?)),
            "Attribute" => self.is_method(&owner),
            _ => Ok(true),
        }
    }

    /// The object that a dotted name from outside the function resolves to, recorded in `resolved`.
    /// None if the name is undefined, and for a function that is passed as a string.
    pub fn resolve(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(scope) = &self.source.scope else { return Ok(None) };
        let interned = |name: String| PyString::intern(node.py(), &name).unbind();
        let (mut root, mut path) = (node.clone(), Vec::new());
        while kind(&root)? == "Attribute" {
            path.push(interned(text(&root, "attr")?));
            root = root.getattr("value")?;
        }
        path.push(interned(text(&root, "id")?));
        path.reverse();
        let object = scope.find(&path)?;
        self.resolved.push(ResolvedName { path, object: object.clone().map(Bound::unbind) });
        Ok(object)
    }

    /// Checks that an undefined dotted name starts with one of `ROOTS`.
    pub fn check_root(&self, node: &Bound<'py, PyAny>) -> PyResult<()> {
        let mut root = node.clone();
        while kind(&root)? == "Attribute" {
            root = root.getattr("value")?;
        }
        if kind(&root)? == "Name" && ROOTS.contains(&text(&root, "id")?.as_str()) {
            return Ok(());
        }
        let message = format!(
            "{} belongs to an unknown object; an epilogue function can use the functions of {}",
            text(node, "attr")?,
            ROOTS.join(", ")
        );
        Err(self.error(node, &message))
    }

    /// The canonical name of the called function. An alias resolves to the function's own name.
    /// Refuses a user's function, even if it shares the name of a supported function: the epilogue
    /// would compute a different result.
    pub fn called_function(&mut self, function: &Bound<'py, PyAny>) -> PyResult<String> {
        let is_name = kind(function)? == "Name";
        let name = text(function, if is_name { "id" } else { "attr" })?;
        if is_name && self.locals.contains_key(&name) {
            let message = format!("'{name}' is a value here and cannot be called");
            return Err(self.error(function, &message));
        }
        match self.resolve(function)? {
            Some(object) => known_function(&object)?.ok_or_else(|| {
                let message = format!(
                    "'{name}' is {} here; an epilogue function is translated, not called, and can \
                     use only the functions of {}",
                    shown(&object),
                    MODULES.join(", ")
                );
                self.error(function, &message)
            }),
            // An undefined bare name refers to cutlass_api.fusion.
            None if is_name => Ok(name),
            None => self.check_root(function).map(|()| name),
        }
    }
}
