//! Reductions of an epilogue's outputs. Each warp reduces its own values and stores the partial
//! result in workspace. A second launch reduces the partial results in a fixed order, so results
//! are deterministic.

use super::fields::assert_fields;
use crate::epilogue::{BoundEpilogue, Reduction};
use crate::problem::GemmProblem;

/// The partial results of a reduction, in the program's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partials {
    /// Rows and columns that the tiles cover, including those outside the output.
    pub covered: [u64; 2],
    /// Number of partial results of one column, and of one row.
    pub count: [u64; 2],
}

/// The second step of one reduction: `ReduceOperand` of `kernels/reduce.cuh`, byte for byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReduceOperand {
    /// The address of the partial results.
    partials: u64,
    out: u64,
    /// Strides along the batch and along the rows or columns that remain, in elements.
    out_stride: [i64; 2],
    /// Stride of the rows of partial results, in elements.
    pitch: i64,
    /// Number of rows that are reduced to one.
    count: i64,
    /// Elements of a row that lie inside the output.
    extent: i32,
    /// 1 if the elements of the row are also reduced, else 0.
    whole: i32,
    batches: i32,
    ctas: i32,
}

assert_fields!(ReduceOperand, 64, out_stride: 16, count: 40, extent: 48);

/// All reductions of one launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    pub operands: Vec<ReduceOperand>,
    /// For each reduction, the tensor of partial results that the program writes: an
    /// `EpilogueTensor` in words.
    pub partial: Vec<[u64; 4]>,
}

impl Reduce {
    pub const THREADS: u32 = 256;
    /// Results of a CTA, unless `whole` (`WIDTH` of `kernels/reduce.cuh`).
    pub const WIDTH: i64 = 32;

    /// Bytes of workspace.
    pub fn bytes(reductions: &[Reduction], partials: &Partials, batch: i64) -> u64 {
        reductions.iter().map(|reduction| partial_bytes(reduction, partials, batch)).sum()
    }

    /// The second step for a problem in the program's frame. `transposed`: whether this frame is
    /// the transposed user's frame. `workspace`: the address of the partial results.
    pub fn new(
        reductions: &[Reduction],
        bound: &BoundEpilogue,
        problem: &GemmProblem,
        partials: &Partials,
        transposed: bool,
        workspace: u64,
    ) -> Reduce {
        let mut reduce = Reduce { operands: Vec::new(), partial: Vec::new() };
        let mut address = workspace;
        for reduction in reductions {
            // `fuse` binds every reduction to a view.
            let Some(out) = bound.outputs[reduction.output] else { continue };
            let [_, along_m, along_n] = reduction.along;
            let at = usize::from(along_n);
            let (pitch, count) = (partials.covered[1 - at] as i64, partials.count[at] as i64);
            let [whole_batch, whole] = [reduction.along[0], along_m && along_n];
            let (extent, kept) = if along_n { (problem.m(), 1) } else { (problem.n(), 2) };
            let kept = if transposed { 3 - kept } else { kept };
            let batches = if whole_batch { 1 } else { problem.batch() };
            let ctas_of_batch = if whole { 1 } else { (extent + Self::WIDTH - 1) / Self::WIDTH };
            reduce.operands.push(ReduceOperand {
                partials: address,
                out: out.data,
                out_stride: [out.stride[0], if whole { 0 } else { out.stride[kept] }],
                pitch,
                count: if whole_batch { count * problem.batch() } else { count },
                extent: extent as i32,
                whole: whole.into(),
                batches: batches as i32,
                // At most the number of tiles, which fits 32 bits.
                ctas: (batches * ctas_of_batch) as i32,
            });
            let batch_step = (pitch * count) as u64;
            let [step_m, step_n] = if along_n { [1, pitch as u64] } else { [pitch as u64, 1] };
            reduce.partial.push([address, batch_step, step_m, step_n]);
            address += partial_bytes(reduction, partials, problem.batch());
        }
        reduce
    }

    /// CTAs of the launch.
    pub fn grid(&self) -> u32 {
        self.operands.iter().map(|operand| operand.ctas as u32).sum()
    }
}

fn partial_bytes(reduction: &Reduction, partials: &Partials, batch: i64) -> u64 {
    let at = usize::from(reduction.along[2]);
    let elements = batch as u64 * partials.count[at] * partials.covered[1 - at];
    (elements * reduction.compute.bytes() as u64).next_multiple_of(16)
}

impl Partials {
    /// The partial results of a program that stores one for each epilogue call of `columns`
    /// columns.
    pub fn per_call(problem: &GemmProblem, columns: u64) -> Partials {
        let [m, n] = [problem.m() as u64, problem.n() as u64];
        Partials { covered: [m, n], count: [m, n.div_ceil(columns)] }
    }
}
