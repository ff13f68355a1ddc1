//! The cost of `sm80` kernels.

use super::query::{CostQuery, Estimate};
use super::tiled::{self, Tile};
use crate::kernel::operation::Operation;
use crate::kernel::sm80::Sm80;
use crate::kernel::types::Types;
use crate::operand::DType;

/// Fitted on an H100: FLOP per second of one multiprocessor's `mma.sync` in the fastest kernel.
fn fitted_rate(dtype: DType) -> f64 {
    match dtype {
        DType::I8 | DType::U8 => 8e12,
        DType::F32 => 2e12,
        _ => 4e12,
    }
}

/// Fitted on an H100 at 4096 x 4096 x 4096: the share of [`fitted_rate`] that a tile reaches. Small
/// warp tiles reload operands from shared memory more often; a shorter K block synchronizes more
/// often.
fn fitted_efficiency([m, n, k]: [u32; 3], element: f64) -> f64 {
    let short = f64::from(k) * element < 128.0;
    match (m, n) {
        (128, 128) if !short => 1.0,
        (128, 128) => 0.93,
        (128, 256) | (256, 128) => 0.83,
        (64, 128) | (128, 64) => 0.75,
        (64, 64) => 0.6,
        _ => 0.4,
    }
}

/// Fitted: time factor of narrow loads, which take more instructions for the same bytes. `cp.async`
/// copies at least 4 bytes, so smaller elements pass through registers.
fn fitted_load_penalty(align: u32) -> f64 {
    match align {
        16 => 1.0,
        4 => 1.5,
        _ => 2.5,
    }
}

pub fn estimate(config: &Sm80, types: Types, query: &CostQuery) -> Estimate {
    let rate = fitted_rate(types.a) * fitted_efficiency(config.tile, types.a.bytes() as f64);
    let tile = Tile {
        extents: config.tile,
        operation: Operation::gemm(config.grouped),
        rate: rate * query.scale.mma_sync,
        load_penalty: fitted_load_penalty(config.align),
    };
    tiled::estimate(&tile, types, query)
}
