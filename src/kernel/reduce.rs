//! Reductions of an epilogue's outputs. A program folds what a warp has in hand and stores it, in workspace, as a partial result in
//! a place of its own; a second launch folds the partial results, in their order. So the same operands give the same bits.

use crate::epilogue::{BoundEpilogue, Reduction};
use crate::problem::GemmProblem;

/// What a program stores of a reduction, in its own frame, whose output is row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partials {
    /// Rows and columns that its tiles cover, those outside the output included.
    pub covered: [u64; 2],
    /// Partial results of a column, and of a row.
    pub count: [u64; 2],
}

/// One reduction's second step: `ReduceOperand` of `kernels/reduce.cuh`, byte for byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReduceOperand {
    parts: u64,
    out: u64,
    /// Along batch, and along what stays of rows and columns; in elements.
    out_stride: [i64; 2],
    /// Elements from one row of partial results to the next, and such rows that become one.
    pitch: i64,
    count: i64,
    /// Elements of such a row that count.
    extent: i32,
    /// Whether they become one, too.
    whole: i32,
    batches: i32,
    ctas: i32,
}

/// All reductions of one launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    pub operands: Vec<ReduceOperand>,
    /// Where the program puts the partial results of each: an `EpilogueTensor` in words.
    pub partial: Vec<[u64; 4]>,
}

impl Reduce {
    pub const THREADS: u32 = 256;
    /// Results of a CTA, where rows of partial results do not become one.
    const WIDTH: i64 = 32;

    /// Bytes of workspace.
    pub fn bytes(reductions: &[Reduction], parts: &Partials, batch: i64) -> u64 {
        reductions.iter().map(|reduction| partial_bytes(reduction, parts, batch)).sum()
    }

    /// The second step for a problem in the program's frame (`transposed`: which is not the user's), with partial results at this
    /// address.
    pub fn new(
        reductions: &[Reduction],
        bound: &BoundEpilogue,
        problem: &GemmProblem,
        parts: &Partials,
        transposed: bool,
        workspace: u64,
    ) -> Reduce {
        let mut reduce = Reduce { operands: Vec::new(), partial: Vec::new() };
        let mut address = workspace;
        for reduction in reductions {
            // `fuse` gives every reduction a view.
            let Some(out) = bound.outputs[reduction.output] else { continue };
            let [_, along_m, along_n] = reduction.along;
            let at = usize::from(along_n);
            let (pitch, count) = (parts.covered[1 - at] as i64, parts.count[at] as i64);
            let [whole_batch, whole] = [reduction.along[0], along_m && along_n];
            let (extent, kept) = if along_n { (problem.m(), 1) } else { (problem.n(), 2) };
            let kept = if transposed { 3 - kept } else { kept };
            let batches = if whole_batch { 1 } else { problem.batch() };
            let ctas_of_batch = if whole { 1 } else { (extent + Self::WIDTH - 1) / Self::WIDTH };
            reduce.operands.push(ReduceOperand {
                parts: address,
                out: out.data,
                out_stride: [out.stride[0], if whole { 0 } else { out.stride[kept] }],
                pitch,
                count: if whole_batch { count * problem.batch() } else { count },
                extent: extent as i32,
                whole: whole.into(),
                batches: batches as i32,
                // No more than tiles of the product, which fit.
                ctas: (batches * ctas_of_batch) as i32,
            });
            let batch_step = (pitch * count) as u64;
            let [step_m, step_n] = if along_n { [1, pitch as u64] } else { [pitch as u64, 1] };
            reduce.partial.push([address, batch_step, step_m, step_n]);
            address += partial_bytes(reduction, parts, problem.batch());
        }
        reduce
    }

    /// CTAs.
    pub fn grid(&self) -> u32 {
        self.operands.iter().map(|operand| operand.ctas as u32).sum()
    }
}

fn partial_bytes(reduction: &Reduction, parts: &Partials, batch: i64) -> u64 {
    let at = usize::from(reduction.along[2]);
    let elements = batch as u64 * parts.count[at] * parts.covered[1 - at];
    (elements * reduction.compute.bytes() as u64).next_multiple_of(16)
}

impl Partials {
    /// Of a program that stores a partial result for each call of its epilogue, with so many columns.
    pub fn per_call(problem: &GemmProblem, columns: u64) -> Partials {
        let [m, n] = [problem.m() as u64, problem.n() as u64];
        Partials { covered: [m, n], count: [m, n.div_ceil(columns)] }
    }
}
