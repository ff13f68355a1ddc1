//! The configurations of the float32 kernels.

use crate::kernel::layout::{Layout, Major};
use crate::kernel::operation::Groups;
use crate::kernel::tiles::tiles;
use crate::kernel::types::{ProductClass, Types};
use crate::problem::GemmProblem;

/// A configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sgemm {
    pub layout: Layout,
    /// M, N and K of the tile that one CTA computes.
    pub tile: [u32; 3],
    pub stages: u32,
    /// Bytes that one load of A or B moves; addresses and leading dimensions are multiples of it.
    pub align: u32,
    /// CTAs of a cluster that share one tile, each with a part of K.
    pub split: u32,
    /// What the groups of a grouped GEMM divide.
    pub groups: Groups,
}

/// Tile and stages. In each K block, a thread multiplies 8 x 8 sums by 16 indices of K. The stages
/// fit the shared memory of every chip.
type TileStages = ([u32; 3], u32);

const LARGE: TileStages = ([128, 128, 16], 4);
const SMALL: TileStages = ([64, 64, 64], 2);
const ALIGN_16: [TileStages; 4] = [LARGE, ([128, 64, 32], 3), ([64, 128, 32], 3), SMALL];
const ALIGN_4: [TileStages; 2] = [LARGE, SMALL];

/// Splits of K of the smallest tile: 2 for up to 66 tiles on an H100, 4 for up to 30.
const SPLITS: [u32; 2] = [2, 4];

impl Sgemm {
    /// Threads of a CTA, in every configuration.
    pub const THREADS: u32 = 256;

    /// CTAs that share a multiprocessor, limited by registers.
    pub const CTAS_PER_SM: u32 = 1;

    /// Neighbouring columns that the program passes to its epilogue at a time.
    pub const COLUMNS_OF_CALL: u64 = 4;

    /// The configurations for these types; none unless both operands are float32.
    pub fn configs(types: Types) -> Vec<Sgemm> {
        let mut configs = Vec::new();
        if types.class() != ProductClass::Single {
            return configs;
        }
        let shapes: [(u32, &[TileStages]); 2] = [(16, &ALIGN_16), (4, &ALIGN_4)];
        for (layout, (align, shapes)) in
            Layout::of_programs().flat_map(|layout| shapes.map(|shapes| (layout, shapes)))
        {
            let config = |(tile, stages): TileStages, split, groups| Sgemm {
                layout,
                tile,
                stages,
                align,
                split,
                groups,
            };
            configs.extend(shapes.iter().map(|shape| config(*shape, 1, Groups::None)));
            configs.extend(SPLITS.map(|split| config(SMALL, split, Groups::None)));
            // A group begins at any row. If A is contiguous along rows, groups have element
            // alignment only.
            if layout.a == Major::Row || align == 4 {
                configs.extend(ALIGN_4.map(|shape| config(shape, 1, Groups::AlongM)));
            }
            // A group begins anywhere along K.
            if layout.allows_groups_along_k() || align == 4 {
                configs.extend(ALIGN_4.map(|shape| config(shape, 1, Groups::AlongK)));
            }
        }
        configs
    }

    /// CTAs of a launch.
    pub fn ctas(&self, problem: &GemmProblem) -> u64 {
        tiles(problem, self.groups, self.tile[0], self.tile[1]) * u64::from(self.split)
    }

    /// Slices of K in a K block, each with warps of its own that compute 32x64 of the tile.
    pub fn slices(&self) -> u32 {
        Sgemm::THREADS / 32 * 32 * 64 / (self.tile[0] * self.tile[1])
    }
}
