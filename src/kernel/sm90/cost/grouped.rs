//! The cost of `sm90` kernels for GEMMs with groups along M.
//!
//! A coarser model, since the host does not know where groups end. It distinguishes the few
//! configurations by how tiles fill the chip.

use super::conversion::with_conversion;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::sm90::Sm90;
use crate::kernel::types::{ProductClass, Types};

pub fn estimate(config: &Sm90, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
    let CostQuery { problem, target, rates, .. } = *query;
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
    let mut multiplied = tile_m * tile_n * block_bytes / rates.tensor * sharing;
    let loaded = operands / rates.l2 * sharing;
    if mixed {
        multiplied = with_conversion(config, types, multiplied, sharing, rates.clock);
    }
    let block = multiplied.max(loaded);
    let from_cache = tiles * size * blocks * operands / rates.l2_of_chip;
    let work = (waves * blocks * block).max(from_cache);

    let [a, b, out] = [&problem.a, &problem.b, &problem.out].map(|view| view.numel() as f64);
    let bytes = types.a.width() * a + types.b.width() * b + types.out.bytes() as f64 * out;
    let memory = bytes / rates.memory;
    Estimate {
        waves,
        bytes,
        arithmetic_seconds: waves * blocks * multiplied,
        memory_seconds: memory,
        cache_seconds: (waves * blocks * loaded).max(from_cache),
        launch_seconds: 0.0,
        total_seconds: (work.powi(4) + memory.powi(4)).powf(0.25),
    }
}
