//! The cost of `sm80` kernels.

use super::query::{CostQuery, Estimate};
use super::tiled::{self, BARRIER_CLOCKS, DEEP_PIPELINE_MEMORY_RATE, FITTED_MEMORY_RATE, Tile};
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

/// Assumed, not measured: time factor of 8-byte copies of float64.
const NARROW_FLOAT64: f64 = 1.25;

/// Bytes per clock of a multiprocessor's shared memory.
const SHARED_BYTES_PER_CLOCK: f64 = 128.0;

/// FLOP per second of one multiprocessor in the main loop of a float64 tile. An element of K takes
/// the longer of the products and the traffic of shared memory: copies write the tile, and each
/// warp reads its rows of A and columns of B.
fn float64_rate(config: &Sm80, query: &CostQuery) -> f64 {
    let ([m, n, k], [warps_m, warps_n]) = (config.tile.map(f64::from), config.warps.map(f64::from));
    let tensor_clocks = 2.0 * m * n / query.target.float64_mma_flop_per_clock;
    let bytes = 8.0 * (m + n + m * warps_n + n * warps_m);
    let clocks = tensor_clocks.max(bytes / SHARED_BYTES_PER_CLOCK) + BARRIER_CLOCKS / k;
    2.0 * m * n / clocks * query.target.clock_hz
}

/// Fitted: time factor of narrow loads, which take more instructions for the same bytes. `cp.async`
/// copies at least 4 bytes, so smaller elements pass through registers.
fn fitted_load_penalty(align: u32) -> f64 {
    match align {
        16 => 1.0,
        8 => NARROW_FLOAT64,
        4 => 1.5,
        _ => 2.5,
    }
}

pub fn estimate(config: &Sm80, types: Types, query: &CostQuery) -> Estimate {
    let element = types.a.bytes() as f64;
    let (rate, memory_rate, ctas_per_sm) = match types.a {
        DType::F64 => {
            let ctas = config.float64_ctas_per_sm(types);
            (float64_rate(config, query), DEEP_PIPELINE_MEMORY_RATE, ctas)
        }
        dtype => {
            let rate = fitted_rate(dtype) * fitted_efficiency(config.tile, element);
            (rate * query.scale.mma_sync, FITTED_MEMORY_RATE, 1)
        }
    };
    let tile = Tile {
        extents: config.tile,
        operation: Operation::gemm(config.grouped),
        split: 1,
        ctas_per_sm,
        rate,
        load_penalty: fitted_load_penalty(config.align),
        memory_rate,
    };
    tiled::estimate(&tile, types, query)
}
