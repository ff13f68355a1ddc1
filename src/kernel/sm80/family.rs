use std::fmt::Write;

use super::config::Sm80;
use super::cost;
use crate::epilogue::Scaling;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::demand::Demand;
use crate::kernel::description::{Description, Value};
use crate::kernel::family::{Facts, Family, LaunchInput};
use crate::kernel::frame::Frame;
use crate::kernel::launch::{Launch, Params, overlap_pays};
use crate::kernel::layout::{Layout, Major};
use crate::kernel::name::append;
use crate::kernel::operation::{Groups, Operation};
use crate::kernel::params::GemmParams;
use crate::kernel::program::{ProgramParts, name_of_gemm, orders, type_arguments};
use crate::kernel::reduction::Partials;
use crate::kernel::types::{ProductClass, Types};
use crate::problem::GemmProblem;

/// K blocks of a short launch. On an H100, 100 cubed takes 2.9 us instead of 4.1.
const SHORT_BLOCKS: i64 = 4;

impl Family for Sm80 {
    fn space() -> impl Iterator<Item = (Types, Sm80)> {
        let of = |types| Sm80::configs(types).into_iter().map(move |config| (types, config));
        [Types::gemm(), Types::of_twins()].concat().into_iter().flat_map(of)
    }

    fn facts(&self, types: Types) -> Facts {
        Facts {
            min_cc: types.a.mma_cc().max(types.b.mma_cc()),
            shared_bytes: self.shared_bytes(types),
            demands: Demand::of_operands(self.layout, self.align),
            has_twin: self.groups == Groups::None && !self.is_for_few_rows(),
            rounds_float32: types.class() == ProductClass::Single,
            fast_sums: self.fast_sums,
            ..Facts::new("sm80", Operation::gemm(self.groups), self.threads())
        }
    }

    fn append_to(&self, _types: Types, frame: Frame, name: &mut String) {
        let Layout { a, b, out } = frame.layout(self.layout);
        let ([m, n, k], [warps_m, warps_n]) = (frame.extents(self.tile), frame.pair(self.warps));
        append!(name, a, b, out, "_", m, "x", n, "x", k, "_", warps_m, "x", warps_n, "warps_");
        append!(name, self.stages, "stages_align", self.align);
        if self.fast_sums {
            append!(name, "_fast");
        }
    }

    fn describe(&self, _types: Types) -> Option<Description> {
        let [warps_m, warps_n] = self.warps;
        Some(Description::new(
            "Sm80DesignMetadata",
            [
                Value::Extents(self.tile),
                Value::Extents([1; 3]),
                Value::Extents([warps_m, warps_n, 1]),
                Value::Count(self.stages),
                Value::Count(self.align),
                Value::Flag(self.fast_sums),
            ],
        ))
    }

    fn takes_scaling(&self, types: Types, scaling: &Scaling) -> bool {
        self.applies(types, scaling)
    }

    fn partials(&self, types: Types, problem: &GemmProblem) -> Partials {
        Sm80::partials(self, types, problem)
    }

    fn launch(&self, request: &LaunchInput) -> Option<Launch> {
        request.gemm(|problem, groups| {
            let params = GemmParams::new(problem, groups.map(|of| &of.offsets));
            let ctas = self.ctas(problem);
            let shared_bytes = self.shared_bytes(request.types);
            let target = request.target;
            // Few CTAs find free multiprocessors, and a short launch gains by its early start.
            let is_small = 2 * ctas <= u64::from(target.multiprocessors)
                && problem.k() <= SHORT_BLOCKS * i64::from(self.tile[2]);
            let ctas_per_sm = self.ctas_per_sm(request.types, &target);
            Launch {
                overlapping: target.cc == 90 && is_small || overlap_pays(target, ctas, ctas_per_sm),
                ..Launch::simple(ctas, self.threads(), shared_bytes, Params::Gemm(params))
            }
        })
    }

    fn estimate(&self, types: Types, _ctas_per_sm: u32, query: &CostQuery) -> Estimate {
        cost::estimate(self, types, query)
    }

    fn program(&self, types: Types, epilogue: &str) -> Option<ProgramParts> {
        let ([m, n, k], [warps_m, warps_n]) = (self.tile, self.warps);
        let Sm80 { layout, stages, align, groups, fast_sums, .. } = *self;
        let (a_k_major, b_k_major) = (layout.a == Major::Row, layout.b == Major::Column);
        let arguments = type_arguments(types);
        let (name, orders) = (name_of_gemm(groups, types), orders([a_k_major, b_k_major]));
        let fast = if fast_sums { "_fast" } else { "" };
        let name = format!(
            "{name}_{orders}_{m}x{n}x{k}_{warps_m}x{warps_n}warps_{stages}stages_align{align}{fast}"
        );
        let work = format!(
            "Sm80Gemm<{arguments}, {a_k_major}, {b_k_major}, {m}, {n}, {k}, {warps_m}, \
             {warps_n}, {stages}, {align}, {}, {fast_sums}, {epilogue}>",
            groups.argument()
        );
        let launch = [self.threads(), self.shared_bytes(types)];
        let mut parts = ProgramParts::gemm("sm80.cuh", name, work, launch);
        let threads = self.threads_per_sm(types);
        let _ =
            write!(parts.checks, " && (__CUDA_ARCH__ != 900 || Work::THREADS_PER_SM == {threads})");
        Some(parts)
    }
}
