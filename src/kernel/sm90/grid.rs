//! How the clusters of an `sm90` kernel cover the output, and in which order they walk it.

use super::{CLUSTERS, ROW_BYTES, Schedule, Sm90};
use crate::kernel::launch;
use crate::problem::GemmProblem;

/// How clusters cover the output, rows and columns in the program's frame.
pub struct TileGrid {
    /// Of the output; at least one.
    pub extent: [f64; 2],
    /// Of a cluster's tiles.
    pub cluster: [f64; 2],
    /// How many clusters that takes.
    pub clusters: [f64; 2],
}

/// How many tiles down and across so many (at least one) lie that are walked one after another, in bands of this height.
fn walked(tiles: [f64; 2], band: u32, count: f64) -> [f64; 2] {
    let down = f64::from(band).min(count).min(tiles[0]);
    let across = count / down;
    // Part of a band; or all of it, and of the next ones. (A division less for most: the model asks for this of every kernel, a dozen times.)
    if across <= tiles[1] {
        [down, across]
    } else {
        [(count / tiles[1]).clamp(1.0, tiles[0]), tiles[1]]
    }
}

/// How the tiles of a kernel without clusters are walked where its CTAs have an empty chip to themselves: GPC by GPC.
pub struct Placement {
    /// Tiles along M that are walked before the next one along N.
    pub band: u32,
    /// Rows and columns of a K block that all GPCs together ask the L2 cache for, each those of its CTAs once.
    pub drawn: f64,
    /// The same of CTAs that lie anywhere.
    pub drawn_anywhere: f64,
}

/// CTAs that a GPC holds, one a multiprocessor: most have 16, some 18, one 8.
const CTAS_OF_GPC: u32 = 16;

/// Rows of tiles, and columns of tiles, that GPCs have, all together, where each takes the next 16 tiles in bands of this height. At most
/// 128 columns.
fn rows_and_columns_of_gpcs(tiles: [u32; 2], band: u32) -> [u32; 2] {
    let [down, across] = tiles;
    let count = down * across;
    let mut all = [0, 0];
    for start in (0..count).step_by(CTAS_OF_GPC as usize) {
        let (mut at, end, mut columns) = (start, (start + CTAS_OF_GPC).min(count), 0u128);
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

impl Sm90 {
    /// How the tiles are walked if the CTAs are placed GPC by GPC, as they are where no other grid runs: those of a GPC then read as little
    /// as they can. Of kernels without clusters (clusters are dealt out to the GPCs in turn) that have a tile for each CTA, of
    /// operands whose rows begin at lines of the cache: of others, little is asked for at the same time.
    pub fn placement(
        &self,
        problem: &GemmProblem,
        grid: &TileGrid,
        ctas_per_sm: u32,
        multiprocessors: u32,
    ) -> Option<Placement> {
        // Two tiles down and across and more, so that there are no more than half as many columns as multiprocessors.
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
        let gpcs = tiles[0] * tiles[1] / f64::from(CTAS_OF_GPC);
        // Of so many tiles drawn by lot, how many rows (columns) have one.
        let hit = |of: f64| of * (1.0 - (1.0 - 1.0 / of).powi(CTAS_OF_GPC as i32));
        Some(Placement {
            band,
            drawn,
            drawn_anywhere: gpcs * (hit(tiles[0]) * m + hit(tiles[1]) * n),
        })
    }

    /// Of a problem without rows or columns, as if it had one.
    pub fn grid(&self, problem: &GemmProblem) -> TileGrid {
        let sides = self.sides(problem);
        let extent = [0, 1].map(|at| (sides[at].view.shape[sides[at].rows] as f64).max(1.0));
        let cluster = [0, 1].map(|at| f64::from(self.tile[at] * self.cluster[at]));
        TileGrid { extent, cluster, clusters: [0, 1].map(|at| (extent[at] / cluster[at]).ceil()) }
    }

    /// The share of the CTAs whose tiles begin inside the output: clusters may overhang by whole tiles.
    pub fn occupied(&self, grid: &TileGrid) -> f64 {
        let share = |at: usize| {
            let tiles = (grid.extent[at] / f64::from(self.tile[at])).ceil();
            tiles / (grid.clusters[at] * f64::from(self.cluster[at]))
        };
        share(0) * share(1)
    }

    /// A cluster's tiles together, M and N, as the user counts them.
    fn cluster_tile(&self) -> [u32; 2] {
        let [m, n] = [0, 1].map(|at| self.tile[at] * self.cluster[at]);
        if self.crossed() { [n, m] } else { [m, n] }
    }

    /// Tiles, counted in clusters; of a grouped product, the most that may be needed.
    pub fn tiles(&self, problem: &GemmProblem) -> u64 {
        let [m, n] = self.cluster_tile();
        launch::tiles(problem, self.grouped, m, n)
    }

    /// The same as the host may expect it.
    pub fn expected_tiles(&self, problem: &GemmProblem) -> f64 {
        let [m, n] = self.cluster_tile();
        launch::expected_tiles(problem, self.grouped, m, n)
    }

    /// Of them, how many lie below each other in one group.
    pub fn expected_strips(&self, problem: &GemmProblem) -> f64 {
        launch::expected_strips(problem, self.cluster_tile()[0])
    }

    /// Clusters along M that the program walks before it takes the next one along N, a power of two.
    ///
    /// CTAs that begin one after another should share what they read, by tens as much as by halves of the chip: what is read at the
    /// same time from places close to each other costs less. Both numbers and the weight are from 216 products whose bands were varied
    /// (docs/notes/sm90-runs.md, run 17).
    pub fn band(&self, grid: &TileGrid) -> u32 {
        const NEIGHBOURS: f64 = 10.0;
        const HALF: f64 = 66.0;
        const WEIGHT_OF_HALF: f64 = 3.0;
        if self.grouped {
            // How many rows a group has only the device knows.
            let wide = self.tile[1] >= 2 * self.tile[0] || self.schedule == Schedule::PingPong;
            return if wide { 16 } else { 8 } / self.cluster[0];
        }
        let TileGrid { cluster, clusters: tiles, .. } = *grid;
        if tiles[0].min(tiles[1]) == 1.0 {
            return 8; // There is one way to walk them.
        }
        // In ping-pong a CTA has two tiles in hand, where there are more than CTAs.
        let two = self.schedule == Schedule::PingPong
            && tiles[0] * tiles[1] * f64::from(self.cluster_size()) > CLUSTERS[1];
        let half = if two { 2.0 * HALF } else { HALF };
        let windows = [(NEIGHBOURS, 1.0), (half, WEIGHT_OF_HALF)].map(|(ctas, weight)| {
            let clusters = (ctas / f64::from(self.cluster_size())).clamp(1.0, tiles[0] * tiles[1]);
            (clusters, weight / clusters)
        });
        // Of equals, the first.
        let mut best = (f64::INFINITY, 8);
        for band in [8, 16, 4, 32, 2, 64, 1] {
            if f64::from(band) >= 2.0 * tiles[0] {
                continue; // The same as half of it.
            }
            // Rows and columns that each cluster reads, where it shares them with those beside it.
            let read = windows.map(|(clusters, weight)| {
                let [down, across] = walked(tiles, band, clusters);
                weight * (down * cluster[0] + across * cluster[1])
            });
            let read = read[0] + read[1];
            if read < best.0 {
                best = (read, band);
            }
        }
        best.1
    }

    /// Rows and columns of the output, in the program's frame, that so many clusters cover which run at the same time, taking tiles in
    /// the order of the program.
    pub fn covered(&self, grid: &TileGrid, clusters: f64) -> [f64; 2] {
        let walked = walked(grid.clusters, self.band(grid), clusters.max(1.0));
        [0, 1].map(|at| (walked[at] * grid.cluster[at]).min(grid.extent[at]))
    }

    /// What all tiles together have of rows and columns inside the output, as a share of what they would have if each had as many as the
    /// first: clusters may overhang.
    pub fn inside(&self, grid: &TileGrid) -> [f64; 2] {
        [0, 1].map(|at| {
            let first = f64::from(self.tile[at]).min(grid.extent[at]);
            grid.extent[at]
                / (grid.clusters[at] * grid.cluster[at] / f64::from(self.tile[at]) * first)
        })
    }
}
