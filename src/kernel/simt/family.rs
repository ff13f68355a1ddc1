use super::config::Simt;
use super::cost;
use crate::epilogue::Scaling;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::description::Description;
use crate::kernel::family::{Facts, Family, LaunchInput};
use crate::kernel::frame::Frame;
use crate::kernel::launch::{Launch, Params};
use crate::kernel::name::append;
use crate::kernel::operation::Operation;
use crate::kernel::params::GemmParams;
use crate::kernel::program::{ProgramParts, name_of_gemm, type_arguments};
use crate::kernel::reduction::Partials;
use crate::kernel::tiles::tiles;
use crate::kernel::types::{ProductClass, Types};
use crate::problem::GemmProblem;

impl Family for Simt {
    fn space() -> impl Iterator<Item = (Types, Simt)> {
        let of = |types| Simt::configs(types).map(move |config| (types, config));
        let few = |types| Simt::few_configs(types).map(move |config| (types, config));
        // `Sgemm` serves float32, unless no dimension is contiguous.
        let is_float32 = |types: &Types| types.class() == ProductClass::Single;
        let (float32, usual): (Vec<_>, Vec<_>) = Types::gemm().into_iter().partition(is_float32);
        let seldom = float32.into_iter().chain(Types::seldom_stored());
        usual.into_iter().flat_map(of).chain(seldom.flat_map(few))
    }

    fn facts(&self, _types: Types) -> Facts {
        Facts::new("simt", Operation::gemm(self.groups), Simt::THREADS)
    }

    fn append_to(&self, _types: Types, _frame: Frame, name: &mut String) {
        let [m, n, k] = self.tile;
        append!(name, m, "x", n, "x", k);
    }

    fn describe(&self, _types: Types) -> Option<Description> {
        Some(Description::of_tile(self.tile))
    }

    fn takes_scaling(&self, _types: Types, _scaling: &Scaling) -> bool {
        true
    }

    fn partials(&self, types: Types, problem: &GemmProblem) -> Partials {
        Partials::per_call(problem, self.columns_of_call(types))
    }

    fn launch(&self, request: &LaunchInput) -> Option<Launch> {
        let [tile_m, tile_n, _] = self.tile;
        request.gemm(|problem, groups| {
            let params = Params::Gemm(GemmParams::new(problem, groups.map(|of| &of.offsets)));
            let ctas = tiles(problem, self.groups, tile_m, tile_n);
            Launch::simple(ctas, Simt::THREADS, 0, params)
        })
    }

    fn estimate(&self, types: Types, _ctas_per_sm: u32, query: &CostQuery) -> Estimate {
        cost::estimate(self, types, query)
    }

    fn program(&self, types: Types, epilogue: &str) -> Option<ProgramParts> {
        let [m, n, k] = self.tile;
        let arguments = type_arguments(types);
        let name = name_of_gemm(self.groups, types);
        let name = format!("{name}_{m}x{n}x{k}");
        let groups = self.groups.argument();
        let work = format!("SimtGemm<{arguments}, {m}, {n}, {k}, {groups}, {epilogue}>");
        Some(ProgramParts::gemm("simt.cuh", name, work, [Simt::THREADS, 0]))
    }
}
