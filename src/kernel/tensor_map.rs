//! Tensor maps before the driver encodes them.

use crate::operand::DType;

/// A tensor map of three dimensions: the contiguous one first, the batch last.
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
    /// A `CUtensorMapL2promotion`: the bytes that the L2 cache fetches at once.
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
