//! The cost of `simt` kernels.

use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::cost::tiled::{self, FITTED_MEMORY_RATE, FITTED_TILE_OVERHEAD, Tile};
use crate::kernel::simt::Simt;
use crate::kernel::types::{ProductClass, Types};
use crate::operand::DType;

/// Fitted on an H100: FLOP per second of one multiprocessor with float64 accumulators, and others.
const FITTED_FLOAT64_RATE: f64 = 0.25e12;
const FITTED_RATE: f64 = 0.5e12;

/// Measured on an H200: seconds of a K block of one CTA, whose elements arrive from the L2 cache
/// while the block before is multiplied.
const BLOCK_LATENCY: f64 = 0.35e-6;

/// Measured on an H200 (five products of weights of 8 and 4 bits, 32x32 and 64x64): the same of a
/// mixed product, for each element that a thread converts.
const MIXED_ELEMENT_LATENCY: f64 = 0.16e-6;

/// The least seconds of a K block of one CTA.
fn block_latency(config: &Simt, types: Types) -> f64 {
    let [m, n, k] = config.tile.map(f64::from);
    match types.class() {
        ProductClass::Mixed => MIXED_ELEMENT_LATENCY * (m + n) * k / f64::from(Simt::THREADS),
        _ => BLOCK_LATENCY,
    }
}

/// FLOP per second of one multiprocessor.
fn rate(accumulator: DType, query: &CostQuery) -> f64 {
    match accumulator {
        DType::F64 => FITTED_FLOAT64_RATE * query.scale.float64_fma,
        _ => FITTED_RATE * query.scale.fma,
    }
}

/// Fitted: the share of [`rate`] that a tile reaches.
fn fitted_efficiency([m, n, _]: [u32; 3]) -> f64 {
    if m * n >= 128 * 64 { 0.7 } else { 0.4 }
}

pub fn estimate(config: &Simt, types: Types, query: &CostQuery) -> Estimate {
    let tile = Tile {
        extents: config.tile,
        groups: config.groups,
        split: 1,
        ctas_per_sm: 1,
        rate: rate(types.accumulator, query) * fitted_efficiency(config.tile),
        load_penalty: 1.0,
        memory_rate: FITTED_MEMORY_RATE,
        block_latency: block_latency(config, types),
        overhead: FITTED_TILE_OVERHEAD,
        store: 0.0,
    };
    tiled::estimate(&tile, types, query)
}
