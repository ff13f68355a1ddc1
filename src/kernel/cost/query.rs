//! Input and output of the cost model.

use super::chips::Target;
use crate::operand::View;
use crate::problem::GemmProblem;

/// The input of an estimate: a problem, the chip, and values that the kernels of a group share.
#[derive(Clone, Copy)]
pub struct CostQuery<'a> {
    pub problem: &'a GemmProblem,
    pub target: Target,
    /// Whether what is fused takes time (`Fusion::takes_time`).
    pub fusion_takes_time: bool,
    /// Bytes of the packed operands.
    pub packed_bytes: u64,
    /// Bytes of the operands and the output.
    pub bytes: f64,
    /// Whether rows (columns) of an operand begin inside a cache line of 128 bytes.
    pub splits_lines: bool,
    pub scale: Scale,
}

/// Ratios of chip facts to an H100's. All rates are fitted on an H100; a fitted rate times its
/// ratio is the expected rate of the chip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Clock of the multiprocessors. The rates of the L2 cache scale with it.
    pub clock: f64,
    /// Rates of one multiprocessor's arithmetic.
    pub tensor: f64,
    pub mma_sync: f64,
    pub fma: f64,
    pub float64_fma: f64,
    /// Bandwidth of device memory.
    pub memory: f64,
    /// Size of the L2 cache.
    pub l2_bytes: f64,
}

impl Scale {
    pub fn of(target: &Target) -> Scale {
        let fitted_on = Target::H100;
        Scale {
            clock: target.clock_hz / fitted_on.clock_hz,
            tensor: target.tensor_rate() / fitted_on.tensor_rate(),
            mma_sync: target.mma_sync_rate() / fitted_on.mma_sync_rate(),
            fma: target.fma_rate() / fitted_on.fma_rate(),
            float64_fma: target.float64_fma_rate() / fitted_on.float64_fma_rate(),
            memory: target.memory_bytes_per_second / fitted_on.memory_bytes_per_second,
            l2_bytes: target.l2_bytes / fitted_on.l2_bytes,
        }
    }
}

impl CostQuery<'_> {
    pub fn new(
        problem: &GemmProblem,
        target: Target,
        fusion_takes_time: bool,
        packed_bytes: u64,
    ) -> CostQuery<'_> {
        let (bytes, scale) = (operand_bytes(problem), Scale::of(&target));
        let multiprocessors = problem.multiprocessors(target.multiprocessors);
        let target = Target { multiprocessors, ..target };
        CostQuery {
            problem,
            target,
            fusion_takes_time,
            packed_bytes,
            bytes,
            splits_lines: splits_lines(problem),
            scale,
        }
    }

    /// The same for another problem.
    pub fn with_problem<'a>(&self, problem: &'a GemmProblem) -> CostQuery<'a> {
        CostQuery {
            problem,
            bytes: operand_bytes(problem),
            splits_lines: splits_lines(problem),
            ..*self
        }
    }

    /// Multiprocessors of the chip.
    pub fn sms(&self) -> f64 {
        f64::from(self.target.multiprocessors)
    }
}

/// Bytes of a problem's operands and output.
pub fn operand_bytes(problem: &GemmProblem) -> f64 {
    [&problem.a, &problem.b, &problem.out].map(|view| view.bytes() as f64).into_iter().sum()
}

fn splits_lines(problem: &GemmProblem) -> bool {
    let starts_lines =
        |view: &View| (0..3).all(|dim| view.stride[dim] <= 1 || view.byte_stride(dim) % 128 == 0);
    !(starts_lines(&problem.a) && starts_lines(&problem.b))
}

/// An estimate and its terms. Terms overlap in time, so they do not add up to the total.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Waves of CTAs (for sm90, of clusters).
    pub waves: f64,
    /// Bytes that move between device memory and the chip.
    pub bytes: f64,
    /// Time of the arithmetic of all waves.
    pub arithmetic_seconds: f64,
    /// Time of transfers from and to device memory.
    pub memory_seconds: f64,
    /// Time of loads from the L2 cache.
    pub cache_seconds: f64,
    /// Time of the launch, packing, the ends of tiles, and the exchange of partial sums.
    pub launch_seconds: f64,
    pub total_seconds: f64,
}

impl Estimate {
    /// No model covers the kernel and the problem. The kernel ranks last.
    pub const UNKNOWN: Estimate = Estimate {
        waves: 0.0,
        bytes: 0.0,
        arithmetic_seconds: 0.0,
        memory_seconds: 0.0,
        cache_seconds: 0.0,
        launch_seconds: 0.0,
        total_seconds: f64::INFINITY,
    };

    pub fn is_known(&self) -> bool {
        self.total_seconds.is_finite()
    }
}
