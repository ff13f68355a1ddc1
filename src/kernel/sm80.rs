//! The `sm80` family: `mma.sync` fed by `ldmatrix` from a ring of `cp.async` stages. Ampere and every later chip.

use super::launch::tiles;
use super::name::append;
use super::reduce::Partials;
use super::{Demand, GemmParams, Launch, Layout, Major, Types};
use crate::operand::{DType, View};
use crate::problem::GemmProblem;

/// A point in the family's space, as the user sees it: `tile` and `warps` count along the user's M and N.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sm80 {
    pub layout: Layout,
    /// M, N and K of the tile that one CTA computes; K in elements.
    pub tile: [u32; 3],
    /// Warps along M and N.
    pub warps: [u32; 2],
    pub stages: u32,
    /// Bytes that one load of A or B moves; addresses and leading strides are multiples of it.
    pub align: u32,
    /// Whether it computes a grouped GEMM.
    pub grouped: bool,
}

/// Tile (K in elements of two bytes), warps and stages.
type Shape = ([u32; 3], [u32; 2], u32);

/// For loads of 16 bytes; best first for large problems, as measured on an H100 (docs/notes/sm80.md).
const ALIGN_16: [Shape; 8] = [
    ([128, 128, 64], [2, 2], 3),
    ([128, 256, 32], [2, 4], 4),
    ([256, 128, 32], [4, 2], 4),
    ([128, 128, 32], [2, 2], 4),
    ([64, 128, 64], [2, 2], 3),
    ([128, 64, 64], [2, 2], 3),
    ([64, 64, 64], [2, 2], 3),
    ([32, 32, 64], [2, 2], 3),
];

/// For loads of 16 bytes where the sums of 16-bit types stay in float32: each step of K is summed apart, which takes registers that
/// more than 64 sums a thread do not leave.
const ALIGN_16_APART: [Shape; 5] = [
    ([128, 128, 64], [2, 4], 3),
    ([64, 128, 64], [2, 2], 3),
    ([128, 64, 64], [2, 2], 3),
    ([64, 64, 64], [2, 2], 3),
    ([32, 32, 64], [2, 2], 3),
];

/// For loads of 4 bytes, the least that `cp.async` moves.
const ALIGN_4: [Shape; 2] = [([128, 64, 32], [2, 2], 3), ([64, 64, 32], [2, 2], 4)];

/// For loads of 4 bytes that are one element, whose fragments take more registers.
const ALIGN_4_WORDS: [Shape; 2] = [([128, 64, 32], [2, 2], 4), ([64, 64, 32], [2, 2], 4)];

/// For loads of single elements below 4 bytes: through registers, one tile filled while the other is read.
const ALIGN_ELEMENT: [Shape; 2] = [([128, 64, 32], [2, 2], 2), ([64, 64, 32], [2, 2], 2)];

/// For the groups of a grouped GEMM, of 16-bit elements: with loads of 16 bytes, of 4, and of an element.
const GROUPED: [(u32, &[Shape]); 3] = [
    (16, &[([128, 128, 64], [2, 4], 3), ([64, 128, 64], [2, 2], 3), ([32, 64, 64], [2, 2], 3)]),
    (4, &[([64, 64, 32], [2, 2], 4)]),
    (2, &[([64, 64, 32], [2, 2], 2)]),
];

impl Sm80 {
    /// The configurations on offer for these types; none where the tensor cores do not multiply them.
    pub fn configs(types: Types) -> Vec<Sm80> {
        let multiplied =
            matches!(types.a, DType::F16 | DType::Bf16 | DType::F32 | DType::I8 | DType::U8);
        if types.a != types.b || !multiplied {
            return Vec::new();
        }
        let element = types.a.bytes() as u32;
        let apart = element == 2 && types.accumulator == DType::F32 && types.out == DType::F32;
        let shapes: [(u32, &[Shape]); 3] = match element {
            4 => [(16, &ALIGN_16), (4, &ALIGN_4_WORDS), (4, &[])],
            _ if apart => [(16, &ALIGN_16_APART), (4, &ALIGN_4), (element, &ALIGN_ELEMENT)],
            _ => [(16, &ALIGN_16), (4, &ALIGN_4), (element, &ALIGN_ELEMENT)],
        };
        let mut configs = Vec::new();
        for layout in Layout::all() {
            for (align, shapes) in shapes {
                for ([m, n, k], warps, stages) in shapes.iter().copied() {
                    // A tile's rows are at least 64 bytes, whichever way an operand lies.
                    if m.min(n) * element < 64 {
                        continue;
                    }
                    let tile = [m, n, k * 2 / element];
                    configs.push(Sm80 { layout, tile, warps, stages, align, grouped: false });
                }
            }
        }
        if element == 2 {
            for layout in Layout::all().filter(|layout| layout.out == Major::Row) {
                for (align, shapes) in GROUPED {
                    // A group begins at any row. Where those are A's contiguous dimension, nothing is known of its alignment.
                    if layout.a == Major::Column && align > element {
                        continue;
                    }
                    for (tile, warps, stages) in shapes.iter().copied() {
                        configs.push(Sm80 { layout, tile, warps, stages, align, grouped: true });
                    }
                }
            }
        }
        configs
    }

    pub fn threads(&self) -> u32 {
        32 * self.warps[0] * self.warps[1]
    }

    /// Dynamic shared memory in bytes: the ring of stages, each a tile of A and one of B. The epilogue passes 16 rows of
    /// every warp's sums at a time through the same memory, each row padded by 8 words.
    pub fn shared_bytes(&self, types: Types) -> u32 {
        let Sm80 { tile: [m, n, k], warps: [warps_m, warps_n], stages, .. } = self.program();
        let ring = stages * (m + n) * k * types.a.bytes() as u32;
        let sums = warps_m * warps_n * 16 * (n / warps_n + 8) * 4;
        ring.max(sums)
    }

    /// The configuration in the frame of the program, which writes row-major: a column-major output is the transposed
    /// product's row-major one.
    pub fn program(&self) -> Sm80 {
        match self.layout.out {
            Major::Row => *self,
            Major::Column => Sm80 {
                layout: Layout {
                    a: self.layout.b.transposed(),
                    b: self.layout.a.transposed(),
                    out: Major::Row,
                },
                tile: [self.tile[1], self.tile[0], self.tile[2]],
                warps: [self.warps[1], self.warps[0]],
                ..*self
            },
        }
    }

    /// Of A, B and out.
    pub fn demands(&self) -> [Demand; 3] {
        let Layout { a, b, out } = self.layout;
        [Demand::aligned(a, self.align), Demand::aligned(b, self.align), Demand::aligned(out, 1)]
    }

    /// Lanes of a warp that share a row where it stores sums, each 16 bytes of the output (`LANES` of the program).
    fn lanes_of_row(&self, types: Types) -> u32 {
        self.tile[1] / self.warps[1] * types.out.bytes() as u32 / 16
    }

    /// The partial results of a reduction that this program stores: one for each column of the rows that a warp stores at once,
    /// and one for each row of a warp's columns.
    pub(super) fn partials(&self, types: Types, problem: &GemmProblem) -> Partials {
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

    pub fn launch(&self, types: Types, problem: &GemmProblem, offsets: Option<&View>) -> Launch {
        let params = match self.layout.out {
            Major::Row => GemmParams::new(problem, offsets),
            Major::Column => GemmParams::new(&problem.transposed(), offsets),
        };
        let tiles = tiles(problem, self.grouped, self.tile[0], self.tile[1]);
        Launch::simple(tiles, self.threads(), self.shared_bytes(types), params)
    }

    /// Appends the configuration as kernel names spell it.
    pub fn append_to(&self, name: &mut String) {
        let Sm80 {
            layout: Layout { a, b, out },
            tile: [m, n, k],
            warps: [warps_m, warps_n],
            stages,
            align,
            ..
        } = *self;
        append!(name, a, b, out, "_", m, "x", n, "x", k, "_", warps_m, "x", warps_n, "warps_");
        append!(name, stages, "stages_align", align);
    }
}
