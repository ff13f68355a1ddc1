//! A configuration of the family.

use crate::kernel::cost::chips::Target;
use crate::kernel::layout::Layout;
use crate::kernel::operation::Groups;
use crate::kernel::reduction::Partials;
use crate::kernel::tiles::tiles;
use crate::kernel::types::{ProductClass, Types};
use crate::problem::GemmProblem;

/// A configuration.
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

    /// Threads of a CTA.
    pub fn threads(&self) -> u32 {
        32 * self.warps[0] * self.warps[1]
    }

    /// Dynamic shared memory in bytes: the stages, each a tile of A and one of B. The epilogue
    /// reuses the memory for 16 rows of every warp's sums, each row padded by 8 sums. float16 sums
    /// are widened.
    pub fn shared_bytes(&self, types: Types) -> u32 {
        let Sm80 { tile: [m, n, k], warps: [warps_m, warps_n], stages, .. } = *self;
        let [a, b] = [types.a, types.b].map(|dtype| dtype.bytes() as u32);
        let pipeline = stages * (m * a + n * b) * k;
        let sum_bytes = types.accumulator.bytes().max(4) as u32;
        let sums = warps_n * warps_m * 16 * (n / warps_n + 8) * sum_bytes;
        pipeline.max(sums)
    }

    /// CTAs that share a multiprocessor of a chip, by registers and shared memory.
    pub fn ctas_per_sm(&self, types: Types, target: &Target) -> u32 {
        let shared = target.shared_bytes_per_sm / (self.shared_bytes(types) + 1024);
        (self.threads_per_sm(types) / self.threads()).min(shared).max(1)
    }

    /// Threads for which a multiprocessor has registers: `THREADS_PER_SM` of the program.
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
