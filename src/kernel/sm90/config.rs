//! A configuration of the family.

use crate::kernel::layout::{Layout, Major};
use crate::kernel::operation::Groups;
use crate::kernel::types::{ProductClass, Types};
use crate::operand::View;
use crate::problem::GemmProblem;

/// How the consumer warpgroups divide the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// The consumers share a tile.
    Cooperative,
    /// Each consumer has its own tile: while one stores its sums, the other uses the tensor cores.
    PingPong,
}

impl Schedule {
    pub fn name(self) -> &'static str {
        match self {
            Schedule::Cooperative => "cooperative",
            Schedule::PingPong => "pingpong",
        }
    }
}

/// A configuration. Tile and cluster are those of `wgmma`, which takes 64 rows along its M, and 8
/// or more along its N. If `swapped`, its A is the program's B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sm90 {
    /// The operands' orders in memory. The order of a packed operand is ignored.
    pub layout: Layout,
    pub tile: [u32; 2],
    pub stages: u32,
    /// Consumer warpgroups. One more warpgroup is the producer.
    pub consumers: u32,
    pub schedule: Schedule,
    /// Tiles of a cluster along M and N, whose CTAs multicast their loads.
    pub cluster: [u32; 2],
    /// Cluster split: CTAs of a cluster that share a tile, each with a slice of K. Grid split:
    /// reducer CTAs of a tile.
    pub split: u32,
    /// Whether the split is a grid split: the slices of K (`k_splits`) are spread over the grid,
    /// and their partial sums meet in workspace.
    pub over_grid: bool,
    /// Whether `wgmma` computes the transposed product, which is stored transposed. This puts few
    /// rows on the N of `wgmma`, and an operand that it takes from registers on its A.
    pub swapped: bool,
    /// Whether rows of `wgmma`'s A in shared memory have 64 bytes instead of 128, which halves
    /// the K blocks of a mixed product: stages of many columns then fit.
    pub half_rows: bool,
    /// Whether A and B are packed first.
    pub packed: [bool; 2],
    /// Alignment in bytes of the address, strides and rows of `wgmma`'s A: 16 for TMA. With 8
    /// or 4, threads load A, which is then K-major with 16-bit elements.
    pub align: u32,
    /// What the groups of a grouped GEMM divide.
    pub groups: Groups,
    /// float8: whether all products of a sum form one chain in the tensor cores, which keep 14 bits
    /// (docs/design/accuracy.md).
    pub fast_sums: bool,
    /// Whether the kernel multiplies A by two matrices B (dual GEMM), whose columns alternate in
    /// blocks of 8 in the tile. `tile` counts the columns of both.
    pub dual: bool,
    /// Matrices of the operand `joined`: 1, or the number of those of a joint GEMM.
    pub matrices: u32,
    /// The program's A (0) or B (1), which has several matrices in a joint GEMM.
    pub joined: u8,
}

/// Bytes of a swizzled row: the K extent of a K block, in a mixed product that of its weights. Some
/// rows have half as many (`Sm90::row_bytes`).
pub const ROW_BYTES: u32 = 128;

/// An operand of `wgmma`: its view, and the indices of its row dimension (column dimension for B)
/// and of K.
pub struct Side<'a> {
    pub view: &'a View,
    pub rows: usize,
    pub k: usize,
    pub packed: bool,
}

impl Sm90 {
    /// The kind of kernel for a layout without split, swap, packing or groups. Tile, stages and
    /// consumers are unset.
    pub(super) fn of(layout: Layout) -> Sm90 {
        Sm90 {
            layout,
            tile: [0, 0],
            stages: 0,
            consumers: 0,
            schedule: Schedule::Cooperative,
            cluster: [1, 1],
            split: 1,
            over_grid: false,
            swapped: false,
            half_rows: false,
            packed: [false, false],
            align: 16,
            groups: Groups::None,
            fast_sums: false,
            dual: false,
            matrices: 1,
            joined: 1,
        }
    }

    /// The problem with the columns of both matrices B of a dual GEMM. Its output keeps its own.
    pub(super) fn doubled(&self, problem: &GemmProblem) -> GemmProblem {
        let mut doubled = *problem;
        if self.dual {
            doubled.b.shape[2] *= 2;
        }
        doubled
    }

    /// Values of the program's A and B, or M and N, as those of `wgmma`, and the reverse.
    pub fn of_wgmma<T>(&self, [a, b]: [T; 2]) -> [T; 2] {
        if self.swapped { [b, a] } else { [a, b] }
    }

    /// The operand of `wgmma` that is the program's A (0) or B (1).
    pub(super) fn side_of(&self, at: usize) -> usize {
        if self.swapped { 1 - at } else { at }
    }

    /// The operands of `wgmma`, A first.
    pub(super) fn sides<'a>(&self, problem: &'a GemmProblem) -> [Side<'a>; 2] {
        let a = Side { view: &problem.a, rows: 1, k: 2, packed: self.packed[0] };
        let b = Side { view: &problem.b, rows: 2, k: 1, packed: self.packed[1] };
        self.of_wgmma([a, b])
    }

    /// Whether the operands of `wgmma` are K-major.
    pub fn k_major(&self) -> [bool; 2] {
        self.of_wgmma([self.layout.a == Major::Row, self.layout.b == Major::Column])
    }

    /// Whether `wgmma` takes A from registers: the weights of a mixed product, to convert
    /// them, and 4-byte elements that are not K-major. From shared memory, `wgmma` reads an operand
    /// that is not K-major only if its elements have 16 bits; 8-bit operands are packed instead.
    pub fn a_from_registers(&self, types: Types) -> bool {
        match types.class() {
            ProductClass::Mixed => true,
            ProductClass::Single => !self.k_major()[0],
            _ => false,
        }
    }

    /// The required alignment of the program's A (0) or B (1) in bytes, unless it is packed.
    pub fn aligned_to(&self, at: usize) -> u32 {
        if self.side_of(at) == 0 { self.align } else { 16 }
    }

    /// Whether threads load `wgmma`'s A.
    pub fn loads_by_threads(&self) -> bool {
        self.align < 16
    }

    /// M, N and K of the program's tile.
    pub fn program_tile(&self, types: Types) -> [u32; 3] {
        let [m, n] = self.of_wgmma(self.tile);
        [m, n, self.k_block(types)]
    }

    /// CTAs of a cluster along the program's M, N and K.
    pub fn program_cluster(&self) -> [u32; 3] {
        let [m, n] = self.of_wgmma(self.cluster);
        [m, n, if self.in_cluster() { self.split } else { 1 }]
    }

    /// Elements of K in a block: a row of `wgmma`'s A, in a mixed product of the narrower
    /// elements.
    pub fn k_block(&self, types: Types) -> u32 {
        8 * self.row_bytes(0) / types.narrower_bits()
    }

    pub fn threads(&self) -> u32 {
        128 * (self.consumers + 1)
    }

    pub fn cluster_size(&self) -> u32 {
        self.cluster[0] * self.cluster[1] * if self.in_cluster() { self.split } else { 1 }
    }

    pub fn has_groups(&self) -> bool {
        self.groups != Groups::None
    }

    /// Whether the CTAs of a cluster share a tile (cluster split).
    pub fn in_cluster(&self) -> bool {
        self.split > 1 && !self.over_grid
    }
}
