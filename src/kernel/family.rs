//! The interface of a kernel family.

use super::cost::chips::Target;
use super::cost::query::{CostQuery, Estimate};
use super::demand::Demand;
use super::launch::Launch;
use super::operation::Operation;
use super::program::ProgramParts;
use super::reduction::Partials;
use super::types::Types;
use super::unsupported::Unsupported;
use crate::epilogue::{Joint, Scaling};
use crate::operand::View;
use crate::problem::{GemmProblem, GroupedGemmProblem, Problem};

/// A configuration of a kernel family. `types` are the kernel's element types.
pub trait Family {
    /// The name of the family that users see.
    fn family(&self) -> &'static str;

    /// The first word of a kernel's name.
    fn name_prefix(&self) -> &'static str {
        self.family()
    }

    /// Every configuration for every combination of element types, in the order of kernels listed
    /// without a problem.
    fn space() -> impl Iterator<Item = (Types, Self)>
    where
        Self: Sized;

    /// Sort key of leading kernels (`kernel/listing.rs`): all of place 0, then by (types, demands,
    /// place). `None` for the kernels after them.
    fn leading_place(&self) -> Option<usize> {
        None
    }

    /// Appends the configuration as kernel names spell it.
    fn append_to(&self, types: Types, name: &mut String);

    fn operation(&self) -> Operation;

    /// The least compute capability that runs a kernel of these types, ten times major plus minor;
    /// 0 for a kernel that runs on the CPU.
    fn min_cc(&self, types: Types) -> u32;

    /// Whether the kernel's instructions exist on its least compute capability only.
    fn is_for_one_cc(&self) -> bool {
        false
    }

    fn runs_on_gpu(&self) -> bool {
        true
    }

    /// Whether the program's output is the transpose of the user's. Most programs write row-major,
    /// and a column-major output is the row-major output of the transposed product. A skinny
    /// program has the narrow side on its M.
    fn is_transposed(&self) -> bool {
        false
    }

    /// Whether the program's A is the user's B.
    fn is_crossed(&self) -> bool {
        self.is_transposed()
    }

    /// The problem in the program's frame.
    fn framed(&self, problem: &GemmProblem) -> GemmProblem {
        if self.is_transposed() { problem.transposed() } else { *problem }
    }

    /// Whether kernels are offered with epilogues.
    fn takes_epilogues(&self, _types: Types) -> bool {
        true
    }

    /// Whether kernels are offered with an epilogue of these block scales, in the user's frame.
    fn takes_scaling(&self, _types: Types, _scaling: &Scaling) -> bool {
        false
    }

    /// Whether scales of all of K multiply sums, not elements.
    fn scales_sums(&self, _types: Types, _scaling: &Scaling) -> bool {
        false
    }

    /// Whether kernels are offered with epilogues that take a second product (dual GEMM).
    fn serves_dual(&self, _types: Types) -> bool {
        false
    }

    /// Checks that kernels are offered for several matrices B (joint GEMM).
    fn check_joint(&self, _types: Types, _joint: &Joint) -> Result<(), Unsupported> {
        Err(Unsupported::NoPanels)
    }

    /// Whether kernels are offered for a grouped GEMM with an index of A's rows.
    fn gathers(&self, _types: Types) -> bool {
        false
    }

    /// Whether sums have fewer bits than the accumulator type. Such kernels serve problems that
    /// permit fast sums only.
    fn sums_fast(&self) -> bool {
        false
    }

    /// Requirements on the memory layout of A, B and out.
    fn demands(&self, _types: Types) -> [Demand; 3] {
        [Demand::NONE; 3]
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

    /// Whether another launch packs operands first.
    fn packs(&self) -> bool {
        false
    }

    /// Bytes of the packed operands. Equal for kernels of equal demands.
    ///
    /// # Errors
    /// If a 32-bit count of the packing kernel overflows.
    fn packed_bytes(&self, _problem: &GemmProblem) -> Result<u64, Unsupported> {
        Ok(0)
    }

    /// Dynamic shared memory of a launch, in bytes.
    fn shared_bytes(&self, _types: Types) -> u32 {
        0
    }

    /// Threads of a CTA; 0 for a kernel that runs on the CPU.
    fn threads(&self) -> u32;

    /// CTAs that an SM holds at once, an input of the cost model.
    fn ctas_per_sm(&self, _types: Types) -> u32 {
        1
    }

    /// Whether a launch may need workspace, apart from an epilogue's reductions.
    fn takes_workspace(&self) -> bool {
        self.packs()
    }

    /// Workspace of a launch in bytes, apart from an epilogue's reductions.
    fn workspace_bytes(&self, _problem: &GemmProblem) -> u64 {
        0
    }

    /// Whether the program stores partial results of an epilogue's reductions. Kernels on the CPU
    /// reduce in one step.
    fn stores_partials(&self) -> bool {
        true
    }

    /// The partial results that the program stores for each reduction. `framed`: the problem in the
    /// program's frame.
    fn partials(&self, types: Types, framed: &GemmProblem) -> Partials;

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
    /// The further matrices B of a joint GEMM, whose `problem` has the columns of all matrices.
    pub panels: &'a [&'a View],
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
