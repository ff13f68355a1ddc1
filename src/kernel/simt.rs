//! The `simt` family: plain multiply-adds. Any types, any strides, any alignment.

use std::fmt;

use super::launch::tiles;
use super::{GemmParams, Launch};
use crate::problem::GemmProblem;

/// A point in the family's space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Simt {
    /// M, N and K of the tile that one CTA computes.
    pub tile: [u32; 3],
    /// Threads of a CTA.
    pub threads: u32,
}

impl Simt {
    /// The configurations on offer, largest tile first.
    pub const CONFIGS: [Simt; 2] =
        [Simt { tile: [128, 128, 16], threads: 256 }, Simt { tile: [64, 64, 16], threads: 256 }];

    pub fn launch(&self, problem: &GemmProblem) -> Launch {
        let [tile_m, tile_n, _] = self.tile;
        Launch {
            grid: tiles(problem, tile_m, tile_n) as u32,
            block: self.threads,
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
