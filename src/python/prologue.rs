//! `PrologueArguments`: a prologue function with its operands.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};

use super::dtype::{PyDType, parse};
use super::parameter::{NamedOperand, Parameter, describe, operands, traverse};
use super::trace::{TracedEpilogue, trace_function};
use super::utils::class_name;
use crate::epilogue::{ACTIVATIONS, MAIN_OUTPUT, Number, Stage};
use crate::operand::DType;
use crate::problem::{OperandValue, PrologueOperands};

/// Names of the product's operands, by which a prepared launch takes them.
const TAKEN: [&str; 4] = ["A", "B", "out", MAIN_OUTPUT];

/// A prologue function with its operands: what is computed of A in front of the product.
///
/// prologue_fn: a Python function, or its source as a string. Its first parameter is `A`, of shape
/// (M, K). It returns `A`, the activations that the product multiplies, and may return further
/// names, which are stored. Every other parameter, and every returned name but `A`, is a keyword of
/// this constructor.
///
/// dtype: the dtype of the activations; None: that of A. Each activation is rounded once, to
/// nearest even. Integers and float8 saturate.
///
/// A parameter takes a number or a tensor of any dtype and strides. The tensor has the shape of A,
/// or extent 1 in the dimensions along which it is broadcast: (K,), (M, 1), or a single element. A
/// returned name takes a writable tensor of the shape of A, or of shape (M, 1) if its value is one
/// number of each row: a value that depends on reductions and numbers only. It overlaps no other
/// operand, but the epilogue may read the same tensor, under the same name or another one.
///
/// The function computes in float32, with the operations of epilogues. `sum(x)`, `mean(x)` and
/// `amax(x)` reduce each row over K; their results broadcast as (M, 1).
///
/// On a GPU, a kernel of its own computes the prologue in front of the product's, in one launch
/// call, and stores the activations in workspace. There is no gradient.
///
/// Raises ValueError if a name is missing or unknown. Raises ValueError with the source line for
/// unsupported Python code, and SyntaxError for source that does not parse.
#[pyclass(module = "cutlass_api.arguments", subclass, frozen)]
pub struct PrologueArguments {
    /// The function or source that was passed.
    #[pyo3(get)]
    prologue_fn: Py<PyAny>,
    /// The function as an expression graph.
    #[pyo3(get)]
    pub traced_prologue: Py<TracedEpilogue>,
    pub operands: Vec<NamedOperand>,
    activations: Option<DType>,
}

/// A prologue function without its operands.
pub struct PrologueFunction {
    pub traced: Py<TracedEpilogue>,
    /// The type of the activations; `None`: that of A.
    pub dtype: Option<DType>,
}

impl PrologueFunction {
    pub fn clone_ref(&self, py: Python<'_>) -> PrologueFunction {
        PrologueFunction { traced: self.traced.clone_ref(py), dtype: self.dtype }
    }
}

impl PrologueArguments {
    /// Passes the operands, with the views from construction, to `body`.
    pub fn with_operands<T>(&self, body: impl FnOnce(&PrologueOperands<'_>) -> T) -> T {
        let graph = &self.traced_prologue.get().graph;
        // The output A is no operand.
        let value = |name: &String| {
            let named = self.operands.iter().find(|(known, ..)| known == name);
            let (name, value) = match named {
                Some((name, _, Parameter::Tensor(_, view))) => (*name, OperandValue::Tensor(*view)),
                Some((name, _, Parameter::Number(number))) => {
                    (*name, OperandValue::Number(*number))
                }
                // `operands` refuses lists.
                None | Some((.., Parameter::List(_))) => {
                    (ACTIVATIONS, OperandValue::Number(Number::Integer(0)))
                }
            };
            (name, value)
        };
        let inputs: Vec<_> = graph.inputs.iter().map(value).collect();
        let outputs: Vec<_> = graph.outputs.iter().map(|output| value(&output.name)).collect();
        let (dtype, inputs, outputs) = (self.activations, &inputs, &outputs);
        body(&PrologueOperands { graph, dtype, inputs, outputs })
    }

    /// The type of the activations for an A of this type.
    pub fn dtype_for(&self, a: DType) -> DType {
        self.activations.unwrap_or(a)
    }

    /// The name of a tensor without memory.
    pub fn fake(&self) -> Option<&'static str> {
        self.operands.iter().find_map(|(name, _, parameter)| match parameter {
            Parameter::Tensor(_, view) if view.fake => Some(*name),
            _ => None,
        })
    }

    pub fn function(&self, py: Python<'_>) -> PrologueFunction {
        PrologueFunction { traced: self.traced_prologue.clone_ref(py), dtype: self.activations }
    }
}

#[pymethods]
impl PrologueArguments {
    #[new]
    #[pyo3(signature = (prologue_fn, *, dtype = None, **kwargs))]
    fn new(
        py: Python<'_>,
        prologue_fn: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PrologueArguments> {
        let traced_prologue = trace_function(py, prologue_fn, Stage::Prologue)?;
        let operands = operands(&traced_prologue.get().graph, kwargs)?;
        if let Some((name, ..)) = operands.iter().find(|(name, ..)| TAKEN.contains(name)) {
            return Err(PyValueError::new_err(format!(
                "an operand of the prologue is named {name}, as an operand of the product; rename \
                 it in the prologue function"
            )));
        }
        let activations = dtype.map(parse).transpose()?;
        Ok(PrologueArguments {
            prologue_fn: prologue_fn.clone().unbind(),
            traced_prologue,
            operands,
            activations,
        })
    }

    /// For the garbage collector: the function may be a method of an object that holds the
    /// arguments.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.prologue_fn)?;
        visit.call(&self.traced_prologue)?;
        traverse(&self.operands, &visit)
    }

    /// The dtype of the activations that the product multiplies; None: that of A.
    #[getter]
    fn dtype(&self) -> Option<PyDType> {
        self.activations.map(PyDType)
    }

    /// The operands: inputs in the order of the parameters, then outputs in the order of the
    /// return.
    #[getter]
    fn parameters(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        self.operands.iter().map(|(_, object, _)| object.clone_ref(py)).collect()
    }

    /// The names of `parameters`.
    #[getter]
    fn parameter_names(&self) -> Vec<&'static str> {
        self.operands.iter().map(|(name, ..)| *name).collect()
    }

    /// The tensors among `parameters`, by name.
    #[getter]
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tensors = PyDict::new(py);
        for (name, object, parameter) in &self.operands {
            if let Parameter::Tensor(..) = parameter {
                tensors.set_item(name, object)?;
            }
        }
        Ok(tensors)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let (class, this) = (class_name(slf.as_any()), slf.get());
        let dtype = this.activations.map_or(String::new(), |dtype| format!(" as {dtype}"));
        let graph = &this.traced_prologue.get().graph;
        format!("<{class} {graph}{dtype}:{}>", describe(&this.operands))
    }
}
