use super::config::Sgemm;
use super::cost;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::demand::Demand;
use crate::kernel::description::{Description, Value};
use crate::kernel::family::{Facts, Family, LaunchInput};
use crate::kernel::frame::Frame;
use crate::kernel::launch::{Launch, Params, overlap_pays};
use crate::kernel::layout::{Layout, Major};
use crate::kernel::limits::check_count;
use crate::kernel::name::append;
use crate::kernel::operation::{Groups, Operation};
use crate::kernel::params::GemmParams;
use crate::kernel::program::{ProgramParts, name_of_gemm, orders};
use crate::kernel::reduction::Partials;
use crate::kernel::types::Types;
use crate::kernel::unsupported::Unsupported;
use crate::problem::{GemmProblem, Problem};

impl Family for Sgemm {
    fn space() -> impl Iterator<Item = (Types, Sgemm)> {
        let of = |types| Sgemm::configs(types).into_iter().map(move |config| (types, config));
        Types::gemm().into_iter().flat_map(of)
    }

    fn facts(&self, _types: Types) -> Facts {
        Facts {
            // A split needs clusters, which Hopper introduced.
            min_cc: if self.split > 1 { 90 } else { 80 },
            shared_bytes: self.shared_bytes(),
            demands: Demand::of_operands(self.layout, self.align),
            has_twin: self.groups == Groups::None,
            ..Facts::new("simt", Operation::gemm(self.groups), Sgemm::THREADS)
        }
    }

    fn append_to(&self, _types: Types, frame: Frame, name: &mut String) {
        let Layout { a, b, out } = frame.layout(self.layout);
        let [m, n, k] = frame.extents(self.tile);
        append!(name, a, b, out, "_", m, "x", n, "x", k, "_", self.stages, "stages_align");
        append!(name, self.align);
        if self.split > 1 {
            append!(name, "_split", self.split);
        }
    }

    fn describe(&self, _types: Types) -> Option<Description> {
        Some(Description::new(
            "SimtDesignMetadata",
            [
                Value::Extents(self.tile),
                Value::Extents([1, 1, self.split]),
                Value::Count(self.slices()),
                Value::Count(self.stages),
                Value::Count(self.align),
            ],
        ))
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

    fn partials(&self, _types: Types, problem: &GemmProblem) -> Partials {
        Partials::per_call(problem, Sgemm::COLUMNS_OF_CALL)
    }

    fn launch(&self, request: &LaunchInput) -> Option<Launch> {
        request.gemm(|problem, groups| {
            let params = GemmParams::new(problem, groups.map(|of| &of.offsets));
            let ctas = self.ctas(problem);
            Launch {
                cluster: self.split,
                overlapping: overlap_pays(request.target, ctas, Sgemm::CTAS_PER_SM),
                ..Launch::simple(ctas, Sgemm::THREADS, self.shared_bytes(), Params::Gemm(params))
            }
        })
    }

    fn estimate(&self, types: Types, _ctas_per_sm: u32, query: &CostQuery) -> Estimate {
        cost::estimate(self, types, query)
    }

    fn program(&self, types: Types, epilogue: &str) -> Option<ProgramParts> {
        let Sgemm { layout, tile: [m, n, k], stages, align, split, groups } = *self;
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
        let launch = [Sgemm::THREADS, self.shared_bytes()];
        Some(ProgramParts::gemm("sgemm.cuh", name, work, launch))
    }
}

impl Sgemm {
    /// Dynamic shared memory in bytes: the stages, each a tile of A and one of B with padded rows.
    /// The epilogue reuses the memory for 64 sums of every thread.
    fn shared_bytes(&self) -> u32 {
        let [m, n, k] = self.tile;
        let stage = k * (m + 4 + n + 4) * 4;
        (self.stages * stage).max(Sgemm::THREADS * 64 * 4)
    }
}
