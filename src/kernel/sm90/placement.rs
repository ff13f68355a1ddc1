//! Whether a grid waits for an empty chip. Its CTAs then start GPC by GPC, and the CTAs of a GPC
//! share their loads.
//!
//! The L2 cache delivers data once to all multiprocessors of a GPC that request it at about the
//! same time. The CTAs of a grid that overlaps the preceding grid start on any multiprocessor.

use super::config::{ROW_BYTES, Schedule, Sm90};
use super::cost::rates::{
    FITTED_LAUNCH, FITTED_MEMORY_LATENCY, FITTED_MEMORY_RATE, FITTED_ONE_CONSUMER,
};
use super::grid::TileGrid;
use crate::kernel::cost::chips::hopper::SMS_PER_GPC;
use crate::kernel::cost::query::operand_bytes;
use crate::kernel::types::Types;
use crate::problem::GemmProblem;

/// A tile order for a grid that starts on an empty chip, so that its CTAs start GPC by GPC.
pub struct Placement {
    /// Tiles along M that are walked before the next along N.
    pub band: u32,
    /// Rows and columns of a K block that all GPCs together load from the L2 cache. A GPC loads
    /// once the rows and columns that its CTAs share.
    pub drawn: f64,
    /// The same if CTAs start on any multiprocessor.
    pub drawn_anywhere: f64,
}

/// Rows and columns of tiles, added up over the GPCs, if each GPC takes the next tiles in bands of
/// this height. Requires at most 128 columns of tiles.
fn rows_and_columns_of_gpcs(tiles: [u32; 2], band: u32) -> [u32; 2] {
    let [down, across] = tiles;
    let count = down * across;
    let mut all = [0, 0];
    for start in (0..count).step_by(SMS_PER_GPC as usize) {
        let (mut at, end, mut columns) = (start, (start + SMS_PER_GPC).min(count), 0u128);
        while at < end {
            let above = at / (band * across) * band;
            let (height, begin) = (band.min(down - above), above * across);
            let until = end.min(begin + height * across);
            let [first, last] = [at, until - 1].map(|tile| (tile - begin) / height);
            columns |= u128::MAX >> (127 - (last - first)) << first;
            all[0] += height.min(until - at);
            at = until;
        }
        all[1] += columns.count_ones();
    }
    all
}

/// A placement that is faster than overlapping, with its times on an H100.
pub struct Placed {
    pub placement: Placement,
    /// Time of the tensor cores.
    pub arithmetic_seconds: f64,
    /// Time of loads from the L2 cache.
    pub cache_seconds: f64,
    /// Time of all K blocks, each the longer of arithmetic and loads, plus the tile's end.
    pub work_seconds: f64,
}

/// Fitted: seconds from the end of a grid to the start of the next, without overlap.
pub const FITTED_START_ALONE: f64 = 0.7e-6;

/// The placement of a kernel, if waiting for an empty chip pays. The decision ignores the device's
/// rates, which scale both alternatives alike.
pub fn placed(
    config: &Sm90,
    types: Types,
    problem: &GemmProblem,
    grid: &TileGrid,
    ctas_per_sm: u32,
    multiprocessors: u32,
) -> Option<Placed> {
    // Fitted to timings on an H100.
    /// Bytes a second that the L2 cache delivers to all GPCs, with the bytes that a GPC shares
    /// counted once: for CTAs that start GPC by GPC, and for CTAs that start anywhere.
    const FITTED_DELIVERED_RATE: f64 = 3.5e12;
    const FITTED_DELIVERED_RATE_ANYWHERE: f64 = 5.0e12;
    /// Bytes a second that one multiprocessor receives, and 16-bit FLOP a second of its tensor
    /// cores.
    const FITTED_ARRIVING_RATE: f64 = 160e9;
    const FITTED_TENSOR_RATE: f64 = 6.19e12;
    /// Seconds: least time of a K block, a tile's end, and a thread's store of one accumulator.
    const FITTED_BLOCK: f64 = 0.1e-6;
    const FITTED_TILE_END: f64 = 0.5e-6;
    const FITTED_SUM_END: f64 = 27.7e-9;
    // The hardware places CTAs GPC by GPC only if no other grid runs.
    if problem.options.free_multiprocessors > 0 {
        return None;
    }
    let placement = config.placement(problem, grid, ctas_per_sm, multiprocessors)?;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let arriving =
        config.rows_read(problem).map(|(rows, _)| f64::from(rows) * 128.0).into_iter().sum::<f64>();
    let blocks = (problem.k() as f64 / f64::from(config.k_block(types))).ceil();
    let has_one_consumer = config.consumers == 1 || config.schedule == Schedule::PingPong;
    let multiplied = tile_m * tile_n * f64::from(config.row_bytes(0) * types.widening())
        / FITTED_TENSOR_RATE
        * if has_one_consumer { FITTED_ONE_CONSUMER } else { 1.0 };
    let memory = FITTED_MEMORY_LATENCY + operand_bytes(problem) / FITTED_MEMORY_RATE;
    let loaded = |drawn: f64| (arriving / FITTED_ARRIVING_RATE).max(drawn * 128.0);
    let work = |loaded: f64| {
        let block = multiplied.max(loaded).max(FITTED_BLOCK);
        blocks * block + FITTED_TILE_END + FITTED_SUM_END * config.sums_of_thread()
    };
    let seconds = |work: f64| FITTED_LAUNCH + (work * work + memory * memory).sqrt();
    let loaded_placed = loaded(placement.drawn / FITTED_DELIVERED_RATE);
    let (placed, anywhere) = (
        work(loaded_placed),
        work(loaded(placement.drawn_anywhere / FITTED_DELIVERED_RATE_ANYWHERE)),
    );
    let pays = seconds(placed) + FITTED_START_ALONE < seconds(anywhere);
    pays.then_some(Placed {
        placement,
        arithmetic_seconds: blocks * multiplied,
        cache_seconds: blocks * loaded_placed,
        work_seconds: placed,
    })
}

impl Sm90 {
    /// The tile order with which the GPCs load the least. `None` unless the kernel has no clusters
    /// (the hardware spreads clusters over the GPCs), each CTA has one tile, and the operands' rows
    /// begin at cache lines.
    pub fn placement(
        &self,
        problem: &GemmProblem,
        grid: &TileGrid,
        ctas_per_sm: u32,
        multiprocessors: u32,
    ) -> Option<Placement> {
        // With at least two tiles along M, there are then at most 128 columns.
        const MOST_TILES: f64 = 256.0;
        let TileGrid { clusters: tiles, .. } = *grid;
        if tiles[0].min(tiles[1]) < 2.0
            || tiles[0] * tiles[1] > f64::from(multiprocessors).min(MOST_TILES)
        {
            return None;
        }
        let is_plain =
            self.cluster_size() == 1 && self.split == 1 && !self.has_groups() && ctas_per_sm == 1;
        if !is_plain || self.loads_by_threads() || self.packs() || problem.batch() != 1 {
            return None;
        }
        if self.rows_read(problem).iter().any(|(_, aligned)| *aligned < ROW_BYTES) {
            return None;
        }
        // The 128-byte rows of a K block: a mixed product's B has several for each column.
        let sides = self.sides(problem).map(|side| side.view.dtype.bits());
        let [m, n] = self.tile.map(f64::from);
        let n = n * f64::from(sides[1] / sides[0]);
        let whole = tiles.map(|tiles| tiles as u32);
        let drawn = |band: u32| {
            let [rows, columns] = rows_and_columns_of_gpcs(whole, band);
            f64::from(rows) * m + f64::from(columns) * n
        };
        let bands = [1, 2, 3, 4, 5, 6, 8, 16].into_iter().filter(|band| *band <= whole[0]);
        let (band, drawn) =
            bands.map(|band| (band, drawn(band))).min_by(|one, other| one.1.total_cmp(&other.1))?;
        let gpcs = tiles[0] * tiles[1] / f64::from(SMS_PER_GPC);
        // Expected number of distinct rows (columns) among a GPC's random tiles.
        let hit = |of: f64| of * (1.0 - (1.0 - 1.0 / of).powi(SMS_PER_GPC as i32));
        Some(Placement {
            band,
            drawn,
            drawn_anywhere: gpcs * (hit(tiles[0]) * m + hit(tiles[1]) * n),
        })
    }
}
