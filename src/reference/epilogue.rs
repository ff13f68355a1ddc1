//! Epilogues on the CPU: evaluates the graph that generates the GPU functor, node by node over a
//! region.
//!
//! Each operation is computed in float64 and rounded to its type on a GPU: float32, float64 with
//! a float64 accumulator, or wrapping int32. For `+ - * /` and square roots this equals float32
//! arithmetic; for other functions it is the float32 nearest to the exact result.

use std::ops::Range;

use super::ReferenceError;
use super::element::{Element, with_element};
use super::scratch::{Region, ScratchMatrix, load_side_by_side, room};
use crate::epilogue::{
    BinaryRecord, BoundEpilogue, ExpressionGraph, Fold, FoldRecord, Id, Kind, Node, RowReduction,
    Value, compute_type,
};
use crate::operand::{DType, View};

/// Buffers that are reused from region to region.
#[derive(Default)]
pub struct EpilogueScratch {
    /// The values of each node, row-major.
    nodes: Vec<Vec<f64>>,
    operand: ScratchMatrix,
    result: ScratchMatrix,
}

impl EpilogueScratch {
    /// The values of a node, row-major.
    pub fn values(&self, node: Id) -> &[f64] {
        &self.nodes[node as usize]
    }

    /// Stores a node's values to a region of an output.
    ///
    /// # Safety
    /// As for [`ScratchMatrix::store`].
    pub unsafe fn store(
        &mut self,
        node: Id,
        view: &View,
        region: &Region,
        [rows, columns]: [usize; 2],
        wrap: bool,
    ) {
        self.result.clear(rows, columns);
        self.result.values.copy_from_slice(&self.nodes[node as usize]);
        // SAFETY: guaranteed by the caller.
        unsafe { self.result.store(view, region, wrap) };
    }
}

/// The partials of one region: for each reduced output one row, one column or one element.
pub type Partial = Vec<ScratchMatrix>;

/// Writes sums to a region of the output, through the epilogue if there is one. The second sums are
/// those of a dual GEMM's second product; other epilogues do not read them. Returns the
/// partials of reduced outputs, which [`store_reductions`] combines. `wrap`: the sums are integers;
/// store their low 32 bits.
///
/// # Safety
/// As for [`ScratchMatrix::store`], for the output and for the epilogue's tensors.
pub unsafe fn store_region(
    [sums, products]: [&ScratchMatrix; 2],
    accumulator: DType,
    epilogue: Option<&BoundEpilogue>,
    out: &View,
    region: &Region,
    wrap: bool,
    scratch: &mut EpilogueScratch,
) -> Partial {
    let Some(bound) = epilogue else {
        // SAFETY: guaranteed by the caller.
        unsafe { sums.store(out, region, wrap) };
        return Partial::new();
    };
    let graph = &bound.epilogue.graph;
    let kinds = bound.epilogue.kinds(accumulator);
    let double = compute_type(accumulator) == DType::F64;
    let (rows, columns) = (sums.rows, sums.columns);
    let graph_of = Graph { graph, kinds: &kinds, double, inputs: &bound.inputs };
    // SAFETY: guaranteed by the caller; inputs have the output's shape.
    unsafe { evaluate(&graph_of, [sums, products], region, scratch) };
    let mut partial = Partial::new();
    // An output may alias an input: all inputs have been read by now.
    for (at, (output, view)) in graph.outputs.iter().zip(&bound.outputs).enumerate() {
        if let Some((fold, _)) = output.fold {
            let values = &scratch.nodes[output.node as usize];
            partial.push(reduce_region(fold, bound.epilogue.reduced[at], values, rows, columns));
            continue;
        }
        let wrap = kinds[output.node as usize] != Kind::Float;
        let view = view.as_ref().unwrap_or(out);
        // SAFETY: guaranteed by the caller; every output has the shape of the main output.
        unsafe { scratch.store(output.node, view, region, [rows, columns], wrap) };
    }
    partial
}

/// A graph with its operands.
#[derive(Clone, Copy)]
pub struct Graph<'a> {
    pub graph: &'a ExpressionGraph,
    pub kinds: &'a [Kind],
    /// Whether floating-point values are float64.
    pub double: bool,
    pub inputs: &'a [Value],
}

/// Computes the nodes of a graph over a region. `sums`: the accumulators, or the elements of A of a
/// prologue, whose region has all of K.
///
/// # Safety
/// As for [`ScratchMatrix::load`], for the inputs and the region.
pub unsafe fn evaluate(
    of: &Graph<'_>,
    [sums, products]: [&ScratchMatrix; 2],
    region: &Region,
    scratch: &mut EpilogueScratch,
) {
    let Graph { graph, kinds, double, inputs } = *of;
    let round = |kind: Kind, value: f64| round_to_kind(kind, double, value);
    let (rows, columns) = (sums.rows, sums.columns);
    let used = graph.used();
    scratch.nodes.resize_with(graph.nodes.len(), Vec::new);
    for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| used[*at]) {
        let kind = kinds[at];
        let mut values = std::mem::take(&mut scratch.nodes[at]);
        values.clear();
        let values_of = |id: Id| &scratch.nodes[id as usize];
        let as_common =
            |id: Id, common: Kind| values_of(id).iter().map(move |value| round(common, *value));
        match *node {
            Node::Accumulator | Node::ScaledAccumulator | Node::Activation => {
                values.extend(elements(sums, rows, columns).map(|value| round(kind, value)))
            }
            // No output depends on the node.
            Node::Panel(_) | Node::Segment { .. } => {}
            Node::Product(_) => {
                values.extend(elements(products, rows, columns).map(|value| round(kind, value)))
            }
            Node::Input(input) => match &inputs[input as usize] {
                // `fuse` refuses an epilogue that reads the elements of a factor.
                Value::Factor(_) | Value::Panel(_) => values.resize(rows * columns, 0.0),
                Value::Scalar(number) => values.resize(rows * columns, round(kind, *number)),
                Value::Tensor(view) => {
                    // SAFETY: guaranteed by the caller; the input has the output's shape.
                    unsafe { scratch.operand.load(view, region) };
                    values.extend(
                        elements(&scratch.operand, rows, columns).map(|value| round(kind, value)),
                    );
                }
                Value::Segment { .. } => {
                    let further = graph.segments(input as usize);
                    let of_list = std::iter::once(input as usize).chain(further);
                    let segments: Vec<&View> = of_list
                        .filter_map(|at| match &inputs[at] {
                            Value::Segment { view, .. } => Some(view),
                            _ => None,
                        })
                        .collect();
                    let row = Region { rows: 0..1, ..region.clone() };
                    // SAFETY: guaranteed by the caller; together, the vectors have the output's
                    // columns.
                    unsafe {
                        load_side_by_side(
                            &segments,
                            &row,
                            &mut scratch.operand,
                            &mut scratch.result,
                        )
                    };
                    let vector = scratch.operand.values.iter().map(|value| round(kind, *value));
                    (0..rows).for_each(|_| values.extend(vector.clone()));
                }
            },
            Node::Integer(value) => values.resize(rows * columns, round(kind, value as f64)),
            Node::Float(bits) => values.resize(rows * columns, round(kind, f64::from_bits(bits))),
            Node::Unary(operation, value) => {
                let evaluate = operation.record().evaluate;
                values.extend(as_common(value, kind).map(|value| round(kind, evaluate(value))));
            }
            Node::Binary(operation, left, right) => {
                let pairs = as_common(left, kind).zip(as_common(right, kind));
                let BinaryRecord { of_floats, of_integers, .. } = *operation.record();
                values.extend(pairs.map(|(x, y)| match kind {
                    Kind::Integer => {
                        let value = of_integers(x as i64, y as i64);
                        f64::from(value.unwrap_or_default() as i32)
                    }
                    _ => round(kind, of_floats(x, y)),
                }));
            }
            Node::Compare(comparison, left, right) => {
                let common = kinds[left as usize].max(kinds[right as usize]);
                let pairs = as_common(left, common).zip(as_common(right, common));
                let holds = comparison.record().holds;
                values.extend(pairs.map(|(left, right)| f64::from(u8::from(holds(left, right)))));
            }
            Node::Select { condition, yes, no } => {
                let choices = values_of(condition).iter().zip(values_of(yes)).zip(values_of(no));
                values.extend(choices.map(|((condition, yes), no)| {
                    round(kind, if *condition != 0.0 { *yes } else { *no })
                }));
            }
            Node::Reduce(reduction, value) => {
                let FoldRecord { identity, combine, .. } = *reduction.fold().record();
                for row in values_of(value).chunks_exact(columns) {
                    let folded = row.iter().fold(identity, |x, y| combine(x, round(kind, *y)));
                    let folded = match reduction {
                        RowReduction::Mean => folded / columns as f64,
                        _ => folded,
                    };
                    values.extend(std::iter::repeat_n(round(kind, folded), columns));
                }
            }
            Node::Cast(dtype, value) => {
                values.extend(values_of(value).iter().map(|value| {
                    round(kind, with_element!(dtype, T => T::encode(*value).decode()))
                }));
            }
        }
        scratch.nodes[at] = values;
    }
}

/// Reduces a region's values along m, along n or along both.
fn reduce_region(
    fold: Fold,
    [_, along_m, along_n]: [bool; 3],
    values: &[f64],
    rows: usize,
    columns: usize,
) -> ScratchMatrix {
    let mut matrix = ScratchMatrix::default();
    matrix.clear(if along_m { 1 } else { rows }, if along_n { 1 } else { columns });
    matrix.values.fill(fold.record().identity);
    for (index, value) in values.iter().enumerate() {
        let (row, column) = (index / columns, index % columns);
        let at = matrix.index(if along_m { 0 } else { row }, if along_n { 0 } else { column });
        matrix.values[at] = (fold.record().combine)(matrix.values[at], *value);
    }
    matrix
}

/// Buffers of the size of a reduced output: its totals, and one of its matrices.
pub struct Totals {
    values: Vec<f64>,
    matrix: ScratchMatrix,
}

/// A reduced output: how it is combined, its view, the dimensions that it combines, and whether its
/// values are integers.
type Reduction<'a> = (Fold, &'a View, [bool; 3], bool);

fn reductions(bound: &BoundEpilogue, accumulator: DType) -> impl Iterator<Item = Reduction<'_>> {
    let kinds = bound.epilogue.kinds(accumulator);
    let outputs =
        bound.epilogue.graph.outputs.iter().zip(&bound.outputs).zip(&bound.epilogue.reduced);
    outputs.filter_map(move |((output, view), along)| {
        let ((fold, _), view) = (output.fold.as_ref()?, view.as_ref()?);
        Some((*fold, view, *along, kinds[output.node as usize] != Kind::Float))
    })
}

/// The buffers of an epilogue's reductions, for [`store_reductions`].
///
/// # Errors
/// If the host lacks the memory: the outputs' shapes are the user's.
pub fn totals(
    epilogue: Option<&BoundEpilogue>,
    accumulator: DType,
) -> Result<Vec<Totals>, ReferenceError> {
    let reductions = epilogue.into_iter().flat_map(|bound| reductions(bound, accumulator));
    let buffers = reductions.map(|(_, view, ..)| {
        let [batches, m, n] = view.shape.map(|extent| extent as usize);
        Ok(Totals { values: room(batches * m * n)?, matrix: ScratchMatrix::with_room(m * n)? })
    });
    buffers.collect()
}

/// Writes the reduced outputs. Combines the partials in the order of the regions.
///
/// # Safety
/// As for [`ScratchMatrix::store`], for the epilogue's outputs.
pub unsafe fn store_reductions(
    epilogue: Option<&BoundEpilogue>,
    accumulator: DType,
    partials: &[(Region, Partial)],
    totals: Vec<Totals>,
) {
    let Some(bound) = epilogue else { return };
    let reductions = reductions(bound, accumulator).zip(totals).enumerate();
    for (at, ((fold, view, [along_batch, along_m, along_n], wrap), totals)) in reductions {
        let Totals { mut values, mut matrix } = totals;
        let [batches, m, n] = view.shape.map(|extent| extent as usize);
        values.resize(batches * m * n, fold.record().identity);
        for (region, partial) in partials {
            let start =
                |along: bool, range: &Range<i64>| if along { 0 } else { range.start as usize };
            let batch = if along_batch { 0 } else { region.batch as usize };
            let (row, column) = (start(along_m, &region.rows), start(along_n, &region.columns));
            let partial = &partial[at];
            for (index, value) in partial.values.iter().enumerate() {
                let (down, across) = (index / partial.columns, index % partial.columns);
                let total = &mut values[(batch * m + row + down) * n + column + across];
                *total = (fold.record().combine)(*total, *value);
            }
        }
        for batch in 0..batches {
            matrix.clear(m, n);
            matrix.values.copy_from_slice(&values[batch * m * n..][..m * n]);
            let region =
                Region { batch: batch as i64, rows: 0..view.shape[1], columns: 0..view.shape[2] };
            // SAFETY: guaranteed by the caller; the region covers a matrix of the view.
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

/// The value converted to a kind.
fn round_to_kind(kind: Kind, double: bool, value: f64) -> f64 {
    match kind {
        Kind::Float if double => value,
        Kind::Float => f64::from(value as f32),
        Kind::Integer => f64::from(value as i64 as i32),
        Kind::Truth => f64::from(u8::from(value != 0.0)),
    }
}
