//! The `skinny` family: products with few rows or few columns, which are bound by how fast the other operand is read.

use super::cost::CostQuery;
use super::name::append;
use super::{Demand, GemmParams, Launch, Major, Target, Types, Unsupported};
use crate::operand::DType;
use crate::problem::GemmProblem;

/// The side of the output that is few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Narrow {
    M,
    /// The program computes the transposed product, whose few are rows again.
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

/// What multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// `mma.sync`, for 16-bit elements.
    TensorCores,
    /// Multiply-adds, for float32 as it is.
    Fma,
}

/// A point in the family's space. All but the orders is in the program's frame, whose M is the narrow side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Skinny {
    pub narrow: Narrow,
    /// Orders of the user's A and B. The output may lie in any way.
    pub a: Major,
    pub b: Major,
    /// The most rows that the narrow side may have.
    pub tokens: u32,
    /// Columns and K of a CTA's tile; K in elements.
    pub tile: [u32; 2],
    /// Warps along N; the rest of the eight divide K.
    pub warps_n: u32,
    pub stages: u32,
    /// CTAs of a cluster that share one tile, each with a part of K.
    pub split: u32,
    /// Bytes that one load of A or B moves; addresses and leading strides are multiples of it.
    pub align: u32,
    pub method: Method,
}

/// Alignment, tokens, columns and K of the tile, warps along N, stages, split.
type Shape = (u32, u32, [u32; 2], u32, u32, u32);

// What is offered, best first in the mean of what was measured (docs/notes/skinny.md), by the order of the wide operand and of the few
// rows: `K` contiguous along K, `MN` along the other.

/// 16-bit elements, both along K: a weight as torch's `Linear` has it.
const HALVES_K: &[Shape] = &[
    (16, 8, [16, 256], 1, 5, 1),
    (16, 8, [16, 512], 1, 4, 1),
    (16, 16, [16, 256], 1, 5, 1),
    (16, 16, [16, 256], 1, 4, 1),
    (16, 16, [16, 512], 1, 3, 1),
    (16, 16, [32, 256], 2, 4, 1),
    (16, 16, [32, 256], 2, 4, 2),
    (16, 16, [32, 128], 2, 5, 1),
    (8, 16, [16, 256], 1, 5, 1),
    (4, 16, [32, 256], 2, 4, 1),
    (4, 64, [64, 128], 2, 4, 2),
    (2, 8, [16, 256], 1, 2, 1),
    (2, 16, [32, 128], 2, 2, 2),
    (2, 64, [64, 128], 2, 2, 2),
];

/// 16-bit elements, the weight along N.
const HALVES_N: &[Shape] = &[
    (16, 16, [64, 128], 4, 5, 2),
    (16, 16, [64, 128], 4, 5, 1),
    (16, 16, [64, 128], 4, 5, 4),
    (16, 16, [64, 128], 4, 4, 1),
    (4, 16, [64, 128], 4, 5, 2),
    (4, 64, [64, 128], 2, 4, 2),
    (2, 16, [32, 128], 2, 2, 2),
    (2, 64, [64, 128], 2, 2, 2),
];

/// 16-bit elements, the few rows along M: their tile has at least 32 rows, which leaves less memory to the weight's.
const HALVES_M_K: &[Shape] = &[
    (16, 16, [16, 256], 1, 4, 1),
    (16, 16, [32, 256], 2, 4, 2),
    (4, 16, [32, 128], 2, 5, 1),
    (4, 64, [64, 128], 2, 4, 2),
    (2, 16, [32, 128], 2, 2, 2),
    (2, 64, [64, 128], 2, 2, 2),
];

const HALVES_M_N: &[Shape] = &[
    (16, 16, [64, 128], 4, 5, 2),
    (16, 16, [64, 128], 4, 4, 1),
    (4, 16, [64, 128], 4, 5, 2),
    (4, 64, [64, 128], 2, 4, 2),
    (2, 16, [32, 128], 2, 2, 2),
    (2, 64, [64, 128], 2, 2, 2),
];

/// float32 by multiply-adds, the weight along K, then along N.
const WORDS_K: &[Shape] = &[
    (16, 4, [32, 128], 1, 5, 1),
    (16, 8, [32, 128], 1, 5, 1),
    (16, 16, [32, 128], 1, 5, 1),
    (16, 16, [32, 128], 1, 4, 1),
    (4, 8, [32, 128], 1, 4, 1),
    (4, 16, [32, 128], 1, 4, 1),
];

const WORDS_N: &[Shape] = &[
    (16, 4, [64, 64], 2, 5, 1),
    (16, 8, [64, 64], 2, 5, 2),
    (16, 16, [64, 64], 2, 5, 2),
    (16, 16, [64, 64], 2, 4, 1),
    (4, 8, [64, 64], 2, 4, 1),
    (4, 16, [64, 64], 2, 4, 1),
];

impl Skinny {
    /// Threads of a CTA, in every configuration.
    pub const THREADS: u32 = 256;
    const WARPS: u32 = Skinny::THREADS / 32;

    /// The configurations on offer for these types; none where it is not made for them. 16-bit products that stay in float32 show how
    /// they were summed, which other families do more exactly.
    pub fn configs(types: Types) -> Vec<Skinny> {
        let halves = matches!(types.a, DType::F16 | DType::Bf16) && types.out != DType::F32;
        let words = types.a == DType::F32;
        if types.a != types.b || types.accumulator != DType::F32 || !(halves || words) {
            return Vec::new();
        }
        let mut configs = Vec::new();
        for narrow in [Narrow::M, Narrow::N] {
            for a in Major::BOTH {
                for b in Major::BOTH {
                    let [few_k_major, wide_k_major] = k_major(narrow, a, b);
                    let (shapes, method) = match (words, few_k_major, wide_k_major) {
                        (true, _, true) => (WORDS_K, Method::Fma),
                        (true, _, false) => (WORDS_N, Method::Fma),
                        (false, true, true) => (HALVES_K, Method::TensorCores),
                        (false, true, false) => (HALVES_N, Method::TensorCores),
                        (false, false, true) => (HALVES_M_K, Method::TensorCores),
                        (false, false, false) => (HALVES_M_N, Method::TensorCores),
                    };
                    configs.extend(shapes.iter().map(
                        |&(align, tokens, tile, warps_n, stages, split)| Skinny {
                            narrow,
                            a,
                            b,
                            tokens,
                            tile,
                            warps_n,
                            stages,
                            split,
                            align,
                            method,
                        },
                    ));
                }
            }
        }
        configs
    }

    /// Whether the few rows and the wide operand are contiguous along K.
    pub fn k_major(&self) -> [bool; 2] {
        k_major(self.narrow, self.a, self.b)
    }

    /// M, N and K of a tile, as the user counts them: no more rows (columns) are computed at all.
    pub fn user_tile(&self) -> [u32; 3] {
        let [n, k] = self.tile;
        match self.narrow {
            Narrow::M => [self.tokens, n, k],
            Narrow::N => [n, self.tokens, k],
        }
    }

    /// Warps along M, N and K, as the user counts them.
    pub fn user_warps(&self) -> [u32; 3] {
        let warps_k = Skinny::WARPS / self.warps_n;
        match self.narrow {
            Narrow::M => [1, self.warps_n, warps_k],
            Narrow::N => [self.warps_n, 1, warps_k],
        }
    }

    /// Dynamic shared memory in bytes: the ring of stages, each a tile of A and one of B, or in its place the sums of the warps that
    /// share columns, each row padded by four words; behind it what the other CTAs of a cluster send.
    pub fn shared_bytes(&self, types: Types) -> u32 {
        let (size, [n, k]) = (types.a.bytes() as u32, self.tile);
        // A row of the few is 64 bytes at least (128 of float32), and every thread copies 16 bytes of them.
        let least = match (self.k_major()[0], size) {
            (true, _) => 8,
            (false, 4) => 32,
            (false, _) => 64 / size,
        };
        let rows = self.tokens.max(least).max(Skinny::THREADS * 16 / (k * size));
        let ring = self.stages * (rows + n) * k * size;
        let sums = Skinny::WARPS / self.warps_n * self.tokens * (n + 4) * 4;
        let received = if self.split > 1 { self.tokens * n * 4 } else { 0 };
        ring.max(sums) + received
    }

    /// CTAs that a SM of Hopper holds: by its shared memory, and by the registers that the programs were seen to take.
    pub fn ctas_per_sm(&self, types: Types) -> u32 {
        let by_registers = match (self.align >= 4, self.tokens, self.tile[0]) {
            (true, ..) => 3,
            (false, 17.., _) => 1,
            (false, _, 33..) => 2,
            _ => 3,
        };
        (227 * 1024 / (self.shared_bytes(types) + 1024)).clamp(1, by_registers)
    }

    /// Of A, B and out.
    pub fn demands(&self) -> [Demand; 3] {
        [Demand::aligned(self.a, self.align), Demand::aligned(self.b, self.align), Demand::NONE]
    }

    pub fn check_extents(&self, problem: &GemmProblem) -> Result<(), Unsupported> {
        let (dimension, few, wide) = match self.narrow {
            Narrow::M => ("M", problem.m(), problem.n()),
            Narrow::N => ("N", problem.n(), problem.m()),
        };
        if few > i64::from(self.tokens) {
            return Err(Unsupported::Few { dimension, extent: few, limit: i64::from(self.tokens) });
        }
        let ctas = self.ctas(wide, problem.batch());
        if ctas > i32::MAX as u64 {
            return Err(Unsupported::Extent {
                dimension: "M * N * L, in tiles,",
                extent: ctas as i64,
                limit: i32::MAX.into(),
            });
        }
        Ok(())
    }

    fn ctas(&self, wide: i64, batch: i64) -> u64 {
        u64::from(self.split) * (wide as u64).div_ceil(u64::from(self.tile[0])) * batch as u64
    }

    /// Neighbours that the program hands to its epilogue at a time.
    pub const COLUMNS_OF_CALL: u64 = 4;

    /// The problem as the program sees it, whose M is the narrow side.
    fn program(&self, problem: &GemmProblem) -> GemmProblem {
        match self.narrow {
            Narrow::M => *problem,
            Narrow::N => problem.transposed(),
        }
    }

    /// Estimated seconds: the wide operand through device memory, or through the busiest SM with what that has in flight.
    ///
    /// Fitted to 339 timings of the configurations for up to 16 rows, float16, 16-byte aligned, on an H100 (docs/notes/skinny.md): off by
    /// 5 % (root mean square), 22 % at worst; what it puts first takes 1.014 times as long as the best in the mean, 1.11 at worst. The
    /// factors for other alignments and FMA come from a few timings each, which it misses by up to 20 %.
    pub fn seconds(&self, types: Types, ctas_per_sm: u32, asked: &CostQuery) -> f64 {
        /// Bytes a second of an H100's memory; other chips are taken to have as much a SM.
        const DEVICE_RATE: f64 = 3.0e12;
        const H100_SMS: f64 = 132.0;
        /// Seconds: a launch with its ends; a byte's way to a SM; a cluster's CTAs adding up their sums.
        const LAUNCH: f64 = 3.3e-6;
        const LATENCY: f64 = 0.85e-6;
        const SPLIT: f64 = 1.7e-6;
        /// Of a byte of the few rows, which come from the L2 cache, in bytes of the wide operand.
        const FEW: f64 = 0.05;
        /// Multiply-adds a second of a SM, as the FMA loop reaches them.
        const FMA_RATE: f64 = 60e9;
        let CostQuery { problem, target, .. } = *asked;
        let program = self.program(problem);
        let (element, [tile_n, tile_k]) = (types.a.bytes() as f64, self.tile.map(f64::from));
        let sms = f64::from(target.multiprocessors);
        let ctas = self.ctas(program.n(), program.batch()) as f64;
        let blocks = ((program.k() as f64 / tile_k).ceil() / f64::from(self.split)).ceil();
        let slower = match (self.align, self.tokens) {
            (8.., _) => 1.0,
            (_, 17..) => 1.6,
            _ => 1.25,
        };
        // Rows of K that begin inside a line of 128 bytes. (The factor for loads of 4 and 2 bytes has that in it.)
        let begins_inside = self.k_major()[1] && program.k() * types.a.bytes() % 128 != 0;
        let ragged = if self.align >= 8 && begins_inside { 1.17 } else { 1.0 };
        let bytes = (tile_n + FEW * program.m() as f64) * blocks * tile_k * element * slower;
        let all = ctas * bytes * ragged / DEVICE_RATE * H100_SMS / sms;
        let most = (ctas / sms).ceil();
        let resident = most.min(f64::from(ctas_per_sm));
        let in_flight = resident * f64::from(self.stages - 1) * tile_n * tile_k * element;
        let busiest = most * bytes * LATENCY / in_flight;
        let arithmetic = match self.method {
            Method::TensorCores => 0.0,
            Method::Fma => most * tile_n * blocks * tile_k * f64::from(self.tokens) / FMA_RATE,
        };
        let split = if self.split > 1 { SPLIT } else { 0.0 };
        LAUNCH + split + all.max(busiest).max(arithmetic)
    }

    pub fn launch(&self, types: Types, problem: &GemmProblem, target: Target) -> Launch {
        let program = self.program(problem);
        let ctas = self.ctas(program.n(), program.batch());
        let a_sm = self.ctas_per_sm(types);
        // The next grid's CTAs start where there is room. If that is on some SMs only, these hold up the rest: 5 to 15 % lost. Where
        // the grid fills all there is, or a SM holds but one CTA, 0.5 to 0.8 us are won.
        let fills = 10 * ctas >= 9 * u64::from(target.multiprocessors * a_sm);
        Launch {
            cluster: self.split,
            overlapping: target.cc == 90 && (fills || a_sm == 1),
            ..Launch::simple(
                ctas,
                Skinny::THREADS,
                self.shared_bytes(types),
                GemmParams::new(&program, None),
            )
        }
    }

    /// Appends the configuration as kernel names spell it.
    pub fn append_to(&self, name: &mut String) {
        let [m, n, k] = self.user_tile();
        let Skinny { narrow, a, b, warps_n, stages, split, align, .. } = *self;
        let warps_k = Skinny::WARPS / warps_n;
        append!(
            name,
            a,
            b,
            "_",
            narrow.name(),
            "_",
            m,
            "x",
            n,
            "x",
            k,
            "_",
            warps_n,
            "x",
            warps_k,
            "warps_"
        );
        append!(name, stages, "stages");
        if split > 1 {
            append!(name, "_split", split);
        }
        append!(name, "_align", align);
    }
}

fn k_major(narrow: Narrow, a: Major, b: Major) -> [bool; 2] {
    let (a, b) = (a == Major::Row, b == Major::Column);
    match narrow {
        Narrow::M => [a, b],
        Narrow::N => [b, a],
    }
}
