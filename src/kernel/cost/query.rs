//! Input and output of the cost model.

use super::chips::{Rates, Target};
use super::factors::factors;
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
    pub rates: Rates,
}

impl CostQuery<'_> {
    pub fn new(
        problem: &GemmProblem,
        target: Target,
        fusion_takes_time: bool,
        packed_bytes: u64,
    ) -> CostQuery<'_> {
        let (bytes, rates) = (operand_bytes(problem), Rates::of(&target));
        let multiprocessors = problem.multiprocessors(target.multiprocessors);
        let target = Target { multiprocessors, ..target };
        CostQuery {
            problem,
            target,
            fusion_takes_time,
            packed_bytes,
            bytes,
            splits_lines: splits_lines(problem),
            rates,
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

factors! {
    /// Seconds to add up the partial sums of a cluster: constant, and for each byte that a CTA
    /// reads from another.
    pub fitted_cluster_sum = 1.19e-6;
    pub fitted_cluster_sum_byte = 34.5e-12;
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
