//! A launch as plain data.

use super::elementwise::ElementwiseParams;
use super::pack::Pack;
use super::params::GemmParams;
use super::sm90::Sm90Params;

/// The parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
// Built at every first run, where a box would cost more than a copy.
#[allow(clippy::large_enum_variant)]
pub enum Params {
    Gemm(GemmParams),
    Sm90(Sm90Params),
    Elementwise(ElementwiseParams),
}

/// A launch configuration with its parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// CTAs.
    pub grid: u32,
    /// Threads of a CTA.
    pub block: u32,
    /// CTAs of a cluster.
    pub cluster: u32,
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// Whether the grid may start while the previous one on the stream still runs (programmatic
    /// stream serialization). The program waits before it reads.
    pub overlapping: bool,
    pub params: Params,
    /// A launch in front that packs operands. Boxed: it is rare and large.
    pub pack: Option<Box<Pack>>,
}

impl Launch {
    /// A launch of one CTA a tile, without clusters or a launch in front.
    pub fn simple(grid: u64, block: u32, shared_bytes: u32, params: Params) -> Launch {
        Launch {
            grid: grid as u32,
            block,
            cluster: 1,
            shared_bytes,
            overlapping: false,
            params,
            pack: None,
        }
    }
}
