//! Joint GEMM: B as a list of matrices.

use std::collections::BTreeMap;
use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::epilogue::EpilogueArguments;
use super::parameter::{Parameter, check_operands, members_of, operand_value, parameter as read};
use super::trace::TracedEpilogue;
use crate::epilogue::{ExpressionGraph, Joint, intern_name};
use crate::operand;
use crate::problem::{OperandValue, Problem, ProblemError};

/// The matrices in a list or a tuple; None for another object, as a list of numbers.
///
/// # Errors
/// If there are fewer than two.
pub fn matrices_of<'py>(b: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
    match members_of(b)? {
        // What is no tensor is refused as such.
        Some(matrices) if !matrices.iter().any(is_array) => Ok(None),
        Some(matrices) if matrices.len() < 2 => {
            let (count, limit) = (matrices.len(), Joint::MOST);
            Err(ProblemError::JointCount { count, limit }.into())
        }
        matrices => Ok(matrices),
    }
}

fn is_array(object: &Bound<'_, PyAny>) -> bool {
    ["shape", "__dlpack__"].iter().any(|name| object.hasattr(*name).unwrap_or(false))
}

/// Checks that a list of vectors has one for each matrix.
fn check_count(name: &str, count: usize, matrices: usize) -> Result<(), ProblemError> {
    match count == matrices {
        true => Ok(()),
        false => Err(ProblemError::ListCount { name: intern_name(name), count, matrices }),
    }
}

impl EpilogueArguments {
    /// The epilogue of a joint GEMM: `user`, or none, with all but the first of its matrices B, and
    /// all but the first vector of each list, as further operands.
    pub fn of_matrices(
        py: Python<'_>,
        user: Option<&EpilogueArguments>,
        matrices: &[Bound<'_, PyAny>],
    ) -> PyResult<EpilogueArguments> {
        let plain = ExpressionGraph::of_accumulator();
        let graph = user.map_or(&plain, |user| &user.traced_epilogue.get().graph);
        let (mut operands, mut lists, mut further) = (Vec::new(), Vec::new(), Vec::new());
        further.extend_from_slice(&matrices[1..]);
        for (name, object, parameter) in user.into_iter().flat_map(|user| &user.operands) {
            let input = graph.inputs.iter().position(|input| input == name);
            let members = match parameter {
                Parameter::List(_) => members_of(object.bind(py))?,
                _ => None,
            };
            let (Some(members), Some(input)) = (members, input) else {
                operands.push((*name, object.clone_ref(py), parameter.clone_ref(py)));
                continue;
            };
            check_count(name, members.len(), matrices.len())?;
            lists.push(input);
            further.extend_from_slice(&members[1..]);
            let first = read(name, &members[0])?;
            operands.push((*name, members[0].clone().unbind(), first));
        }
        let (graph, names) = graph.with_panels(matrices.len() - 1, &lists);
        for (name, object) in names.iter().zip(further) {
            let name = intern_name(name);
            let parameter = read(name, &object)?;
            operands.push((name, object.unbind(), parameter));
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

/// The graph of a product by several matrices B and its inputs. `user`: the epilogue's graph, or
/// none. `operands`: its inputs, among which lists have a vector for each matrix. The problem notes
/// the columns of the further matrices.
pub fn inputs_of_matrices(
    problem: &mut Problem,
    matrices: &[Bound<'_, PyAny>],
    user: Option<&ExpressionGraph>,
    operands: &Bound<'_, PyTuple>,
) -> PyResult<(&'static ExpressionGraph, Vec<OperandValue>)> {
    let Problem::Gemm(gemm) = problem else { return Err(ProblemError::JointOperation.into()) };
    let names = user.map_or(&[][..], |user| &user.inputs[..]);
    check_operands(names, operands.len())?;
    let (mut inputs, mut lists, mut vectors) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (name, object)) in names.iter().zip(operands).enumerate() {
        let Some(members) = members_of(&object)? else {
            inputs.push(operand_value(name, &object)?);
            continue;
        };
        check_count(name, members.len(), matrices.len())?;
        lists.push(at);
        inputs.push(operand_value(name, &members[0])?);
        vectors.extend_from_slice(&members[1..]);
    }
    let graph = joint_graph(user, matrices.len(), lists)?;
    let further = matrices[1..].iter().chain(&vectors);
    for (name, object) in graph.inputs[names.len()..].iter().zip(further) {
        inputs.push(OperandValue::Tensor(operand::read(name, object)?));
    }
    let panels = &inputs[names.len()..][..matrices.len() - 1];
    gemm.further_columns =
        panels.iter().filter_map(OperandValue::view).map(|view| view.shape[2]).sum();
    Ok((graph, inputs))
}

/// The graph of a joint GEMM: `user`, or the sums, with further matrices B and the vectors of its
/// lists. One for each combination, for the life of the process: `ChoiceKey` holds its address.
fn joint_graph(
    user: Option<&ExpressionGraph>,
    count: usize,
    lists: Vec<usize>,
) -> Result<&'static ExpressionGraph, ProblemError> {
    type Key = (usize, usize, Vec<usize>);
    static GRAPHS: Mutex<BTreeMap<Key, &'static ExpressionGraph>> = Mutex::new(BTreeMap::new());
    if count > Joint::MOST {
        return Err(ProblemError::JointCount { count, limit: Joint::MOST });
    }
    let address = user.map_or(0, |user| std::ptr::from_ref(user).addr());
    let mut graphs = GRAPHS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    Ok(graphs.entry((address, count, lists)).or_insert_with_key(|(_, count, lists)| {
        let plain = ExpressionGraph::of_accumulator();
        Box::leak(Box::new(user.unwrap_or(&plain).with_panels(count - 1, lists).0))
    }))
}
