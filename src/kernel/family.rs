//! The interface of a kernel family.

use super::cost::chips::Target;
use super::cost::query::{CostQuery, Estimate};
use super::demand::Demand;
use super::description::Description;
use super::frame::Frame;
use super::launch::Launch;
use super::operation::Operation;
use super::program::ProgramParts;
use super::reduction::Partials;
use super::types::Types;
use super::unsupported::Unsupported;
use crate::epilogue::{Joint, Scaling};
use crate::operand::View;
use crate::problem::{GemmProblem, GroupedGemmProblem, Problem};

/// What is true of a configuration for its element types, whatever the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The name of the family that users see.
    pub family: &'static str,
    pub operation: Operation,
    /// The least compute capability that runs the kernel, ten times major plus minor; 0 for a
    /// kernel that runs on the CPU.
    pub min_cc: u32,
    /// Whether the kernel's instructions exist on its least compute capability only.
    pub only_min_cc: bool,
    /// Threads of a CTA; 0 for a kernel that runs on the CPU.
    pub threads: u32,
    /// Dynamic shared memory of a launch, in bytes.
    pub shared_bytes: u32,
    /// CTAs that an SM of Hopper holds at once, an input of the cost model of its kernels.
    pub ctas_per_sm: u32,
    /// Requirements on the memory layout of A, B and out.
    pub demands: [Demand; 3],
    /// Whether another kernel has the program for the transposed product.
    pub has_twin: bool,
    /// Whether the tensor cores' A is the program's B.
    pub swapped: bool,
    /// Whether tensor cores round float32 operands to tf32.
    pub rounds_float32: bool,
    /// Whether sums have fewer bits than the accumulator type. Such kernels serve problems that
    /// permit fast sums only.
    pub fast_sums: bool,
    /// What the user's N must be a multiple of; 1 for any N.
    pub n_step: u32,
    /// Whether kernels are offered with epilogues, and with those that take a second product (dual
    /// GEMM).
    pub fuses: bool,
    pub fuses_dual: bool,
    /// Whether the twin is offered with block scales, too, if the program takes them.
    pub scales_twin: bool,
    /// Whether kernels are offered for a grouped GEMM with an index of A's rows.
    pub gathers: bool,
    /// Whether another launch packs operands first.
    pub packs: bool,
    /// Whether a launch may need workspace, apart from an epilogue's reductions.
    pub takes_workspace: bool,
    /// Whether the program stores partial results of an epilogue's reductions. Kernels on the CPU
    /// reduce in one step.
    pub stores_partials: bool,
}

impl Facts {
    /// The first word of a kernel's name.
    pub fn prefix(&self) -> &'static str {
        if self.family == "elementwise" { "simt" } else { self.family }
    }

    /// A kernel that takes any operands and every epilogue but those of two products.
    pub const fn new(family: &'static str, operation: Operation, threads: u32) -> Facts {
        Facts {
            family,
            operation,
            min_cc: 80,
            only_min_cc: false,
            threads,
            shared_bytes: 0,
            ctas_per_sm: 1,
            demands: [Demand::NONE; 3],
            has_twin: false,
            swapped: false,
            rounds_float32: false,
            fast_sums: false,
            n_step: 1,
            fuses: true,
            fuses_dual: false,
            scales_twin: true,
            gathers: false,
            packs: false,
            takes_workspace: false,
            stores_partials: true,
        }
    }
}

/// A configuration of a kernel family. All types, problems and scales are in the program's frame;
/// `types` are the program's element types.
pub trait Family {
    /// Every configuration for every combination of element types, in the order of kernels listed
    /// without a problem.
    fn space() -> impl Iterator<Item = (Types, Self)>
    where
        Self: Sized;

    fn facts(&self, types: Types) -> Facts;

    /// Sort key of leading kernels (`kernel/listing.rs`): all of place 0, then by (types, demands,
    /// place). `None` for the kernels after them.
    fn leading_place(&self) -> Option<usize> {
        None
    }

    /// Appends the configuration as kernel names spell it. `frame`: that of the kernel.
    fn append_to(&self, types: Types, frame: Frame, name: &mut String);

    /// The design that users see; `None` for a kernel without one.
    fn describe(&self, types: Types) -> Option<Description>;

    /// Whether kernels are offered with an epilogue of these block scales.
    fn takes_scaling(&self, _types: Types, _scaling: &Scaling) -> bool {
        false
    }

    /// Whether scales of all of K multiply sums, not elements.
    fn scales_sums(&self, _types: Types, _scaling: &Scaling) -> bool {
        false
    }

    /// Checks that kernels are offered for several matrices as the program's A (0) or B (1): joint
    /// GEMM.
    fn check_joint(&self, _types: Types, _joint: &Joint, _at: usize) -> Result<(), Unsupported> {
        Err(Unsupported::NoPanels)
    }

    /// Checks that a launch computes a problem of these extents: its counts fit 32 bits.
    fn check_extents(
        &self,
        _types: Types,
        _problem: &Problem,
        _is_fused: bool,
    ) -> Result<(), Unsupported> {
        Ok(())
    }

    /// Checks that the extents are in the range that the configuration is offered for. A launch
    /// also computes extents beyond it, slower than other configurations do.
    fn check_range(&self, _problem: &Problem) -> Result<(), Unsupported> {
        Ok(())
    }

    /// Bytes of the packed operands. Equal for kernels of equal demands.
    ///
    /// # Errors
    /// If a 32-bit count of the packing kernel overflows.
    fn packed_bytes(&self, _problem: &GemmProblem) -> Result<u64, Unsupported> {
        Ok(0)
    }

    /// Workspace of a launch in bytes, apart from an epilogue's reductions.
    fn workspace_bytes(&self, _problem: &GemmProblem) -> u64 {
        0
    }

    /// The partial results that the program stores for each reduction.
    fn partials(&self, types: Types, problem: &GemmProblem) -> Partials;

    /// The launch of the kernel; `None` if the kernel does not compute this operation on a GPU.
    fn launch(&self, request: &LaunchInput) -> Option<Launch>;

    /// The estimated cost of a problem; [`Estimate::UNKNOWN`] without a model.
    fn estimate(&self, _types: Types, _ctas_per_sm: u32, _query: &CostQuery) -> Estimate {
        Estimate::UNKNOWN
    }

    /// The parts of the program's text; `None` for a kernel that is not compiled. `epilogue`: the
    /// C++ type of the epilogue functor.
    fn program(&self, _types: Types, _epilogue: &str) -> Option<ProgramParts> {
        None
    }
}

/// The input of [`Family::launch`]. The output is not empty.
pub struct LaunchInput<'a> {
    pub types: Types,
    pub problem: &'a Problem,
    /// Whether an epilogue is fused.
    pub is_fused: bool,
    pub target: Target,
    /// The address of the workspace.
    pub workspace: u64,
    /// The second matrix B of a dual GEMM.
    pub factor: Option<&'a View>,
    /// The further matrices of a joint GEMM. The `problem` has the columns (rows, if they are the
    /// program's A) of all matrices.
    pub panels: &'a [View],
}

impl LaunchInput<'_> {
    /// Calls `launch` with a GEMM, and with the grouped GEMM that it stands for. `None` for other
    /// operations, and for zero groups.
    pub fn gemm(
        &self,
        launch: impl FnOnce(&GemmProblem, Option<&GroupedGemmProblem>) -> Launch,
    ) -> Option<Launch> {
        match self.problem {
            Problem::Gemm(gemm) if gemm.b.shape[0] > 0 => Some(launch(gemm, None)),
            Problem::GroupedGemm(grouped) if grouped.groups() > 0 => {
                Some(launch(&grouped.stacked(), Some(grouped)))
            }
            _ => None,
        }
    }
}
