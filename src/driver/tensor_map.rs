//! Tensor maps: descriptors of a tensor for the Tensor Memory Accelerator (TMA).

use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType as DataType, CUtensorMapFloatOOBfill,
    CUtensorMapInterleave, CUtensorMapL2promotion as L2Promotion, CUtensorMapSwizzle as Swizzle,
};

use super::DriverError;
use super::error::call;

/// A tensor map in the driver's encoding, as a kernel takes it.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct EncodedTensorMap([u64; 16]);

impl EncodedTensorMap {
    /// A placeholder that no kernel reads.
    pub const UNUSED: EncodedTensorMap = EncodedTensorMap([0; 16]);

    /// Encodes a tensor of one to five dimensions, contiguous dimension first. Strides are in
    /// bytes, one fewer than extents, of which there are as many as box extents; elements out of
    /// bounds read as zero. `data_type`, `swizzle` and `l2_promotion` are values of CUDA's
    /// enumerations (CUDA driver API, "Tensor Map Object Management").
    pub fn encode(
        data_type: u32,
        address: u64,
        extents: &[u64],
        strides: &[u64],
        box_extents: &[u32],
        swizzle: u32,
        l2_promotion: u32,
    ) -> Result<EncodedTensorMap, DriverError> {
        let data_type = match data_type {
            3 => DataType::CU_TENSOR_MAP_DATA_TYPE_INT32,
            6 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            7 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            8 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
            9 => DataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            11 => DataType::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
            _ => DataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        };
        let swizzle = match swizzle {
            1 => Swizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            2 => Swizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            3 => Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            _ => Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        };
        let l2_promotion = match l2_promotion {
            2 => L2Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            3 => L2Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            _ => L2Promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
        };
        let mut map = CUtensorMap { opaque: [0; 16] };
        let rank = extents.len();
        assert!(rank <= 5 && strides.len() + 1 == rank && box_extents.len() == rank);
        // SAFETY: the driver reads the extents, strides and box of `rank` dimensions and writes the
        // map. It does not access the address.
        unsafe {
            call!(sys::cuTensorMapEncodeTiled(
                &mut map,
                data_type,
                rank as u32,
                address as *mut _,
                extents.as_ptr(),
                strides.as_ptr(),
                box_extents.as_ptr(),
                [1u32; 5].as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                l2_promotion,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            ))?;
        }
        Ok(EncodedTensorMap(map.opaque))
    }

    /// Whether the map has been encoded.
    pub fn is_used(&self) -> bool {
        self.0 != EncodedTensorMap::UNUSED.0
    }

    /// Moves the map to another address, a multiple of 16.
    pub fn move_to(&mut self, address: u64) -> Result<(), DriverError> {
        let mut map = CUtensorMap { opaque: self.0 };
        // SAFETY: the driver updates a map that it has encoded. It does not access the address.
        unsafe { call!(sys::cuTensorMapReplaceAddress(&mut map, address as *mut _)) }?;
        self.0 = map.opaque;
        Ok(())
    }
}
