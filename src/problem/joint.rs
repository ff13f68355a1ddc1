//! The further matrices B of a joint GEMM.

use super::check::{check_device, check_type_and_device};
use super::{Problem, ProblemError};
use crate::epilogue::{ExpressionGraph, Input, Joint, Kind, Value};
use crate::operand::View;

/// The type of an epilogue's inputs that are further matrices B; any type if there are none. Checks
/// that the matrices fit B. `tensor`: the name of an input, and its view unless it is a number.
///
/// # Errors
/// If a matrix differs from B in K, dtype, device, rank or order, if the operands have a batch, or
/// if the epilogue has scales, a second product or a reduction.
pub(super) fn input_of_panels(
    problem: &Problem,
    graph: &ExpressionGraph,
    tensor: impl Fn(usize) -> (&'static str, Option<View>),
) -> Result<Input, ProblemError> {
    let count = graph.panels().count();
    if count == 0 {
        return Ok(Input::Scalar(Kind::Float));
    }
    let Problem::Gemm(gemm) = problem else { return Err(ProblemError::JointOperation) };
    if count >= Joint::MOST {
        return Err(ProblemError::JointCount { count: count + 1, limit: Joint::MOST });
    }
    if gemm.a.rank != 2 || gemm.out.rank != 2 {
        let shape = gemm.a.user_shape().to_vec();
        return Err(ProblemError::JointBatch { shape });
    }
    let what = match (&graph.scaling, graph.factor()) {
        (Some(_), _) => Some("scales of blocks"),
        (_, Some(_)) => Some("product(...)"),
        _ => graph.outputs.iter().any(|output| output.fold.is_some()).then_some("a reduction"),
    };
    if let Some(what) = what {
        return Err(ProblemError::JointEpilogue { what });
    }
    let mut views = vec![("B", gemm.b)];
    for at in graph.panels() {
        let (name, view) = tensor(at);
        views.push((name, view.ok_or(ProblemError::JointNumber { name })?));
    }
    for (name, view) in &views {
        check_panel(name, view, problem)?;
    }
    let unit = views[..views.len() - 1]
        .iter()
        .fold(0, |unit, (_, view)| greatest_divisor(unit, view.shape[2] as u64));
    let align = views.iter().map(|(_, view)| view.alignment(1)).min().unwrap_or(1);
    Ok(Input::Panel { unit: u32::try_from(unit).unwrap_or(1), align: align as u32 })
}

fn check_panel(name: &'static str, view: &View, problem: &Problem) -> Result<(), ProblemError> {
    let b = problem.views()[1];
    check_device(name, view, problem.out())?;
    let is_k_major = view.stride[1] == 1 || view.shape[1] <= 1;
    if view.rank == 2 && view.dtype == b.dtype && view.shape[1] == b.shape[1] && is_k_major {
        return Ok(());
    }
    Err(ProblemError::UnlikeOthers {
        name,
        dtype: view.dtype,
        shape: view.user_shape().to_vec(),
        stride: view.user_stride().to_vec(),
        b_dtype: b.dtype,
        k: b.shape[1],
    })
}

/// The type and the value of an input that is a vector for the columns of one matrix B; None for
/// another input. `tensor`: as for [`input_of_panels`].
///
/// # Errors
/// If the input is no contiguous vector of the matrix's columns, or of another dtype than the
/// vector of the first matrix.
pub(super) fn segment(
    problem: &Problem,
    graph: &ExpressionGraph,
    tensor: impl Fn(usize) -> (&'static str, Option<View>),
    at: usize,
) -> Result<Option<(Input, Value)>, ProblemError> {
    let Some((first, matrix)) = graph.segment(at) else { return Ok(None) };
    let name = tensor(at).0;
    let (Some(view), Some(of_first)) = (tensor(at).1, tensor(first).1) else {
        return Err(ProblemError::SegmentNumber { name });
    };
    check_type_and_device(name, &view, problem.out())?;
    let start = start_of(problem, graph, matrix, |panel| tensor(panel).1);
    let columns = start_of(problem, graph, matrix + 1, |panel| tensor(panel).1) - start;
    let is_contiguous = view.stride[2] == 1 || columns == 1;
    if view.dtype != of_first.dtype || view.user_shape() != [columns] || !is_contiguous {
        return Err(ProblemError::UnlikeColumns {
            name,
            dtype: view.dtype,
            shape: view.user_shape().to_vec(),
            stride: view.user_stride().to_vec(),
            expected: of_first.dtype,
            columns,
        });
    }
    Ok(Some((Input::Segment(view.dtype), Value::Segment { view, start })))
}

/// The first column of the matrix B whose columns an input has a vector for.
pub(super) fn start_of_segment(
    problem: &Problem,
    graph: &ExpressionGraph,
    tensor: impl Fn(usize) -> Option<View>,
    at: usize,
) -> i64 {
    let matrix = graph.segment(at).map_or(0, |(_, matrix)| matrix);
    start_of(problem, graph, matrix, tensor)
}

/// The first column of a matrix B; behind the last matrix, the number of all columns.
fn start_of(
    problem: &Problem,
    graph: &ExpressionGraph,
    matrix: usize,
    tensor: impl Fn(usize) -> Option<View>,
) -> i64 {
    let further = graph.panels().map(|panel| tensor(panel).map_or(0, |view| view.shape[2]));
    std::iter::once(problem.views()[1].shape[2]).chain(further).take(matrix).sum()
}

/// The greatest common divisor; the other number if one is 0.
fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}
