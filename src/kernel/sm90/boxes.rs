//! The boxes that TMA loads.

use super::config::{ROW_BYTES, Side, Sm90};
use crate::kernel::operation::Groups;
use crate::problem::GemmProblem;

/// Rows of a swizzle atom. Slices and boxes begin at multiples of it.
const ATOM: u32 = 8;

impl Sm90 {
    /// For A and B of `wgmma`: the 128-byte rows that one K block of a tile reads, including
    /// rows of a box outside the operand, and the alignment of the rows in bytes.
    pub fn rows_read(&self, problem: &GemmProblem) -> [(u32, u32); 2] {
        let (sides, k_major) = (self.sides(problem), self.k_major());
        let narrower = problem.a.dtype.bits().min(problem.b.dtype.bits());
        [0, 1].map(|at| {
            let (rows, aligned) = self.rows_of_side(&sides[at], k_major[at], at);
            // A K block is a row of the narrower elements.
            let bytes = rows * (sides[at].view.dtype.bits() / narrower) * self.row_bytes(0);
            (bytes / ROW_BYTES, aligned)
        })
    }

    fn rows_of_side(&self, side: &Side, k_major: bool, at: usize) -> (u32, u32) {
        let inside = i64::from(self.tile[at]).min(side.view.shape[side.rows]).max(1) as u32;
        if side.packed {
            return (inside, ROW_BYTES);
        }
        let other = if k_major { side.rows } else { side.k };
        let step = side.view.byte_stride(other) | i64::from(ROW_BYTES);
        let aligned = 1 << step.trailing_zeros();
        if k_major {
            return (inside, aligned);
        }
        // A tile that is contiguous along M (N) is loaded in whole boxes. If the tile is not a
        // multiple of the box, tiles begin inside cache lines. Box rows of 64 bytes cost more
        // unless all rows of the operand begin at cache lines.
        let row = self.row_bytes(at);
        // The box extent is a power of two. No division: the cost model calls this for every
        // kernel.
        let last = (row >> (side.view.dtype.bytes() as u32).trailing_zeros()) - 1;
        let whole = self.tile[at] & last == 0 && (row == ROW_BYTES || aligned == ROW_BYTES);
        ((inside + last) & !last, if whole { aligned } else { 16 })
    }

    /// Bytes of a row of the boxes that TMA loads for `wgmma`'s A (0) or B (1): 128, or 64 for
    /// an A with `half_rows`, and for a B that is contiguous along N if fewer columns outside the
    /// tile are then loaded. TMA takes longer for twice the rows of B, so 64 pays only for narrow
    /// tiles and for 256-row tiles, which gain a stage.
    pub fn row_bytes(&self, at: usize) -> u32 {
        let [m, n] = self.tile;
        let narrow = n.next_multiple_of(32) < n.next_multiple_of(64) && (n <= 96 || m == 256);
        let half_b = || narrow && !self.k_major()[1] && !self.packs();
        if (at == 0 && self.half_rows) || (at == 1 && half_b()) { ROW_BYTES / 2 } else { ROW_BYTES }
    }

    /// Rows of the longest and the shortest slice of a K-major tile, in whole swizzle atoms
    /// (`SLICE` and `SHORT` of the program).
    pub fn slices(&self, at: usize) -> [u32; 2] {
        let (atoms, sharers) = (self.tile[at] / ATOM, self.cluster[1 - at]);
        [atoms.div_ceil(sharers) * ATOM, atoms / sharers * ATOM]
    }

    /// Rows of a box of a K-major operand: the CTA's slice, or all rows of a shorter operand. The
    /// slice is divided into equal boxes only if that loads clearly fewer rows outside the operand:
    /// one thread issues all boxes, and small tiles leave it little time.
    pub(super) fn box_rows(&self, sides: &[Side; 2], at: usize) -> u32 {
        /// Fewest rows of a box.
        const FEWEST_ROWS: u32 = 32;
        /// Smaller boxes must save at least one in this many loaded rows.
        const ONE_IN: u64 = 8;
        let [slice, shorter] = self.slices(at);
        let rows = sides[at].view.shape[sides[at].rows].max(1) as u64;
        // Only the device knows where a group's rows end. If threads load A, the program loads B's
        // slice as one box. Unequal slices are one box each.
        let has_groups = self.groups == Groups::AlongM && at == self.side_of(0);
        if has_groups || self.loads_by_threads() || slice > shorter {
            return slice;
        }
        if rows < u64::from(slice) {
            return rows as u32;
        }
        // A box of a dual GEMM holds as many rows of each matrix.
        let unit = if self.dual && at == self.side_of(1) { 2 * ATOM } else { ATOM };
        let loaded = |of_box: u32| rows.next_multiple_of(u64::from(of_box));
        (2..=4)
            .filter(|boxes| slice.is_multiple_of(boxes * unit))
            .map(|boxes| slice / boxes)
            .filter(|of_box| {
                *of_box >= FEWEST_ROWS
                    && (loaded(slice) - loaded(*of_box)) * ONE_IN >= loaded(slice)
            })
            .min_by_key(|of_box| (loaded(*of_box), slice / of_box))
            .unwrap_or(slice)
    }
}
