//! What a kernel family provides.

use super::cost::chips::Target;
use super::cost::query::{CostQuery, Estimate};
use super::demand::Demand;
use super::launch::Launch;
use super::operation::Operation;
use super::program::ProgramParts;
use super::reduction::Partials;
use super::types::Types;
use super::unsupported::Unsupported;
use crate::operand::View;
use crate::problem::{GemmProblem, Problem};

/// A configuration of a kernel family. `types` are the kernel's element types.
pub trait Family {
    /// The family, as users know it.
    fn family(&self) -> &'static str;

    /// The first word of a kernel's name.
    fn name_prefix(&self) -> &'static str {
        self.family()
    }

    /// Every configuration for every combination of element types, in the order to try them in
    /// where no problem is known.
    fn space() -> Vec<(Types, Self)>
    where
        Self: Sized;

    /// Appends the configuration as kernel names spell it.
    fn append_to(&self, types: Types, name: &mut String);

    fn operation(&self) -> Operation;

    /// The least compute capability that runs the kernel, ten times major plus minor; 0 for a
    /// kernel that runs on the CPU.
    fn min_cc(&self) -> u32;

    /// Whether the kernel's instructions exist on its least compute capability only.
    fn is_for_one_cc(&self) -> bool {
        false
    }

    fn runs_on_gpu(&self) -> bool {
        true
    }

    /// Whether the program's output is the user's transposed.
    fn is_transposed(&self) -> bool {
        false
    }

    /// Whether the program's A is the user's B.
    fn is_crossed(&self) -> bool {
        self.is_transposed()
    }

    /// Whether kernels are offered with epilogues.
    fn takes_epilogues(&self, _types: Types) -> bool {
        true
    }

    /// Requirements on the memory layout of A, B and out.
    fn demands(&self, _types: Types) -> [Demand; 3] {
        [Demand::NONE; 3]
    }

    /// Whether the configuration serves these extents, and its 32-bit counts hold them.
    fn check_extents(
        &self,
        _types: Types,
        _problem: &Problem,
        _is_fused: bool,
    ) -> Result<(), Unsupported> {
        Ok(())
    }

    /// Whether a launch in front packs operands.
    fn packs(&self) -> bool {
        false
    }

    /// Bytes of the packed operands, which may be too many. Kernels of equal demands pack the same.
    fn packed_bytes(&self, _problem: &GemmProblem) -> Result<u64, Unsupported> {
        Ok(0)
    }

    /// Dynamic shared memory of a launch.
    fn shared_bytes(&self, _types: Types) -> u32 {
        0
    }

    /// CTAs that an SM holds at once, as the cost model assumes.
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

    /// Whether the program stores partial results of an epilogue's reductions. The CPU reduces at
    /// once.
    fn stores_partials(&self) -> bool {
        true
    }

    /// The partial results that the program stores of a reduction. `framed`: the problem in the
    /// program's frame.
    fn partials(&self, types: Types, framed: &GemmProblem) -> Partials;

    /// How to launch the kernel; `None` where it does not compute this operation on a GPU.
    fn launch(&self, request: &LaunchRequest) -> Option<Launch>;

    /// The estimated cost of a problem.
    fn estimate(&self, _types: Types, _ctas_per_sm: u32, _query: &CostQuery) -> Estimate {
        Estimate::UNKNOWN
    }

    /// The parts of the program's text; `None` for a kernel that is not compiled. `epilogue`: the
    /// type of the functor.
    fn program(&self, _types: Types, _epilogue: &str) -> Option<ProgramParts> {
        None
    }
}

/// A launch to describe. The output has elements.
pub struct LaunchRequest<'a> {
    pub types: Types,
    pub problem: &'a Problem,
    /// Whether an epilogue is fused.
    pub is_fused: bool,
    pub target: Target,
    /// The address of the workspace.
    pub workspace: u64,
}

impl LaunchRequest<'_> {
    /// Calls `launch` with a GEMM and the offsets of its groups, if it is a grouped one. `None`
    /// for other operations, and where there are no groups, so that no row belongs to any.
    pub fn gemm(
        &self,
        launch: impl FnOnce(&GemmProblem, Option<&View>) -> Launch,
    ) -> Option<Launch> {
        match self.problem {
            Problem::Gemm(gemm) if gemm.b.shape[0] > 0 => Some(launch(gemm, None)),
            Problem::GroupedGemm(grouped) if grouped.b.shape[0] > 0 => {
                Some(launch(&grouped.stacked(), Some(&grouped.offsets)))
            }
            _ => None,
        }
    }
}
