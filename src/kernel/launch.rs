//! A launch as plain data.

use crate::operand::View;
use crate::problem::GemmProblem;

/// The one parameter of a GEMM kernel: `GemmParams` of `kernels/common/params.cuh`, byte for byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GemmParams {
    pub a: u64,
    pub b: u64,
    pub out: u64,
    /// Batch, m, k; in elements.
    pub a_stride: [i64; 3],
    /// Batch, k, n; in elements.
    pub b_stride: [i64; 3],
    /// Batch, m, n; in elements.
    pub out_stride: [i64; 3],
    pub m: i32,
    pub n: i32,
    pub k: i32,
    pub batch: i32,
}

impl GemmParams {
    /// The parameters of a problem whose extents `Kernel::supports` has found to fit 32 bits.
    pub fn new(problem: &GemmProblem) -> GemmParams {
        let pointer = |view: &View| view.data;
        GemmParams {
            a: pointer(&problem.a),
            b: pointer(&problem.b),
            out: pointer(&problem.out),
            a_stride: problem.a.stride,
            b_stride: problem.b.stride,
            out_stride: problem.out.stride,
            m: problem.m() as i32,
            n: problem.n() as i32,
            k: problem.k() as i32,
            batch: problem.batch() as i32,
        }
    }
}

/// Grid (CTAs), block (threads), dynamic shared memory (bytes) and the parameter of one launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Launch {
    pub grid: u32,
    pub block: u32,
    pub shared_bytes: u32,
    pub params: GemmParams,
}

/// CTAs that cover a problem with tiles of this shape, one tile each.
pub(super) fn tiles(problem: &GemmProblem, tile_m: u32, tile_n: u32) -> u64 {
    let across = |extent: i64, tile: u32| (extent as u64).div_ceil(u64::from(tile));
    across(problem.m(), tile_m) * across(problem.n(), tile_n) * problem.batch() as u64
}
