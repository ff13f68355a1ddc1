//! The configurations of the family.

use super::config::{Method, Skinny};
use crate::kernel::layout::Major;
use crate::kernel::types::{ProductClass, Types};
use crate::operand::DType;

/// Alignment, rows, columns and K of the tile, warps along N, stages, split.
type Variant = (u32, u32, [u32; 2], u32, u32, u32);

// The configurations for each order of the narrow and the wide operand, sorted by mean speed
// (docs/design/skinny.md). `K` in a name: contiguous along K; `M`, `N`: along the other dimension.

/// 16-bit elements, both operands K-major, as in torch's `Linear`.
const HALVES_K: &[Variant] = &[
    (16, 8, [16, 256], 1, 5, 1),
    (16, 8, [16, 512], 1, 4, 1),
    (16, 16, [16, 256], 1, 5, 1),
    (16, 16, [16, 256], 1, 4, 1),
    (16, 16, [16, 512], 1, 3, 1),
    (16, 16, [32, 256], 2, 4, 1),
    (16, 16, [32, 256], 2, 4, 2),
    (16, 16, [32, 128], 2, 5, 1),
    (8, 16, [16, 256], 1, 5, 1),
    (4, 16, [32, 256], 2, 4, 1),
    (4, 64, [64, 128], 2, 4, 2),
    (2, 8, [16, 256], 1, 2, 1),
    (2, 16, [32, 128], 2, 2, 2),
    (2, 64, [64, 128], 2, 2, 2),
];

/// 16-bit elements, the wide operand contiguous along N.
const HALVES_N: &[Variant] = &[
    (16, 16, [64, 128], 4, 5, 2),
    (16, 16, [64, 128], 4, 5, 1),
    (16, 16, [64, 128], 4, 5, 4),
    (16, 16, [64, 128], 4, 4, 1),
    (4, 16, [64, 128], 4, 5, 2),
    (4, 64, [64, 128], 2, 4, 2),
    (2, 16, [32, 128], 2, 2, 2),
    (2, 64, [64, 128], 2, 2, 2),
];

/// 16-bit elements, the narrow operand contiguous along M. Its tile has at least 32 rows, which
/// leaves less shared memory for the wide operand.
const HALVES_M_K: &[Variant] = &[
    (16, 16, [16, 256], 1, 4, 1),
    (16, 16, [32, 256], 2, 4, 2),
    (4, 16, [32, 128], 2, 5, 1),
    (4, 64, [64, 128], 2, 4, 2),
    (2, 16, [32, 128], 2, 2, 2),
    (2, 64, [64, 128], 2, 2, 2),
];

const HALVES_M_N: &[Variant] = &[
    (16, 16, [64, 128], 4, 5, 2),
    (16, 16, [64, 128], 4, 4, 1),
    (4, 16, [64, 128], 4, 5, 2),
    (4, 64, [64, 128], 2, 4, 2),
    (2, 16, [32, 128], 2, 2, 2),
    (2, 64, [64, 128], 2, 2, 2),
];

/// float32 with FMA, the wide operand contiguous along K. Splits fill the chip where the wide
/// operand has few columns.
const WORDS_K: &[Variant] = &[
    (16, 4, [32, 128], 1, 5, 1),
    (16, 4, [32, 128], 1, 5, 4),
    (16, 4, [32, 128], 1, 5, 8),
    (16, 8, [32, 128], 1, 5, 1),
    (16, 16, [32, 128], 1, 5, 1),
    (16, 16, [32, 128], 1, 4, 1),
    (4, 4, [32, 128], 1, 4, 8),
    (4, 8, [32, 128], 1, 4, 1),
    (4, 16, [32, 128], 1, 4, 1),
];

/// float32 with FMA, the wide operand contiguous along N.
const WORDS_N: &[Variant] = &[
    (16, 4, [64, 64], 2, 5, 1),
    (16, 4, [64, 64], 2, 5, 4),
    (16, 4, [64, 64], 2, 5, 8),
    (16, 8, [64, 64], 2, 5, 2),
    (16, 16, [64, 64], 2, 5, 2),
    (16, 16, [64, 64], 2, 4, 1),
    (4, 4, [64, 64], 2, 4, 8),
    (4, 8, [64, 64], 2, 4, 1),
    (4, 16, [64, 64], 2, 4, 1),
];

/// Bytes as the wide operand, beside 16-bit elements; both operands K-major. Few columns of a tile,
/// or a split, fill the chip where the wide operand has few columns.
const MIXED: &[Variant] = &[
    (16, 8, [16, 1024], 1, 3, 1),
    (16, 8, [16, 512], 1, 4, 1),
    (16, 8, [32, 512], 1, 4, 1),
    (16, 16, [16, 512], 1, 3, 1),
    (16, 16, [32, 1024], 1, 2, 1),
    (16, 16, [32, 512], 1, 2, 1),
    (16, 16, [32, 512], 1, 2, 2),
    (16, 16, [32, 512], 1, 3, 1),
];

/// Codes of 4 bits as the wide operand, beside rows of 16-bit elements. More columns have no
/// registers left.
const CODES: &[Variant] = &[
    (16, 8, [16, 2048], 1, 2, 1),
    (16, 8, [32, 1024], 1, 2, 1),
    (16, 8, [32, 1024], 1, 2, 2),
    (16, 8, [48, 1024], 1, 1, 1),
    (16, 8, [48, 1024], 1, 1, 2),
    (16, 8, [64, 1024], 1, 1, 1),
    (16, 8, [64, 1024], 1, 1, 2),
    (16, 16, [16, 1024], 1, 2, 1),
    (16, 16, [16, 1024], 1, 2, 2),
    (16, 16, [32, 1024], 1, 1, 1),
    (16, 16, [32, 1024], 1, 1, 2),
    (16, 16, [32, 1024], 1, 2, 1),
    (16, 16, [32, 1024], 1, 2, 2),
];

impl Skinny {
    /// The configurations for these types. None for 16-bit operands with float32 output, which
    /// shows rounding errors: other families accumulate more accurately.
    pub fn configs(types: Types) -> Vec<Skinny> {
        let halves = types.class() == ProductClass::Half && types.out != DType::F32;
        let words = types.class() == ProductClass::Single;
        // The wide operand is the one that is converted.
        let mixed =
            types.class() == ProductClass::Mixed && types.b.is_widened() && types.out == types.a;
        let is_uniform = types.a == types.b && (halves || words);
        if types.accumulator != DType::F32 || !types.on_tensor_cores() || !(is_uniform || mixed) {
            return Vec::new();
        }
        let method = if words { Method::Fma } else { Method::TensorCores };
        let orders = Major::BOTH.into_iter().flat_map(|a| Major::BOTH.map(|b| (a, b)));
        let mut configs = Vec::new();
        for (a, b) in orders {
            let k_major = [a == Major::Row, b == Major::Column];
            let shapes = match mixed {
                false => shapes(method, k_major),
                true if k_major != [true, true] => &[],
                true if types.b.is_whole() => MIXED,
                true => CODES,
            };
            configs.extend(shapes.iter().map(|&(align, rows, tile, warps_n, stages, split)| {
                Skinny { a, b, rows, tile, warps_n, stages, split, align, method, matrices: 1 }
            }));
        }
        configs
    }

    /// Whether the kernel leads the list without a problem (`kernel/listing.rs`): the first of its
    /// orders for 16 rows of aligned operands, without a split. A kernel for 16 rows serves fewer
    /// rows nearly as fast as one for 8.
    pub(super) fn is_leading(&self) -> bool {
        let is_aligned = |shape: &&Variant| matches!(shape, (16, 16, .., 1));
        let Skinny { align, rows, tile, warps_n, stages, split, method, .. } = *self;
        shapes(method, self.k_major()).iter().find(is_aligned)
            == Some(&(align, rows, tile, warps_n, stages, split))
    }
}

/// The shapes for a method and for whether the narrow and the wide operand are K-major.
fn shapes(method: Method, [narrow_k_major, wide_k_major]: [bool; 2]) -> &'static [Variant] {
    match (method, narrow_k_major, wide_k_major) {
        (Method::Fma, _, true) => WORDS_K,
        (Method::Fma, _, false) => WORDS_N,
        (Method::TensorCores, true, true) => HALVES_K,
        (Method::TensorCores, true, false) => HALVES_N,
        (Method::TensorCores, false, true) => HALVES_M_K,
        (Method::TensorCores, false, false) => HALVES_M_N,
    }
}
