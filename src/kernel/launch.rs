//! A launch as plain data.

use super::cost::chips::Target;
use super::elementwise::ElementwiseParams;
use super::pack::Pack;
use super::params::{GemmParams, JointGemmParams};
use super::sm90::Sm90Params;

/// The first parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
// A box would cost the first run of a problem more than a copy.
#[allow(clippy::large_enum_variant)]
pub enum Params {
    Gemm(GemmParams),
    JointGemm(JointGemmParams),
    Sm90(Sm90Params),
    Elementwise(ElementwiseParams),
}

/// The operands' addresses in a launch (`Kernel::addresses_in`).
pub type Addresses = [u64; 5];

/// A launch configuration with its parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// CTAs.
    pub grid: u32,
    /// Threads of a CTA.
    pub block: u32,
    /// CTAs of a cluster.
    pub cluster: u32,
    /// Dynamic shared memory of a CTA, in bytes.
    pub shared_bytes: u32,
    /// Whether the grid may start while the previous one on the stream still runs (programmatic
    /// stream serialization). The program waits for the previous grid before it accesses memory.
    pub overlapping: bool,
    pub params: Params,
    /// The launch before this one that packs operands. Boxed, since it is rare and large.
    pub pack: Option<Box<Pack>>,
}

impl Launch {
    /// A launch of `grid` CTAs without clusters, overlap or packing.
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

/// Whether overlap with the previous grid pays. The CTAs of an overlapping grid
/// start on SMs with free resources. If only some SMs have any, the grid is unbalanced and ends
/// later. Overlap pays if the grid fills the chip, or if an SM holds one CTA.
pub fn overlap_pays(target: Target, ctas: u64, ctas_per_sm: u32) -> bool {
    let fills = 10 * ctas >= 9 * u64::from(target.multiprocessors * ctas_per_sm);
    target.cc == 90 && (fills || ctas_per_sm == 1)
}
