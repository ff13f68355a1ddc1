//! The configurations of the family.

use super::config::Sm80;
use crate::kernel::layout::{Layout, Major};
use crate::kernel::operation::Groups;
use crate::kernel::types::{ProductClass, Types};

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

/// For loads of 16 bytes, 16-bit operands and float32 output. Each step of K is summed separately,
/// which fits the registers with at most 64 sums per thread.
const ALIGN_16_FLOAT32_OUT: [TileWarpsStages; 5] = [
    ([128, 128, 64], [2, 4], 3),
    ([64, 128, 64], [2, 2], 3),
    ([128, 64, 64], [2, 2], 3),
    ([64, 64, 64], [2, 2], 3),
    ([32, 32, 64], [2, 2], 3),
];

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

/// For a grouped GEMM of 16-bit elements: loads of 16 bytes, of 4, and of one element.
const GROUPED: [(u32, &[TileWarpsStages]); 3] = [
    (16, &[([128, 128, 64], [2, 4], 3), ([64, 128, 64], [2, 2], 3), ([32, 64, 64], [2, 2], 3)]),
    (4, &[([64, 64, 32], [2, 2], 4)]),
    (2, &[([64, 64, 32], [2, 2], 2)]),
];

/// The same for float32, whose groups are along K: loads of 16 bytes, and of one element.
const GROUPED_WORDS: [(u32, &[TileWarpsStages]); 2] = [
    (16, &[([128, 128, 64], [2, 2], 3), ([64, 64, 64], [2, 2], 3)]),
    (4, &[([64, 64, 32], [2, 2], 4)]),
];

impl Sm80 {
    /// The configurations for these types; none where the tensor cores do not multiply them.
    pub fn configs(types: Types) -> Vec<Sm80> {
        // `mma.sync` multiplies operands of one type.
        if types.a != types.b || !types.on_tensor_cores() {
            return Vec::new();
        }
        let (class, element) = (types.class(), types.a.bytes() as u32);
        let shapes: [(u32, &[TileWarpsStages]); 3] = match class {
            ProductClass::Double => [(16, &FLOAT64), (8, &FLOAT64_ALIGN_8), (8, &[])],
            ProductClass::Single => [(16, &ALIGN_16), (4, &ALIGN_4_WORDS), (4, &[])],
            ProductClass::Half if types.stores_float32_sums() => {
                [(16, &ALIGN_16_FLOAT32_OUT), (4, &ALIGN_4), (element, &ALIGN_ELEMENT)]
            }
            ProductClass::Half | ProductClass::Integer8 => {
                [(16, &ALIGN_16), (4, &ALIGN_4), (element, &ALIGN_ELEMENT)]
            }
            ProductClass::Float8
            | ProductClass::Integer32
            | ProductClass::Mixed
            | ProductClass::Unserved => {
                return Vec::new();
            }
        };
        let mut configs = Vec::new();
        for layout in Layout::all() {
            for (align, shapes) in shapes {
                for ([m, n, k], warps, stages) in shapes.iter().copied() {
                    // Rows of a tile have at least 64 bytes in either order.
                    if m.min(n) * element < 64 {
                        continue;
                    }
                    let k = if class == ProductClass::Double { k } else { k * 2 / element };
                    let tile = [m, n, k];
                    configs.push(Sm80 { layout, tile, warps, stages, align, groups: Groups::None });
                }
            }
        }
        if class == ProductClass::Half {
            for layout in Layout::all().filter(|layout| layout.out == Major::Row) {
                for (align, shapes) in GROUPED {
                    // A group begins at any row. If A is contiguous along rows, groups have element
                    // alignment only.
                    if layout.a == Major::Column && align > element {
                        continue;
                    }
                    for (tile, warps, stages) in shapes.iter().copied() {
                        let groups = Groups::AlongM;
                        configs.push(Sm80 { layout, tile, warps, stages, align, groups });
                    }
                }
            }
        }
        // A group begins anywhere along K. Loads of several elements need operands that are not
        // K-major.
        let along_k: &[(u32, &[TileWarpsStages])] = match class {
            ProductClass::Half => &GROUPED,
            ProductClass::Single => &GROUPED_WORDS,
            _ => &[],
        };
        for layout in Layout::all().filter(|layout| layout.out == Major::Row) {
            for (align, shapes) in along_k.iter().copied() {
                if !layout.allows_groups_along_k() && align > element {
                    continue;
                }
                for ([m, n, k], warps, stages) in shapes.iter().copied() {
                    let (tile, groups) = ([m, n, k * 2 / element], Groups::AlongK);
                    configs.push(Sm80 { layout, tile, warps, stages, align, groups });
                }
            }
        }
        configs
    }
}
