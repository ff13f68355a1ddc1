//! The configurations of the family.

use super::config::Sm80;
use crate::epilogue::{BlockScale, Scaling};
use crate::kernel::cost::chips::min_shared_bytes_per_cta;
use crate::kernel::layout::{Layout, Major};
use crate::kernel::operation::Groups;
use crate::kernel::types::{ProductClass, Types};
use crate::operand::DType;

/// Tile (K in elements of two bytes; of float64 shapes, in elements), warps and stages.
type TileWarpsStages = ([u32; 3], [u32; 2], u32);

/// For loads of 16 bytes, sorted by speed on large problems (docs/design/sm80-simt.md).
const ALIGN_16: [TileWarpsStages; 8] = [
    ([128, 128, 64], [2, 2], 3),
    ([128, 256, 32], [2, 4], 4),
    ([256, 128, 32], [4, 2], 4),
    ([128, 128, 32], [2, 2], 4),
    ([64, 128, 64], [2, 2], 3),
    ([128, 64, 64], [2, 2], 3),
    ([64, 64, 64], [2, 2], 3),
    ([32, 32, 64], [2, 2], 3),
];

/// For loads of 16 bytes, 16-bit operands and float32 output, whose steps of K are summed
/// separately, and for float8 operands, whose chains have totals. Both fit the registers with at
/// most 64 sums per thread. Also for mixed products: eight warps of a 128x128 tile, not four, hide
/// the latency of conversions where a multiprocessor has one CTA.
const ALIGN_16_FEW_SUMS: [TileWarpsStages; 5] = [
    ([128, 128, 64], [2, 4], 3),
    ([64, 128, 64], [2, 2], 3),
    ([128, 64, 64], [2, 2], 3),
    ([64, 64, 64], [2, 2], 3),
    ([32, 32, 64], [2, 2], 3),
];

/// For few rows of mixed and float8 products, in addition: memory bounds them, and few CTAs need
/// many stages to have enough bytes in flight. Activations are contiguous along K and N.
const FEW_ROWS: [TileWarpsStages; 3] = [
    ([64, 64, 64], [2, 2], STAGES_OF_FEW_ROWS),
    ([32, 64, 64], [1, 4], STAGES_OF_FEW_ROWS),
    ([16, 64, 64], [1, 4], STAGES_OF_FEW_ROWS),
];
/// No other configuration has as many.
const STAGES_OF_FEW_ROWS: u32 = 6;

/// For loads of 4 bytes, the minimum of `cp.async`.
const ALIGN_4: [TileWarpsStages; 3] =
    [([128, 64, 32], [2, 2], 3), ([64, 64, 32], [2, 2], 4), ([32, 32, 64], [2, 2], 3)];

/// For loads of one 4-byte element, whose fragments take more registers.
const ALIGN_4_WORDS: [TileWarpsStages; 2] = [([128, 64, 32], [2, 2], 4), ([64, 64, 32], [2, 2], 4)];

/// For loads of elements smaller than 4 bytes, through registers and two stages.
const ALIGN_ELEMENT: [TileWarpsStages; 3] =
    [([128, 64, 32], [2, 2], 2), ([64, 64, 32], [2, 2], 2), ([32, 32, 64], [2, 2], 2)];

/// For loads of 16 bytes of float64, each shape the fastest for fewer tiles than the one before. A
/// stage of 128x128 takes 32 KiB, and three fit every chip.
const FLOAT64: [TileWarpsStages; 7] = [
    ([128, 128, 16], [2, 4], 3),
    ([128, 64, 16], [4, 2], 4),
    ([64, 128, 16], [2, 4], 4),
    ([64, 64, 32], [2, 2], 3),
    ([64, 32, 32], [2, 2], 4),
    ([32, 64, 32], [2, 2], 4),
    ([32, 32, 32], [2, 2], 4),
];

/// For loads of one float64 element. Twice the copies leave no registers for 128 of sums.
const FLOAT64_ALIGN_8: [TileWarpsStages; 3] =
    [([128, 64, 16], [4, 2], 4), ([64, 128, 16], [2, 4], 4), ([64, 64, 32], [2, 2], 3)];

/// For loads of 16 bytes of float8 without totals: warp tiles of 64x64.
const FLOAT8_FAST: &[TileWarpsStages] = ALIGN_16.split_at(3).0;

/// For loads of single elements of float8, which leave no registers for 64 sums and their totals.
const FLOAT8_ALIGN_1: &[TileWarpsStages] = ALIGN_ELEMENT.split_at(1).1;

/// Integers of 8 bits have no tiles of 32x32.
const INTEGER8: [&[TileWarpsStages]; 3] =
    [ALIGN_16.split_at(7).0, ALIGN_4.split_at(2).0, ALIGN_ELEMENT.split_at(2).0];

/// For loads of 4 bytes of mixed products, whose K blocks take 64 bytes of 8-bit elements.
const MIXED_ALIGN_4: &[TileWarpsStages] = ALIGN_16_FEW_SUMS.split_at(3).1;

/// For loads of single elements of mixed products.
const MIXED_ALIGN_1: [TileWarpsStages; 2] = [([64, 64, 64], [2, 2], 2), ([32, 32, 64], [2, 2], 2)];

/// For a grouped GEMM of elements of 16 or 8 bits: loads of 16 bytes, of 4, and of one element.
const GROUPED: [&[TileWarpsStages]; 3] = [
    &[([128, 128, 64], [2, 4], 3), ([64, 128, 64], [2, 2], 3), ([32, 64, 64], [2, 2], 3)],
    &[([64, 64, 32], [2, 2], 4)],
    &[([64, 64, 32], [2, 2], 2)],
];

/// For float32, whose groups are along K: loads of 16 bytes, and of one element.
const GROUPED_WORDS: [(u32, &[TileWarpsStages]); 2] = [
    (16, &[([128, 128, 64], [2, 2], 3), ([64, 64, 64], [2, 2], 3)]),
    (4, &[([64, 64, 32], [2, 2], 4)]),
];

impl Sm80 {
    /// The configurations for these types; none where the tensor cores do not multiply them.
    pub fn configs(types: Types) -> Vec<Sm80> {
        let (class, element) = (types.class(), types.narrower_bits() / 8);
        // `mma.sync` multiplies operands of one type, or any two of float8. Of a mixed product, the
        // program converts one operand. Few store the sums in another type than that of 16 bits.
        let is_served = match class {
            ProductClass::Float8 => true,
            ProductClass::Mixed => {
                let is_whole = types.a.is_whole() && types.b.is_whole();
                is_whole && (types.out == types.a || types.out == types.b)
            }
            _ => types.a == types.b,
        };
        if !is_served || !types.on_tensor_cores() {
            return Vec::new();
        }
        let shapes: [(u32, &[TileWarpsStages]); 3] = match class {
            ProductClass::Double => [(16, &FLOAT64), (8, &FLOAT64_ALIGN_8), (8, &[])],
            ProductClass::Single => [(16, &ALIGN_16), (4, &ALIGN_4_WORDS), (4, &[])],
            ProductClass::Half if types.stores_float32_sums() => {
                [(16, &ALIGN_16_FEW_SUMS), (4, &ALIGN_4), (element, &ALIGN_ELEMENT)]
            }
            ProductClass::Half => [(16, &ALIGN_16), (4, &ALIGN_4), (element, &ALIGN_ELEMENT)],
            ProductClass::Float8 => {
                [(16, &ALIGN_16_FEW_SUMS), (4, &ALIGN_4), (element, FLOAT8_ALIGN_1)]
            }
            ProductClass::Integer8 => [(16, INTEGER8[0]), (4, INTEGER8[1]), (element, INTEGER8[2])],
            ProductClass::Mixed => {
                [(16, &ALIGN_16_FEW_SUMS), (4, MIXED_ALIGN_4), (element, &MIXED_ALIGN_1)]
            }
            ProductClass::Integer32 | ProductClass::Unserved => return Vec::new(),
        };
        let mut configs = Vec::new();
        let mut offer = |config: Sm80| {
            if config.fits(types) {
                configs.push(config);
            }
        };
        let wider = element * types.widening();
        let k_of = |k| if class == ProductClass::Double { k } else { k * 2 / wider };
        for layout in Layout::of_programs() {
            let kind = |align, fast_sums| (align, Groups::None, fast_sums);
            let fast = if class == ProductClass::Float8 { FLOAT8_FAST } else { &[] };
            let few: &[_] = match class {
                ProductClass::Float8 | ProductClass::Mixed if layout.a == Major::Row => &FEW_ROWS,
                _ => &[],
            };
            let exact = shapes.iter().map(|(align, shapes)| (kind(*align, false), *shapes));
            // Of equal estimates, the first ranks first: memory bounds few rows in any tile.
            let all = [(kind(16, false), few)].into_iter().chain(exact);
            for ((align, groups, fast_sums), shapes) in all.chain([(kind(16, true), fast)]) {
                for ([m, n, k], warps, stages) in shapes.iter().copied() {
                    let tile = [m, n, k_of(k)];
                    offer(Sm80 { layout, tile, warps, stages, align, groups, fast_sums });
                }
            }
        }
        let grouped = [(16, GROUPED[0]), (4, GROUPED[1]), (element, GROUPED[2])];
        if matches!(class, ProductClass::Half | ProductClass::Float8) {
            for layout in Layout::of_programs() {
                for (align, shapes) in grouped {
                    // A group begins at any row. If A is contiguous along rows, groups have element
                    // alignment only.
                    if layout.a == Major::Column && align > element {
                        continue;
                    }
                    for ([m, n, k], warps, stages) in shapes.iter().copied() {
                        let (tile, groups, fast_sums) = ([m, n, k_of(k)], Groups::AlongM, false);
                        offer(Sm80 { layout, tile, warps, stages, align, groups, fast_sums });
                    }
                }
            }
        }
        // A group begins anywhere along K. Loads of several elements need operands that are not
        // K-major.
        let along_k: &[(u32, &[TileWarpsStages])] = match class {
            ProductClass::Half => &grouped,
            ProductClass::Single => &GROUPED_WORDS,
            _ => &[],
        };
        for layout in Layout::of_programs() {
            for (align, shapes) in along_k.iter().copied() {
                if !layout.allows_groups_along_k() && align > element {
                    continue;
                }
                for ([m, n, k], warps, stages) in shapes.iter().copied() {
                    let (tile, groups, fast_sums) = ([m, n, k_of(k)], Groups::AlongK, false);
                    offer(Sm80 { layout, tile, warps, stages, align, groups, fast_sums });
                }
            }
        }
        configs
    }

    /// Whether the configuration is for few rows, not for few columns.
    pub(super) fn is_for_few_rows(&self) -> bool {
        self.stages == STAGES_OF_FEW_ROWS
    }

    /// Whether the program serves the tile: rows of A's and B's tiles have the 64 bytes of a
    /// swizzle, each thread copies a part of both, and two lanes or more store a row of a warp's
    /// sums.
    fn fits(&self, types: Types) -> bool {
        let [m, n, k] = self.tile;
        let fits = |is_k_major, extent, of: DType| {
            let element = of.bytes() as u32;
            (is_k_major || extent * element >= 64)
                && extent * k * element >= self.threads() * self.align
        };
        fits(self.layout.a == Major::Row, m, types.a)
            && fits(self.layout.b == Major::Column, n, types.b)
            && self.lanes_of_row(types) >= 2
    }

    /// Whether the program applies block scales: to the sums of float8 products of 32, of 64 or of
    /// a multiple of 128 elements of K, where shared memory has room for the scales
    /// (`Sm80Scales` of the program).
    pub(super) fn applies(&self, types: Types, scaling: &Scaling) -> bool {
        /// Buffers of `Sm80Scales`.
        const BUFFERS: u32 = 3;
        /// Most sums of a thread whose chains are shorter than a K block: ptxas multiplies several
        /// chains at once.
        const MOST_SUMS: u32 = 32;
        let [m, n, k] = self.tile;
        let scales = || scaling.factors().map(|(_, of)| of);
        let is_served = |of: BlockScale| {
            of.zero.is_none() && (matches!(of.depth, 32 | 64) || of.depth.is_multiple_of(128))
        };
        let depth = scales().map(|of| of.depth).fold(k, u32::min);
        let bytes = BUFFERS * (k / depth) * (m + n) * DType::F32.bytes() as u32;
        types.class() == ProductClass::Float8
            && !self.fast_sums
            && scales().all(is_served)
            && (depth == k || m * n / self.threads() <= MOST_SUMS)
            && self.shared_bytes(types) + bytes <= min_shared_bytes_per_cta()
    }
}
