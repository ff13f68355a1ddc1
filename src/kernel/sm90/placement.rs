//! Whether a grid waits for an empty chip, so that its CTAs start GPC by GPC and the CTAs of a GPC
//! share their loads.
//!
//! The L2 cache delivers data once to the multiprocessors of a GPC that request it at about the
//! same time. A grid that overlaps the one before it has its CTAs on any multiprocessor.

use super::config::{ROW_BYTES, Schedule, Sm90};
use super::grid::TileGrid;
use crate::kernel::cost::chips::hopper::SMS_PER_GPC;
use crate::kernel::cost::query::operand_bytes;
use crate::kernel::cost::sm90_rates::{
    FITTED_ALONE, FITTED_LAUNCH, FITTED_MEMORY_LATENCY, FITTED_MEMORY_RATE,
};
use crate::kernel::types::Types;
use crate::problem::GemmProblem;

/// An order of tiles for a grid that runs alone on the chip, whose CTAs then start GPC by GPC.
pub struct Placement {
    /// Tiles along M that are walked before the next one along N.
    pub band: u32,
    /// Rows and columns of a K block that all GPCs together draw from the L2 cache: a GPC draws
    /// what its CTAs share once.
    pub drawn: f64,
    /// The same where CTAs start on any multiprocessor.
    pub drawn_anywhere: f64,
}

/// Rows and columns of tiles of all GPCs, where each takes the next tiles in bands of this height.
/// At most 128 columns.
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

/// A placement that pays, with its times on an H100.
pub struct Placed {
    pub placement: Placement,
    /// Tensor cores, and loads from the L2 cache.
    pub arithmetic_seconds: f64,
    pub cache_seconds: f64,
    /// The longer of the two for each block, and the tile's end.
    pub work_seconds: f64,
}

/// Fitted: seconds until a grid starts after the one before it has ended.
pub const FITTED_START_ALONE: f64 = 0.7e-6;

/// The placement of a kernel, if it pays to wait for an empty chip. The decision does not depend on
/// the device's rates, which change both sides alike.
pub fn placed(
    config: &Sm90,
    types: Types,
    problem: &GemmProblem,
    grid: &TileGrid,
    ctas_per_sm: u32,
    multiprocessors: u32,
) -> Option<Placed> {
    // Fitted on an H100, to timings of 419 kernels on 87 problems.
    /// Bytes a second that the L2 cache delivers to all GPCs, what a GPC's CTAs share counted once:
    /// where CTAs start GPC by GPC, and where they start on any multiprocessor.
    const FITTED_DRAWN_RATE: f64 = 3.5e12;
    const FITTED_DRAWN_RATE_ANYWHERE: f64 = 5.0e12;
    /// Bytes a second that arrive in one multiprocessor, and FLOP a second of its tensor cores.
    const FITTED_ARRIVING_RATE: f64 = 160e9;
    const FITTED_TENSOR_RATE: f64 = 6.19e12;
    /// Seconds of the smallest block, of a tile's end, and of each sum of a thread at the end.
    const FITTED_BLOCK: f64 = 0.1e-6;
    const FITTED_TILE_END: f64 = 0.5e-6;
    const FITTED_SUM_END: f64 = 27.7e-9;
    let placement = config.placement(problem, grid, ctas_per_sm, multiprocessors)?;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let arriving =
        config.rows_read(problem).map(|(rows, _)| f64::from(rows) * 128.0).into_iter().sum::<f64>();
    let blocks = (problem.k() as f64 * types.a.bytes() as f64 / 128.0).ceil();
    let alone = config.consumers == 1 || config.schedule == Schedule::PingPong;
    let multiplied =
        tile_m * tile_n * 128.0 / FITTED_TENSOR_RATE * if alone { FITTED_ALONE } else { 1.0 };
    let memory = FITTED_MEMORY_LATENCY + operand_bytes(types, problem) / FITTED_MEMORY_RATE;
    let loaded = |drawn: f64| (arriving / FITTED_ARRIVING_RATE).max(drawn * 128.0);
    let work = |loaded: f64| {
        let block = multiplied.max(loaded).max(FITTED_BLOCK);
        blocks * block + FITTED_TILE_END + FITTED_SUM_END * config.sums_of_thread()
    };
    let seconds = |work: f64| FITTED_LAUNCH + (work * work + memory * memory).sqrt();
    let loaded_placed = loaded(placement.drawn / FITTED_DRAWN_RATE);
    let (placed, anywhere) =
        (work(loaded_placed), work(loaded(placement.drawn_anywhere / FITTED_DRAWN_RATE_ANYWHERE)));
    let pays = seconds(placed) + FITTED_START_ALONE < seconds(anywhere);
    pays.then_some(Placed {
        placement,
        arithmetic_seconds: blocks * multiplied,
        cache_seconds: blocks * loaded_placed,
        work_seconds: placed,
    })
}

impl Sm90 {
    /// The order of tiles with which the CTAs of a GPC read least, if a grid alone on the chip may
    /// have one: a kernel without clusters (the hardware spreads clusters over the GPCs), with one
    /// tile for each CTA, and operands whose rows begin at cache lines.
    pub fn placement(
        &self,
        problem: &GemmProblem,
        grid: &TileGrid,
        ctas_per_sm: u32,
        multiprocessors: u32,
    ) -> Option<Placement> {
        // With two tiles or more along M and N, there are at most 128 columns.
        const MOST_TILES: f64 = 256.0;
        let TileGrid { clusters: tiles, .. } = *grid;
        if tiles[0].min(tiles[1]) < 2.0
            || tiles[0] * tiles[1] > f64::from(multiprocessors).min(MOST_TILES)
        {
            return None;
        }
        let alone =
            self.cluster_size() == 1 && self.split == 1 && !self.grouped && ctas_per_sm == 1;
        if !alone || self.loads_by_threads() || self.packed != [false; 2] || problem.batch() != 1 {
            return None;
        }
        if self.rows_read(problem).iter().any(|(_, aligned)| *aligned < ROW_BYTES) {
            return None;
        }
        let [m, n] = self.tile.map(f64::from);
        let whole = tiles.map(|tiles| tiles as u32);
        let drawn = |band: u32| {
            let [rows, columns] = rows_and_columns_of_gpcs(whole, band);
            f64::from(rows) * m + f64::from(columns) * n
        };
        let bands = [1, 2, 3, 4, 5, 6, 8, 16].into_iter().filter(|band| *band <= whole[0]);
        let (band, drawn) =
            bands.map(|band| (band, drawn(band))).min_by(|one, other| one.1.total_cmp(&other.1))?;
        let gpcs = tiles[0] * tiles[1] / f64::from(SMS_PER_GPC);
        // Expected rows (columns) of tiles that a GPC's random tiles lie in.
        let hit = |of: f64| of * (1.0 - (1.0 - 1.0 / of).powi(SMS_PER_GPC as i32));
        Some(Placement {
            band,
            drawn,
            drawn_anywhere: gpcs * (hit(tiles[0]) * m + hit(tiles[1]) * n),
        })
    }
}
