//! The text of the family's programs.

use super::config::Sm80;
use crate::kernel::layout::Major;
use crate::kernel::program::{
    ProgramParts, launch_checks, name_of_gemm, orders, params_check, type_arguments,
};
use crate::kernel::types::Types;

pub fn program(config: &Sm80, types: Types, epilogue: &str) -> ProgramParts {
    let program = config.program_config();
    let types = if program == *config { types } else { types.transposed() };
    let ([m, n, k], [warps_m, warps_n]) = (program.tile, program.warps);
    let Sm80 { stages, align, grouped, .. } = program;
    let (a_k_major, b_k_major) =
        (program.layout.a == Major::Row, program.layout.b == Major::Column);
    let arguments = type_arguments(types);
    let checks = launch_checks(program.threads(), program.shared_bytes(types));
    let (name, orders) = (name_of_gemm(grouped, types), orders([a_k_major, b_k_major]));
    ProgramParts {
        name: format!(
            "{name}_{orders}_{m}x{n}x{k}_{warps_m}x{warps_n}warps_{stages}stages_align{align}"
        ),
        header: "sm80.cuh",
        definitions: String::new(),
        work: format!(
            "Sm80Gemm<{arguments}, {a_k_major}, {b_k_major}, {m}, {n}, {k}, {warps_m}, {warps_n}, \
             {stages}, {align}, {grouped}, {epilogue}>"
        ),
        parameter: "GemmParams",
        checks: format!(
            "{checks} && {} && (__CUDA_ARCH__ != 900 || Work::THREADS_PER_SM == {})",
            params_check(),
            program.threads_per_sm(types)
        ),
    }
}
