//! Whether a grid waits for an empty chip. Its CTAs then start GPC by GPC, and the CTAs of a GPC
//! share their loads.
//!
//! The L2 cache delivers data once to all multiprocessors of a GPC that request it at about the
//! same time. The CTAs of a grid that overlaps the preceding grid start on any multiprocessor.

use super::config::{ROW_BYTES, Sm90};
use super::cost::rates::fitted_block;
use super::grid::TileGrid;
use crate::kernel::cost::chips::hopper::SMS_PER_GPC;
use crate::kernel::cost::chips::{Rates, Target};
use crate::kernel::cost::factors::factors;
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

factors! {
    /// Bytes a second that the L2 cache delivers to all GPCs of an H100, with the bytes that a GPC
    /// shares counted once: for CTAs that start GPC by GPC, and for CTAs that start anywhere.
    fitted_delivered = 3.13e12;
    fitted_delivered_anywhere = 4.46e12;
    /// Bytes a second that one multiprocessor receives.
    fitted_received = 143e9;
    /// Seconds: a tile's end, and a thread's store of one accumulator.
    fitted_placed_end = 0.56e-6;
    fitted_placed_sum_end = 31e-9;
}

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
    // The hardware places CTAs GPC by GPC only if no other grid runs.
    if problem.options.free_multiprocessors > 0 {
        return None;
    }
    let placement = config.placement(problem, grid, ctas_per_sm, multiprocessors)?;
    let rates = Rates::of(&Target::H100);
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let arriving =
        config.rows_read(problem).map(|(rows, _)| f64::from(rows) * 128.0).into_iter().sum::<f64>();
    let blocks = (problem.k() as f64 / f64::from(config.k_block(types))).ceil();
    let multiplied =
        tile_m * tile_n * f64::from(config.row_bytes(0) * types.widening()) / rates.tensor;
    let memory = operand_bytes(problem) / rates.memory;
    let loaded = |drawn: f64| (arriving / fitted_received()).max(drawn * 128.0);
    let work = |loaded: f64| {
        let block = multiplied.max(loaded).max(fitted_block());
        blocks * block + fitted_placed_end() + fitted_placed_sum_end() * config.sums_of_thread()
    };
    let seconds = |work: f64| (work * work + memory * memory).sqrt();
    let loaded_placed = loaded(placement.drawn / fitted_delivered());
    let (placed, anywhere) =
        (work(loaded_placed), work(loaded(placement.drawn_anywhere / fitted_delivered_anywhere())));
    let pays = seconds(placed) + rates.launch < seconds(anywhere);
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
