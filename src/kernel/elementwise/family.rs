use super::config::Elementwise;
use super::launch::{self, ElementwiseParams};
use crate::kernel::description::Description;
use crate::kernel::family::{Facts, Family, LaunchInput};
use crate::kernel::frame::Frame;
use crate::kernel::launch::{Launch, Params};
use crate::kernel::name::append;
use crate::kernel::operation::Operation;
use crate::kernel::program::{ProgramParts, launch_checks};
use crate::kernel::reduction::Partials;
use crate::kernel::types::Types;
use crate::kernel::unsupported::Unsupported;
use crate::problem::{GemmProblem, Problem};

impl Family for Elementwise {
    fn space() -> impl Iterator<Item = (Types, Elementwise)> {
        Types::elementwise().into_iter().map(|types| (types, Elementwise))
    }

    fn facts(&self, _types: Types) -> Facts {
        Facts::new("elementwise", Operation::Elementwise, Elementwise::THREADS)
    }

    fn append_to(&self, types: Types, _frame: Frame, name: &mut String) {
        let [m, n, k] = self.tile(types);
        append!(name, m, "x", n, "x", k);
    }

    fn describe(&self, types: Types) -> Option<Description> {
        Some(Description::of_tile(self.tile(types)))
    }

    fn check_extents(
        &self,
        _types: Types,
        problem: &Problem,
        is_fused: bool,
    ) -> Result<(), Unsupported> {
        match problem {
            Problem::Elementwise(sum) => launch::check_extents(sum, !is_fused),
            _ => Ok(()),
        }
    }

    fn partials(&self, _types: Types, problem: &GemmProblem) -> Partials {
        Partials::per_call(problem, 1)
    }

    fn launch(&self, request: &LaunchInput) -> Option<Launch> {
        let Problem::Elementwise(sum) = request.problem else { return None };
        let (ctas, params) = launch::params(*self, request.types, sum, !request.is_fused);
        Some(Launch::simple(ctas, Elementwise::THREADS, 0, Params::Elementwise(params)))
    }

    fn program(&self, types: Types, epilogue: &str) -> Option<ProgramParts> {
        let (element, accumulator) = (types.out.short_name(), types.accumulator.short_name());
        let [_, n, _] = self.tile(types);
        let (checks, bytes) =
            (launch_checks(Elementwise::THREADS, 0), size_of::<ElementwiseParams>());
        Some(ProgramParts {
            name: format!("add_{element}_{accumulator}"),
            header: "elementwise.cuh",
            definitions: String::new(),
            work: format!("ElementwiseAdd<{element}, {accumulator}, {epilogue}>"),
            parameter: "ElementwiseParams",
            checks: format!(
                "{checks} && Work::TILE == {n} && sizeof(ElementwiseParams) == {bytes}"
            ),
        })
    }
}
