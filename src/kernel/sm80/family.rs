use super::config::Sm80;
use super::source;
use crate::kernel::cost;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::demand::Demand;
use crate::kernel::family::{Family, LaunchInput};
use crate::kernel::launch::{Launch, Params, overlap_pays};
use crate::kernel::layout::{Layout, Major};
use crate::kernel::name::append;
use crate::kernel::operation::Operation;
use crate::kernel::params::GemmParams;
use crate::kernel::program::ProgramParts;
use crate::kernel::reduction::Partials;
use crate::kernel::types::Types;
use crate::problem::GemmProblem;

/// K blocks of a short launch. On an H100, 100 cubed takes 2.9 us instead of 4.1.
const SHORT_BLOCKS: i64 = 4;

impl Family for Sm80 {
    fn family(&self) -> &'static str {
        "sm80"
    }

    fn space() -> impl Iterator<Item = (Types, Sm80)> {
        let of = |types| Sm80::configs(types).into_iter().map(move |config| (types, config));
        Types::gemm().into_iter().flat_map(of)
    }

    fn append_to(&self, _types: Types, name: &mut String) {
        let Sm80 { layout: Layout { a, b, out }, tile: [m, n, k], stages, align, .. } = *self;
        let [warps_m, warps_n] = self.warps;
        append!(name, a, b, out, "_", m, "x", n, "x", k, "_", warps_m, "x", warps_n, "warps_");
        append!(name, stages, "stages_align", align);
    }

    fn threads(&self) -> u32 {
        Sm80::threads(self)
    }

    fn operation(&self) -> Operation {
        Operation::gemm(self.grouped)
    }

    fn min_cc(&self) -> u32 {
        80
    }

    fn is_transposed(&self) -> bool {
        self.layout.out == Major::Column
    }

    fn demands(&self, _types: Types) -> [Demand; 3] {
        Sm80::demands(self)
    }

    fn shared_bytes(&self, types: Types) -> u32 {
        Sm80::shared_bytes(self, types)
    }

    fn partials(&self, types: Types, framed: &GemmProblem) -> Partials {
        self.program_config().partials(types, framed)
    }

    fn launch(&self, request: &LaunchInput) -> Option<Launch> {
        request.gemm(|problem, offsets| {
            let params = match self.layout.out {
                Major::Row => GemmParams::new(problem, offsets),
                Major::Column => GemmParams::new(&problem.transposed(), offsets),
            };
            let ctas = self.ctas(problem);
            let shared_bytes = Sm80::shared_bytes(self, request.types);
            let target = request.target;
            // Few CTAs find free multiprocessors, and a short launch gains by its early start.
            let is_small = 2 * ctas <= u64::from(target.multiprocessors)
                && problem.k() <= SHORT_BLOCKS * i64::from(self.tile[2]);
            let ctas_per_sm = Sm80::ctas_per_sm(self, request.types);
            Launch {
                overlapping: target.cc == 90 && is_small || overlap_pays(target, ctas, ctas_per_sm),
                ..Launch::simple(ctas, self.threads(), shared_bytes, Params::Gemm(params))
            }
        })
    }

    fn ctas_per_sm(&self, types: Types) -> u32 {
        Sm80::ctas_per_sm(self, types)
    }

    fn estimate(&self, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
        cost::sm80::estimate(self, types, ctas_per_sm, query)
    }

    fn program(&self, types: Types, epilogue: &str) -> Option<ProgramParts> {
        Some(source::program(self, types, epilogue))
    }
}
