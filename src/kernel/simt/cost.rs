//! The cost of `simt` kernels.

use crate::kernel::cost::factors::factors;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::cost::tiled::{self, Tile, fitted_pipeline, fitted_shallow_memory_share};
use crate::kernel::simt::Simt;
use crate::kernel::types::{ProductClass, Types};
use crate::operand::DType;

factors! {
    /// The share of the rate of FMA that a tile reaches: of 128x64 or more, and a smaller one.
    fitted_large_tile = 0.7;
    fitted_small_tile = 0.216;
    /// The least seconds of a K block of a mixed product in one CTA, for each element that a thread
    /// converts.
    fitted_converted_element = 128e-9;
}

/// The least seconds of a K block of one CTA.
fn block_latency(config: &Simt, types: Types) -> f64 {
    let [m, n, k] = config.tile.map(f64::from);
    match types.class() {
        ProductClass::Mixed => fitted_converted_element() * (m + n) * k / f64::from(Simt::THREADS),
        _ => 0.0,
    }
}

/// FLOP per second of one multiprocessor.
fn rate([m, n, _]: [u32; 3], accumulator: DType, query: &CostQuery) -> f64 {
    let rate = match accumulator {
        DType::F64 => query.rates.float64_fma,
        _ => query.rates.fma,
    };
    rate * if m * n >= 128 * 64 { fitted_large_tile() } else { fitted_small_tile() }
}

pub fn estimate(config: &Simt, types: Types, query: &CostQuery) -> Estimate {
    let tile = Tile {
        extents: config.tile,
        groups: config.groups,
        split: 1,
        ctas_per_sm: 1,
        rate: rate(config.tile, types.accumulator, query),
        load_penalty: 1.0,
        memory_share: fitted_shallow_memory_share(),
        block_latency: block_latency(config, types),
        overhead: fitted_pipeline(),
        store: 0.0,
    };
    tiled::estimate(&tile, types, query)
}
