//! A launch as plain data.

use super::elementwise::ElementwiseParams;
use super::pack::Pack;
use crate::operand::{DType, View};
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

/// A tensor map before the driver encodes it: three dimensions, the contiguous one first, the batch last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorMap {
    /// A `CUtensorMapDataType`.
    pub data_type: u32,
    pub address: u64,
    pub extents: [u64; 3],
    /// Of all dimensions but the first, in bytes.
    pub strides: [u64; 2],
    pub box_extents: [u32; 3],
    /// A `CUtensorMapSwizzle`.
    pub swizzle: u32,
}

impl TensorMap {
    pub const NO_SWIZZLE: u32 = 0;
    pub const SWIZZLE_128: u32 = 3;

    /// The swizzle for rows of 16 (none), 32, 64 or 128 bytes.
    pub fn swizzle(row_bytes: u32) -> u32 {
        row_bytes.trailing_zeros().saturating_sub(4)
    }

    /// The `CUtensorMapDataType` of elements. float32 that is multiplied as tf32 is rounded to that on its way.
    pub fn data_type(dtype: DType, multiplied: bool) -> u32 {
        match dtype {
            DType::F32 if multiplied => 11,
            DType::F16 => 6,
            DType::F32 => 7,
            DType::F64 => 8,
            DType::Bf16 => 9,
            DType::I32 => 3,
            _ => 0, // bytes
        }
    }
}

/// The parameter of an sm90 kernel: three tensor maps (A, B, out in the program's frame; the last may be missing), then the
/// scalars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sm90Params {
    pub maps: [Option<TensorMap>; 3],
    pub scalars: Sm90Scalars,
}

/// What follows the tensor maps in `Sm90Params` of `kernels/sm90.cuh`, byte for byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sm90Scalars {
    pub out: u64,
    /// Batch, row, column of the output as it lies in memory; in elements.
    pub out_stride: [i64; 3],
    /// Rows of the program's A, and columns of its B.
    pub m: i32,
    pub n: i32,
    pub k: i32,
    pub batch: i32,
    /// 0 for an operand that is one matrix for the whole batch.
    pub batched: [i32; 2],
    pub out_by_copy_engine: i32,
    pub padding: i32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // made at every first run, where an allocation would cost more than a copy
pub enum Params {
    Gemm(GemmParams),
    Sm90(Sm90Params),
    Elementwise(ElementwiseParams),
}

/// One launch: CTAs, threads of each, CTAs of a cluster, dynamic shared memory in bytes, the parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    pub grid: u32,
    pub block: u32,
    pub cluster: u32,
    pub shared_bytes: u32,
    /// Whether it may begin while the grid before it on the stream still runs (it waits before it reads).
    pub overlapping: bool,
    pub params: Params,
    /// Operands that are copied by a launch in front. Rare, and large: not carried along by every launch.
    pub pack: Option<Box<Pack>>,
}

impl Launch {
    /// One CTA a tile, no clusters, nothing in front.
    pub(super) fn simple(grid: u64, block: u32, shared_bytes: u32, params: GemmParams) -> Launch {
        let params = Params::Gemm(params);
        Launch { grid: grid as u32, block, cluster: 1, shared_bytes, overlapping: false, params, pack: None }
    }
}

/// CTAs that cover a problem with tiles of this shape, one tile each.
pub(super) fn tiles(problem: &GemmProblem, tile_m: u32, tile_n: u32) -> u64 {
    let across = |extent: i64, tile: u32| (extent as u64).div_ceil(u64::from(tile));
    across(problem.m(), tile_m) * across(problem.n(), tile_n) * problem.batch() as u64
}
