use super::config::Sgemm;
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
use crate::kernel::program::{ProgramParts, name_of_gemm, orders};
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
        Operation::gemm(self.groups)
    }

    fn min_cc(&self, _types: Types) -> u32 {
        // A split needs clusters, which Hopper introduced.
        if self.split > 1 { 90 } else { 80 }
    }

    fn is_transposed(&self) -> bool {
        self.layout.out == Major::Column
    }

    fn demands(&self, _types: Types) -> [Demand; 3] {
        Demand::of_operands(self.layout, self.align)
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

    /// Dynamic shared memory in bytes: the stages, each a tile of A and one of B with padded rows.
    /// The epilogue reuses the memory for 64 sums of every thread.
    fn shared_bytes(&self, _types: Types) -> u32 {
        let [m, n, k] = self.tile;
        let stage = k * (m + 4 + n + 4) * 4;
        (self.stages * stage).max(Sgemm::THREADS * 64 * 4)
    }

    fn partials(&self, _types: Types, framed: &GemmProblem) -> Partials {
        Partials::per_call(framed, Sgemm::COLUMNS_OF_CALL)
    }

    fn launch(&self, request: &LaunchInput) -> Option<Launch> {
        request.gemm(|problem, groups| {
            let params = GemmParams::new(&self.framed(problem), groups.map(|of| &of.offsets));
            let ctas = self.ctas(problem);
            let shared_bytes = self.shared_bytes(request.types);
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
        let Sgemm { layout, tile: [m, n, k], stages, align, split, groups } = self.program_config();
        let (a_k_major, b_k_major) = (layout.a == Major::Row, layout.b == Major::Column);
        let out = types.out.short_name();
        let (name, orders) = (name_of_gemm(groups, types), orders([a_k_major, b_k_major]));
        let splits = if split > 1 { format!("_split{split}") } else { String::new() };
        let name = format!("{name}_{orders}_{m}x{n}x{k}_{stages}stages_align{align}{splits}");
        let work = format!(
            "Sgemm<{out}, {a_k_major}, {b_k_major}, {m}, {n}, {k}, {stages}, {align}, {split}, \
             {}, {epilogue}>",
            groups.argument()
        );
        let launch = [Sgemm::THREADS, self.shared_bytes(types)];
        Some(ProgramParts::gemm("sgemm.cuh", name, work, launch))
    }
}
