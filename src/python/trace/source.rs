//! The source text of an epilogue function, and its definition in the text's syntax tree.

use pyo3::exceptions::{PyMemoryError, PyRecursionError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use super::scope::Scope;
use crate::operand::OnceValue;

/// Checks that `epilogue_fn` is a function defined in Python, and not the result of a decorator.
pub fn plain_function<'a, 'py>(
    epilogue_fn: &'a Bound<'py, PyAny>,
) -> PyResult<&'a Bound<'py, PyAny>> {
    static FUNCTION: OnceValue<Py<PyType>> = OnceValue::new();
    let py = epilogue_fn.py();
    if !epilogue_fn.is_instance(FUNCTION.import(py, "types", "FunctionType")?)? {
        let name = epilogue_fn.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "epilogue_fn is a {name}; pass a function or its source"
        )));
    }
    if epilogue_fn.getattr_opt(intern!(py, "__wrapped__"))?.is_some() {
        let name = epilogue_fn.getattr("__name__")?;
        return Err(PyValueError::new_err(format!(
            "{name} is the result of a decorator and may differ from its source; pass the \
             undecorated function, {name}.__wrapped__"
        )));
    }
    Ok(epilogue_fn)
}

/// The text that defines an epilogue function, and the scope of its names.
pub struct Source<'py> {
    py: Python<'py>,
    /// The user's string, or the whole file or notebook cell that defines the function.
    text: String,
    file: Option<String>,
    /// None for a function that is passed as a string: its names refer to the supported functions.
    pub scope: Option<Scope<'py>>,
}

impl<'py> Source<'py> {
    pub fn of_text(text: &Bound<'py, PyAny>) -> PyResult<Source<'py>> {
        let py = text.py();
        let text = py.import("textwrap")?.call_method1("dedent", (text,))?.extract()?;
        Ok(Source { py, text, file: None, scope: None })
    }

    pub fn of_function(function: &Bound<'py, PyAny>) -> PyResult<Source<'py>> {
        let py = function.py();
        let inspect = py.import("inspect")?;
        let found = inspect.call_method1("findsource", (function,)).map_err(|error| {
            let raised = PyValueError::new_err(format!(
                "the source of the epilogue function is not available ({}); pass the source as a \
                 string",
                error.value(py)
            ));
            raised.set_cause(py, Some(error));
            raised
        })?;
        let (lines, _): (Vec<String>, usize) = found.extract()?;
        let file = inspect.call_method1("getsourcefile", (function,))?.extract()?;
        Ok(Source { py, text: lines.concat(), file, scope: Some(Scope::of(function)?) })
    }

    /// The node of the syntax tree that defines the function.
    pub fn definition(&self) -> PyResult<Bound<'py, PyAny>> {
        let ast = self.py.import("ast")?;
        let tree = ast
            .call_method1("parse", (&self.text, self.filename()))
            .map_err(|error| self.unparsed(error))?;
        match &self.scope {
            None => self.only_function(&tree),
            Some(scope) => self.function_of(&tree, &scope.function.getattr("__code__")?),
        }
    }

    fn filename(&self) -> &str {
        self.file.as_deref().unwrap_or("<epilogue>")
    }

    fn unparsed(&self, error: PyErr) -> PyErr {
        let py = self.py;
        if error.is_instance_of::<PyRecursionError>(py) || error.is_instance_of::<PyMemoryError>(py)
        {
            let message = "an expression is nested too deeply for Python's parser; assign parts of \
                           it to names";
            let raised = PyValueError::new_err(message);
            raised.set_cause(py, Some(error));
            return raised;
        }
        // The function was compiled, so a file that does not parse changed after its import.
        if self.scope.is_some() { self.stale() } else { error }
    }

    fn only_function(&self, tree: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let mut functions = list(tree, "body")?;
        functions.retain(|node| kind(node).is_ok_and(|kind| kind == "FunctionDef"));
        let [function] = functions.as_slice() else {
            let count = functions.len();
            return Err(PyValueError::new_err(format!(
                "an epilogue is one function definition, but its source holds {count}"
            )));
        };
        if let Some(decorator) = list(function, "decorator_list")?.first() {
            return Err(self.error(
                decorator,
                "decorators cannot be used on an epilogue function that is passed as a string",
            ));
        }
        Ok(function.clone())
    }

    /// The definition that compiles to this code. The file may have changed after its import.
    fn function_of(
        &self,
        tree: &Bound<'py, PyAny>,
        code: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (name, line): (String, usize) =
            (code.getattr("co_name")?.extract()?, code.getattr("co_firstlineno")?.extract()?);
        if name == "<lambda>" {
            return Err(PyValueError::new_err(
                "an epilogue is one function definition, not a lambda",
            ));
        }
        let ast = self.py.import("ast")?;
        for statement in list(tree, "body")? {
            for node in ast.call_method1("walk", (&statement,))?.try_iter()? {
                let node = node?;
                if kind(&node)? != "FunctionDef" || text(&node, "name")? != name {
                    continue;
                }
                // A code object's first line is that of its first decorator.
                let first = list(&node, "decorator_list")?
                    .into_iter()
                    .next()
                    .unwrap_or_else(|| node.clone());
                if first.getattr("lineno")?.extract::<usize>()? != line {
                    continue;
                }
                // Compile the whole file, because a module's imports affect its functions'
                // bytecode, and the statement alone, because IPython compiles each separately.
                let alone =
                    ast.call_method1("Module", (vec![statement.clone()], Vec::<usize>::new()))?;
                if self.compiles_to(tree, code)? || self.compiles_to(&alone, code)? {
                    return Ok(node);
                }
            }
        }
        Err(self.stale())
    }

    fn compiles_to(&self, tree: &Bound<'py, PyAny>, code: &Bound<'py, PyAny>) -> PyResult<bool> {
        let kwargs = PyDict::new(self.py);
        kwargs.set_item("dont_inherit", true)?;
        let compile = self.py.import("builtins")?.getattr("compile")?;
        // A notebook cell with a top-level await does not compile as a whole.
        match compile.call((tree, self.filename(), "exec"), Some(&kwargs)) {
            Ok(compiled) => holds_code(&compiled, code),
            Err(_) => Ok(false),
        }
    }

    fn stale(&self) -> PyErr {
        let file = self.file.as_deref().unwrap_or_default();
        PyValueError::new_err(format!(
            "the source of the epilogue function differs from the current text of {file}; reload \
             the module, or pass the source as a string"
        ))
    }

    /// A ValueError with the location and text of a node's line.
    pub fn error(&self, node: &Bound<'_, PyAny>, message: &str) -> PyErr {
        let Ok(line) = node.getattr("lineno").and_then(|line| line.extract::<usize>()) else {
            return PyValueError::new_err(message.to_owned());
        };
        let text = self.text.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
        let place = match &self.file {
            Some(file) => format!("{file}, line {line}"),
            None => format!("line {line}"),
        };
        PyValueError::new_err(format!("{message} ({place}: `{text}`)"))
    }
}

/// Whether a code object holds another among its constants, at any depth. Ignores `co_flags`:
/// they depend on where a function is defined and on `__future__` imports, not on its result.
fn holds_code(holder: &Bound<'_, PyAny>, code: &Bound<'_, PyAny>) -> PyResult<bool> {
    let kwargs = PyDict::new(code.py());
    kwargs.set_item("co_flags", code.getattr("co_flags")?)?;
    for held in holder.getattr("co_consts")?.try_iter()? {
        let held = held?;
        if held.get_type().is(code.get_type())
            && (held.call_method("replace", (), Some(&kwargs))?.eq(code)?
                || holds_code(&held, code)?)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The class name of a syntax tree's node.
pub fn kind(node: &Bound<'_, PyAny>) -> PyResult<String> {
    node.get_type().name()?.extract()
}

/// A field of a node that holds a list.
pub fn list<'py>(node: &Bound<'py, PyAny>, field: &str) -> PyResult<Vec<Bound<'py, PyAny>>> {
    node.getattr(field)?.try_iter()?.collect()
}

/// A field of a node that holds a string.
pub fn text(node: &Bound<'_, PyAny>, field: &str) -> PyResult<String> {
    node.getattr(field)?.extract()
}
