//! The configurations of the family.

use crate::kernel::types::{ProductClass, Types};
use crate::operand::DType;

/// A configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Simt {
    /// M, N and K of the tile that one CTA computes.
    pub tile: [u32; 3],
    /// Whether the kernel computes a grouped GEMM.
    pub grouped: bool,
}

impl Simt {
    /// Threads of a CTA, in every configuration.
    pub const THREADS: u32 = 256;

    /// The configurations for types that seldom need this family: one tile of medium size.
    pub fn few_configs(types: Types) -> impl Iterator<Item = Simt> {
        let tile = [64, 64, if types.accumulator == DType::F64 { 8 } else { 16 }];
        [false, true].into_iter().map(move |grouped| Simt { tile, grouped })
    }

    /// The configurations for these types, largest tile first.
    pub fn configs(types: Types) -> impl Iterator<Item = Simt> {
        // A float64 sum takes two registers. The K of a tile is the length of a chain of products,
        // and each chain is summed separately. With 16, float32 is as accurate as cuBLAS
        // (docs/design/accuracy.md).
        let tiles = match types.accumulator {
            DType::F64 => [[128, 64, 8], [64, 64, 8], [32, 32, 16]],
            DType::F32 => [[128, 128, 16], [64, 64, 16], [32, 32, 16]],
            _ => [[128, 128, 8], [64, 64, 16], [32, 32, 16]],
        };
        // The largest tile leaves no registers to widen 16-bit elements.
        let too_large = matches!(types.class(), ProductClass::Half | ProductClass::Mixed);
        let plain = tiles
            .into_iter()
            .skip(usize::from(too_large))
            .map(|tile| Simt { tile, grouped: false });
        plain.chain(tiles.into_iter().skip(1).map(|tile| Simt { tile, grouped: true }))
    }

    /// Neighbouring columns that the program passes to its epilogue at a time (`Runs<PER_N>::RUN`):
    /// 16 bytes of sums, at most 4 sums, at most a thread's columns.
    pub fn columns_of_call(&self, types: Types) -> u64 {
        (16 / types.accumulator.bytes() as u64).min(4).min(u64::from(self.tile[1]) / 16)
    }
}
