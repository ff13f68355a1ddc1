//! A configuration of the family.

use crate::kernel::cost::chips::Target;
use crate::kernel::demand::Demand;
use crate::kernel::layout::Major;
use crate::kernel::types::Types;
use crate::kernel::unsupported::Unsupported;
use crate::operand::DType;
use crate::problem::GemmProblem;

/// The narrow side of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Narrow {
    M,
    /// The program computes the transposed product, whose narrow side is M.
    N,
}

impl Narrow {
    pub fn name(self) -> &'static str {
        match self {
            Narrow::M => "m",
            Narrow::N => "n",
        }
    }
}

/// The instructions that multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// `mma.sync`, for 16-bit elements. 8-bit integers of the wide operand are converted.
    TensorCores,
    /// Multiply-adds, for float32 without rounding to tf32.
    Fma,
}

/// A configuration. `a` and `b` refer to the user's frame, all else to the program's, whose M is
/// the narrow side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Skinny {
    pub narrow: Narrow,
    /// Orders of the user's A and B. The output may have any strides.
    pub a: Major,
    pub b: Major,
    /// Rows of a CTA's tile. The kernel is offered for at most as many.
    pub tokens: u32,
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
}

impl Skinny {
    /// Threads of a CTA, in every configuration.
    pub const THREADS: u32 = 256;
    pub const WARPS: u32 = Skinny::THREADS / 32;

    /// Whether the narrow and the wide operand are K-major.
    pub fn k_major(&self) -> [bool; 2] {
        k_major(self.narrow, self.a, self.b)
    }

    /// Types of the narrow and the wide operand.
    pub fn operand_types(&self, types: Types) -> [DType; 2] {
        match self.narrow {
            Narrow::M => [types.a, types.b],
            Narrow::N => [types.b, types.a],
        }
    }

    /// M, N and K of a tile in the user's frame.
    pub fn user_tile(&self) -> [u32; 3] {
        let [n, k] = self.tile;
        match self.narrow {
            Narrow::M => [self.tokens, n, k],
            Narrow::N => [n, self.tokens, k],
        }
    }

    /// Warps along M, N and K in the user's frame.
    pub fn user_warps(&self) -> [u32; 3] {
        let warps_k = Skinny::WARPS / self.warps_n;
        match self.narrow {
            Narrow::M => [1, self.warps_n, warps_k],
            Narrow::N => [self.warps_n, 1, warps_k],
        }
    }

    /// Dynamic shared memory in bytes: the stages, each a tile of A and one of B, or in the same
    /// memory the sums of the warps that share columns, each row padded by four words; then the
    /// partial sums received from the other CTAs of a cluster.
    pub fn shared_bytes(&self, types: Types) -> u32 {
        let [n, k] = self.tile;
        let [size, wide_size] = self.operand_types(types).map(|dtype| dtype.bytes() as u32);
        // Rows of the narrow tile have at least 64 bytes (128 of float32), and every thread copies
        // 16 bytes of the tile.
        let least = match (self.k_major()[0], size) {
            (true, _) => 8,
            (false, 4) => 32,
            (false, _) => 64 / size,
        };
        let rows = self.tokens.max(least).max(Skinny::THREADS * 16 / (k * size));
        let pipeline = self.stages * (rows * size + n * wide_size) * k;
        let sums = Skinny::WARPS / self.warps_n * self.tokens * (n + 4) * 4;
        let received = if self.split > 1 { self.tokens * n * 4 } else { 0 };
        pipeline.max(sums) + received
    }

    /// CTAs that an SM holds, limited by shared memory and by the registers that NVRTC allocates.
    pub fn ctas_per_sm(&self, types: Types) -> u32 {
        let by_registers = match (self.align >= 4, self.tokens, self.tile[0]) {
            (true, ..) => 3,
            (false, 17.., _) => 1,
            (false, _, 33..) => 2,
            _ => 3,
        };
        let shared = Target::H100.shared_bytes_per_cta;
        (shared / (self.shared_bytes(types) + 1024)).clamp(1, by_registers)
    }

    /// Requirements on A, B and out.
    pub fn demands(&self) -> [Demand; 3] {
        [Demand::aligned(self.a, self.align), Demand::aligned(self.b, self.align), Demand::NONE]
    }

    /// Refuses a narrow side above `tokens`: the program would read the wide operand once for each
    /// block of `tokens` rows.
    pub fn check_range(&self, problem: &GemmProblem) -> Result<(), Unsupported> {
        let (dimension, extent) = match self.narrow {
            Narrow::M => ("M", problem.m()),
            Narrow::N => ("N", problem.n()),
        };
        let limit = i64::from(self.tokens);
        match extent > limit {
            true => Err(Unsupported::TooMany { dimension, extent, limit }),
            false => Ok(()),
        }
    }

    /// CTAs of a launch. `framed`: the problem in the program's frame. No rows count as one.
    pub fn ctas(&self, framed: &GemmProblem) -> u64 {
        let strips = (framed.m() as u64).div_ceil(u64::from(self.tokens)).max(1);
        let columns = (framed.n() as u64).div_ceil(u64::from(self.tile[0]));
        u64::from(self.split) * strips * columns * framed.batch() as u64
    }

    /// Neighbouring columns that the program passes to its epilogue at a time.
    pub const COLUMNS_OF_CALL: u64 = 4;

    /// The problem in the program's frame, whose M is the narrow side.
    pub fn framed(&self, problem: &GemmProblem) -> GemmProblem {
        match self.narrow {
            Narrow::M => *problem,
            Narrow::N => problem.transposed(),
        }
    }
}

/// Whether the narrow and the wide operand are K-major.
pub fn k_major(narrow: Narrow, a: Major, b: Major) -> [bool; 2] {
    let (a, b) = (a == Major::Row, b == Major::Column);
    match narrow {
        Narrow::M => [a, b],
        Narrow::N => [b, a],
    }
}
