//! Tensor maps before the driver encodes them.

use crate::operand::DType;

/// A tensor map of three dimensions: the contiguous one first, the batch last. Or one of two
/// K-major matrices of the same strides, whose rows alternate in blocks of
/// [`TensorMap::DUAL_ROWS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorMap {
    /// A `CUtensorMapDataType`.
    pub data_type: u32,
    pub address: u64,
    pub extents: [u64; 3],
    /// Strides of all dimensions but the first, in bytes.
    pub strides: [u64; 2],
    pub box_extents: [u32; 3],
    /// A `CUtensorMapSwizzle`.
    pub swizzle: u32,
    /// The distance in bytes from the first of two matrices to the second; 0 of one matrix. The
    /// extent and the box then count the rows of both.
    pub second: u64,
    /// A `CUtensorMapL2promotion`: the bytes that the L2 cache fetches at once.
    pub l2_promotion: u32,
}

impl TensorMap {
    /// The longest stride in bytes (CUDA driver API, "cuTensorMapEncodeTiled": less than 2^40).
    pub const LONGEST_STRIDE: u64 = (1 << 40) - 16;
    /// Rows of one of two matrices that follow each other in a box: a swizzle atom.
    pub const DUAL_ROWS: u32 = 8;

    /// The L2 promotion to 64, 128 or 256 bytes.
    pub fn l2_promotion(bytes: u32) -> u32 {
        bytes.trailing_zeros() - 5
    }

    /// The swizzle for rows of 16 (none), 32, 64 or 128 bytes.
    pub fn swizzle(row_bytes: u32) -> u32 {
        row_bytes.trailing_zeros().saturating_sub(4)
    }

    /// The map with two matrices at these addresses, one of which is this map's. Returns the map,
    /// and whether the second address is the lower one, so that its rows come first: strides are
    /// positive.
    pub fn with_matrices(self, first: u64, second: u64) -> (TensorMap, bool) {
        let map = TensorMap { address: first.min(second), second: first.abs_diff(second), ..self };
        (map, second < first)
    }

    /// The `CUtensorMapDataType` of elements. TMA rounds float32 to tf32 for operands that are
    /// `multiplied`.
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
