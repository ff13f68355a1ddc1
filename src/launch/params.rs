//! The parameter block of a kernel, which the driver copies at a launch.

use std::ffi::c_void;
use std::mem::offset_of;

use crate::driver::{DriverError, EncodedTensorMap};
use crate::epilogue::Joint;
use crate::kernel::{
    Addresses, ElementwiseParams, GemmParams, JointGemmParams, Params, Sm90Scalars, TensorMap,
};

/// The parameter of an sm90 kernel: `Sm90Params` of `kernels/sm90/params.cuh`, byte for byte.
#[repr(C, align(64))]
#[derive(Clone)]
pub struct Sm90Block {
    maps: [EncodedTensorMap; 3],
    scalars: Sm90Scalars,
    b_shorter: EncodedTensorMap,
}
const _: () = assert!(size_of::<Sm90Block>() == 640 && offset_of!(Sm90Block, b_shorter) == 512);

/// The parameter of an sm90 kernel of two matrices B. One map covers both, so moving either
/// re-encodes it.
#[repr(C, align(64))]
#[derive(Clone)]
pub struct DualBlock {
    block: Sm90Block,
    /// The map of both matrices, and its place among the maps.
    map: TensorMap,
    at: usize,
}

/// The parameter of a joint sm90 kernel: `JointSm90Params` of `kernels/sm90/params.cuh`, byte for
/// byte.
#[repr(C, align(64))]
#[derive(Clone)]
pub struct JointSm90Block {
    block: Sm90Block,
    panels: [EncodedTensorMap; Joint::MOST - 1],
    starts: [i32; Joint::MOST - 1],
}
const _: () =
    assert!(size_of::<JointSm90Block>() == 1088 && offset_of!(JointSm90Block, starts) == 1024);

/// The first parameter of a kernel, in the layout that the kernel declares.
#[derive(Clone)]
#[allow(clippy::large_enum_variant)] // as in `kernel::Params`
pub enum ParameterBlock {
    Gemm(GemmParams),
    JointGemm(JointGemmParams),
    Sm90(Sm90Block),
    Dual(DualBlock),
    JointSm90(JointSm90Block),
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
            Params::JointGemm(params) => ParameterBlock::JointGemm(*params),
            Params::Elementwise(params) => ParameterBlock::Elementwise(*params),
            Params::Sm90(params) => {
                let [a, b, out] = params.maps;
                let block = Sm90Block {
                    maps: [encode(a)?, encode(b)?, encode(out)?],
                    scalars: params.scalars,
                    b_shorter: encode(params.b_shorter)?,
                };
                if params.panels[0].is_some() {
                    let map = |at: usize| encode(params.panels[at].map(|(map, _)| map));
                    let panels = [map(0)?, map(1)?, map(2)?];
                    let starts = params.panels.map(|panel| panel.map_or(i32::MAX, |(_, at)| at));
                    let block = JointSm90Block { block, panels, starts };
                    return Ok(ParameterBlock::JointSm90(block));
                }
                // An A that threads load has no map.
                let maps = [a, b].into_iter().enumerate();
                let dual =
                    maps.filter_map(|(at, map)| Some((at, map?))).find(|(_, map)| map.second > 0);
                match dual {
                    Some((at, map)) => ParameterBlock::Dual(DualBlock { block, map, at }),
                    None => ParameterBlock::Sm90(block),
                }
            }
        })
    }

    pub fn pointer(&self) -> *const c_void {
        match self {
            ParameterBlock::Gemm(params) => std::ptr::from_ref(params).cast(),
            ParameterBlock::JointGemm(params) => std::ptr::from_ref(params).cast(),
            ParameterBlock::Sm90(params) => std::ptr::from_ref(params).cast(),
            ParameterBlock::JointSm90(params) => std::ptr::from_ref(params).cast(),
            ParameterBlock::Dual(params) => std::ptr::from_ref(&params.block).cast(),
            ParameterBlock::Elementwise(params) => std::ptr::from_ref(params).cast(),
        }
    }

    /// Replaces the addresses of the operands, in the order of `Kernel::addresses_in`, and the
    /// address of the workspace if the kernel has one. `factor`: the address of a dual GEMM's
    /// second matrix B. `panels`: before and now, those of a joint GEMM's further matrices B.
    /// Requires a current context.
    ///
    /// # Errors
    /// If the driver rejects an address.
    pub fn move_to(
        &mut self,
        before: Addresses,
        now: Addresses,
        workspace: u64,
        factor: u64,
        panels: &[[u64; 2]],
    ) -> Result<(), DriverError> {
        match self {
            ParameterBlock::Gemm(params) => {
                [params.a, params.b, params.out, params.offsets.ends, _] = now;
            }
            ParameterBlock::JointGemm(params) => {
                [params.gemm.a, params.gemm.b, params.gemm.out, ..] = now;
                for (panel, [_, now]) in params.panels.iter_mut().zip(panels) {
                    panel.b = *now;
                }
            }
            ParameterBlock::JointSm90(JointSm90Block { block, panels: maps, .. }) => {
                block.move_to(before, now, workspace)?;
                for (map, [_, now]) in
                    maps.iter_mut().zip(panels).filter(|(_, [before, now])| before != now)
                {
                    map.move_to(*now)?;
                }
            }
            ParameterBlock::Elementwise(params) => [params.a, params.b, params.out, ..] = now,
            ParameterBlock::Sm90(block) => block.move_to(before, now, workspace)?,
            ParameterBlock::Dual(DualBlock { block, map, at }) => {
                // The map of the other operand and that of the output move alone.
                let (mut others_before, mut others_now) = (before, now);
                (others_before[*at], others_now[*at]) = (0, 0);
                block.move_to(others_before, others_now, workspace)?;
                let (moved, reversed) = map.with_matrices(now[*at], factor);
                if moved != *map {
                    block.maps[*at] = encode(Some(moved))?;
                    *map = moved;
                }
                block.scalars.reversed = i32::from(reversed);
            }
        }
        Ok(())
    }
}

impl Sm90Block {
    fn move_to(
        &mut self,
        before: Addresses,
        now: Addresses,
        workspace: u64,
    ) -> Result<(), DriverError> {
        let Sm90Block { maps, scalars, b_shorter } = self;
        let index;
        [_, _, scalars.out, scalars.offsets.ends, index] = now;
        if scalars.workspace_or_index != 0 {
            scalars.workspace_or_index = if index == 0 { workspace } else { index };
        }
        // An A that threads load and an output that threads store have no map.
        let a_has_map = scalars.a == 0;
        if !a_has_map {
            scalars.a = now[0];
        }
        let has_map = [a_has_map, true, scalars.out_by_tma != 0];
        for (at, map) in maps.iter_mut().enumerate() {
            if has_map[at] && now[at] != before[at] {
                map.move_to(now[at])?;
            }
        }
        if now[1] != before[1] && b_shorter.is_used() {
            b_shorter.move_to(now[1])?;
        }
        Ok(())
    }
}

fn encode(map: Option<TensorMap>) -> Result<EncodedTensorMap, DriverError> {
    let Some(map) = map else { return Ok(EncodedTensorMap::UNUSED) };
    let TensorMap { data_type, address, swizzle, l2_promotion, .. } = map;
    let ([k, rows, batch], [row, matrix]) = (map.extents, map.strides);
    let [box_k, box_rows, box_batch] = map.box_extents;
    let encode = |extents: &[u64], strides: &[u64], box_extents: &[u32]| {
        EncodedTensorMap::encode(
            data_type,
            address,
            extents,
            strides,
            box_extents,
            swizzle,
            l2_promotion,
        )
    };
    if map.second == 0 {
        return encode(&map.extents, &map.strides, &map.box_extents);
    }
    // Along K, rows of a block, the two matrices, blocks, batch. A box then holds a block of the
    // first matrix, one of the second, the next one of the first and so on.
    const ROWS: u32 = TensorMap::DUAL_ROWS;
    encode(
        &[k, ROWS.into(), 2, rows / u64::from(2 * ROWS), batch],
        &[row, map.second, row * u64::from(ROWS), matrix],
        &[box_k, ROWS, 2, box_rows / (2 * ROWS), box_batch],
    )
}
