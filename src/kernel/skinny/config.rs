//! A configuration of the family.

use crate::kernel::layout::Major;
use crate::kernel::types::{ProductClass, Types};
use crate::problem::GemmProblem;

/// The instructions that multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// `mma.sync`, for 16-bit elements. Narrower weights as the wide operand are converted.
    TensorCores,
    /// Multiply-adds, for float32 without rounding to tf32.
    Fma,
}

/// A configuration. M is the narrow side of the output: A is the narrow operand, and B the wide
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Skinny {
    /// Orders of A and B. The output may have any strides.
    pub a: Major,
    pub b: Major,
    /// Rows of a CTA's tile. The kernel is offered for at most as many.
    pub rows: u32,
    /// Columns and K of a CTA's tile; K in elements.
    pub tile: [u32; 2],
    /// Warps along N. Groups of `8 / warps_n` warps divide K.
    pub warps_n: u32,
    pub stages: u32,
    /// Cluster split: CTAs of a cluster that share one tile, each with a slice of K.
    pub split: u32,
    /// Bytes that one load of A or B moves; addresses and leading dimensions are multiples of it.
    pub align: u32,
    pub method: Method,
    /// Matrices B: 1, or the number of those of a joint GEMM, whose columns are the program's.
    pub matrices: u32,
}

impl Skinny {
    /// Threads of a CTA, in every configuration.
    pub const THREADS: u32 = 256;
    pub const WARPS: u32 = Skinny::THREADS / 32;

    /// Whether A and B are K-major.
    pub fn k_major(&self) -> [bool; 2] {
        [self.a == Major::Row, self.b == Major::Column]
    }

    /// M, N and K of a tile.
    pub fn tile(&self) -> [u32; 3] {
        let [n, k] = self.tile;
        [self.rows, n, k]
    }

    /// CTAs of a launch. No rows count as one.
    pub fn ctas(&self, problem: &GemmProblem) -> u64 {
        let strips = (problem.m() as u64).div_ceil(u64::from(self.rows)).max(1);
        let columns = (problem.n() as u64).div_ceil(u64::from(self.tile[0]));
        u64::from(self.split) * strips * columns * problem.batch() as u64
    }

    /// Whether each CTA computes a range of columns, tile by tile: products of converted weights,
    /// without a split.
    pub fn is_persistent(&self, types: Types) -> bool {
        types.class() == ProductClass::Mixed && self.split == 1
    }

    /// How the CTAs of a persistent kernel divide the columns. `slots`: CTAs that run at once.
    pub fn ranges(&self, problem: &GemmProblem, slots: u32) -> Ranges {
        let strips = (problem.m() as u64).div_ceil(u64::from(self.rows)).max(1);
        let strips = strips * problem.batch() as u64;
        let columns = problem.n() as u64;
        let units = columns.div_ceil(Skinny::UNIT).max(1);
        // The CTAs of many strips take several rounds anyway, and short ones end together.
        let of_strip = match u64::from(slots) / strips.max(1) {
            several @ 4.. => several,
            _ => columns.div_ceil(u64::from(self.tile[0])),
        };
        Ranges { strips, of_strip: of_strip.clamp(1, units), units }
    }

    /// Columns by which the ranges of persistent CTAs differ at most.
    pub const UNIT: u64 = 16;

    /// Neighbouring columns that the program passes to its epilogue at a time.
    pub const COLUMNS_OF_CALL: u64 = 4;
}

/// How the CTAs of a persistent kernel divide the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Blocks of rows of all matrices of the batch.
    pub strips: u64,
    /// CTAs of a strip, among which its columns are divided.
    pub of_strip: u64,
    /// Units of columns of a strip. The ranges of two CTAs differ by one unit at most.
    pub units: u64,
}

impl Ranges {
    pub fn ctas(&self) -> u64 {
        self.strips * self.of_strip
    }

    /// Units of the longest range.
    pub fn longest(&self) -> u64 {
        self.units.div_ceil(self.of_strip)
    }
}
