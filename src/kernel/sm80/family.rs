use std::fmt::Write;

use super::config::Sm80;
use crate::epilogue::Scaling;
use crate::kernel::cost;
use crate::kernel::cost::chips::Target;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::demand::Demand;
use crate::kernel::family::{Family, LaunchInput};
use crate::kernel::launch::{Launch, Params, overlap_pays};
use crate::kernel::layout::{Layout, Major};
use crate::kernel::name::append;
use crate::kernel::operation::Operation;
use crate::kernel::params::GemmParams;
use crate::kernel::program::{ProgramParts, name_of_gemm, orders, type_arguments};
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
        if self.fast_sums {
            append!(name, "_fast");
        }
    }

    fn threads(&self) -> u32 {
        32 * self.warps[0] * self.warps[1]
    }

    fn operation(&self) -> Operation {
        Operation::gemm(self.groups)
    }

    fn min_cc(&self, types: Types) -> u32 {
        types.a.mma_cc().max(types.b.mma_cc())
    }

    fn is_transposed(&self) -> bool {
        self.layout.out == Major::Column
    }

    fn takes_scaling(&self, types: Types, scaling: &Scaling) -> bool {
        self.applies(types, scaling)
    }

    fn sums_fast(&self) -> bool {
        self.fast_sums
    }

    fn demands(&self, _types: Types) -> [Demand; 3] {
        Demand::of_operands(self.layout, self.align)
    }

    /// Dynamic shared memory in bytes: the stages, each a tile of A and one of B. The epilogue
    /// reuses the memory for 16 rows of every warp's sums, each row padded by 8 sums. float16 sums
    /// are widened.
    fn shared_bytes(&self, types: Types) -> u32 {
        let Sm80 { tile: [m, n, k], warps: [warps_m, warps_n], stages, .. } = self.program_config();
        let types = if self.is_transposed() { types.transposed() } else { types };
        let [a, b] = [types.a, types.b].map(|dtype| dtype.bytes() as u32);
        let pipeline = stages * (m * a + n * b) * k;
        let sum_bytes = types.accumulator.bytes().max(4) as u32;
        let sums = warps_n * warps_m * 16 * (n / warps_n + 8) * sum_bytes;
        pipeline.max(sums)
    }

    fn partials(&self, types: Types, framed: &GemmProblem) -> Partials {
        self.program_config().partials(types, framed)
    }

    fn launch(&self, request: &LaunchInput) -> Option<Launch> {
        request.gemm(|problem, groups| {
            let params = GemmParams::new(&self.framed(problem), groups.map(|of| &of.offsets));
            let ctas = self.ctas(problem);
            let shared_bytes = self.shared_bytes(request.types);
            let target = request.target;
            // Few CTAs find free multiprocessors, and a short launch gains by its early start.
            let is_small = 2 * ctas <= u64::from(target.multiprocessors)
                && problem.k() <= SHORT_BLOCKS * i64::from(self.tile[2]);
            let ctas_per_sm = self.ctas_per_sm(request.types);
            Launch {
                overlapping: target.cc == 90 && is_small || overlap_pays(target, ctas, ctas_per_sm),
                ..Launch::simple(ctas, self.threads(), shared_bytes, Params::Gemm(params))
            }
        })
    }

    /// CTAs that share a multiprocessor of Hopper, by registers and shared memory.
    fn ctas_per_sm(&self, types: Types) -> u32 {
        let shared = Target::H100.shared_bytes_per_cta / (self.shared_bytes(types) + 1024);
        (self.threads_per_sm(types) / self.threads()).min(shared).max(1)
    }

    fn estimate(&self, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
        cost::sm80::estimate(self, types, ctas_per_sm, query)
    }

    fn program(&self, types: Types, epilogue: &str) -> Option<ProgramParts> {
        let program = self.program_config();
        let types = if program == *self { types } else { types.transposed() };
        let ([m, n, k], [warps_m, warps_n]) = (program.tile, program.warps);
        let Sm80 { stages, align, groups, fast_sums, .. } = program;
        let (a_k_major, b_k_major) =
            (program.layout.a == Major::Row, program.layout.b == Major::Column);
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
        let launch = [program.threads(), program.shared_bytes(types)];
        let mut parts = ProgramParts::gemm("sm80.cuh", name, work, launch);
        let threads = program.threads_per_sm(types);
        let _ =
            write!(parts.checks, " && (__CUDA_ARCH__ != 900 || Work::THREADS_PER_SM == {threads})");
        Some(parts)
    }
}
