use super::config::Sgemm;
use super::source;
use crate::kernel::cost;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::demand::Demand;
use crate::kernel::family::{Family, LaunchInput};
use crate::kernel::launch::{Launch, Params, overlap_pays};
use crate::kernel::layout::{Layout, Major};
use crate::kernel::limits::check_count;
use crate::kernel::name::append;
use crate::kernel::operation::Operation;
use crate::kernel::params::GemmParams;
use crate::kernel::program::ProgramParts;
use crate::kernel::reduction::Partials;
use crate::kernel::types::Types;
use crate::kernel::unsupported::Unsupported;
use crate::problem::{GemmProblem, Problem};

impl Family for Sgemm {
    fn family(&self) -> &'static str {
        "simt"
    }

    fn space() -> impl Iterator<Item = (Types, Sgemm)> {
        let of = |types| Sgemm::configs(types).into_iter().map(move |config| (types, config));
        Types::gemm().into_iter().flat_map(of)
    }

    fn append_to(&self, _types: Types, name: &mut String) {
        let Sgemm { layout: Layout { a, b, out }, tile: [m, n, k], stages, align, .. } = *self;
        append!(name, a, b, out, "_", m, "x", n, "x", k, "_", stages, "stages_align", align);
        if self.split > 1 {
            append!(name, "_split", self.split);
        }
    }

    fn threads(&self) -> u32 {
        Sgemm::THREADS
    }

    fn operation(&self) -> Operation {
        Operation::gemm(self.grouped)
    }

    fn min_cc(&self) -> u32 {
        // A split needs clusters, which Hopper introduced.
        if self.split > 1 { 90 } else { 80 }
    }

    fn is_transposed(&self) -> bool {
        self.layout.out == Major::Column
    }

    fn demands(&self, _types: Types) -> [Demand; 3] {
        Sgemm::demands(self)
    }

    fn check_extents(
        &self,
        _types: Types,
        problem: &Problem,
        _is_fused: bool,
    ) -> Result<(), Unsupported> {
        match problem {
            Problem::Gemm(problem) if self.split > 1 => {
                check_count("M * N * L, in tiles,", self.ctas(problem))
            }
            _ => Ok(()),
        }
    }

    fn shared_bytes(&self, _types: Types) -> u32 {
        Sgemm::shared_bytes(self)
    }

    fn partials(&self, _types: Types, framed: &GemmProblem) -> Partials {
        Partials::per_call(framed, Sgemm::COLUMNS_OF_CALL)
    }

    fn launch(&self, request: &LaunchInput) -> Option<Launch> {
        request.gemm(|problem, offsets| {
            let params = match self.layout.out {
                Major::Row => GemmParams::new(problem, offsets),
                Major::Column => GemmParams::new(&problem.transposed(), offsets),
            };
            let ctas = self.ctas(problem);
            let shared_bytes = Sgemm::shared_bytes(self);
            Launch {
                cluster: self.split,
                overlapping: overlap_pays(request.target, ctas, Sgemm::CTAS_PER_SM),
                ..Launch::simple(ctas, Sgemm::THREADS, shared_bytes, Params::Gemm(params))
            }
        })
    }

    fn estimate(&self, types: Types, _ctas_per_sm: u32, query: &CostQuery) -> Estimate {
        cost::sgemm::estimate(self, types, query)
    }

    fn program(&self, types: Types, epilogue: &str) -> Option<ProgramParts> {
        Some(source::program(self, types, epilogue))
    }
}
