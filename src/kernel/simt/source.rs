//! The text of the family's programs.

use super::config::Simt;
use crate::kernel::program::{
    ProgramParts, launch_checks, name_of_gemm, params_check, type_arguments,
};
use crate::kernel::types::Types;

pub fn program(config: &Simt, types: Types, epilogue: &str) -> ProgramParts {
    let [m, n, k] = config.tile;
    let arguments = type_arguments(types);
    let name = name_of_gemm(config.grouped, types);
    ProgramParts {
        name: format!("{name}_{m}x{n}x{k}"),
        header: "simt.cuh",
        definitions: String::new(),
        work: format!("SimtGemm<{arguments}, {m}, {n}, {k}, {}, {epilogue}>", config.grouped),
        parameter: "GemmParams",
        checks: format!("{} && {}", launch_checks(Simt::THREADS, 0), params_check()),
    }
}
