//! The parameter block of a kernel, which the driver copies at a launch.

use std::ffi::c_void;
use std::mem::offset_of;

use crate::driver::{DriverError, EncodedTensorMap};
use crate::kernel::{ElementwiseParams, GemmParams, Params, Sm90Scalars, TensorMap};

/// The parameter of an sm90 kernel: `Sm90Params` of `kernels/sm90/params.cuh`, byte for byte.
#[repr(C, align(64))]
#[derive(Clone)]
pub struct Sm90Block {
    maps: [EncodedTensorMap; 3],
    scalars: Sm90Scalars,
    b_shorter: EncodedTensorMap,
}
const _: () = assert!(size_of::<Sm90Block>() == 640 && offset_of!(Sm90Block, b_shorter) == 512);

/// The first parameter of a kernel, in the layout that the kernel declares.
#[derive(Clone)]
#[allow(clippy::large_enum_variant)] // as in `kernel::Params`
pub enum ParameterBlock {
    Gemm(GemmParams),
    Sm90(Sm90Block),
    Elementwise(ElementwiseParams),
}

impl ParameterBlock {
    /// Encodes the parameters. Encoding a tensor map requires a current context of any device.
    ///
    /// # Errors
    /// If the driver rejects a tensor map.
    pub fn new(params: &Params) -> Result<ParameterBlock, DriverError> {
        Ok(match params {
            Params::Gemm(params) => ParameterBlock::Gemm(*params),
            Params::Elementwise(params) => ParameterBlock::Elementwise(*params),
            Params::Sm90(params) => {
                let [a, b, out] = params.maps;
                ParameterBlock::Sm90(Sm90Block {
                    maps: [encode(a)?, encode(b)?, encode(out)?],
                    scalars: params.scalars,
                    b_shorter: encode(params.b_shorter)?,
                })
            }
        })
    }

    pub fn pointer(&self) -> *const c_void {
        match self {
            ParameterBlock::Gemm(params) => std::ptr::from_ref(params).cast(),
            ParameterBlock::Sm90(params) => std::ptr::from_ref(params).cast(),
            ParameterBlock::Elementwise(params) => std::ptr::from_ref(params).cast(),
        }
    }

    /// Replaces the addresses of the operands, in the order of `Kernel::addresses_in`, and the
    /// address of the workspace if the kernel has one. Requires a current context.
    ///
    /// # Errors
    /// If the driver rejects an address.
    pub fn move_to(
        &mut self,
        before: [u64; 4],
        now: [u64; 4],
        workspace: u64,
    ) -> Result<(), DriverError> {
        match self {
            ParameterBlock::Gemm(params) => {
                [params.a, params.b, params.out, params.offsets.ends] = now;
            }
            ParameterBlock::Elementwise(params) => [params.a, params.b, params.out, _] = now,
            ParameterBlock::Sm90(Sm90Block { maps, scalars, b_shorter }) => {
                [_, _, scalars.out, scalars.offsets.ends] = now;
                if scalars.workspace != 0 {
                    scalars.workspace = workspace;
                }
                // An A that threads load and an output that threads store have no map.
                let a_has_map = scalars.a == 0;
                if !a_has_map {
                    scalars.a = now[0];
                }
                let has_map = [a_has_map, true, scalars.out_by_copy_engine != 0];
                for (at, map) in maps.iter_mut().enumerate() {
                    if has_map[at] && now[at] != before[at] {
                        map.move_to(now[at])?;
                    }
                }
                if now[1] != before[1] && b_shorter.is_used() {
                    b_shorter.move_to(now[1])?;
                }
            }
        }
        Ok(())
    }
}

fn encode(map: Option<TensorMap>) -> Result<EncodedTensorMap, DriverError> {
    let Some(map) = map else { return Ok(EncodedTensorMap::UNUSED) };
    EncodedTensorMap::encode(
        map.data_type,
        map.address,
        &map.extents,
        &map.strides,
        &map.box_extents,
        map.swizzle,
        map.l2_promotion,
    )
}
