//! The text of the family's programs.

use super::config::Elementwise;
use super::launch::ElementwiseParams;
use crate::kernel::program::{ProgramParts, launch_checks};
use crate::kernel::types::Types;

pub fn program(config: Elementwise, types: Types, epilogue: &str) -> ProgramParts {
    let (element, accumulator) = (types.out.short_name(), types.accumulator.short_name());
    let [_, n, _] = config.tile(types);
    let (checks, bytes) = (launch_checks(Elementwise::THREADS, 0), size_of::<ElementwiseParams>());
    ProgramParts {
        name: format!("add_{element}_{accumulator}"),
        header: "elementwise.cuh",
        definitions: String::new(),
        work: format!("ElementwiseAdd<{element}, {accumulator}, {epilogue}>"),
        parameter: "ElementwiseParams",
        checks: format!("{checks} && Work::TILE == {n} && sizeof(ElementwiseParams) == {bytes}"),
    }
}
