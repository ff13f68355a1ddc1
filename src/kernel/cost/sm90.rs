//! The cost of `sm90` kernels that store the sums of whole tiles, or of tiles that a cluster
//! splits.
//!
//! Fitted to timings of random problems on an H100 in float16, for the loss that matters: the time
//! of the kernel ranked first over that of the fastest (docs/design/ranking.md).

use super::chips::hopper::{FULL_GPCS, SMS_OF_SMALL_GPC};
use super::query::{CostQuery, Estimate};
use super::sm90_rates::{
    FITTED_LAUNCH, FITTED_MEMORY_LATENCY, FITTED_MEMORY_RATE, epilogue_seconds, ragged,
};
use super::{sm90_grid_split, sm90_grouped};
use crate::kernel::sm90::{FITTED_START_ALONE, Placed, Schedule, Sm90, TileGrid, placed};
use crate::kernel::types::Types;

// ---- rates, of one multiprocessor where not said otherwise ----

/// FLOP a second of `wgmma` on 16-bit elements, and the factor of its time in ping-pong.
const FITTED_TENSOR_RATE: f64 = 5.5e12;
const FITTED_PING_PONG: f64 = 0.96;
/// Bytes a second that arrive, and that are requested from the L2 cache: of what a cluster shares,
/// a CTA's slice.
const FITTED_ARRIVING_RATE: f64 = 96.0e9;
const FITTED_L2_RATE: f64 = 87.5e9;
/// How much the rate of requests grows where nearly no other multiprocessor has any.
const FITTED_L2_ALONE: f64 = 0.6;
/// The factor of the time of loads that two CTAs share, and that more share.
const FITTED_BY_PAIRS: f64 = 1.11;
const FITTED_BY_MORE: f64 = 0.94;
/// Bytes a second that the L2 cache delivers to all multiprocessors, and to a GPC.
const FITTED_L2_RATE_OF_CHIP: f64 = 22.5e12;
const FITTED_L2_RATE_OF_GPC: f64 = 1.14e12;
/// Bytes a second of A that threads load, 8 and 4 at a time.
const FITTED_THREADS_RATE_8: f64 = 36e9;
const FITTED_THREADS_RATE_4: f64 = 31e9;
/// Bytes that the L2 cache keeps of what tiles have read for later tiles.
const FITTED_L2_KEEPS: f64 = 30e6;
/// The share of bytes read again from device memory that adds to the time of the cache, and its
/// factor in ping-pong, where CTAs are further apart in K.
const FITTED_REREAD: f64 = 0.05;
const FITTED_PING_PONG_REREAD: f64 = 4.24;

// ---- seconds ----

/// The smallest block of K.
const FITTED_BLOCK: f64 = 0.115e-6;
/// The launch of pairs of CTAs, and of larger clusters, over that of single CTAs.
const FITTED_PAIRS: f64 = 0.44e-6;
const FITTED_CLUSTERS: f64 = 0.28e-6;
/// The start of the first tile and the end of the last, and of that for each sum of a thread.
const FITTED_TILE_END: f64 = 0.61e-6;
const FITTED_SUM_END: f64 = 13.7e-9;
/// The same for the other tiles, whose end overlaps the loads of the next.
const FITTED_NEXT_TILE_END: f64 = 0.295e-6;
const FITTED_NEXT_SUM_END: f64 = 18.9e-9;
/// The share of a tile's end that remains in ping-pong, for all tiles but the last.
const FITTED_PING_PONG_END: f64 = 0.02;
/// Adding up a split tile, and each sum that a CTA sends.
const FITTED_SPLIT: f64 = 0.95e-6;
const FITTED_SPLIT_ELEMENT: f64 = 2.3e-10;

// ---- factors of all work ----

/// An output written transposed that needs more than a conversion to 16 bits goes through registers
/// in small pieces, which further rounds do not hide.
const FITTED_SWAPPED_ROUNDS: f64 = 1.2;
/// The same where A comes from registers: pairs of rows are stored from there, unless fused.
const FITTED_FUSED_PAIRS: f64 = 1.04;
/// Packing: seconds of a launch, bytes a second read and written, and a factor of all that follows.
const FITTED_PACK_LAUNCH: f64 = 2.97e-6;
const FITTED_PACK_RATE: f64 = 2.8e12;
const FITTED_PACKED: f64 = 1.03;
/// The model's times over those of placed kernels, which are fitted apart.
const FITTED_OVER_PLACED: f64 = 1.12;

pub fn estimate(config: &Sm90, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
    if config.grouped {
        return sm90_grouped::estimate(config, types, ctas_per_sm, query);
    }
    if config.over_grid {
        return sm90_grid_split::estimate(config, types, ctas_per_sm, query);
    }
    // Of a single tile, the other CTAs of a cluster would have none. (Of a row of tiles, they help
    // to load what the row shares.) Checked first: the smallest problems have the most kernels.
    let problem = query.problem;
    let [m, n] =
        if config.crossed() { [problem.n(), problem.m()] } else { [problem.m(), problem.n()] };
    if config.cluster != [1, 1] && m <= config.tile[0].into() && n <= config.tile[1].into() {
        return Estimate::UNKNOWN;
    }
    let grid = config.grid(problem);
    let multiprocessors = query.target.multiprocessors;
    match placed(config, types, problem, &grid, ctas_per_sm, multiprocessors) {
        Some(placed) => estimate_placed(config, types, &placed, query),
        None => estimate_tiles(config, types, ctas_per_sm, &grid, query),
    }
}

/// One wave on an empty chip.
fn estimate_placed(config: &Sm90, types: Types, placed: &Placed, query: &CostQuery) -> Estimate {
    let (bytes, clock) = (query.bytes(types), query.scale.clock);
    let memory = FITTED_MEMORY_LATENCY + bytes / (FITTED_MEMORY_RATE * query.scale.memory);
    let work = placed.work_seconds / clock;
    let seconds = FITTED_LAUNCH + (work * work + memory * memory).sqrt() + FITTED_START_ALONE;
    let epilogue = match query.is_fused {
        true => epilogue_seconds(config.schedule, config.sums_of_thread(), 1.0),
        false => 0.0,
    };
    Estimate {
        waves: 1.0,
        bytes,
        arithmetic_seconds: placed.arithmetic_seconds / clock,
        memory_seconds: memory,
        cache_seconds: placed.cache_seconds / clock,
        launch_seconds: FITTED_LAUNCH + FITTED_START_ALONE,
        total_seconds: FITTED_OVER_PLACED * (seconds + epilogue),
    }
}

fn estimate_tiles(
    config: &Sm90,
    types: Types,
    ctas_per_sm: u32,
    grid: &TileGrid,
    query: &CostQuery,
) -> Estimate {
    let CostQuery { problem, target, is_fused, packed_bytes, scale } = *query;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let [cluster_m, cluster_n] = config.cluster.map(f64::from);
    let (size, split) = (f64::from(config.cluster_size()), f64::from(config.split));
    let sms = query.sms();
    let tiles = grid.clusters[0] * grid.clusters[1] * problem.batch() as f64;
    let slots = f64::from(config.clusters_at_once(ctas_per_sm, target.multiprocessors));
    // A problem without tiles counts as one tile: no time is NaN.
    let running = tiles.clamp(1.0, slots);
    let (rounds, sharing) = ((tiles / slots).ceil(), (running * size / sms).max(1.0));
    let sharing_ends = sharing.sqrt();

    // A block is 128 bytes of K: wgmma takes equally long for it, whatever the type.
    let element = types.a.bytes() as f64;
    let blocks =
        ((problem.k() * types.a.bytes()).unsigned_abs().div_ceil(128) as f64 / split).ceil();
    // Bytes of a block of A and B: as they arrive, and as the L2 cache takes equally long for.
    let rows = config.rows_read(problem);
    let arriving = f64::from(rows[0].0 + rows[1].0) * 128.0;
    let [a_rows, b_rows] =
        rows.map(|(rows, aligned)| f64::from(rows) * 128.0 * (1.0 + ragged(aligned)));
    let operands = a_rows / cluster_n + b_rows / cluster_m;
    let by_threads = match config.align {
        16 => 0.0,
        8 => tile_m * 128.0 / (FITTED_THREADS_RATE_8 * scale.clock),
        _ => tile_m * 128.0 / (FITTED_THREADS_RATE_4 * scale.clock),
    };
    let share = (running * size * config.occupied(grid) / sms).min(1.0);
    let ping_pong = config.schedule == Schedule::PingPong;
    let mut multiplied = (tile_m * tile_n * 128.0 / (FITTED_TENSOR_RATE * scale.tensor)
        * if ping_pong { FITTED_PING_PONG } else { 1.0 })
    .max(FITTED_BLOCK);
    let (by_cluster, launch_of_cluster) = match (cluster_m * cluster_n) as u32 {
        1 => (1.0, 0.0),
        2 => (FITTED_BY_PAIRS, FITTED_PAIRS),
        _ => (FITTED_BY_MORE, FITTED_CLUSTERS),
    };
    let l2_rate = FITTED_L2_RATE * scale.clock * (1.0 + FITTED_L2_ALONE * (1.0 - share));
    let arriving_rate = FITTED_ARRIVING_RATE * scale.clock;
    let mut loaded =
        (operands / l2_rate).max(arriving / arriving_rate).max(by_threads) * by_cluster;
    if split > 1.0 {
        // Clusters of split tiles are few and spread unevenly; the fullest GPC finishes last.
        let in_small = f64::from(SMS_OF_SMALL_GPC / config.cluster_size());
        let fullest = ((running - in_small) / f64::from(FULL_GPCS)).ceil().max(1.0);
        let gpc_rate = FITTED_L2_RATE_OF_GPC * scale.clock;
        loaded = loaded.max(fullest * size * operands / gpc_rate);
    }
    multiplied *= sharing;
    loaded *= sharing;
    // A split tile has its cluster to itself: all its sums are sent before they are stored, and the
    // next round begins after it.
    let ends = (FITTED_TILE_END + FITTED_SUM_END * config.sums_of_thread() * split) * sharing_ends;
    let (work, ends_of_all) = if split > 1.0 {
        let adding = FITTED_SPLIT + FITTED_SPLIT_ELEMENT * tile_m * tile_n * (split - 1.0) / split;
        let work = rounds * (blocks * multiplied.max(loaded) + ends + adding);
        (work, rounds * (ends + adding))
    } else {
        let next_ends = match config.schedule {
            Schedule::Cooperative => {
                (FITTED_NEXT_TILE_END + FITTED_NEXT_SUM_END * config.sums_of_thread())
                    * sharing_ends
            }
            Schedule::PingPong => FITTED_PING_PONG_END * ends,
        };
        let next = (blocks * multiplied + next_ends).max(blocks * loaded);
        let work = blocks * multiplied.max(loaded) + ends + (rounds - 1.0) * next;
        (work, ends + (rounds - 1.0) * next_ends)
    };
    let mut work = work
        + match is_fused {
            true => epilogue_seconds(config.schedule, config.sums_of_thread(), rounds),
            false => 0.0,
        };
    if config.swapped && rounds > 1.0 {
        work *= match config.a_from_registers(types) {
            true if is_fused => FITTED_FUSED_PAIRS,
            false if is_fused || types.out.bytes() != 2 => FITTED_SWAPPED_ROUNDS,
            _ => 1.0,
        };
    }
    let memory_rate = FITTED_MEMORY_RATE * scale.memory;
    // Clusters that run at the same time share what they read; later ones find what the cache
    // keeps.
    let again =
        |rows_and_columns: f64| tiles / running * rows_and_columns * problem.k() as f64 * element;
    let keeps = FITTED_L2_KEEPS * scale.l2_bytes;
    let reread = if again(grid.extent[0] + grid.extent[1]) > keeps {
        let [rows, columns] = config.covered(grid, running);
        let apart = if ping_pong { FITTED_PING_PONG_REREAD } else { 1.0 };
        FITTED_REREAD * apart * (again(rows + columns) - keeps).max(0.0) / memory_rate
    } else {
        0.0 // The cache keeps everything, even if each round reads both operands whole.
    };
    let [a_inside, b_inside] = config.inside(grid);
    let inside = a_rows * a_inside / cluster_n + b_rows * b_inside / cluster_m;
    let from_cache = tiles * size * blocks * inside / (FITTED_L2_RATE_OF_CHIP * scale.clock);

    let bytes = query.bytes(types);
    let memory = FITTED_MEMORY_LATENCY + bytes / memory_rate;
    let (packing, packed) = match packed_bytes {
        0 => (0.0, 1.0),
        bytes => {
            let rate = FITTED_PACK_RATE * scale.memory;
            (FITTED_PACK_LAUNCH + 2.0 * bytes as f64 / rate, FITTED_PACKED)
        }
    };
    // All overlap: the root of the sum of squares, so the longest weighs most.
    let together = [work, from_cache + reread, memory]
        .map(|seconds| seconds * seconds)
        .into_iter()
        .sum::<f64>();
    Estimate {
        waves: rounds,
        bytes: bytes + 2.0 * packed_bytes as f64,
        arithmetic_seconds: rounds * blocks * multiplied,
        memory_seconds: memory,
        cache_seconds: (rounds * blocks * loaded).max(from_cache + reread),
        launch_seconds: FITTED_LAUNCH + launch_of_cluster + packing + ends_of_all,
        total_seconds: (FITTED_LAUNCH + launch_of_cluster + together.sqrt() + packing) * packed,
    }
}
