//! The cost of `sm90` kernels without a grid split and without groups along M.

mod conversion;
mod grid_split;
mod grouped;
pub mod rates;

use conversion::with_conversion;
use rates::{
    alignment_penalty, fitted_block, fitted_epilogue, fitted_ping_pong_epilogue, overlapped,
};

use super::config::{Schedule, Sm90};
use super::grid::TileGrid;
use super::placement::{Placed, placed};
use crate::kernel::cost::factors::factors;
use crate::kernel::cost::query::{
    CostQuery, Estimate, fitted_cluster_sum, fitted_cluster_sum_byte,
};
use crate::kernel::operation::Groups;
use crate::kernel::types::{ProductClass, Types};

factors! {
    /// The time of `wgmma` in ping-pong over that of cooperative consumers.
    fitted_ping_pong = 0.96;
    /// Bytes per second that arrive at a multiprocessor of an H100, including multicast from other
    /// CTAs.
    fitted_arriving = 96e9;
    /// Relative growth of the L2 rate as the share of busy multiprocessors approaches 0.
    fitted_l2_alone = 0.75;
    /// Time factor of loads that two CTAs share, and that more share.
    fitted_pair_loads = 1.11;
    fitted_cluster_loads = 0.94;
    /// Seconds of a launch of a mixed product, which the other terms do not cover where memory
    /// bandwidth limits the kernel; of pairs of CTAs; of larger clusters.
    fitted_launch_of_mixed = 2.34e-6;
    fitted_pair_launch = 264e-9;
    fitted_cluster_launch = 0.28e-6;
    /// The start of the first tile plus the end of the last: constant, and for each accumulator of
    /// a thread.
    fitted_end = 0.61e-6;
    fitted_sum_end = 13.7e-9;
    /// The same for the other tiles, whose ends overlap the loads of the next tile, and in
    /// ping-pong all of it.
    fitted_next_sum_end = 18.9e-9;
    /// Time factor of a transposed output that needs more than a conversion to 16 bits, and is
    /// stored through registers in small pieces. Later waves do not overlap with this.
    fitted_swapped = 1.2;
    /// The same for fused kernels with float32 from registers. Unfused, they store pairs of rows
    /// directly.
    fitted_fused_pairs = 1.04;
    /// Seconds of the launch that packs operands.
    fitted_pack_launch = 2.97e-6;
}

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
        Some(placed) if class != ProductClass::Mixed => estimate_placed(&placed, query),
        _ => estimate_tiles(config, types, class, ctas_per_sm, &grid, query),
    }
}

/// Estimates a placed kernel: one wave on an empty chip.
fn estimate_placed(placed: &Placed, query: &CostQuery) -> Estimate {
    let (bytes, clock) = (query.bytes, query.rates.clock);
    let memory = bytes / query.rates.memory;
    let work = placed.work_seconds / clock;
    let launch = query.rates.launch;
    let seconds = launch + overlapped([work, memory]);
    Estimate {
        waves: 1.0,
        bytes,
        arithmetic_seconds: placed.arithmetic_seconds / clock,
        memory_seconds: memory,
        cache_seconds: placed.cache_seconds / clock,
        launch_seconds: launch,
        total_seconds: seconds,
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
    let CostQuery { problem, target, fusion_takes_time, packed_bytes, bytes, rates, .. } = *query;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let [cluster_m, cluster_n] = config.cluster.map(f64::from);
    let (size, split) = (f64::from(config.cluster_size()), f64::from(config.split));
    let sms = query.sms();
    let tiles = grid.clusters[0] * grid.clusters[1] * problem.batch() as f64;
    let slots = f64::from(config.clusters_at_once(ctas_per_sm, target.multiprocessors));
    // Clamp to one tile, so that an empty problem has no NaN times.
    let running = tiles.clamp(1.0, slots);
    let (waves, sharing) = ((tiles / slots).ceil(), (running * size / sms).max(1.0));

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
    let share = (running * size * config.occupied(grid) / sms).min(1.0);
    let (by_schedule, epilogue_share) = match config.schedule {
        Schedule::Cooperative => (1.0, 1.0),
        Schedule::PingPong => (fitted_ping_pong(), fitted_ping_pong_epilogue()),
    };
    let mut multiplied =
        (tile_m * tile_n * block_bytes / rates.tensor * by_schedule).max(fitted_block());
    let (by_cluster, launch_of_cluster) = match (cluster_m * cluster_n) as u32 {
        1 => (1.0, 0.0),
        2 => (fitted_pair_loads(), fitted_pair_launch()),
        _ => (fitted_cluster_loads(), fitted_cluster_launch()),
    };
    let l2_rate = rates.l2 * (1.0 + fitted_l2_alone() * (1.0 - share));
    let arriving_rate = fitted_arriving() * rates.clock;
    let mut loaded = (operands / l2_rate).max(arriving / arriving_rate) * by_cluster;
    multiplied *= sharing;
    loaded *= sharing;
    if mixed {
        multiplied = with_conversion(config, types, multiplied, sharing, rates.clock);
    }
    // A cluster of a cluster split computes one tile: it exchanges all partial sums before it
    // stores, and the next wave begins after its end.
    let sums = config.sums_of_thread();
    let ends = (fitted_end() + fitted_sum_end() * sums * split) * sharing.sqrt();
    let (work, ends_of_all) = if split > 1.0 {
        let bytes = 4.0 * tile_m * tile_n * (split - 1.0) / split;
        let adding = fitted_cluster_sum() + fitted_cluster_sum_byte() * bytes;
        let work = waves * (blocks * multiplied.max(loaded) + ends + adding);
        (work, waves * (ends + adding))
    } else {
        let next_ends = match config.schedule {
            Schedule::Cooperative => fitted_next_sum_end() * sums * sharing.sqrt(),
            Schedule::PingPong => 0.0,
        };
        let next = (blocks * multiplied + next_ends).max(blocks * loaded);
        let work = blocks * multiplied.max(loaded) + ends + (waves - 1.0) * next;
        (work, ends + (waves - 1.0) * next_ends)
    };
    let epilogue = if fusion_takes_time { epilogue_share * fitted_epilogue() * sums } else { 0.0 };
    let mut work = work + waves * epilogue;
    // Up to 16 columns, a tile's store is one step.
    if config.swapped && waves > 1.0 && tile_n > 16.0 {
        work *= match config.a_from_registers(types) && !mixed {
            true if fusion_takes_time => fitted_fused_pairs(),
            false if fusion_takes_time || types.out.bits() != 16 => fitted_swapped(),
            _ => 1.0,
        };
    }
    let [a_inside, b_inside] = config.inside(grid);
    let inside = a_rows * a_inside / cluster_n + b_rows * b_inside / cluster_m;
    let from_cache = tiles * size * blocks * inside / rates.l2_of_chip;
    let memory = bytes / rates.memory;
    let packing = match packed_bytes {
        0 => 0.0,
        bytes => fitted_pack_launch() + 2.0 * bytes as f64 / rates.memory,
    };
    let launch_of_mixed = if mixed { fitted_launch_of_mixed() } else { 0.0 };
    let launch = launch_of_mixed + launch_of_cluster + packing;
    Estimate {
        waves,
        bytes: bytes + 2.0 * packed_bytes as f64,
        arithmetic_seconds: waves * blocks * multiplied,
        memory_seconds: memory,
        cache_seconds: (waves * blocks * loaded).max(from_cache),
        launch_seconds: launch + ends_of_all,
        total_seconds: launch + overlapped([work, from_cache, memory]),
    }
}
