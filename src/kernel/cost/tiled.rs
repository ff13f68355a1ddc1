//! The model that simt and sm80 share: whole waves of tiles.

use super::chips::hopper::ACTIVE_CLUSTERS;
use super::query::{CostQuery, Estimate};
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
    /// Bytes per second that the kernel reaches of an H100's device memory.
    pub memory_rate: f64,
    /// The least seconds of a CTA's K block, whose elements arrive in registers during the block
    /// before; hidden by a second CTA of the multiprocessor. 0 where `cp.async` fetches ahead.
    pub block_latency: f64,
    /// Seconds to fill the pipeline and to store a tile, hidden by a second CTA of the
    /// multiprocessor.
    pub overhead: f64,
    /// Further seconds to store a tile, hidden by no other CTA.
    pub store: f64,
}

/// Fitted on an H100: bytes per second that one multiprocessor loads from L2.
const FITTED_L2_RATE: f64 = 60e9;
/// Fitted: time factor of loads of rows that are not a multiple of 128 bytes apart.
const FITTED_UNALIGNED_ROWS: f64 = 1.6;
/// Fitted: seconds to fill the pipeline and to store a tile, and seconds of a launch.
pub const FITTED_TILE_OVERHEAD: f64 = 1.5e-6;
const FITTED_LAUNCH: f64 = 1.5e-6;
/// Adding up the partial sums of a cluster: constant, and for each byte that a CTA reads from
/// another. Taken from the cluster splits of sm90, which are fitted on an H100.
const FITTED_SPLIT: f64 = 0.95e-6;
const FITTED_SPLIT_BYTE: f64 = 0.6e-10;
/// Fitted on an H100: bytes per second of device memory, fewer than sm90 kernels reach.
pub const FITTED_MEMORY_RATE: f64 = 1.8e12;

/// Memory rate with at least 4 MB in flight; the rate above is with 2 MB. Assumed, not measured.
pub const DEEP_PIPELINE_MEMORY_RATE: f64 = 2.8e12;

/// The launch, plus the longer of device memory and the waves, each of which takes the longer of
/// its arithmetic and its loads from L2.
pub fn estimate(tile: &Tile, types: Types, query: &CostQuery) -> Estimate {
    let (gemm, sms) = (query.problem, query.sms());
    let [tile_m, tile_n, tile_k] = tile.extents;
    let tiles = expected_tiles(gemm, tile.groups, tile_m, tile_n);
    let split = f64::from(tile.split);
    let steps = ((gemm.k() as f64 / f64::from(tile_k)).ceil() / split).ceil();
    let depth = steps * f64::from(tile_k);
    let (m, n) = (f64::from(tile_m), f64::from(tile_n));
    let arithmetic = 2.0 * m * n * depth / tile.rate;
    // A row that begins inside a cache line touches one line more.
    let unaligned = if query.splits_lines { FITTED_UNALIGNED_ROWS } else { 1.0 };
    let l2_rate = FITTED_L2_RATE * query.scale.clock;
    let bytes = (m * types.a.width() + n * types.b.width()) * depth;
    let loads = bytes / l2_rate * tile.load_penalty * unaligned;
    // The GPCs leave some multiprocessors without a whole cluster.
    let slots = (sms * ACTIVE_CLUSTERS[tile.split as usize] / ACTIVE_CLUSTERS[1]).floor().max(1.0);
    let waves = (tiles / slots).ceil();
    let adding = match tile.split {
        1 => 0.0,
        _ => {
            let bytes = m * n * types.accumulator.bytes() as f64 * (split - 1.0) / split;
            FITTED_SPLIT + FITTED_SPLIT_BYTE * bytes
        }
    };
    let memory = query.bytes / (tile.memory_rate * query.scale.memory);
    let rounds = (waves / f64::from(tile.ctas_per_sm)).ceil();
    let busy = (waves * arithmetic.max(loads)).max(rounds * steps * tile.block_latency);
    let ends = rounds * (tile.overhead + adding) + waves * tile.store;
    let work = busy + ends;
    Estimate {
        waves,
        bytes: query.bytes,
        arithmetic_seconds: waves * arithmetic,
        memory_seconds: memory,
        cache_seconds: waves * loads,
        launch_seconds: FITTED_LAUNCH + ends,
        total_seconds: FITTED_LAUNCH + work.max(memory),
    }
}
