//! The cost of `sm90` kernels without a grid split and without groups along M.
//!
//! Fitted to timings of random float16 problems on an H100. The fit minimizes the time of the
//! kernel ranked first over that of the fastest kernel (docs/design/ranking.md).

mod conversion;
mod grid_split;
mod grouped;
pub mod rates;

use conversion::with_conversion;
use rates::{
    FITTED_LAUNCH, FITTED_MEMORY_LATENCY, FITTED_MEMORY_RATE, alignment_penalty, epilogue_seconds,
    overlapped, split_seconds,
};

use super::config::{Schedule, Sm90};
use super::grid::TileGrid;
use super::placement::{FITTED_START_ALONE, Placed, placed};
use crate::kernel::cost::chips::hopper::{FULL_GPCS, SMS_OF_SMALL_GPC};
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::operation::Groups;
use crate::kernel::types::{ProductClass, Types};

// ---- rates, of one multiprocessor unless stated otherwise ----

/// FLOP per second of `wgmma` on 16-bit elements, and its time factor in ping-pong.
const FITTED_TENSOR_RATE: f64 = 5.5e12;
const FITTED_PING_PONG: f64 = 0.96;
/// Bytes per second that arrive, including multicast from other CTAs, and that this CTA requests
/// from the L2 cache.
const FITTED_ARRIVING_RATE: f64 = 96.0e9;
const FITTED_L2_RATE: f64 = 87.5e9;
/// Relative growth of the L2 rate as the share of busy multiprocessors approaches 0.
const FITTED_L2_ALONE: f64 = 0.6;
/// Time factor of loads that two CTAs share, and that more CTAs share.
const FITTED_PAIR_LOADS: f64 = 1.11;
const FITTED_CLUSTER_LOADS: f64 = 0.94;
/// Bytes per second that the L2 cache delivers to the whole chip, and to one GPC.
const FITTED_L2_RATE_OF_CHIP: f64 = 22.5e12;
const FITTED_L2_RATE_OF_GPC: f64 = 1.14e12;
/// Bytes per second of A that threads load, 8 bytes and 4 bytes at a time.
const FITTED_THREADS_RATE_8: f64 = 36e9;
const FITTED_THREADS_RATE_4: f64 = 31e9;
/// Bytes per second of device memory that one multiprocessor reads at most. Fitted to timings of
/// few rows in 8 bits on an H200, whose memory 96 multiprocessors do not saturate.
const FITTED_MEMORY_RATE_OF_SM: f64 = 35e9;
/// Bytes that one wave has read and the L2 cache keeps for later waves.
const FITTED_L2_KEPT_BYTES: f64 = 30e6;
/// The share of rereads from device memory that adds to the time of L2 loads, and its factor in
/// ping-pong, where CTAs are further apart in K.
const FITTED_REREAD: f64 = 0.05;
const FITTED_PING_PONG_REREAD: f64 = 4.24;

// ---- seconds ----

/// The least time of a K block.
const FITTED_BLOCK: f64 = 0.115e-6;
/// Additional launch time of a mixed product, which the other terms do not cover where memory
/// bandwidth limits the kernel. Fitted to timings on an H200.
const FITTED_LAUNCH_OF_MIXED: f64 = 6.5e-6;
/// Additional launch time of pairs of CTAs, and of larger clusters.
const FITTED_PAIR_LAUNCH: f64 = 0.44e-6;
const FITTED_CLUSTER_LAUNCH: f64 = 0.28e-6;
/// The start of the first tile plus the end of the last: constant, and for each accumulator of a
/// thread.
const FITTED_TILE_END: f64 = 0.61e-6;
const FITTED_SUM_END: f64 = 13.7e-9;
/// The same for the other tiles, whose ends overlap the loads of the next tile.
const FITTED_NEXT_TILE_END: f64 = 0.295e-6;
const FITTED_NEXT_SUM_END: f64 = 18.9e-9;
/// The share of a tile's end that remains in ping-pong. No unit. Excludes the last tile.
const FITTED_PING_PONG_END: f64 = 0.02;
/// Reduction of a cluster split: constant, and for each partial sum that a CTA sends.
const FITTED_SPLIT: f64 = 0.95e-6;
const FITTED_SPLIT_ELEMENT: f64 = 2.3e-10;

/// Time factor of the ends of tiles whose output rows TMA cannot address: threads store single
/// elements.
const FITTED_UNALIGNED_END: f64 = 1.6;

// ---- factors of all work ----

/// A transposed output that needs more than a conversion to 16 bits is stored through registers in
/// small pieces. Later waves do not overlap with this.
const FITTED_SWAPPED: f64 = 1.2;
/// The same for fused kernels with float32 from registers. Unfused, they store pairs of rows
/// directly.
const FITTED_FUSED_PAIRS: f64 = 1.04;
/// Packing: seconds of its launch, bytes per second read and written, and a time factor of the
/// kernel.
const FITTED_PACK_LAUNCH: f64 = 2.97e-6;
const FITTED_PACK_RATE: f64 = 2.8e12;
const FITTED_PACKED: f64 = 1.03;
/// Calibrates the times of placed kernels, whose model has its own fit, to this model's.
const FITTED_PLACED: f64 = 1.12;

pub fn estimate(config: &Sm90, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
    if config.groups == Groups::AlongM {
        return grouped::estimate(config, types, ctas_per_sm, query);
    }
    if config.over_grid {
        return grid_split::estimate(config, types, ctas_per_sm, query);
    }
    // Rank clusters last for an output of one tile: all CTAs but one would have no tile. (In a row
    // of tiles, they help to load the shared operand.) This check comes first, because the smallest
    // problems have the most kernels.
    let problem = query.problem;
    let [m, n] = config.of_wgmma([problem.m(), problem.n()]);
    if config.cluster != [1, 1] && m <= config.tile[0].into() && n <= config.tile[1].into() {
        return Estimate::UNKNOWN;
    }
    let grid = config.grid(problem);
    let multiprocessors = query.target.multiprocessors;
    // The model of placed kernels knows no conversion.
    let class = types.class();
    match placed(config, types, problem, &grid, ctas_per_sm, multiprocessors) {
        Some(placed) if class != ProductClass::Mixed => estimate_placed(config, &placed, query),
        _ => estimate_tiles(config, types, class, ctas_per_sm, &grid, query),
    }
}

/// Estimates a placed kernel: one wave on an empty chip.
fn estimate_placed(config: &Sm90, placed: &Placed, query: &CostQuery) -> Estimate {
    let (bytes, clock) = (query.bytes, query.scale.clock);
    let memory = FITTED_MEMORY_LATENCY + bytes / (FITTED_MEMORY_RATE * query.scale.memory);
    let work = placed.work_seconds / clock;
    let launch = FITTED_LAUNCH + FITTED_START_ALONE;
    let seconds = launch + overlapped([work, memory]);
    let sums = config.sums_of_thread();
    let epilogue = epilogue_seconds(query.fusion_takes_time, config.schedule, sums, 1.0);
    Estimate {
        waves: 1.0,
        bytes,
        arithmetic_seconds: placed.arithmetic_seconds / clock,
        memory_seconds: memory,
        cache_seconds: placed.cache_seconds / clock,
        launch_seconds: launch,
        total_seconds: FITTED_PLACED * (seconds + epilogue),
    }
}

fn estimate_tiles(
    config: &Sm90,
    types: Types,
    class: ProductClass,
    ctas_per_sm: u32,
    grid: &TileGrid,
    query: &CostQuery,
) -> Estimate {
    let CostQuery { problem, target, fusion_takes_time, packed_bytes, bytes, scale, .. } = *query;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let [cluster_m, cluster_n] = config.cluster.map(f64::from);
    let (size, split) = (f64::from(config.cluster_size()), f64::from(config.split));
    let sms = query.sms();
    let tiles = grid.clusters[0] * grid.clusters[1] * problem.batch() as f64;
    let slots = f64::from(config.clusters_at_once(ctas_per_sm, target.multiprocessors));
    // Clamp to one tile, so that an empty problem has no NaN times.
    let running = tiles.clamp(1.0, slots);
    let (waves, sharing) = ((tiles / slots).ceil(), (running * size / sms).max(1.0));
    let stores_elements = !config.out_is_aligned(types, &problem.out);
    let sharing_ends = sharing.sqrt() * if stores_elements { FITTED_UNALIGNED_END } else { 1.0 };

    // wgmma takes equally long for the bytes of all element types; in a mixed product, for those of
    // 16-bit elements.
    let mixed = class == ProductClass::Mixed;
    let row_bytes = f64::from(config.row_bytes(0));
    let block_bytes = row_bytes * f64::from(types.widening());
    let deep = u64::from(config.k_block(types) * config.split);
    let blocks = problem.k().unsigned_abs().div_ceil(deep) as f64;
    // Bytes of a K block of A and B: as they arrive, and weighted by the L2 alignment penalty.
    let rows = config.rows_read(problem);
    let arriving = f64::from(rows[0].0 + rows[1].0) * 128.0;
    let [a_rows, b_rows] =
        rows.map(|(rows, aligned)| f64::from(rows) * 128.0 * (1.0 + alignment_penalty(aligned)));
    let operands = a_rows / cluster_n + b_rows / cluster_m;
    let by_threads = match config.align {
        16 => 0.0,
        8 => tile_m * 128.0 / (FITTED_THREADS_RATE_8 * scale.clock),
        _ => tile_m * 128.0 / (FITTED_THREADS_RATE_4 * scale.clock),
    };
    let share = (running * size * config.occupied(grid) / sms).min(1.0);
    let ping_pong = config.schedule == Schedule::PingPong;
    let mut multiplied = (tile_m * tile_n * block_bytes / (FITTED_TENSOR_RATE * scale.tensor)
        * if ping_pong { FITTED_PING_PONG } else { 1.0 })
    .max(FITTED_BLOCK);
    let launch = FITTED_LAUNCH + if mixed { FITTED_LAUNCH_OF_MIXED } else { 0.0 };
    let (by_cluster, launch_of_cluster) = match (cluster_m * cluster_n) as u32 {
        1 => (1.0, 0.0),
        2 => (FITTED_PAIR_LOADS, FITTED_PAIR_LAUNCH),
        _ => (FITTED_CLUSTER_LOADS, FITTED_CLUSTER_LAUNCH),
    };
    let l2_rate = FITTED_L2_RATE * scale.clock * (1.0 + FITTED_L2_ALONE * (1.0 - share));
    let arriving_rate = FITTED_ARRIVING_RATE * scale.clock;
    let mut loaded =
        (operands / l2_rate).max(arriving / arriving_rate).max(by_threads) * by_cluster;
    if split > 1.0 && !mixed {
        // The few clusters of a cluster split spread unevenly over the GPCs. The fullest finishes
        // last. In mixed products the columns take most of the bytes: CTAs of a slice of K read the
        // same ones at a time.
        let in_small = f64::from(SMS_OF_SMALL_GPC / config.cluster_size());
        let fullest = ((running - in_small) / f64::from(FULL_GPCS)).ceil().max(1.0);
        let gpc_rate = FITTED_L2_RATE_OF_GPC * scale.clock;
        loaded = loaded.max(fullest * size * operands / gpc_rate);
    }
    multiplied *= sharing;
    loaded *= sharing;
    if mixed {
        multiplied = with_conversion(config, types, multiplied, sharing, scale.clock);
    }
    // A cluster of a cluster split computes one tile: it exchanges all partial sums before it
    // stores, and the next wave begins after its end.
    let sums = config.sums_of_thread();
    let ends = (FITTED_TILE_END + FITTED_SUM_END * sums * split) * sharing_ends;
    let (work, ends_of_all) = if split > 1.0 {
        let adding = FITTED_SPLIT
            + FITTED_SPLIT_ELEMENT * tile_m * tile_n * (split - 1.0) / split
            + split_seconds(types);
        let work = waves * (blocks * multiplied.max(loaded) + ends + adding);
        (work, waves * (ends + adding))
    } else {
        let next_ends = match config.schedule {
            Schedule::Cooperative => {
                (FITTED_NEXT_TILE_END + FITTED_NEXT_SUM_END * sums) * sharing_ends
            }
            Schedule::PingPong => FITTED_PING_PONG_END * ends,
        };
        let next = (blocks * multiplied + next_ends).max(blocks * loaded);
        let work = blocks * multiplied.max(loaded) + ends + (waves - 1.0) * next;
        (work, ends + (waves - 1.0) * next_ends)
    };
    let mut work = work + epilogue_seconds(fusion_takes_time, config.schedule, sums, waves);
    // Up to 16 columns, a tile's store is one step.
    if config.swapped && waves > 1.0 && tile_n > 16.0 {
        work *= match config.a_from_registers(types) && !mixed {
            true if fusion_takes_time => FITTED_FUSED_PAIRS,
            false if fusion_takes_time || types.out.bits() != 16 => FITTED_SWAPPED,
            _ => 1.0,
        };
    }
    let memory_rate = memory_rate(class, running * size, query);
    // Concurrent clusters share their reads. Later clusters hit what the L2 cache keeps.
    let [of_row, of_column] =
        config.of_wgmma([types.a, types.b]).map(|dtype| dtype.bytes_of(problem.k()) as f64);
    let again = |rows: f64, columns: f64| tiles / running * (rows * of_row + columns * of_column);
    let keeps = FITTED_L2_KEPT_BYTES * scale.l2_bytes;
    let reread = if again(grid.extent[0], grid.extent[1]) > keeps {
        let [rows, columns] = config.covered(grid, running);
        let apart = if ping_pong { FITTED_PING_PONG_REREAD } else { 1.0 };
        FITTED_REREAD * apart * (again(rows, columns) - keeps).max(0.0) / memory_rate
    } else {
        0.0 // The cache keeps everything, even if each wave reads both operands whole.
    };
    let [a_inside, b_inside] = config.inside(grid);
    let inside = a_rows * a_inside / cluster_n + b_rows * b_inside / cluster_m;
    let from_cache = tiles * size * blocks * inside / (FITTED_L2_RATE_OF_CHIP * scale.clock);

    let memory = FITTED_MEMORY_LATENCY + bytes / memory_rate;
    let (packing, packed) = match packed_bytes {
        0 => (0.0, 1.0),
        bytes => {
            let rate = FITTED_PACK_RATE * scale.memory;
            (FITTED_PACK_LAUNCH + 2.0 * bytes as f64 / rate, FITTED_PACKED)
        }
    };
    Estimate {
        waves,
        bytes: bytes + 2.0 * packed_bytes as f64,
        arithmetic_seconds: waves * blocks * multiplied,
        memory_seconds: memory,
        cache_seconds: (waves * blocks * loaded).max(from_cache + reread),
        launch_seconds: launch + launch_of_cluster + packing + ends_of_all,
        total_seconds: (launch
            + launch_of_cluster
            + overlapped([work, from_cache + reread, memory])
            + packing)
            * packed,
    }
}

/// Bytes per second of device memory that this many CTAs reach.
fn memory_rate(class: ProductClass, ctas: f64, query: &CostQuery) -> f64 {
    let rate = FITTED_MEMORY_RATE * query.scale.memory;
    match class {
        ProductClass::Float8 | ProductClass::Integer8 => {
            rate.min(FITTED_MEMORY_RATE_OF_SM * query.scale.clock * ctas.min(query.sms()))
        }
        _ => rate,
    }
}
