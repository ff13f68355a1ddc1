use super::config::{Narrow, Skinny};
use super::source;
use crate::kernel::cost;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::demand::Demand;
use crate::kernel::family::{Family, LaunchInput};
use crate::kernel::launch::{Launch, Params, overlap_pays};
use crate::kernel::limits::check_count;
use crate::kernel::name::append;
use crate::kernel::operation::Operation;
use crate::kernel::params::GemmParams;
use crate::kernel::program::ProgramParts;
use crate::kernel::reduction::Partials;
use crate::kernel::types::Types;
use crate::kernel::unsupported::Unsupported;
use crate::problem::{GemmProblem, Problem};

impl Family for Skinny {
    fn family(&self) -> &'static str {
        "skinny"
    }

    fn space() -> impl Iterator<Item = (Types, Skinny)> {
        let of = |types| Skinny::configs(types).into_iter().map(move |config| (types, config));
        Types::gemm().into_iter().flat_map(of)
    }

    fn leading_place(&self) -> Option<usize> {
        self.is_leading().then_some(0)
    }

    fn append_to(&self, _types: Types, name: &mut String) {
        let [m, n, k] = self.user_tile();
        let Skinny { narrow, a, b, warps_n, stages, split, align, .. } = *self;
        let warps_k = Skinny::WARPS / warps_n;
        append!(name, a, b, "_", narrow.name(), "_", m, "x", n, "x", k, "_");
        append!(name, warps_n, "x", warps_k, "warps_", stages, "stages");
        if split > 1 {
            append!(name, "_split", split);
        }
        append!(name, "_align", align);
    }

    fn threads(&self) -> u32 {
        Skinny::THREADS
    }

    fn operation(&self) -> Operation {
        Operation::Gemm
    }

    fn min_cc(&self) -> u32 {
        // A split needs clusters, which Hopper introduced.
        if self.split > 1 { 90 } else { 80 }
    }

    fn is_transposed(&self) -> bool {
        self.narrow == Narrow::N
    }

    fn demands(&self, _types: Types) -> [Demand; 3] {
        Skinny::demands(self)
    }

    fn check_extents(
        &self,
        _types: Types,
        problem: &Problem,
        _is_fused: bool,
    ) -> Result<(), Unsupported> {
        match problem {
            Problem::Gemm(problem) => {
                check_count("M * N * L, in tiles,", self.ctas(&self.framed(problem)))
            }
            _ => Ok(()),
        }
    }

    fn check_range(&self, problem: &Problem) -> Result<(), Unsupported> {
        match problem {
            Problem::Gemm(problem) => Skinny::check_range(self, problem),
            _ => Ok(()),
        }
    }

    fn shared_bytes(&self, types: Types) -> u32 {
        Skinny::shared_bytes(self, types)
    }

    fn ctas_per_sm(&self, types: Types) -> u32 {
        Skinny::ctas_per_sm(self, types)
    }

    fn partials(&self, _types: Types, framed: &GemmProblem) -> Partials {
        Partials::per_call(framed, Skinny::COLUMNS_OF_CALL)
    }

    fn launch(&self, request: &LaunchInput) -> Option<Launch> {
        request.gemm(|problem, _offsets| {
            let (types, target) = (request.types, request.target);
            let framed = self.framed(problem);
            let ctas = self.ctas(&framed);
            let ctas_per_sm = Skinny::ctas_per_sm(self, types);
            let params = Params::Gemm(GemmParams::new(&framed, None));
            Launch {
                cluster: self.split,
                overlapping: overlap_pays(target, ctas, ctas_per_sm),
                ..Launch::simple(ctas, Skinny::THREADS, Skinny::shared_bytes(self, types), params)
            }
        })
    }

    fn estimate(&self, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
        cost::skinny::estimate(self, types, ctas_per_sm, query)
    }

    fn program(&self, types: Types, epilogue: &str) -> Option<ProgramParts> {
        Some(source::program(self, types, epilogue))
    }
}
