//! The cost of the float32 kernels of `simt`.

use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::cost::tiled::{self, DEEP_MEMORY_SHARE, Tile, fitted_pipeline};
use crate::kernel::sgemm::Sgemm;
use crate::kernel::types::Types;

/// Warps of a CTA that share a scheduler, which issues one instruction per clock.
const WARPS_PER_SCHEDULER: f64 = Sgemm::THREADS as f64 / 32.0 / 4.0;

/// Instructions of a warp for a K block: 1024 multiply-adds of 8 x 8 sums and 16 indices of K,
/// counted in the SASS for 9.0 (docs/design/sm80-simt.md). Copies of single elements take more.
fn instructions(align: u32) -> f64 {
    if align == 16 { 1240.0 } else { 1270.0 }
}

/// Assumed, not measured: time factor of loads of single elements.
fn load_penalty(align: u32) -> f64 {
    if align == 16 { 1.0 } else { 1.5 }
}

/// FLOP per second of one multiprocessor in the main loop: a K block takes the longer of its
/// multiply-adds and of the issue of all instructions.
fn rate(config: &Sgemm, query: &CostQuery) -> f64 {
    let flop = 2.0 * config.tile.map(f64::from).iter().product::<f64>();
    let issue = WARPS_PER_SCHEDULER * instructions(config.align);
    let clocks = (flop / query.target.fma_flop_per_clock).max(issue);
    flop / clocks * query.target.clock_hz
}

pub fn estimate(config: &Sgemm, types: Types, query: &CostQuery) -> Estimate {
    let tile = Tile {
        extents: config.tile,
        groups: config.groups,
        split: config.split,
        ctas_per_sm: Sgemm::CTAS_PER_SM,
        rate: rate(config, query),
        load_penalty: load_penalty(config.align),
        memory_share: DEEP_MEMORY_SHARE,
        block_latency: 0.0,
        overhead: fitted_pipeline(),
        store: 0.0,
    };
    tiled::estimate(&tile, types, query)
}
