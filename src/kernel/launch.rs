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
    /// Or groups.
    pub batch: i32,
    pub offsets: GroupOffsets,
}

/// Where the groups of a grouped GEMM end: `GroupOffsets` of `kernels/common/groups.cuh`, byte for byte. All zeros elsewhere.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupOffsets {
    pub ends: u64,
    /// In elements.
    step: i64,
}

impl GroupOffsets {
    pub fn new(offsets: Option<&View>) -> GroupOffsets {
        offsets.map_or_else(Self::default, |view| GroupOffsets {
            ends: view.data,
            step: view.stride[2],
        })
    }
}

impl GemmParams {
    /// The parameters of a problem whose extents `Kernel::supports` has found to fit 32 bits.
    /// `offsets` are those of a grouped one.
    pub fn new(problem: &GemmProblem, offsets: Option<&View>) -> GemmParams {
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
            batch: problem.b.shape[0] as i32,
            offsets: GroupOffsets::new(offsets),
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
    /// A `CUtensorMapL2promotion`: how much the L2 cache fetches for a row of a box.
    pub l2_promotion: u32,
}

impl TensorMap {
    pub const NO_SWIZZLE: u32 = 0;
    pub const PROMOTE_128: u32 = 2;
    pub const PROMOTE_256: u32 = 3;

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

/// The parameter of an sm90 kernel: three tensor maps (A, B, out in the program's frame; the first and the last may be missing), then the
/// scalars, and another map of B, for where the CTAs that share a tile of it load unequal slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sm90Params {
    pub maps: [Option<TensorMap>; 3],
    pub scalars: Sm90Scalars,
    pub b_shorter: Option<TensorMap>,
}

/// What follows the tensor maps in `Sm90Params` of `kernels/sm90/params.cuh`, byte for byte.
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
    /// Or groups.
    pub batch: i32,
    /// 0 for an operand that is one matrix for the whole batch.
    pub batched: [i32; 2],
    pub out_by_copy_engine: i32,
    /// Clusters along M that are walked before the next one along N.
    pub band: i32,
    /// Rows of the boxes in which an operand arrives whose rows lie along K; all of its slice beside an A that threads load, and of unequal
    /// slices the longer one's.
    pub boxes: [i32; 2],
    pub offsets: GroupOffsets,
    /// Of an A that threads load, which has no map: address, strides along batch and rows in elements. Address 0 elsewhere.
    pub a: u64,
    pub a_stride: [i64; 2],
    /// Where K is cut over the grid: the workspace, else 0, and the number of parts.
    pub workspace: u64,
    pub k_splits: i32,
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
        Launch {
            grid: grid as u32,
            block,
            cluster: 1,
            shared_bytes,
            overlapping: false,
            params,
            pack: None,
        }
    }
}

/// CTAs that cover a problem with tiles of this shape, one tile each; of a grouped one, the most that may be needed.
pub(super) fn tiles(problem: &GemmProblem, grouped: bool, tile_m: u32, tile_n: u32) -> u64 {
    let (rows, batch, height) = (problem.m() as u64, problem.b.shape[0] as u64, u64::from(tile_m));
    let strips = match grouped {
        // The last strip of each group has one row and more.
        true => ((rows + batch * (height - 1)) / height).min(rows),
        false => rows.div_ceil(height) * batch,
    };
    strips * (problem.n() as u64).div_ceil(u64::from(tile_n))
}

/// The same as the host may expect it: where the groups of a grouped problem end only the device knows.
pub(super) fn expected_tiles(
    problem: &GemmProblem,
    grouped: bool,
    tile_m: u32,
    tile_n: u32,
) -> f64 {
    let most = tiles(problem, grouped, tile_m, tile_n) as f64;
    if !grouped {
        return most;
    }
    let strips = problem.b.shape[0] as f64 * expected_strips(problem, tile_m);
    most.min(strips * (problem.n() as f64 / f64::from(tile_n)).ceil())
}

/// Strips of so many rows that cover one group.
pub(super) fn expected_strips(problem: &GemmProblem, tile_m: u32) -> f64 {
    /// Of the last strip, what is empty: half where groups end anywhere, nothing where they are whole strips.
    const EMPTY: f64 = 0.4;
    (problem.m() as f64 / problem.b.shape[0].max(1) as f64 / f64::from(tile_m) + EMPTY).max(1.0)
}
