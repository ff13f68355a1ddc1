//! The cost of `sm90` kernels with a grid split: all CTAs run at once, and their partial sums meet
//! in workspace after the last K block.
//!
//! Fitted on an H100 to timings of problems with few tiles in float16.

use super::rates::{
    FITTED_ONE_CONSUMER, alignment_penalty, epilogue_seconds, overlapped, split_seconds,
};
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::sm90::{Schedule, Sm90};
use crate::kernel::types::Types;

/// Calibrates this model's times to those of the model without a grid split.
const FITTED_CALIBRATION: f64 = 1.243;
/// Rates and the least time of a K block, in the units of the model without a grid split.
const FITTED_TENSOR_RATE: f64 = 6.39e12;
const FITTED_BLOCK: f64 = 0.084e-6;
const FITTED_L2_RATE: f64 = 141e9;
const FITTED_L2_RATE_OF_CHIP: f64 = 16.1e12;
const FITTED_MEMORY_RATE: f64 = 3.77e12;
/// Seconds of a launch and the exchange in workspace, of each accumulator that a thread stores, and
/// of each partial sum that it adds up.
const FITTED_EXCHANGE: f64 = 1.25e-6;
const FITTED_SUM_STORED: f64 = 50e-9;
const FITTED_SUM_ADDED: f64 = 12.7e-9;
/// Seconds that CTAs poll in vain (`PATIENCE` of the program) if not all CTAs run at once, as on a
/// chip smaller than an H100.
const FITTED_WAIT: f64 = 50e-6;

pub fn estimate(config: &Sm90, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
    let CostQuery { problem, target, fusion_takes_time, bytes, scale, .. } = *query;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let [cluster_m, cluster_n] = config.cluster.map(f64::from);
    let (reducers, splits) = (f64::from(config.split), f64::from(config.k_splits(problem)));
    let element = types.a.width();
    let blocks = ((problem.k() as f64 * element / 128.0).ceil() / splits).ceil();
    let [a_rows, b_rows] = config
        .rows_read(problem)
        .map(|(rows, aligned)| f64::from(rows) * 128.0 * (1.0 + alignment_penalty(aligned)));
    let operands = a_rows / cluster_n + b_rows / cluster_m;
    let one_consumer = if config.consumers == 1 { FITTED_ONE_CONSUMER } else { 1.0 };
    let multiplied = tile_m * tile_n * 128.0 / (FITTED_TENSOR_RATE * scale.tensor) * one_consumer;
    let loaded = operands / (FITTED_L2_RATE * scale.clock);
    let work = blocks * multiplied.max(FITTED_BLOCK).max(loaded);
    let ctas = config.tiles(problem) as f64
        * f64::from(config.cluster_size())
        * splits
        * config.occupied(&config.grid(problem));
    let from_cache = ctas * blocks * operands / (FITTED_L2_RATE_OF_CHIP * scale.clock);
    let memory = bytes / (FITTED_MEMORY_RATE * scale.memory);
    let together = overlapped([work, from_cache, memory]);
    // With fewer slices of K than reducer CTAs, some CTAs reduce several shares of the columns.
    let sums = config.sums_of_thread();
    let added = sums * (reducers / splits).ceil();
    let epilogue = epilogue_seconds(fusion_takes_time, Schedule::Cooperative, added, 1.0);
    let exchange = FITTED_EXCHANGE
        + FITTED_SUM_STORED * sums * reducers
        + FITTED_SUM_ADDED * splits * added
        + split_seconds(types);
    let clusters = config.tiles(problem) as f64 * splits;
    let at_once = f64::from(config.clusters_at_once(ctas_per_sm, target.multiprocessors));
    let wait = if clusters > at_once { FITTED_WAIT } else { 0.0 };
    Estimate {
        waves: (clusters / at_once).ceil(),
        bytes,
        arithmetic_seconds: blocks * multiplied,
        memory_seconds: memory,
        cache_seconds: (blocks * loaded).max(from_cache),
        launch_seconds: exchange + wait,
        total_seconds: FITTED_CALIBRATION * (together + exchange + epilogue) + wait,
    }
}
