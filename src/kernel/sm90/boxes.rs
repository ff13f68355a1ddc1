//! The boxes in which TMA loads operands.

use super::config::{ROW_BYTES, Side, Sm90};
use crate::problem::GemmProblem;

/// Rows that the swizzle interleaves: slices and boxes begin at multiples.
const ATOM: u32 = 8;

impl Sm90 {
    /// Rows of 128 bytes of the program's A and B that a K block of a tile reads: those inside the
    /// operand, and those that a box reads in vain; and the alignment of rows in bytes.
    pub fn rows_read(&self, problem: &GemmProblem) -> [(u32, u32); 2] {
        let (sides, k_major) = (self.sides(problem), self.k_major());
        [0, 1].map(|at| {
            let side = &sides[at];
            let inside = i64::from(self.tile[at]).min(side.view.shape[side.rows]).max(1) as u32;
            if side.packed {
                return (inside, ROW_BYTES);
            }
            let other = if k_major[at] { side.rows } else { side.k };
            let step = (side.view.stride[other] * side.view.dtype.bytes()) | i64::from(ROW_BYTES);
            let aligned = 1 << step.trailing_zeros();
            if k_major[at] {
                return (inside, aligned);
            }
            // Along M (N), a tile is loaded in boxes. Tiles that are not whole boxes begin inside
            // cache lines; rows of 64 bytes cost more where not all of the operand's rows begin at
            // lines.
            let row = self.row_bytes(at);
            // A power of two, without a division: the cost model computes this for every kernel.
            let last = (row >> (side.view.dtype.bytes() as u32).trailing_zeros()) - 1;
            let whole = self.tile[at] & last == 0 && (row == ROW_BYTES || aligned == ROW_BYTES);
            ((inside + last) & !last, if whole { aligned } else { 16 })
        })
    }

    /// Bytes of a row of the boxes in which TMA loads the program's A (0) or B (1): 128, a K block.
    /// Or 64 for a B that is contiguous along N, where fewer columns are then loaded in vain. Twice
    /// the rows take TMA longer: it pays for narrow tiles, and for 256 rows, which gain a stage.
    pub fn row_bytes(&self, at: usize) -> u32 {
        let [m, n] = self.tile;
        let narrow = n.next_multiple_of(32) < n.next_multiple_of(64) && (n <= 96 || m == 256);
        if at == 1 && narrow && !self.k_major()[1] && self.packed == [false, false] {
            64
        } else {
            ROW_BYTES
        }
    }

    /// Rows of the longest and the shortest slice of a K-major tile: whole swizzle atoms (`SLICE`
    /// and `SHORT` of the program).
    pub fn slices(&self, at: usize) -> [u32; 2] {
        let (atoms, sharers) = (self.tile[at] / ATOM, self.cluster[1 - at]);
        [atoms.div_ceil(sharers) * ATOM, atoms / sharers * ATOM]
    }

    /// Rows of a box of a K-major operand: the CTA's slice, or all rows of an operand that has
    /// fewer. Or an equal part of the slice, the one that loads fewest rows outside the operand, if
    /// it saves enough: one thread starts all boxes, and with small tiles it has no time to spare.
    pub(super) fn box_rows(&self, sides: &[Side; 2], at: usize) -> u32 {
        /// Rows of the smallest part.
        const FEWEST: u32 = 32;
        /// Parts must save one in this many of the loaded rows.
        const ONE_IN: u64 = 8;
        let [slice, shorter] = self.slices(at);
        let rows = sides[at].view.shape[sides[at].rows].max(1) as u64;
        // Only the device knows where a group's rows end. Where threads load A, the program loads
        // B's tiles whole. An unequal slice is one box.
        if (self.grouped && at == 0) || self.loads_by_threads() || slice > shorter {
            return slice;
        }
        if rows < u64::from(slice) {
            return rows as u32;
        }
        let loaded = |part: u32| rows.next_multiple_of(u64::from(part));
        (2..=4)
            .filter(|parts| slice.is_multiple_of(parts * ATOM))
            .map(|parts| slice / parts)
            .filter(|part| {
                *part >= FEWEST && (loaded(slice) - loaded(*part)) * ONE_IN >= loaded(slice)
            })
            .min_by_key(|part| (loaded(*part), slice / part))
            .unwrap_or(slice)
    }
}
