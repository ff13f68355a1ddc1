//! The configurations of the family.

use crate::kernel::operation::Groups;
use crate::kernel::types::{ProductClass, Types};
use crate::operand::DType;

/// A configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Simt {
    /// M, N and K of the tile that one CTA computes.
    pub tile: [u32; 3],
    /// What the groups of a grouped GEMM divide.
    pub groups: Groups,
}

impl Simt {
    /// Threads of a CTA, in every configuration.
    pub const THREADS: u32 = 256;

    /// The configurations for types that seldom need this family: one tile of medium size.
    pub fn few_configs(types: Types) -> impl Iterator<Item = Simt> {
        let tile = [64, 64, if types.accumulator == DType::F64 { 8 } else { 16 }];
        let groups = [Groups::None, Groups::AlongM, Groups::AlongK];
        groups.into_iter().map(move |groups| Simt { tile, groups })
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
            .map(|tile| Simt { tile, groups: Groups::None });
        let [_, medium, small] = tiles;
        let along_m = [medium, small].map(|tile| Simt { tile, groups: Groups::AlongM });
        // Matrices of weights have many tiles.
        plain.chain(along_m).chain([Simt { tile: medium, groups: Groups::AlongK }])
    }

    /// Neighbouring columns that the program passes to its epilogue at a time (`Runs<PER_N>::RUN`):
    /// 16 bytes of sums, at most 4 sums, at most a thread's columns.
    pub fn columns_of_call(&self, types: Types) -> u64 {
        (16 / types.accumulator.bytes() as u64).min(4).min(u64::from(self.tile[1]) / 16)
    }
}
