//! A configuration of the family.

use crate::kernel::family::Family;
use crate::kernel::layout::{Layout, Major};
use crate::kernel::operation::Groups;
use crate::kernel::reduction::Partials;
use crate::kernel::tiles::tiles;
use crate::kernel::types::{ProductClass, Types};
use crate::problem::GemmProblem;

/// A configuration in the user's frame: `tile` and `warps` refer to the user's M and N.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sm80 {
    pub layout: Layout,
    /// M, N and K of the tile that one CTA computes; K in elements.
    pub tile: [u32; 3],
    /// Warps along M and N.
    pub warps: [u32; 2],
    pub stages: u32,
    /// Bytes that one load of A or B moves; addresses and leading dimensions are multiples of it.
    pub align: u32,
    /// What the groups of a grouped GEMM divide.
    pub groups: Groups,
    /// float8: whether all products of a sum form one chain in the tensor cores, which keep 14 bits
    /// of it. Otherwise chains of 128 or 512 products are added with rounding.
    pub fast_sums: bool,
}

impl Sm80 {
    /// CTAs of a launch.
    pub fn ctas(&self, problem: &GemmProblem) -> u64 {
        tiles(problem, self.groups, self.tile[0], self.tile[1])
    }

    /// Threads for which a multiprocessor of Hopper has registers: `THREADS_PER_SM` of the program.
    pub fn threads_per_sm(&self, types: Types) -> u32 {
        let per_sum = match (types.class(), self.align) {
            (ProductClass::Double, _) => 4,
            // Chains have totals beside the sums; single elements take a register each.
            (ProductClass::Float8, 1) => 8,
            (ProductClass::Float8, _) if !self.fast_sums => 2,
            (_, 16) => 1,
            _ => 2,
        };
        match self.tile[0] * self.tile[1] / self.threads() * per_sum {
            128.. => 256,
            64.. => 384,
            _ => 512,
        }
    }

    /// The configuration in the frame of the program, which writes row-major: a column-major output
    /// is the row-major output of the transposed product.
    pub fn program_config(&self) -> Sm80 {
        match self.layout.out {
            Major::Row => *self,
            Major::Column => Sm80 {
                layout: self.layout.transposed(),
                tile: [self.tile[1], self.tile[0], self.tile[2]],
                warps: [self.warps[1], self.warps[0]],
                ..*self
            },
        }
    }

    /// Lanes of a warp that store one row of sums, 16 bytes of the output each (`LANES` of the
    /// program).
    pub(super) fn lanes_of_row(&self, types: Types) -> u32 {
        self.tile[1] / self.warps[1] * types.out.bytes() as u32 / 16
    }

    /// The partial results of a reduction that this program stores: for each column, one per group
    /// of rows that a warp stores at once; for each row, one per warp.
    pub fn partials(&self, types: Types, problem: &GemmProblem) -> Partials {
        let [tile_m, tile_n, _] = self.tile.map(u64::from);
        let covered = [
            (problem.m() as u64).next_multiple_of(tile_m),
            (problem.n() as u64).next_multiple_of(tile_n),
        ];
        let rows = u64::from(32 / self.lanes_of_row(types));
        Partials {
            covered,
            count: [covered[0] / rows, covered[1] / tile_n * u64::from(self.warps[1])],
        }
    }
}
