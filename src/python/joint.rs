//! Joint GEMM: B as a list of matrices.

use std::sync::LazyLock;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::epilogue::EpilogueArguments;
use super::parameter::{Parameter, parameter};
use super::trace::TracedEpilogue;
use crate::epilogue::{ExpressionGraph, Joint, intern_name};
use crate::operand::{self, View};
use crate::problem::{OperandValue, Problem, ProblemError};

/// The matrices in a list or a tuple; None for another object, as a list of numbers.
///
/// # Errors
/// If there are fewer than two.
pub fn matrices_of<'py>(b: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
    if !(b.is_instance_of::<PyList>() || b.is_instance_of::<PyTuple>()) {
        return Ok(None);
    }
    let matrices = b.try_iter()?.collect::<PyResult<Vec<_>>>()?;
    match matrices.len() {
        2.. => Ok(Some(matrices)),
        // What is no tensor is refused as such.
        _ if !matrices.iter().any(|matrix| matrix.hasattr("shape").unwrap_or(false)) => Ok(None),
        count => Err(ProblemError::JointCount { count, limit: Joint::MOST }.into()),
    }
}

impl EpilogueArguments {
    /// The epilogue of a joint GEMM: `user`, or none, with all but the first of its matrices B as
    /// further operands.
    pub fn of_matrices(
        py: Python<'_>,
        user: Option<&EpilogueArguments>,
        matrices: &[Bound<'_, PyAny>],
    ) -> PyResult<EpilogueArguments> {
        let plain = ExpressionGraph::of_accumulator();
        let graph = user.map_or(&plain, |user| &user.traced_epilogue.get().graph);
        let (graph, names) = graph.with_panels(matrices.len() - 1);
        let mut operands = Vec::new();
        for (name, object, parameter) in user.into_iter().flat_map(|user| &user.operands) {
            operands.push((*name, object.clone_ref(py), parameter.clone_ref(py)));
        }
        for (name, matrix) in names.iter().zip(&matrices[1..]) {
            let name = intern_name(name);
            operands.push((name, matrix.clone().unbind(), parameter(name, matrix)?));
        }
        let epilogue_fn = user.map_or(py.None(), |user| user.epilogue_fn.clone_ref(py));
        let traced_epilogue = Py::new(py, TracedEpilogue::of(graph))?;
        let prologue = user.and_then(|user| user.prologue.as_ref());
        let prologue = prologue.map(|prologue| prologue.clone_ref(py));
        Ok(EpilogueArguments { epilogue_fn, traced_epilogue, prologue, operands })
    }

    /// The columns of a joint GEMM's further matrices B.
    ///
    /// # Errors
    /// If a number was passed as a matrix.
    pub fn further_columns(&self) -> Result<i64, ProblemError> {
        let graph = &self.traced_epilogue.get().graph;
        let of_operand =
            |at: usize| match self.operands.iter().find(|(name, ..)| *name == graph.inputs[at]) {
                Some((.., Parameter::Tensor(_, view))) => Ok(view.shape[2]),
                _ => Err(ProblemError::JointNumber { name: intern_name(&graph.inputs[at]) }),
            };
        graph.panels().map(of_operand).sum()
    }
}

/// The graph of a product by several matrices B, and its inputs. `further`: all but the first; the
/// problem notes their columns.
pub fn inputs_of_matrices(
    problem: &mut Problem,
    further: &[Bound<'_, PyAny>],
) -> PyResult<(&'static ExpressionGraph, Vec<OperandValue>)> {
    let Problem::Gemm(gemm) = problem else { return Err(ProblemError::JointOperation.into()) };
    let graph = joint_graph(further.len())?;
    let named = graph.inputs.iter().zip(further);
    let views: Vec<View> =
        named.map(|(name, matrix)| operand::read(name, matrix)).collect::<PyResult<_>>()?;
    gemm.further_columns = views.iter().map(|view| view.shape[2]).sum();
    Ok((graph, views.into_iter().map(OperandValue::Tensor).collect()))
}

/// Refuses an epilogue, or a weight of 4 bits, beside a list of matrices B.
pub fn refuse_beside_matrices(has_epilogue: bool, is_packed: bool) -> PyResult<()> {
    let what = match (has_epilogue, is_packed) {
        (true, _) => "an epilogue",
        (_, true) => "a weight of 4 bits",
        _ => return Ok(()),
    };
    Err(PyTypeError::new_err(format!(
        "B is a list of matrices, and {what} is passed; pass one matrix B, or \
         GemmArguments(A, [...], out, accumulator_type, epilogue=...) to get_kernels"
    )))
}

/// The graph of a joint GEMM with so many further matrices B, which stores the sums. One for each
/// number, for the life of the process: `ChoiceKey` holds its address.
fn joint_graph(further: usize) -> PyResult<&'static ExpressionGraph> {
    static GRAPHS: LazyLock<[ExpressionGraph; Joint::MOST - 1]> = LazyLock::new(|| {
        [1, 2, 3].map(|count| ExpressionGraph::of_accumulator().with_panels(count).0)
    });
    let (count, limit) = (further + 1, Joint::MOST);
    let graph = GRAPHS.get(further - 1);
    Ok(graph.ok_or(ProblemError::JointCount { count, limit })?)
}
