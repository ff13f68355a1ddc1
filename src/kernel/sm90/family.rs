use super::config::Sm90;
use super::{cost, source};
use crate::epilogue::{Joint, Scaling};
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::description::{Description, Value};
use crate::kernel::family::{Facts, Family, LaunchInput};
use crate::kernel::frame::Frame;
use crate::kernel::launch::Launch;
use crate::kernel::layout::Layout;
use crate::kernel::name::append;
use crate::kernel::operation::{Groups, Operation};
use crate::kernel::program::ProgramParts;
use crate::kernel::reduction::Partials;
use crate::kernel::types::{ProductClass, Types};
use crate::kernel::unsupported::Unsupported;
use crate::problem::{GemmProblem, Problem};

impl Family for Sm90 {
    fn space() -> impl Iterator<Item = (Types, Sm90)> {
        let of = |types| Sm90::configs(types).into_iter().map(move |config| (types, config));
        Types::gemm().into_iter().flat_map(of)
    }

    fn leading_place(&self) -> Option<usize> {
        Sm90::leading_place(self)
    }

    fn facts(&self, types: Types) -> Facts {
        let packs = self.packs();
        Facts {
            min_cc: 90,
            only_min_cc: true, // wgmma exists on Hopper only.
            shared_bytes: self.shared_bytes(types),
            ctas_per_sm: self.ctas_per_sm(types),
            demands: self.demands(types),
            has_twin: self.groups == Groups::None,
            swapped: self.swapped,
            rounds_float32: types.class() == ProductClass::Single,
            fast_sums: self.fast_sums,
            n_step: Sm90::n_step(types),
            fuses: self.leaves_registers_for_epilogues(types),
            fuses_dual: self.serves_dual(types),
            gathers: self.gathers(types),
            packs,
            takes_workspace: self.over_grid || packs,
            ..Facts::new("sm90", Operation::gemm(self.groups), self.threads())
        }
    }

    fn append_to(&self, types: Types, frame: Frame, name: &mut String) {
        let Layout { a, b, out } = frame.layout(self.layout);
        let [m, n, k] = frame.extents(self.program_tile(types));
        let [cluster_m, cluster_n, _] = frame.extents(self.program_cluster());
        // Orders of A, B and out; "p" for a packed operand.
        for (packed, major) in frame.pair(self.packed).into_iter().zip([a, b]) {
            if packed {
                append!(name, "p");
            } else {
                append!(name, major);
            }
        }
        append!(name, out, "_", m, "x", n, "x", k, "_");
        append!(name, self.schedule.name(), self.consumers, "_");
        append!(name, self.stages, "stages_cluster", cluster_m, "x", cluster_n);
        if self.split > 1 {
            append!(name, if self.over_grid { "_gridsplit" } else { "_split" }, self.split);
        }
        if self.swapped {
            append!(name, "_swapped");
        }
        if self.loads_by_threads() {
            append!(name, "_align", self.align);
        }
        if self.fast_sums {
            append!(name, "_fast");
        }
    }

    fn describe(&self, types: Types) -> Option<Description> {
        Some(Description::new(
            "Sm90DesignMetadata",
            [
                Value::Extents(self.program_tile(types)),
                Value::Extents(self.program_cluster()),
                Value::Count(self.stages),
                Value::Name(self.schedule.name()),
                Value::Count(self.consumers),
                Value::Count(self.split),
                Value::Flag(self.over_grid),
                Value::Flag(self.swapped),
                Value::Operands(self.packed),
                Value::Count(self.align),
                Value::Flag(self.fast_sums),
            ],
        ))
    }

    fn takes_scaling(&self, types: Types, scaling: &Scaling) -> bool {
        self.applies(types, scaling)
    }

    fn scales_sums(&self, types: Types, scaling: &Scaling) -> bool {
        // Those of weights multiply elements.
        types.class() == ProductClass::Float8 && scaling.factors().any(|(_, of)| of.is_whole())
    }

    fn check_joint(&self, types: Types, joint: &Joint, at: usize) -> Result<(), Unsupported> {
        Sm90::check_joint(self, types, joint, at)
    }

    fn check_extents(
        &self,
        types: Types,
        problem: &Problem,
        _is_fused: bool,
    ) -> Result<(), Unsupported> {
        match problem {
            Problem::Gemm(gemm) if self.dual => self.check_extents_of_both(types, gemm),
            Problem::Gemm(gemm) => Sm90::check_extents(self, types, gemm),
            Problem::GroupedGemm(grouped) if self.dual => {
                self.check_extents_of_both(types, &grouped.stacked())
            }
            Problem::GroupedGemm(grouped) => Sm90::check_extents(self, types, &grouped.stacked()),
            Problem::Elementwise(_) => Ok(()),
        }
    }

    fn check_range(&self, problem: &Problem) -> Result<(), Unsupported> {
        match problem {
            Problem::Gemm(gemm) if self.dual => self.check_range_of_both(gemm),
            Problem::Gemm(gemm) => Sm90::check_range(self, gemm),
            Problem::GroupedGemm(_) | Problem::Elementwise(_) => Ok(()),
        }
    }

    fn packed_bytes(&self, problem: &GemmProblem) -> Result<u64, Unsupported> {
        Sm90::packed_bytes(self, problem)
    }

    fn workspace_bytes(&self, problem: &GemmProblem) -> u64 {
        Sm90::workspace_bytes(self, problem)
    }

    fn partials(&self, types: Types, problem: &GemmProblem) -> Partials {
        Sm90::partials(self, types, problem)
    }

    fn launch(&self, request: &LaunchInput) -> Option<Launch> {
        request.gemm(|gemm, groups| Sm90::launch(self, request, &self.doubled(gemm), groups))
    }

    fn estimate(&self, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
        if self.dual {
            return self.estimate_both(types, ctas_per_sm, query);
        }
        cost::estimate(self, types, ctas_per_sm, query)
    }

    fn program(&self, types: Types, epilogue: &str) -> Option<ProgramParts> {
        Some(source::program(self, types, epilogue))
    }
}

/// The same for a dual GEMM, with the columns of both matrices. These are functions of their own:
/// the ranking calls the others for all kernels.
impl Sm90 {
    #[cold]
    #[inline(never)]
    fn check_extents_of_both(&self, types: Types, gemm: &GemmProblem) -> Result<(), Unsupported> {
        self.check_dual_extents(types, gemm)
    }

    #[cold]
    #[inline(never)]
    fn check_range_of_both(&self, gemm: &GemmProblem) -> Result<(), Unsupported> {
        Sm90::check_range(self, &self.doubled(gemm))
    }

    #[cold]
    #[inline(never)]
    fn estimate_both(&self, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
        let problem = &self.doubled(query.problem);
        cost::estimate(self, types, ctas_per_sm, &query.with_problem(problem))
    }
}
