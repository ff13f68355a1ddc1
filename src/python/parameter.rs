//! Operands of epilogue and prologue functions: a tensor or a number for each name.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};

use super::tensors::DenseTensor;
use super::trace::number;
use crate::epilogue::{ExpressionGraph, Number, Stage, intern_name};
use crate::operand::{Operand, View};

/// Name, the user's object, its content.
pub type NamedOperand = (&'static str, Py<PyAny>, Parameter);

/// The operand of one parameter or output.
pub enum Parameter {
    Tensor(Operand, View),
    Number(Number),
}

impl Parameter {
    pub fn clone_ref(&self, py: Python<'_>) -> Parameter {
        match self {
            Parameter::Tensor(operand, view) => Parameter::Tensor(operand.clone_ref(py), *view),
            Parameter::Number(number) => Parameter::Number(*number),
        }
    }
}

/// The operands of a function from the keywords of its arguments: each parameter, then each output.
/// The activations that a prologue returns are no operand.
///
/// # Errors
/// If a name is missing or unknown, or an object is neither a tensor nor a number.
pub fn operands(
    graph: &ExpressionGraph,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<Vec<NamedOperand>> {
    let (function, class) = match graph.stage() {
        Stage::Epilogue => ("epilogue", "EpilogueArguments"),
        Stage::Prologue => ("prologue", "PrologueArguments"),
    };
    let mut names: Vec<&str> = graph.inputs.iter().map(String::as_str).collect();
    for output in &graph.outputs {
        let is_activations =
            graph.stage() == Stage::Prologue && output.name == Stage::Prologue.main_output();
        if !is_activations && !names.contains(&output.name.as_str()) {
            names.push(&output.name);
        }
    }
    let mut found = Vec::with_capacity(names.len());
    for operand in names.iter().copied() {
        let object = kwargs.map(|kwargs| kwargs.get_item(operand)).transpose()?.flatten();
        let object = object.ok_or_else(|| {
            PyValueError::new_err(format!(
                "Argument {operand} is not provided in the kwargs of the {class} constructor"
            ))
        })?;
        found.push((intern_name(operand), object));
    }
    for key in kwargs.into_iter().flatten().map(|(key, _)| key) {
        let key = key.to_string();
        if !names.contains(&key.as_str()) {
            return Err(PyValueError::new_err(format!(
                "Argument {key} is neither a parameter nor an output of the {function} function"
            )));
        }
    }
    let content = |(name, object): (&'static str, Bound<'_, PyAny>)| {
        Ok((name, object.clone().unbind(), parameter(name, &object)?))
    };
    found.into_iter().map(content).collect()
}

/// Operands for a `repr`, with the place of the last tensor.
pub fn describe(operands: &[NamedOperand]) -> String {
    let (mut text, mut place) = (String::new(), String::new());
    for (name, _, parameter) in operands {
        text += &match parameter {
            Parameter::Tensor(_, view) => {
                place = view.place();
                format!(" {name}={view},")
            }
            Parameter::Number(Number::Integer(value)) => format!(" {name}={value},"),
            Parameter::Number(Number::Float(value)) => format!(" {name}={value:?},"),
        };
    }
    format!("{} {place}", text.trim_end_matches(',')).trim_end().to_owned()
}

/// For the garbage collector.
pub fn traverse(operands: &[NamedOperand], visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
    for (_, object, parameter) in operands {
        visit.call(object)?;
        if let Parameter::Tensor(operand, _) = parameter {
            visit.call(&operand.object)?;
        }
    }
    Ok(())
}

/// The content of an operand.
///
/// # Errors
/// If the object is neither a tensor nor a real number.
pub fn parameter(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Parameter> {
    if let Some(number) =
        number(object).map_err(|message| PyValueError::new_err(format!("{name}: {message}")))?
    {
        return Ok(Parameter::Number(number));
    }
    let object = match object.cast::<DenseTensor>() {
        Ok(dense) => dense.get().object(object.py()),
        Err(_) => object.clone(),
    };
    match Operand::new(name, &object) {
        Ok((operand, view)) => Ok(Parameter::Tensor(operand, view)),
        Err(_) if is_complex(&object)? => Err(PyTypeError::new_err(format!(
            "{name} is {object}, a complex number; pass a real number"
        ))),
        // NumPy's scalars are numbers, not tensors.
        Err(error) => match object.extract::<f64>() {
            Ok(value) if !object.hasattr("__dlpack__")? => match object.hasattr("__index__")? {
                true => parameter(name, &object.call_method0("__index__")?),
                false => Ok(Parameter::Number(Number::Float(value))),
            },
            _ if error.is_instance_of::<PyTypeError>(object.py()) => Err(PyTypeError::new_err(
                format!("{name} is a {}; pass a tensor or a number", object.get_type().name()?),
            )),
            _ => Err(error),
        },
    }
}

/// Whether an object is a complex number. NumPy's complex scalars convert to float without an
/// error.
fn is_complex(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let numbers = object.py().import("numbers")?;
    Ok(object.is_instance(&numbers.getattr("Complex")?)?
        && !object.is_instance(&numbers.getattr("Real")?)?)
}
