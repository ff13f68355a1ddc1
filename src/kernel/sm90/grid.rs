//! How the clusters of a kernel cover the output.

use super::config::Sm90;
use crate::kernel::reduction::Partials;
use crate::kernel::tiles;
use crate::kernel::types::Types;
use crate::problem::GemmProblem;

/// The clusters that cover an output. Pairs are M and N of `wgmma`.
pub struct TileGrid {
    /// Extents of the output; at least 1.
    pub extent: [f64; 2],
    /// Extents of a cluster's tiles together.
    pub cluster: [f64; 2],
    /// Number of clusters that cover the output.
    pub clusters: [f64; 2],
}

impl Sm90 {
    /// The tile grid of a problem. An empty extent counts as 1.
    pub fn grid(&self, problem: &GemmProblem) -> TileGrid {
        let sides = self.sides(problem);
        let extent = [0, 1].map(|at| (sides[at].view.shape[sides[at].rows] as f64).max(1.0));
        let cluster = [0, 1].map(|at| f64::from(self.tile[at] * self.cluster[at]));
        TileGrid { extent, cluster, clusters: [0, 1].map(|at| (extent[at] / cluster[at]).ceil()) }
    }

    /// The share of CTAs whose tiles begin inside the output. The other tiles of a cluster that
    /// overhangs the output lie outside.
    pub fn occupied(&self, grid: &TileGrid) -> f64 {
        let share = |at: usize| {
            let tiles = (grid.extent[at] / f64::from(self.tile[at])).ceil();
            tiles / (grid.clusters[at] * f64::from(self.cluster[at]))
        };
        share(0) * share(1)
    }

    /// The program's M and N of a cluster's tiles together.
    fn cluster_tile(&self) -> [u32; 2] {
        self.of_wgmma([0, 1].map(|at| self.tile[at] * self.cluster[at]))
    }

    /// Clusters that cover the output; with groups along M, an upper bound.
    pub fn tiles(&self, problem: &GemmProblem) -> u64 {
        let [m, n] = self.cluster_tile();
        tiles::tiles(problem, self.groups, m, n)
    }

    /// As [`Sm90::tiles`], but with groups along M the expected number of clusters.
    pub fn expected_tiles(&self, problem: &GemmProblem) -> f64 {
        let [m, n] = self.cluster_tile();
        tiles::expected_tiles(problem, self.groups, m, n)
    }

    /// The mean rows and columns of a tile inside the output, over those of the first tile. Less
    /// than 1 if clusters overhang the output.
    pub fn inside(&self, grid: &TileGrid) -> [f64; 2] {
        [0, 1].map(|at| {
            let first = f64::from(self.tile[at]).min(grid.extent[at]);
            grid.extent[at]
                / (grid.clusters[at] * grid.cluster[at] / f64::from(self.tile[at]) * first)
        })
    }

    /// The partial results of a reduction that the program stores: for each column, one per group
    /// of rows that a warp's lanes hold at once; for each row, one per round of columns. (An
    /// epilogue of a dual GEMM has no reductions.)
    pub(super) fn partials(&self, types: Types, problem: &GemmProblem) -> Partials {
        let covered = |at: usize, extent: i64| {
            (extent as u64).next_multiple_of(u64::from(self.tile[at] * self.cluster[at]))
        };
        let (m, n) = (problem.m(), problem.n());
        if self.swapped {
            // Rounds of 16 rows by 16 columns.
            let covered = [covered(1, m), covered(0, n)];
            let stored = u64::from(self.stored_columns());
            return Partials {
                covered,
                count: [covered[0] / stored * stored.div_ceil(16), covered[1] / 16],
            };
        }
        let covered = [covered(0, m), covered(1, n)];
        let box_n = u64::from(self.box_n(types));
        Partials { covered, count: [covered[0] / 8, covered[1] / box_n * box_n.div_ceil(32)] }
    }
}
