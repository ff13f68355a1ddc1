//! The model that simt and sm80 share: whole waves of tiles.

use super::factors::factors;
use super::query::{CostQuery, Estimate, fitted_cluster_sum, fitted_cluster_sum_byte};
use crate::kernel::operation::Groups;
use crate::kernel::tiles::expected_tiles;
use crate::kernel::types::Types;

/// The cost parameters of a tile.
pub struct Tile {
    /// M, N and K.
    pub extents: [u32; 3],
    pub groups: Groups,
    /// CTAs of a cluster that share the tile, each with a part of K.
    pub split: u32,
    /// CTAs that share a multiprocessor: their overheads overlap. 1 if the fitted `rate` includes
    /// the overlap.
    pub ctas_per_sm: u32,
    /// FLOP per second of one multiprocessor.
    pub rate: f64,
    /// Time factor of the tile's loads over loads of 16 bytes.
    pub load_penalty: f64,
    /// The share of the memory rate that the kernel reaches.
    pub memory_share: f64,
    /// The least seconds of a CTA's K block, whose elements arrive in registers during the block
    /// before; hidden by a second CTA of the multiprocessor. 0 where `cp.async` fetches ahead.
    pub block_latency: f64,
    /// Seconds to fill the pipeline and to store a tile, hidden by a second CTA of the
    /// multiprocessor.
    pub overhead: f64,
    /// Further seconds to store a tile, hidden by no other CTA.
    pub store: f64,
}

factors! {
    /// The share of the L2 rate that `cp.async` reaches.
    fitted_copies = 0.686;
    /// Time factor of copies of rows that are not a multiple of 128 bytes apart.
    fitted_split_lines = 1.6;
    /// Seconds to fill the pipeline and to store a tile.
    pub fitted_pipeline = 900e-9;
    /// The share of the memory rate with 2 MB in flight.
    pub fitted_shallow_memory_share = 0.54;
    /// Seconds until a CTA requests its first elements.
    fitted_start = 0.75e-6;
}

/// The share of the memory rate with at least 4 MB in flight. Assumed, not measured.
pub const DEEP_MEMORY_SHARE: f64 = 0.84;

/// The launch, plus the longer of device memory and the waves, each of which takes the longer of
/// its arithmetic and its loads from L2.
pub fn estimate(tile: &Tile, types: Types, query: &CostQuery) -> Estimate {
    let gemm = query.problem;
    let [tile_m, tile_n, tile_k] = tile.extents;
    let tiles = expected_tiles(gemm, tile.groups, tile_m, tile_n);
    let split = f64::from(tile.split);
    let steps = ((gemm.k() as f64 / f64::from(tile_k)).ceil() / split).ceil();
    let depth = steps * f64::from(tile_k);
    let (m, n) = (f64::from(tile_m), f64::from(tile_n));
    let arithmetic = 2.0 * m * n * depth / tile.rate;
    // A row that begins inside a cache line touches one line more.
    let unaligned = if query.splits_lines { fitted_split_lines() } else { 1.0 };
    let l2_rate = fitted_copies() * query.rates.l2;
    let bytes = (m * types.a.width() + n * types.b.width()) * depth;
    let loads = bytes / l2_rate * tile.load_penalty * unaligned;
    // The GPCs leave some multiprocessors without a whole cluster.
    let slots = f64::from(query.target.active_clusters(tile.split));
    let waves = (tiles / slots).ceil();
    let adding = match tile.split {
        1 => 0.0,
        _ => {
            let bytes = m * n * types.accumulator.bytes() as f64 * (split - 1.0) / split;
            fitted_cluster_sum() + fitted_cluster_sum_byte() * bytes
        }
    };
    let memory = query.bytes / (tile.memory_share * query.rates.memory);
    let rounds = (waves / f64::from(tile.ctas_per_sm)).ceil();
    let busy = (waves * arithmetic.max(loads)).max(rounds * steps * tile.block_latency);
    let ends = rounds * (tile.overhead + adding) + waves * tile.store;
    let work = busy + ends;
    let launch = query.rates.launch + fitted_start();
    Estimate {
        waves,
        bytes: query.bytes,
        arithmetic_seconds: waves * arithmetic,
        memory_seconds: memory,
        cache_seconds: waves * loads,
        launch_seconds: launch + ends,
        total_seconds: launch + work.max(memory),
    }
}
