//! The `simt` family: plain multiply-adds. Any types, any strides, any alignment.

use std::fmt;

use super::launch::tiles;
use super::{GemmParams, Launch, Types};
use crate::operand::DType;
use crate::problem::GemmProblem;

/// A point in the family's space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Simt {
    /// M, N and K of the tile that one CTA computes.
    pub tile: [u32; 3],
}

impl Simt {
    /// Threads of a CTA, in every configuration.
    pub const THREADS: u32 = 256;

    /// The configurations on offer for these types, largest tile first. Widening 16-bit elements takes registers that the
    /// largest tile does not have.
    pub fn configs(types: Types) -> impl Iterator<Item = Simt> {
        let narrow = |dtype: DType| matches!(dtype, DType::F16 | DType::Bf16);
        let large = !narrow(types.a) && !narrow(types.b);
        [[128, 128, 8], [64, 64, 16], [32, 32, 16]].into_iter().skip(usize::from(!large)).map(|tile| Simt { tile })
    }

    pub fn launch(&self, problem: &GemmProblem) -> Launch {
        let [tile_m, tile_n, _] = self.tile;
        Launch {
            grid: tiles(problem, tile_m, tile_n) as u32,
            block: Simt::THREADS,
            shared_bytes: 0,
            params: GemmParams::new(problem),
        }
    }
}

impl fmt::Display for Simt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [m, n, k] = self.tile;
        write!(f, "{m}x{n}x{k}")
    }
}
