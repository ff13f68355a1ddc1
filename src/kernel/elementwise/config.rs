//! The configuration of the family.

use crate::kernel::types::Types;

/// The family's only configuration. Serves any operands; fast if all three are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elementwise;

impl Elementwise {
    pub const THREADS: u32 = 256;
    /// Bytes that one load or store moves.
    pub const CHUNK_BYTES: u32 = 16;
    /// Chunks of each operand that a thread moves.
    pub const CHUNKS: u32 = 4;

    /// Elements of a chunk.
    pub fn width(self, types: Types) -> u32 {
        Elementwise::CHUNK_BYTES / types.out.bytes() as u32
    }

    /// The elements that a CTA computes, as M, N and K of a tile.
    pub fn tile(self, types: Types) -> [u32; 3] {
        [1, Elementwise::THREADS * Elementwise::CHUNKS * self.width(types), 1]
    }
}
