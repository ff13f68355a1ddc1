//! The `simt` family: plain multiply-adds. Any types, any strides, any alignment.

use super::launch::tiles;
use super::name::append;
use super::{GemmParams, Launch, Types};
use crate::operand::{DType, View};
use crate::problem::GemmProblem;

/// A point in the family's space.
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

    /// The configurations on offer for these types, largest tile first.
    pub fn configs(types: Types) -> impl Iterator<Item = Simt> {
        // Widening 16-bit elements takes registers that the largest tile does not have; float64 takes two for every sum. The
        // depth is the number of products that are summed apart: with 16, float32 is as exact as cuBLAS's (docs/notes/accuracy.md).
        let narrow = |dtype: DType| matches!(dtype, DType::F16 | DType::Bf16);
        let tiles = match types.accumulator {
            DType::F64 => [[128, 64, 8], [64, 64, 8], [32, 32, 16]],
            DType::F32 => [[128, 128, 16], [64, 64, 16], [32, 32, 16]],
            _ => [[128, 128, 8], [64, 64, 16], [32, 32, 16]],
        };
        let too_large = usize::from(narrow(types.a) || narrow(types.b));
        let plain = tiles.into_iter().skip(too_large).map(|tile| Simt { tile, grouped: false });
        plain.chain(tiles.into_iter().skip(1).map(|tile| Simt { tile, grouped: true }))
    }

    /// Neighbours that the program hands to its epilogue at a time (`Runs<PER_N>::RUN`): 16 bytes of sums, 4 at most, or what a thread
    /// has of a row.
    pub fn columns_of_call(&self, types: Types) -> u64 {
        (16 / types.accumulator.bytes() as u64).min(4).min(u64::from(self.tile[1]) / 16)
    }

    pub fn launch(&self, problem: &GemmProblem, offsets: Option<&View>) -> Launch {
        let [tile_m, tile_n, _] = self.tile;
        let tiles = tiles(problem, self.grouped, tile_m, tile_n);
        Launch::simple(tiles, Simt::THREADS, 0, GemmParams::new(problem, offsets))
    }

    /// Appends the configuration as kernel names spell it.
    pub fn append_to(&self, name: &mut String) {
        let [m, n, k] = self.tile;
        append!(name, m, "x", n, "x", k);
    }
}
