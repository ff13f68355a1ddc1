//! The cost model: an estimate of a kernel's time on a problem, good enough to put a likely winner first.

use super::launch::expected_tiles;
use super::{Design, Kernel, Operation, hopper};
use crate::operand::{DType, View};
use crate::problem::GemmProblem;

/// The chip to choose for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Compute capability, ten times major plus minor.
    pub cc: u32,
    pub multiprocessors: u32,
}

impl Target {
    /// A typical chip of a compute capability, for choosing where there is none to ask.
    pub fn typical(cc: u32) -> Target {
        let multiprocessors = match cc {
            90 => 132,
            100..=109 => 148,
            89 => 142,
            86 => 84,
            120.. => 170,
            _ => 108,
        };
        Target { cc, multiprocessors }
    }
}

/// What the model is asked about the kernels of a group.
#[derive(Clone, Copy)]
pub struct CostQuery<'a> {
    pub problem: &'a GemmProblem,
    pub target: Target,
    /// Whether an epilogue is computed behind the sums.
    pub fused: bool,
    /// Of copies that the kernels ask for of operands.
    pub copied_bytes: u64,
}

/// How many CTAs of a kernel a multiprocessor has at once, whatever the problem. Found once a kernel, as the model asks for it at each problem.
pub fn ctas_per_sm(kernel: &Kernel) -> u32 {
    match &kernel.design {
        Design::Skinny(config) => config.ctas_per_sm(kernel.types),
        Design::Sm90(config) => config.ctas_per_sm(kernel.types),
        // The model takes one after the other.
        Design::Reference(_) | Design::Simt(_) | Design::Sm80(_) | Design::Elementwise(_) => 1,
    }
}

impl CostQuery<'_> {
    /// Estimated seconds. Infinite for what the model does not know, which then ranks last.
    pub fn seconds(&self, kernel: &Kernel, ctas_per_sm: u32) -> f64 {
        let (gemm, types) = (self.problem, kernel.types);
        let element = types.a.bytes() as f64;
        let (tile, flops_per_sm, load_penalty) = match &kernel.design {
            Design::Reference(_) | Design::Elementwise(_) => return f64::INFINITY,
            Design::Sm90(config) if config.grouped => {
                return hopper::grouped_seconds(config, types, ctas_per_sm, self);
            }
            Design::Sm90(config) if config.over_grid => {
                return hopper::over_grid_seconds(config, types, ctas_per_sm, self);
            }
            Design::Sm90(config) => return hopper::seconds(config, types, ctas_per_sm, self),
            Design::Skinny(config) => return config.seconds(types, ctas_per_sm, self),
            Design::Simt(config) => {
                (config.tile, simt_rate(types.accumulator) * simt_efficiency(config.tile), 1.0)
            }
            Design::Sm80(config) => {
                // Narrower loads are more instructions for the same bytes; below 4 bytes cp.async does not exist and
                // every element goes through a register.
                let penalty = match config.align {
                    16 => 1.0,
                    4 => 1.5,
                    _ => 2.5,
                };
                (config.tile, sm80_rate(types.a) * sm80_efficiency(config.tile, element), penalty)
            }
        };
        let grouped = kernel.operation() == Operation::GroupedGemm;
        let tiles = expected_tiles(gemm, grouped, tile[0], tile[1]);
        self.tiled(tiles, tile, flops_per_sm, element, load_penalty)
    }

    /// Whole waves of tiles, each as slow as the larger of its arithmetic and its loads through L2.
    fn tiled(
        &self,
        tiles: f64,
        [tile_m, tile_n, tile_k]: [u32; 3],
        rate: f64,
        element: f64,
        penalty: f64,
    ) -> f64 {
        /// Bytes a second that one multiprocessor can draw from L2: an assumption. 128x128 tiles at 4096 cubed load 2.15 GB in
        /// some 316 us, which is 52 GB/s for each of an H100's 132; whether that is their limit was not measured.
        const L2_BYTES_PER_SM: f64 = 60e9;
        /// How much longer loads take of rows that are no multiple of 128 bytes apart: from 1000 cubed in float16, 15 us.
        const RAGGED: f64 = 1.6;
        /// Filling the pipeline and writing the tile, and a launch: chosen so that 256, 512 and 1024 cubed in float16 come out at
        /// 3.6, 5.3 and 10 us, where 3.0, 4.5 and 10.5 were measured.
        const TILE_OVERHEAD: f64 = 1.5e-6;
        const LAUNCH: f64 = 1.5e-6;
        /// Bytes a second of device memory that tiles with a few rows of use draw, by multiprocessor: an assumption, below what sm90
        /// reaches.
        const DEVICE_RATE: f64 = 1.8e12 / 132.0;
        let (gemm, sms) = (self.problem, f64::from(self.target.multiprocessors));
        let steps = (gemm.k() as f64 / f64::from(tile_k)).ceil();
        let depth = steps * f64::from(tile_k);
        let (m, n) = (f64::from(tile_m), f64::from(tile_n));
        let arithmetic = 2.0 * m * n * depth / rate;
        // Rows that begin inside a line of the cache take two where one would do.
        let line = |view: &View| {
            view.stride.iter().all(|step| *step <= 1 || step * view.dtype.bytes() % 128 == 0)
        };
        let ragged = if line(&gemm.a) && line(&gemm.b) { 1.0 } else { RAGGED };
        let loads = (m + n) * depth * element / L2_BYTES_PER_SM * penalty * ragged;
        let waves = (tiles / sms).ceil();
        let bytes = element * (gemm.a.numel() + gemm.b.numel()) as f64;
        LAUNCH + (waves * (arithmetic.max(loads) + TILE_OVERHEAD)).max(bytes / (DEVICE_RATE * sms))
    }
}

/// `mma.sync` rate of one H100 multiprocessor, FLOP a second: round numbers near the best kernel's, not peaks. Other chips have other
/// rates, in the same proportion between kernels, which is all that ranking needs.
fn sm80_rate(dtype: DType) -> f64 {
    match dtype {
        DType::I8 | DType::U8 => 8e12,
        DType::F32 => 2e12,
        _ => 4e12,
    }
}

/// The share of that rate which a tile reaches, the best as 1: estimated from timings on an H100 at 4096 cubed in float16
/// (docs/notes/sm80.md, docs/notes/compile.md). Small warp tiles reload operands from shared memory more often; a shorter K
/// block synchronizes more often.
fn sm80_efficiency([m, n, k]: [u32; 3], element: f64) -> f64 {
    let short = f64::from(k) * element < 128.0;
    match (m, n) {
        (128, 128) if !short => 1.0,
        (128, 128) => 0.93,
        (128, 256) | (256, 128) => 0.83,
        (64, 128) | (128, 64) => 0.75,
        (64, 64) => 0.6,
        _ => 0.4,
    }
}

/// FMA rate of one H100 multiprocessor by accumulator type, FLOP a second, in round numbers.
fn simt_rate(accumulator: DType) -> f64 {
    match accumulator {
        DType::F64 => 0.25e12,
        _ => 0.5e12,
    }
}

fn simt_efficiency([m, n, _]: [u32; 3]) -> f64 {
    if m * n >= 128 * 64 { 0.7 } else { 0.4 }
}
