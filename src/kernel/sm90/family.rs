use super::config::Sm90;
use super::{placement, source};
use crate::epilogue::{Joint, Scaling};
use crate::kernel::cost;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::demand::Demand;
use crate::kernel::family::{Family, LaunchInput};
use crate::kernel::launch::Launch;
use crate::kernel::layout::Major;
use crate::kernel::name::append;
use crate::kernel::operation::Operation;
use crate::kernel::program::ProgramParts;
use crate::kernel::reduction::Partials;
use crate::kernel::types::{ProductClass, Types};
use crate::kernel::unsupported::Unsupported;
use crate::problem::{GemmProblem, Problem};

impl Family for Sm90 {
    fn family(&self) -> &'static str {
        "sm90"
    }

    fn space() -> impl Iterator<Item = (Types, Sm90)> {
        let of = |types| Sm90::configs(types).into_iter().map(move |config| (types, config));
        Types::gemm().into_iter().flat_map(of)
    }

    fn leading_place(&self) -> Option<usize> {
        Sm90::leading_place(self)
    }

    fn append_to(&self, types: Types, name: &mut String) {
        let ([m, n, k], [cluster_m, cluster_n, _]) = (self.user_tile(types), self.user_cluster());
        // Orders of A, B and out; "p" for a packed operand.
        for (packed, major) in self.packed.into_iter().zip([self.layout.a, self.layout.b]) {
            if packed {
                append!(name, "p");
            } else {
                append!(name, major);
            }
        }
        append!(name, self.layout.out, "_", m, "x", n, "x", k, "_");
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

    fn threads(&self) -> u32 {
        Sm90::threads(self)
    }

    fn operation(&self) -> Operation {
        Operation::gemm(self.groups)
    }

    fn min_cc(&self, _types: Types) -> u32 {
        90
    }

    fn is_for_one_cc(&self) -> bool {
        true // wgmma exists on Hopper only.
    }

    fn is_transposed(&self) -> bool {
        self.layout.out == Major::Column
    }

    fn is_crossed(&self) -> bool {
        self.crossed()
    }

    fn takes_epilogues(&self, types: Types) -> bool {
        self.leaves_registers_for_epilogues(types)
    }

    fn takes_scaling(&self, types: Types, scaling: &Scaling) -> bool {
        self.applies(types, scaling)
    }

    fn scales_sums(&self, types: Types, scaling: &Scaling) -> bool {
        // Those of weights multiply elements.
        types.class() == ProductClass::Float8 && scaling.factors().any(|(_, of)| of.is_whole())
    }

    fn serves_dual(&self, types: Types) -> bool {
        Sm90::serves_dual(self, types)
    }

    fn check_joint(&self, types: Types, joint: &Joint) -> Result<(), Unsupported> {
        Sm90::check_joint(self, types, joint)
    }

    fn gathers(&self, types: Types) -> bool {
        Sm90::gathers(self, types)
    }

    fn sums_fast(&self) -> bool {
        self.fast_sums
    }

    fn demands(&self, types: Types) -> [Demand; 3] {
        Sm90::demands(self, types)
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

    fn packs(&self) -> bool {
        self.packed.contains(&true)
    }

    fn packed_bytes(&self, problem: &GemmProblem) -> Result<u64, Unsupported> {
        Sm90::packed_bytes(self, problem)
    }

    fn shared_bytes(&self, types: Types) -> u32 {
        Sm90::shared_bytes(self, types)
    }

    fn ctas_per_sm(&self, types: Types) -> u32 {
        Sm90::ctas_per_sm(self, types)
    }

    fn takes_workspace(&self) -> bool {
        self.over_grid || self.packs()
    }

    fn workspace_bytes(&self, problem: &GemmProblem) -> u64 {
        Sm90::workspace_bytes(self, problem)
    }

    fn partials(&self, types: Types, framed: &GemmProblem) -> Partials {
        Sm90::partials(self, types, framed)
    }

    fn launch(&self, request: &LaunchInput) -> Option<Launch> {
        let types = request.types;
        request.gemm(|problem, groups| {
            let problem = &self.doubled(problem);
            let multiprocessors = problem.multiprocessors(request.target.multiprocessors);
            let (grid, ctas_per_sm) = (self.grid(problem), Sm90::ctas_per_sm(self, types));
            let placed =
                placement::placed(self, types, problem, &grid, ctas_per_sm, multiprocessors);
            let placement = placed.as_ref().map(|placed| &placed.placement);
            let LaunchInput { factor, panels, workspace, .. } = *request;
            Sm90::launch(
                self,
                types,
                problem,
                groups,
                factor,
                panels,
                placement,
                multiprocessors,
                workspace,
            )
        })
    }

    fn estimate(&self, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
        if self.dual {
            return self.estimate_both(types, ctas_per_sm, query);
        }
        cost::sm90::estimate(self, types, ctas_per_sm, query)
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
        cost::sm90::estimate(self, types, ctas_per_sm, &query.with_problem(problem))
    }
}
