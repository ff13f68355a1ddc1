//! The cost of `sm90` kernels for GEMMs with groups along M.
//!
//! A coarser model, since the host does not know where groups end. It distinguishes the few
//! configurations by how tiles fill the chip and how often B is read. Fitted on an H100
//! (docs/design/ranking.md).

use super::conversion::with_conversion;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::sm90::{Schedule, Sm90};
use crate::kernel::types::{ProductClass, Types};

/// FLOP per second and L2 bytes per second of one multiprocessor, L2 bytes per second of the chip,
/// bytes per second of device memory.
const FITTED_TENSOR_RATE: f64 = 5.3e12;
const FITTED_L2_RATE: f64 = 112e9;
const FITTED_L2_RATE_OF_CHIP: f64 = 10.9e12;
const FITTED_MEMORY_RATE: f64 = 2.8e12;
/// Seconds of a launch and of a tile's end; the share of the end that remains in ping-pong.
const FITTED_LAUNCH: f64 = 0.8e-6;
const FITTED_TILE_END: f64 = 1.64e-6;
const FITTED_PING_PONG_END: f64 = 0.485;
/// The share of B that each strip of a group after the first reads again from device memory, since
/// strips do not read B at exactly the same time.
const FITTED_REREAD: f64 = 0.15;

pub fn estimate(config: &Sm90, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
    let CostQuery { problem, target, scale, .. } = *query;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let [cluster_m, cluster_n] = config.cluster.map(f64::from);
    let (size, sms) = (f64::from(config.cluster_size()), query.sms());
    let tiles = config.expected_tiles(problem);
    let slots = f64::from(config.clusters_at_once(ctas_per_sm, target.multiprocessors));
    let (waves, sharing) = ((tiles / slots).ceil(), (tiles.min(slots) * size / sms).max(1.0));

    let mixed = types.class() == ProductClass::Mixed;
    let blocks = (problem.k() as f64 / f64::from(config.k_block(types))).ceil();
    // In a mixed product, wgmma multiplies 16-bit elements.
    let block_bytes = f64::from(config.row_bytes(0) * types.widening());
    let [a_rows, b_rows] = config.rows_read(problem).map(|(rows, _)| f64::from(rows) * 128.0);
    let operands = a_rows / cluster_n + b_rows / cluster_m;
    let mut multiplied =
        tile_m * tile_n * block_bytes / (FITTED_TENSOR_RATE * scale.tensor) * sharing;
    let loaded = operands / (FITTED_L2_RATE * scale.clock) * sharing;
    if mixed {
        multiplied = with_conversion(config, types, multiplied, sharing, scale.clock);
    }
    let block = multiplied.max(loaded);
    let ends = match config.schedule {
        Schedule::Cooperative => waves,
        Schedule::PingPong => (waves - 1.0) * FITTED_PING_PONG_END + 1.0,
    };
    let ends = ends * FITTED_TILE_END * sharing.sqrt();
    let from_cache = tiles * size * blocks * operands / (FITTED_L2_RATE_OF_CHIP * scale.clock);
    let work = (waves * blocks * block + ends).max(from_cache);

    let [a, b, out] = [&problem.a, &problem.b, &problem.out].map(|view| view.numel() as f64);
    let b = b * (1.0 + FITTED_REREAD * (config.expected_strips(problem) - 1.0));
    let bytes = types.a.width() * a + types.b.width() * b + types.out.bytes() as f64 * out;
    let memory = bytes / (FITTED_MEMORY_RATE * scale.memory);
    Estimate {
        waves,
        bytes,
        arithmetic_seconds: waves * blocks * multiplied,
        memory_seconds: memory,
        cache_seconds: (waves * blocks * loaded).max(from_cache),
        launch_seconds: FITTED_LAUNCH + ends,
        total_seconds: FITTED_LAUNCH + (work.powi(4) + memory.powi(4)).powf(0.25),
    }
}
