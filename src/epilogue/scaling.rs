//! Block scales: scales and zero points of the product's factors that vary along K, so that a
//! kernel applies them while it sums up (`scale_blocks` in an epilogue function).

use serde::{Deserialize, Serialize};

/// The name of the only swizzle of scales.
pub const SWIZZLE: &str = "32x4x4";

/// Rows and blocks along K of a tile of swizzled scales.
pub const SWIZZLED_TILE: [i64; 2] = [128, 4];
/// The scales of a tile of swizzled scales, which are contiguous.
pub const TILE_SCALES: i64 = SWIZZLED_TILE[0] * SWIZZLED_TILE[1];

/// The scales of both factors, A and B. In a graph, at least one factor has scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scaling {
    pub a: Option<BlockScale>,
    pub b: Option<BlockScale>,
    /// Whether the scales belong to the operands A and B (`ScaledTensor`), not to the epilogue
    /// function.
    pub is_of_operands: bool,
}

/// The scales of one factor: an element x counts as (x - zero point) * scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockScale {
    /// The scales, as an index of the graph's inputs.
    pub scale: u32,
    /// The zero points, as an index of the graph's inputs.
    pub zero: Option<u32>,
    /// Rows of A, or columns of B, that share a scale.
    pub extent: u32,
    /// Elements along K that share a scale; [`BlockScale::WHOLE`] for all of K.
    pub depth: u32,
    /// Whether the scales lie in tiles of 128 x 4, as `Swizzle32x4x4` orders them.
    pub is_swizzled: bool,
}

impl BlockScale {
    /// The depth of scales that do not vary along K: no K is larger, and a multiple of all depths.
    pub const WHOLE: u32 = 1 << 30;

    /// Whether one scale holds for all of K.
    pub fn is_whole(&self) -> bool {
        self.depth == BlockScale::WHOLE
    }

    /// The scales along the rows of A (columns of B) and along K, of extents `outer` and `k`.
    pub fn counts(&self, outer: i64, k: i64) -> [i64; 2] {
        let blocks = |size: i64, extent: u32| (size + i64::from(extent) - 1) / i64::from(extent);
        // Kernels read the scale of all of K, also if K is 0.
        [blocks(outer, self.extent), if self.is_whole() { 1 } else { blocks(k, self.depth) }]
    }

    /// The offset of a swizzled scale, in elements: rows 32 apart are adjacent. `tiles_step`: from
    /// one row of tiles to the next.
    pub fn swizzled_offset(tiles_step: i64, row: i64, deep: i64) -> i64 {
        let [rows, across] = SWIZZLED_TILE;
        let in_tile = row % 32 * (4 * across) + row % rows / 32 * across + deep % across;
        row / rows * tiles_step + deep / across * TILE_SCALES + in_tile
    }
}

impl Scaling {
    /// The largest block along any dimension.
    pub const MAX_BLOCK: i64 = 1 << 20;

    /// The scales of the transposed product.
    pub fn transposed(&self) -> Scaling {
        Scaling { a: self.b, b: self.a, ..*self }
    }

    /// The scales of the factors that have some, each with the factor's name.
    pub fn factors(&self) -> impl Iterator<Item = (&'static str, BlockScale)> {
        [("A", self.a), ("B", self.b)].into_iter().filter_map(|(name, of)| Some((name, of?)))
    }

    /// The indices of all scales and zero points among the graph's inputs.
    pub fn inputs(&self) -> impl Iterator<Item = usize> {
        self.factors().flat_map(|(_, BlockScale { scale, zero, .. })| {
            std::iter::once(scale).chain(zero).map(|index| index as usize)
        })
    }

    /// The factor whose scales or zero points an input holds.
    pub fn factor_of(&self, input: usize) -> Option<(&'static str, BlockScale)> {
        self.factors().find(|(_, BlockScale { scale, zero, .. })| {
            std::iter::once(*scale).chain(*zero).any(|index| index as usize == input)
        })
    }
}
