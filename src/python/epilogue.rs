//! Epilogue arguments: a function with its operands, and what it comes to behind a problem.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};

use super::replacement::{in_memory, swapped};
use super::tensors::DenseTensor;
use super::trace::{TracedEpilogue, number, trace_epilogue};
use crate::epilogue::{BoundEpilogue, MAIN_OUTPUT, Number, name};
use crate::operand::{Operand, View};
use crate::problem::{Given, Problem, fuse};

/// What was given for one parameter or output.
enum Parameter {
    Tensor(Operand, View),
    Number(Number),
}

/// An epilogue function with its operands.
///
/// epilogue_fn: a Python function, or its source. Its first parameter is `accum`, the product as the kernel sums it, and one of
/// the names that it returns is `D`, the main output. Every other parameter and every returned name is a keyword here.
///
/// A parameter is a number, passed along with each launch, or a tensor of any dtype and strides: of the output's shape, or with
/// extent 1 where it repeats ((1, N), (N,), (M, 1), a single element). An output is a writable tensor of the output's shape; one
/// that is `sum(x, dim)` or `max(x, dim)`, behind a GEMM, has extent 1 along the reduced dimensions, or lacks them ((M, 1) or (M,) for
/// dim=-1). D is what `out` names in the arguments of the operation; where it is another tensor, D is the one written.
///
/// A kernel knows along which of the output's two last dimensions a tensor repeats, and along which its elements lie side by side, as
/// it knows dtypes: `supports` tells whether it serves other tensors, too. Further strides come with each launch.
///
/// Values are float32 (float64 behind a float64 accumulator, int32 for integers among themselves), rounded once when they
/// are stored. Reductions add up in an order that depends on the kernel and the shape alone. Raises ValueError where a name is
/// missing or one too many, and, with the user's line, for what an epilogue cannot do; SyntaxError for source that does not parse.
#[pyclass(module = "cutlass_api.arguments", subclass, frozen)]
pub struct EpilogueArguments {
    /// The function or source as given.
    #[pyo3(get)]
    epilogue_fn: Py<PyAny>,
    /// The function as an expression graph.
    #[pyo3(get)]
    traced_epilogue: Py<TracedEpilogue>,
    /// In the order of the parameters and then of the outputs: name, object as given, and what it is.
    operands: Vec<(&'static str, Py<PyAny>, Parameter)>,
}

#[pymethods]
impl EpilogueArguments {
    #[new]
    #[pyo3(signature = (epilogue_fn, **kwargs))]
    fn new(
        py: Python<'_>,
        epilogue_fn: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<EpilogueArguments> {
        let traced_epilogue = trace_epilogue(py, epilogue_fn)?;
        let graph = &traced_epilogue.get().graph;
        let mut names: Vec<&str> = graph.inputs.iter().map(String::as_str).collect();
        for output in &graph.outputs {
            if !names.contains(&output.name.as_str()) {
                names.push(&output.name);
            }
        }
        let mut operands = Vec::with_capacity(names.len());
        for given in names.iter().copied() {
            let object = kwargs.map(|kwargs| kwargs.get_item(given)).transpose()?.flatten();
            let object = object.ok_or_else(|| {
                PyValueError::new_err(format!(
                    "Argument {given} is not provided in the kwargs of the EpilogueArguments constructor"
                ))
            })?;
            operands.push((name(given), object));
        }
        for key in kwargs.into_iter().flatten().map(|(key, _)| key) {
            let key = key.to_string();
            if !names.contains(&key.as_str()) {
                return Err(PyValueError::new_err(format!(
                    "Argument {key} is no parameter and no output of the epilogue function"
                )));
            }
        }
        let operands = operands
            .into_iter()
            .map(|(name, object)| Ok((name, object.clone().unbind(), parameter(name, &object)?)))
            .collect::<PyResult<_>>()?;
        Ok(EpilogueArguments {
            epilogue_fn: epilogue_fn.clone().unbind(),
            traced_epilogue,
            operands,
        })
    }

    /// For the collector of cycles: the function may be a method of what holds the arguments.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.epilogue_fn)?;
        visit.call(&self.traced_epilogue)?;
        for (_, object, parameter) in &self.operands {
            visit.call(object)?;
            if let Parameter::Tensor(operand, _) = parameter {
                visit.call(&operand.object)?;
            }
        }
        Ok(())
    }

    /// The operands: inputs in the order of the function's parameters, then outputs in the order returned.
    #[getter]
    fn parameters(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        self.operands.iter().map(|(_, object, _)| object.clone_ref(py)).collect()
    }

    /// The names of `parameters`.
    #[getter]
    fn parameter_names(&self) -> Vec<&'static str> {
        self.operands.iter().map(|(name, ..)| *name).collect()
    }

    /// Those of `parameters` that are tensors.
    #[getter]
    fn tensors(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        let tensors = self
            .operands
            .iter()
            .filter(|(.., parameter)| matches!(parameter, Parameter::Tensor(..)));
        tensors.map(|(_, object, _)| object.clone_ref(py)).collect()
    }

    fn __repr__(&self) -> String {
        format!("<EpilogueArguments {}>", self.traced_epilogue.get().graph)
    }
}

fn parameter(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Parameter> {
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
            "{name} is {object}, a complex number; give a real one"
        ))),
        // NumPy's scalars are no tensors, but numbers.
        Err(error) => match object.extract::<f64>() {
            Ok(value) if !object.hasattr("__dlpack__")? => match object.hasattr("__index__")? {
                true => parameter(name, &object.call_method0("__index__")?),
                false => Ok(Parameter::Number(Number::Float(value))),
            },
            _ if error.is_instance_of::<PyTypeError>(object.py()) => Err(PyTypeError::new_err(
                format!("{name} is a {}; give a tensor or a number", object.get_type().name()?),
            )),
            _ => Err(error),
        },
    }
}

/// Whether this is a number that has an imaginary part, which NumPy's would lose as a float.
fn is_complex(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let numbers = object.py().import("numbers")?;
    Ok(object.is_instance(&numbers.getattr("Complex")?)?
        && !object.is_instance(&numbers.getattr("Real")?)?)
}

impl EpilogueArguments {
    /// The tensor given for D, as the user gave it.
    pub fn main_output<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.operands.iter().find(|(name, ..)| *name == MAIN_OUTPUT) {
            Some((_, object, Parameter::Tensor(..))) => Ok(object.bind(py).clone()),
            _ => Err(PyValueError::new_err(
                "D is the main output of the epilogue, and so has to be a tensor",
            )),
        }
    }

    /// This epilogue behind a problem, with the operands as they were read.
    pub fn behind(&self, problem: &Problem) -> PyResult<BoundEpilogue> {
        self.behind_with(problem, |_, view| Ok(*view))
    }

    /// This epilogue behind a problem, with the operands as they are now.
    pub fn behind_now(
        &self,
        py: Python<'_>,
        problem: &Problem,
        stream: Option<u64>,
    ) -> PyResult<BoundEpilogue> {
        self.behind_with(problem, |operand, _| in_memory(operand.name, operand.reread(py, stream)?))
    }

    /// This epilogue behind a problem, with some operands in place of those that it was made with; the others as they are now.
    pub fn behind_swapped(
        &self,
        py: Python<'_>,
        problem: &Problem,
        stream: Option<u64>,
        swaps: &Bound<'_, PyDict>,
    ) -> PyResult<BoundEpilogue> {
        let mut numbers = Vec::new();
        for (key, object) in swaps {
            let key = key.to_string();
            let known = self.operands.iter().find(|(name, ..)| *name == key && key != MAIN_OUTPUT);
            match known {
                Some((name, _, Parameter::Number(_))) => match parameter(name, &object)? {
                    Parameter::Number(number) => numbers.push((*name, number)),
                    Parameter::Tensor(..) => {
                        let message = format!(
                            "{name} was bound as a number; a tensor in its place takes another kernel"
                        );
                        return Err(PyValueError::new_err(message));
                    }
                },
                Some((name, _, Parameter::Tensor(..))) if !matches!(number(&object), Ok(None)) => {
                    let message = format!(
                        "{name} was bound as a tensor; a number in its place takes another kernel"
                    );
                    return Err(PyValueError::new_err(message));
                }
                Some(_) => {}
                None => {
                    let names = self
                        .operands
                        .iter()
                        .map(|(name, ..)| *name)
                        .filter(|name| *name != MAIN_OUTPUT);
                    return Err(PyTypeError::new_err(format!(
                        "the bound arguments have no operand '{key}'; their epilogue has {}, and D is given as out",
                        names.collect::<Vec<_>>().join(", ")
                    )));
                }
            }
        }
        let number = |name: &str, bound: Number| {
            numbers
                .iter()
                .find(|(swapped, _)| *swapped == name)
                .map_or(bound, |(_, number)| *number)
        };
        self.behind_given(problem, number, |operand, bound| match swaps.get_item(operand.name)? {
            Some(tensor) if operand.name != MAIN_OUTPUT => swapped(operand.name, bound, &tensor),
            _ => in_memory(operand.name, operand.reread(py, stream)?),
        })
    }

    /// Whether an operand of the epilogue has this name.
    pub fn has_operand(&self, name: &str) -> bool {
        self.operands.iter().any(|(operand, ..)| *operand == name)
    }

    fn behind_with(
        &self,
        problem: &Problem,
        view: impl Fn(&Operand, &View) -> PyResult<View>,
    ) -> PyResult<BoundEpilogue> {
        self.behind_given(problem, |_, number| number, view)
    }

    fn behind_given(
        &self,
        problem: &Problem,
        number: impl Fn(&str, Number) -> Number,
        view: impl Fn(&Operand, &View) -> PyResult<View>,
    ) -> PyResult<BoundEpilogue> {
        let graph = &self.traced_epilogue.get().graph;
        let given = |wanted: &str| -> PyResult<(&'static str, Given)> {
            match self.operands.iter().find(|(name, ..)| *name == wanted) {
                Some((name, _, Parameter::Tensor(operand, as_read))) => {
                    Ok((*name, Given::Tensor(view(operand, as_read)?)))
                }
                Some((name, _, Parameter::Number(bound))) => {
                    Ok((*name, Given::Number(number(name, *bound))))
                }
                None => Err(PyValueError::new_err(format!("Argument {wanted} is not provided"))),
            }
        };
        let inputs = graph.inputs.iter().map(|name| given(name)).collect::<PyResult<Vec<_>>>()?;
        let outputs = graph.outputs.iter().map(|output| match output.name.as_str() {
            // The problem's own output, which it has checked.
            MAIN_OUTPUT => Ok((MAIN_OUTPUT, Given::Tensor(*problem.out()))),
            other => given(other),
        });
        let outputs = outputs.collect::<PyResult<Vec<_>>>()?;
        Ok(fuse(problem, problem.accumulator(), graph, &inputs, &outputs)?)
    }

    /// Whether all tensors but the main output are as they were read.
    #[inline(never)]
    pub fn is_as_read(&self, py: Python<'_>) -> PyResult<bool> {
        for (name, _, parameter) in &self.operands {
            if let Parameter::Tensor(operand, view) = parameter
                && *name != MAIN_OUTPUT
                && !operand.still_shows(py, view)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
