//! The row kernel: computes the prologue of a product in a launch in front of it, one CTA for each
//! row of A, and stores the activations in workspace.

use super::cost::chips::Target;
use super::fields::assert_fields;
use crate::epilogue::Prologue;
use crate::problem::GemmProblem;

/// `RowsParams` of `kernels/rows.cuh`, byte for byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowsParams {
    /// The address of the activations.
    pub activations: u64,
    /// Stride of their rows, in elements.
    pitch: i64,
    /// Rows of one matrix of the batch.
    rows: i32,
    depth: i32,
    /// CTAs of a row.
    chunks: i32,
    padding: i32,
}

assert_fields!(RowsParams, 32, pitch: 8, depth: 20);

/// The launch of a row kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    pub grid: u32,
    /// Threads of a CTA.
    pub block: u32,
    pub params: RowsParams,
}

impl Rows {
    /// Most threads of a CTA (`THREADS` of `kernels/rows.cuh`).
    pub const THREADS: u32 = 512;

    /// The launch for a product of activations ([`GemmProblem::of_activations`]), whose A has the
    /// address of the workspace.
    pub fn new(product: &GemmProblem, prologue: &Prologue, target: Target) -> Rows {
        let [batch, rows, depth] = product.a.shape;
        let vectors = (depth + prologue.width() - 1) / prologue.width();
        // One vector a thread takes the least time for a row. With more rows than multiprocessors,
        // small CTAs with more loads in flight a thread have a higher throughput.
        let are_few = batch * rows <= i64::from(target.multiprocessors);
        let vectors_of_thread = if are_few { 1 } else { prologue.kept_vectors() };
        let threads = (vectors + vectors_of_thread - 1) / vectors_of_thread;
        let block = Rows::THREADS.min((threads as u64).next_multiple_of(32) as u32);
        // Without a reduction, several CTAs share a row if rows alone leave multiprocessors idle.
        let is_split = prologue.passes() == 0 && are_few;
        let chunks = if is_split { vectors.div_euclid(block.into()).max(1) } else { 1 };
        let pitch = (depth as u64).next_multiple_of(GemmProblem::PITCH as u64) as i64;
        let params = RowsParams {
            activations: product.a.data,
            pitch,
            rows: rows as i32,
            depth: depth as i32,
            chunks: chunks as i32,
            padding: 0,
        };
        Rows { grid: (batch * rows * chunks) as u32, block, params }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::{ACTIVATIONS, Node, Output};
    use crate::epilogue::{ExpressionGraph, RowReduction, TensorType};
    use crate::operand::{DType, View};

    /// The launch for A (rows, depth) of bfloat16, with or without a reduction.
    fn launch(rows: i64, depth: i64, reduces: bool) -> Rows {
        let mut graph = ExpressionGraph::default();
        let mut node = graph.add(Node::Activation);
        if reduces {
            node = graph.add(Node::Reduce(RowReduction::Sum, node));
        }
        graph.outputs.push(Output { name: ACTIVATIONS.to_owned(), node, fold: None });
        let a = View { dtype: DType::Bf16, shape: [1, rows, depth], ..View::UNREAD };
        let prologue = Prologue {
            graph,
            a: TensorType::of(&a),
            dtype: DType::Bf16,
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        let product = GemmProblem { a, ..GemmProblem::UNREAD }.of_activations(&prologue);
        Rows::new(&product, &prologue, Target::typical(90))
    }

    #[test]
    fn threads_and_ctas_follow_rows_and_k() {
        let shape = |rows: &Rows| (rows.grid, rows.block, rows.params.chunks);
        // One vector of 8 elements a thread, in whole warps, up to 512 threads.
        assert_eq!(shape(&launch(3, 1001, true)), (3, 128, 1));
        assert_eq!(shape(&launch(3, 20000, true)), (3, 512, 1));
        // More rows than multiprocessors: four vectors a thread.
        assert_eq!(shape(&launch(200, 4096, true)), (200, 128, 1));
        // Without a reduction, several CTAs a row.
        assert_eq!(shape(&launch(3, 14336, false)), (9, 512, 3));
        assert_eq!(shape(&launch(200, 14336, false)), (200, 448, 1));
        assert_eq!(launch(3, 1001, true).params.pitch, 1008);
    }
}
