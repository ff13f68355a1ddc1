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
