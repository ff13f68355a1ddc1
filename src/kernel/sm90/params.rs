//! The parameter of an sm90 kernel.

use crate::epilogue::Joint;
use crate::kernel::fields::assert_fields;
use crate::kernel::params::GroupOffsets;
use crate::kernel::tensor_map::TensorMap;

/// The parameter of an sm90 kernel: the tensor maps of A, B and out in the program's frame (A and
/// out may have none), the scalars, and a second map of B where the CTAs that share a tile of B
/// load unequal slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sm90Params {
    pub maps: [Option<TensorMap>; 3],
    pub scalars: Sm90Scalars,
    pub b_shorter: Option<TensorMap>,
    /// The maps of the further matrices B of a joint GEMM, and their first columns among those of
    /// all matrices.
    pub panels: [Option<(TensorMap, i32)>; Joint::MOST - 1],
}

/// The fields after the tensor maps in `Sm90Params` of `kernels/sm90/params.cuh`, byte for byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sm90Scalars {
    pub out: u64,
    /// Strides along batch, rows and columns of the output in memory, in elements.
    pub out_stride: [i64; 3],
    /// Rows of the program's A, and columns of its B.
    pub m: i32,
    pub n: i32,
    pub k: i32,
    /// Number of matrices or groups.
    pub batch: i32,
    /// 0 for an operand that all batches share.
    pub batched: [i32; 2],
    pub out_by_tma: i32,
    /// Clusters along M that are walked before the next along N (`Sm90::band`).
    pub band: i32,
    /// Rows of a box of each K-major operand: the whole slice if threads load A, the longer slice
    /// if slices are unequal. If A is gathered, in place of its box: its rows.
    pub boxes: [i32; 2],
    pub offsets: GroupOffsets,
    /// Address, and strides along batch and rows in elements, of an A that threads load; else 0.
    /// Such an A has no map. If A is gathered, the stride of the index in place of the first.
    pub a: u64,
    pub a_stride: [i64; 2],
    /// Address of a grid split's workspace; of the index of A's rows; else 0.
    pub workspace_or_index: u64,
    /// Slices of K; with groups along M, -1, or 0 if they are masked.
    pub splits_or_stacked: i32,
    /// 1 if the second matrix B of a dual GEMM comes first in the tile: it has the lower address.
    pub reversed: i32,
}

/// Bytes of the tensor maps in front of the scalars, and of a tensor map.
const MAPS_BYTES: usize = 3 * TENSOR_MAP_BYTES;
const TENSOR_MAP_BYTES: usize = 128;

assert_fields!(
    Sm90Scalars,
    640 - MAPS_BYTES - TENSOR_MAP_BYTES,
    out: 384 - MAPS_BYTES,
    m: 416 - MAPS_BYTES,
    batched: 432 - MAPS_BYTES,
    boxes: 448 - MAPS_BYTES,
    offsets: 456 - MAPS_BYTES,
    a: 472 - MAPS_BYTES,
    workspace_or_index: 496 - MAPS_BYTES,
);
