//! Epilogues behind the reference's sums: the same graph that becomes a GPU's functor, node by node over a matrix.
//!
//! Each operation is computed in float64 and rounded to the type that it has on a GPU: float32, float64 behind a float64
//! accumulator, int32 that wraps. For `+ - * /` and square roots that is float32 arithmetic to the bit; for the others it
//! is the float32 closest to what is right.

use std::ops::Range;

use super::element::{Element, with_element};
use super::scratch::{Region, ScratchMatrix};
use crate::epilogue::{
    Binary, BoundEpilogue, Comparison, Fold, Id, Kind, Node, Unary, Value, compute_type,
};
use crate::operand::{DType, View};

/// Memory for values, kept from one matrix to the next.
#[derive(Default)]
pub struct EpilogueScratch {
    /// Of each node, row-major.
    nodes: Vec<Vec<f64>>,
    operand: ScratchMatrix,
    result: ScratchMatrix,
}

/// What one region contributes to the outputs that are reduced: for each of them a matrix with one row, one column, or one element.
pub type Partial = Vec<ScratchMatrix>;

/// Writes sums to a region of the output, by way of the epilogue if there is one. `wrap`: they are integers, of which an int32
/// holds the low bits. Outputs that are reduced are left to [`finish`], which takes what is returned for all regions.
///
/// # Safety
/// As for [`ScratchMatrix::store`], for the output as well as for the epilogue's tensors.
pub unsafe fn store_region(
    sums: &ScratchMatrix,
    accumulator: DType,
    epilogue: Option<&BoundEpilogue>,
    out: &View,
    region: &Region,
    wrap: bool,
    scratch: &mut EpilogueScratch,
) -> Partial {
    let Some(bound) = epilogue else {
        // SAFETY: the caller's.
        unsafe { sums.store(out, region, wrap) };
        return Partial::new();
    };
    let graph = &bound.epilogue.graph;
    let kinds = bound.epilogue.kinds(accumulator);
    let double = compute_type(accumulator) == DType::F64;
    let round = |kind: Kind, value: f64| round_to_kind(kind, double, value);
    let (rows, columns) = (sums.rows, sums.columns);
    let used = graph.used();
    scratch.nodes.resize_with(graph.nodes.len(), Vec::new);
    for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| used[*at]) {
        let kind = kinds[at];
        let mut values = std::mem::take(&mut scratch.nodes[at]);
        values.clear();
        let of = |id: Id| &scratch.nodes[id as usize];
        let as_common =
            |id: Id, common: Kind| of(id).iter().map(move |value| round(common, *value));
        match *node {
            Node::Accumulator => {
                values.extend(elements(sums, rows, columns).map(|value| round(kind, value)))
            }
            Node::Input(input) => match &bound.inputs[input as usize] {
                Value::Scalar(number) => values.resize(rows * columns, round(kind, *number)),
                Value::Tensor(view) => {
                    // SAFETY: the caller's; an input has the output's shape, so the region is within it.
                    unsafe { scratch.operand.load(view, region) };
                    values.extend(
                        elements(&scratch.operand, rows, columns).map(|value| round(kind, value)),
                    );
                }
            },
            Node::Integer(value) => values.resize(rows * columns, round(kind, value as f64)),
            Node::Float(bits) => values.resize(rows * columns, round(kind, f64::from_bits(bits))),
            Node::Unary(operation, value) => {
                values.extend(
                    as_common(value, kind).map(|value| round(kind, unary(operation, value))),
                );
            }
            Node::Binary(operation, left, right) => {
                let pairs = as_common(left, kind).zip(as_common(right, kind));
                values.extend(
                    pairs.map(|(left, right)| binary(operation, kind, double, left, right)),
                );
            }
            Node::Compare(comparison, left, right) => {
                let common = kinds[left as usize].max(kinds[right as usize]);
                let pairs = as_common(left, common).zip(as_common(right, common));
                values
                    .extend(pairs.map(|(left, right)| {
                        f64::from(u8::from(compare(comparison, left, right)))
                    }));
            }
            Node::Select { condition, yes, no } => {
                let choices = of(condition).iter().zip(of(yes)).zip(of(no));
                values.extend(choices.map(|((condition, yes), no)| {
                    round(kind, if *condition != 0.0 { *yes } else { *no })
                }));
            }
            Node::Cast(dtype, value) => {
                values.extend(of(value).iter().map(|value| {
                    round(kind, with_element!(dtype, T => T::encode(*value).decode()))
                }));
            }
        }
        scratch.nodes[at] = values;
    }
    let mut partial = Partial::new();
    // An output may be the same tensor as an input, but all inputs have been read by now.
    for (at, (output, view)) in graph.outputs.iter().zip(&bound.outputs).enumerate() {
        if let Some((fold, _)) = output.fold {
            let values = &scratch.nodes[output.node as usize];
            partial.push(reduce_region(fold, bound.epilogue.reduced[at], values, rows, columns));
            continue;
        }
        let result = &mut scratch.result;
        result.clear(rows, columns);
        result.values.copy_from_slice(&scratch.nodes[output.node as usize]);
        // SAFETY: the caller's; every output has the shape of the main one.
        unsafe {
            result.store(
                view.as_ref().unwrap_or(out),
                region,
                kinds[output.node as usize] != Kind::Float,
            )
        };
    }
    partial
}

/// A region's values reduced along its rows' or its columns' direction, or both.
fn reduce_region(
    fold: Fold,
    [_, along_m, along_n]: [bool; 3],
    values: &[f64],
    rows: usize,
    columns: usize,
) -> ScratchMatrix {
    let mut matrix = ScratchMatrix::default();
    matrix.clear(if along_m { 1 } else { rows }, if along_n { 1 } else { columns });
    matrix.values.fill(identity(fold));
    for (index, value) in values.iter().enumerate() {
        let (row, column) = (index / columns, index % columns);
        let at = matrix.index(if along_m { 0 } else { row }, if along_n { 0 } else { column });
        matrix.values[at] = combine(fold, matrix.values[at], *value);
    }
    matrix
}

fn identity(fold: Fold) -> f64 {
    match fold {
        Fold::Sum => 0.0,
        Fold::Maximum => f64::NEG_INFINITY,
    }
}

/// In float64, where sums of integers are exact as long as memory holds their terms.
fn combine(fold: Fold, x: f64, y: f64) -> f64 {
    match fold {
        Fold::Sum => x + y,
        Fold::Maximum => maximum(x, y),
    }
}

/// Writes the outputs that are reduced, from what all regions of the output contributed, in their order.
///
/// # Safety
/// As for [`ScratchMatrix::store`], for the epilogue's outputs.
pub unsafe fn store_reductions(
    epilogue: Option<&BoundEpilogue>,
    accumulator: DType,
    partials: &[(Region, Partial)],
) {
    let Some(bound) = epilogue else { return };
    let kinds = bound.epilogue.kinds(accumulator);
    let outputs =
        bound.epilogue.graph.outputs.iter().zip(&bound.outputs).zip(&bound.epilogue.reduced);
    let reductions = outputs.filter_map(|((output, view), along)| {
        let ((fold, _), view) = (output.fold.as_ref()?, view.as_ref()?);
        Some((*fold, view, *along, kinds[output.node as usize] != Kind::Float))
    });
    for (at, (fold, view, [along_batch, along_m, along_n], wrap)) in reductions.enumerate() {
        let [batches, m, n] = view.shape.map(|extent| extent as usize);
        let mut totals = vec![identity(fold); batches * m * n];
        for (region, partial) in partials {
            let start =
                |along: bool, range: &Range<i64>| if along { 0 } else { range.start as usize };
            let batch = if along_batch { 0 } else { region.batch as usize };
            let (row, column) = (start(along_m, &region.rows), start(along_n, &region.columns));
            let matrix = &partial[at];
            for (index, value) in matrix.values.iter().enumerate() {
                let (down, across) = (index / matrix.columns, index % matrix.columns);
                let total = &mut totals[(batch * m + row + down) * n + column + across];
                *total = combine(fold, *total, *value);
            }
        }
        let mut matrix = ScratchMatrix::default();
        for batch in 0..batches {
            matrix.clear(m, n);
            matrix.values.copy_from_slice(&totals[batch * m * n..][..m * n]);
            let region =
                Region { batch: batch as i64, rows: 0..view.shape[1], columns: 0..view.shape[2] };
            // SAFETY: the caller's; the region is all of a matrix of the view.
            unsafe { matrix.store(view, &region, wrap) };
        }
    }
}

/// The elements of a matrix, row by row.
fn elements(matrix: &ScratchMatrix, rows: usize, columns: usize) -> impl Iterator<Item = f64> + '_ {
    (0..rows).flat_map(move |row| {
        (0..columns).map(move |column| matrix.values[matrix.index(row, column)])
    })
}

/// A value as one of this kind.
fn round_to_kind(kind: Kind, double: bool, value: f64) -> f64 {
    match kind {
        Kind::Float if double => value,
        Kind::Float => f64::from(value as f32),
        Kind::Integer => f64::from(value as i64 as i32),
        Kind::Truth => f64::from(u8::from(value != 0.0)),
    }
}

fn unary(operation: Unary, x: f64) -> f64 {
    match operation {
        Unary::Negate => -x,
        Unary::Absolute => x.abs(),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Tanh => x.tanh(),
        Unary::Silu => x / (1.0 + (-x).exp()),
        // Below -40 the second factor is 0, and minus infinity would make no number of that.
        Unary::Gelu => 0.5 * maximum(x, -40.0) * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        Unary::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Unary::Hardswish => x * maximum(0.0, minimum(6.0, x + 3.0)) / 6.0,
    }
}

fn binary(operation: Binary, kind: Kind, double: bool, x: f64, y: f64) -> f64 {
    if kind == Kind::Integer {
        let (x, y) = (x as i32, y as i32);
        return f64::from(match operation {
            Binary::Add => x.wrapping_add(y),
            Binary::Subtract => x.wrapping_sub(y),
            Binary::Multiply => x.wrapping_mul(y),
            Binary::Maximum => x.max(y),
            Binary::Minimum => x.min(y),
            // A quotient is a float.
            Binary::Divide => 0,
        });
    }
    // Rounding a float64 result of float32 operands gives what float32 arithmetic would: it has more than twice the bits.
    let value = match operation {
        Binary::Add => x + y,
        Binary::Subtract => x - y,
        Binary::Multiply => x * y,
        Binary::Divide => x / y,
        Binary::Maximum => maximum(x, y),
        Binary::Minimum => minimum(x, y),
    };
    round_to_kind(kind, double, value)
}

/// NaN where either is, as torch has it; Rust's `f64::max` drops NaN.
fn maximum(x: f64, y: f64) -> f64 {
    if x > y || x.is_nan() { x } else { y }
}

fn minimum(x: f64, y: f64) -> f64 {
    if x < y || x.is_nan() { x } else { y }
}

fn compare(comparison: Comparison, x: f64, y: f64) -> bool {
    match comparison {
        Comparison::Less => x < y,
        Comparison::LessEqual => x <= y,
        Comparison::Greater => x > y,
        Comparison::GreaterEqual => x >= y,
        Comparison::Equal => x == y,
        Comparison::NotEqual => x != y,
    }
}
