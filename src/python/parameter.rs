//! Operands of epilogue and prologue functions: a tensor or a number for each name.

use std::fmt;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use super::tensors::DenseTensor;
use super::trace::number;
use crate::epilogue::{ExpressionGraph, Number, Stage, intern_name};
use crate::operand::{self, Operand, View};
use crate::problem::OperandValue;

/// Name, the user's object, its content.
pub type NamedOperand = (&'static str, Py<PyAny>, Parameter);

/// The operand of one parameter or output.
pub enum Parameter {
    Tensor(Operand, View),
    Number(Number),
    /// A vector for the columns of each matrix B of a joint GEMM.
    List(Vec<Parameter>),
}

impl Parameter {
    pub fn clone_ref(&self, py: Python<'_>) -> Parameter {
        match self {
            Parameter::Tensor(operand, view) => Parameter::Tensor(operand.clone_ref(py), *view),
            Parameter::Number(number) => Parameter::Number(*number),
            Parameter::List(members) => {
                Parameter::List(members.iter().map(|member| member.clone_ref(py)).collect())
            }
        }
    }

    /// The view of a tensor; of a list, of its first tensor.
    pub fn view(&self) -> Option<&View> {
        match self {
            Parameter::Tensor(_, view) => Some(view),
            Parameter::Number(_) => None,
            Parameter::List(members) => members.iter().find_map(Parameter::view),
        }
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Parameter::Tensor(operand, _) => visit.call(&operand.object),
            Parameter::Number(_) => Ok(()),
            Parameter::List(members) => {
                members.iter().try_for_each(|member| member.traverse(visit))
            }
        }
    }
}

/// The operand without its device.
impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Parameter::Tensor(_, view) => write!(f, "{view}"),
            Parameter::Number(Number::Integer(value)) => write!(f, "{value}"),
            Parameter::Number(Number::Float(value)) => write!(f, "{value:?}"),
            Parameter::List(members) => {
                let members: Vec<String> = members.iter().map(Parameter::to_string).collect();
                write!(f, "[{}]", members.join(", "))
            }
        }
    }
}

/// The members of a list or a tuple; None for another object.
pub fn members_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
    if !(object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()) {
        return Ok(None);
    }
    object.try_iter()?.collect::<PyResult<Vec<_>>>().map(Some)
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
        let content = parameter(name, &object)?;
        if let (Stage::Prologue, Parameter::List(_)) = (graph.stage(), &content) {
            return Err(PyTypeError::new_err(format!(
                "{name} is a list; pass a tensor or a number to a prologue"
            )));
        }
        Ok((name, object.unbind(), content))
    };
    found.into_iter().map(content).collect()
}

/// Operands for a `repr`, with the place of the last tensor.
pub fn describe(operands: &[NamedOperand]) -> String {
    let (mut text, mut place) = (String::new(), String::new());
    for (name, _, parameter) in operands {
        text += &format!(" {name}={parameter},");
        place = parameter.view().map_or(place, View::place);
    }
    format!("{} {place}", text.trim_end_matches(',')).trim_end().to_owned()
}

/// For the garbage collector.
pub fn traverse(operands: &[NamedOperand], visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
    for (_, object, parameter) in operands {
        visit.call(object)?;
        parameter.traverse(visit)?;
    }
    Ok(())
}

/// The content of an operand.
///
/// # Errors
/// If the object is neither a tensor, nor a real number, nor a list of tensors.
pub fn parameter(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Parameter> {
    if let Some(number) =
        number(object).map_err(|message| PyValueError::new_err(format!("{name}: {message}")))?
    {
        return Ok(Parameter::Number(number));
    }
    if let Some(members) = members_of(object)? {
        let read = |(at, member): (usize, &Bound<'_, PyAny>)| {
            let name = if at == 0 { name } else { intern_name(&format!("{name}_{at}")) };
            match members_of(member)? {
                Some(_) => Ok(None),
                None => parameter(name, member).map(Some),
            }
        };
        let read = members.iter().enumerate().map(read).collect::<PyResult<Vec<_>>>()?;
        let is_tensor = |member: &Option<Parameter>| matches!(member, Some(Parameter::Tensor(..)));
        if read.is_empty() || !read.iter().all(is_tensor) {
            return Err(PyTypeError::new_err(format!(
                "{name} is a {}; pass a tensor or a number, or a list of tensors",
                object.get_type().name()?
            )));
        }
        return Ok(Parameter::List(read.into_iter().flatten().collect()));
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

pub fn input_values(
    graph: &ExpressionGraph,
    operands: &Bound<'_, PyTuple>,
) -> PyResult<Vec<OperandValue>> {
    check_operands(&graph.inputs, operands.len())?;
    graph.inputs.iter().zip(operands).map(|(name, object)| operand_value(name, &object)).collect()
}

/// Checks the number of operands of an epilogue with these inputs.
pub fn check_operands(inputs: &[String], count: usize) -> PyResult<()> {
    match inputs.len() == count {
        true => Ok(()),
        false => Err(PyTypeError::new_err(format!(
            "the epilogue takes {} operands ({}), and {count} are passed",
            inputs.len(),
            inputs.join(", "),
        ))),
    }
}

/// Reads an operand that is a tensor or a number.
pub fn operand_value(name: &str, object: &Bound<'_, PyAny>) -> PyResult<OperandValue> {
    let known =
        number(object).map_err(|message| PyValueError::new_err(format!("{name}: {message}")))?;
    Ok(match known {
        Some(number) => OperandValue::Number(number),
        None => OperandValue::Tensor(operand::read(name, object)?),
    })
}
