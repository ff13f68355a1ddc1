//! The table of epilogue functions for Python.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::epilogue::{Constant, Function, Operation, Parameter};

/// A function that an epilogue may call, as the core's table describes it.
#[pyclass(module = "cutlass_api.fusion", frozen, get_all)]
pub struct EpilogueFunction {
    /// The name, then its other spellings.
    names: Vec<&'static str>,
    /// The names of each parameter, and whether it is a value that the function requires.
    parameters: Vec<(Vec<&'static str>, bool)>,
    /// The name of its operation in `TracedEpilogue.nodes`, if it is one operation.
    operation: &'static str,
    /// The function of torch that computes the same, as a path below `torch`, or "".
    torch: &'static str,
    /// Keywords of the function of torch.
    torch_keywords: Vec<(&'static str, &'static str)>,
    /// The ATen operator that `cutlass_api.inductor` fuses as this function, or "".
    aten: &'static str,
    /// Whether it reduces along dimensions.
    is_reduction: bool,
    /// Of an activation: the ATen operator of its gradient, from that of the result and from the
    /// result; "" if the gradient is that of the result.
    backward: Option<&'static str>,
    /// Whether `backward` reads the argument of the activation in place of the result.
    reads_argument: bool,
    /// Further arguments of `backward`.
    constants: Vec<Py<PyAny>>,
    /// The derivative at `accum` as an expression of an epilogue function, if the operator of
    /// `backward` cannot be differentiated.
    derivative: Option<&'static str>,
}

#[pymethods]
impl EpilogueFunction {
    fn __repr__(&self) -> String {
        format!("EpilogueFunction({})", self.names.join(", "))
    }
}

/// The functions that an epilogue may call.
#[pyfunction]
pub fn epilogue_functions(py: Python<'_>) -> PyResult<Vec<EpilogueFunction>> {
    let parameter = |parameter: &'static Parameter| {
        (parameter.names().to_vec(), matches!(parameter, Parameter::Value(_)))
    };
    let constant = |constant: &Constant| match *constant {
        Constant::Number(number) => number.into_py_any(py),
        Constant::Truth(truth) => truth.into_py_any(py),
    };
    let of = |function: &'static Function| {
        Ok(EpilogueFunction {
            names: function.names.to_vec(),
            parameters: function.parameters.iter().map(parameter).collect(),
            operation: match function.operation {
                Operation::Comparison(comparison) => comparison.record().symbol,
                _ => function.names[0],
            },
            torch: function.torch,
            torch_keywords: function.torch_keywords.to_vec(),
            aten: function.aten,
            is_reduction: matches!(function.operation, Operation::Fold(_)),
            backward: function.backward,
            reads_argument: function.reads_argument,
            constants: function.constants.iter().map(constant).collect::<PyResult<_>>()?,
            derivative: function.derivative,
        })
    };
    Function::all().map(of).collect()
}
