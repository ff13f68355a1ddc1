//! The configurations of the family.

use crate::kernel::types::Types;
use crate::operand::DType;

/// A configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Simt {
    /// M, N and K of the tile that one CTA computes.
    pub tile: [u32; 3],
    /// Whether it computes a grouped GEMM.
    pub grouped: bool,
}

impl Simt {
    /// Threads of a CTA, in every configuration.
    pub const THREADS: u32 = 256;

    /// The configurations for these types, largest tile first.
    pub fn configs(types: Types) -> impl Iterator<Item = Simt> {
        // A sum in float64 takes two registers. The depth is the number of products in a chain, and
        // chains are added up apart: with 16, float32 is as exact as cuBLAS
        // (docs/design/accuracy.md).
        let tiles = match types.accumulator {
            DType::F64 => [[128, 64, 8], [64, 64, 8], [32, 32, 16]],
            DType::F32 => [[128, 128, 16], [64, 64, 16], [32, 32, 16]],
            _ => [[128, 128, 8], [64, 64, 16], [32, 32, 16]],
        };
        // Widening 16-bit elements takes registers that the largest tile does not leave.
        let is_narrow = |dtype: DType| matches!(dtype, DType::F16 | DType::Bf16);
        let too_large = usize::from(is_narrow(types.a) || is_narrow(types.b));
        let plain = tiles.into_iter().skip(too_large).map(|tile| Simt { tile, grouped: false });
        plain.chain(tiles.into_iter().skip(1).map(|tile| Simt { tile, grouped: true }))
    }

    /// Neighbouring columns that the program passes to its epilogue at a time (`Runs<PER_N>::RUN`):
    /// 16 bytes of sums, at most 4 sums, at most a thread's columns.
    pub fn columns_of_call(&self, types: Types) -> u64 {
        (16 / types.accumulator.bytes() as u64).min(4).min(u64::from(self.tile[1]) / 16)
    }
}
