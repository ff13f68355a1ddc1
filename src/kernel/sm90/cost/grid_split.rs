//! The cost of `sm90` kernels with a grid split: all CTAs run at once, and their partial sums meet
//! in workspace after the last K block.
//!
//! Fitted on an H100 to timings of problems with few tiles in float16.

use super::rates::{alignment_penalty, fitted_block, overlapped};
use crate::kernel::cost::factors::factors;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::sm90::Sm90;
use crate::kernel::types::Types;

factors! {
    /// Seconds of a launch and the exchange in workspace, and of each accumulator that a thread
    /// stores.
    fitted_exchange = 1.55e-6;
    fitted_sum_stored = 62e-9;
}

/// Seconds that CTAs poll in vain (`PATIENCE` of the program) if not all CTAs run at once, as on a
/// chip smaller than an H100.
const WAIT: f64 = 50e-6;

pub fn estimate(config: &Sm90, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
    let CostQuery { problem, target, bytes, rates, .. } = *query;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let [cluster_m, cluster_n] = config.cluster.map(f64::from);
    let (reducers, splits) = (f64::from(config.split), f64::from(config.k_splits(problem)));
    let element = types.a.width();
    let blocks = ((problem.k() as f64 * element / 128.0).ceil() / splits).ceil();
    let [a_rows, b_rows] = config
        .rows_read(problem)
        .map(|(rows, aligned)| f64::from(rows) * 128.0 * (1.0 + alignment_penalty(aligned)));
    let operands = a_rows / cluster_n + b_rows / cluster_m;
    let multiplied = tile_m * tile_n * 128.0 / rates.tensor;
    let loaded = operands / rates.l2;
    let work = blocks * multiplied.max(fitted_block()).max(loaded);
    let ctas = config.tiles(problem) as f64
        * f64::from(config.cluster_size())
        * splits
        * config.occupied(&config.grid(problem));
    let from_cache = ctas * blocks * operands / rates.l2_of_chip;
    let memory = bytes / rates.memory;
    let together = overlapped([work, from_cache, memory]);
    let sums = config.sums_of_thread();
    let exchange = fitted_exchange() + fitted_sum_stored() * sums * reducers;
    let clusters = config.tiles(problem) as f64 * splits;
    let at_once = f64::from(config.clusters_at_once(ctas_per_sm, target.multiprocessors));
    let wait = if clusters > at_once { WAIT } else { 0.0 };
    Estimate {
        waves: (clusters / at_once).ceil(),
        bytes,
        arithmetic_seconds: blocks * multiplied,
        memory_seconds: memory,
        cache_seconds: (blocks * loaded).max(from_cache),
        launch_seconds: exchange + wait,
        total_seconds: together + exchange + wait,
    }
}
