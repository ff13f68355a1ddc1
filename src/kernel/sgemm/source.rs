//! The text of the float32 programs.

use super::config::Sgemm;
use crate::kernel::layout::Major;
use crate::kernel::program::{ProgramParts, launch_checks, name_of_gemm, orders, params_check};
use crate::kernel::types::Types;

pub fn program(config: &Sgemm, types: Types, epilogue: &str) -> ProgramParts {
    let Sgemm { layout, tile: [m, n, k], stages, align, split, grouped } = config.program_config();
    let (a_k_major, b_k_major) = (layout.a == Major::Row, layout.b == Major::Column);
    let out = types.out.short_name();
    let checks = launch_checks(Sgemm::THREADS, config.shared_bytes());
    let (name, orders) = (name_of_gemm(grouped, types), orders([a_k_major, b_k_major]));
    let splits = if split > 1 { format!("_split{split}") } else { String::new() };
    ProgramParts {
        name: format!("{name}_{orders}_{m}x{n}x{k}_{stages}stages_align{align}{splits}"),
        header: "sgemm.cuh",
        definitions: String::new(),
        work: format!(
            "Sgemm<{out}, {a_k_major}, {b_k_major}, {m}, {n}, {k}, {stages}, {align}, {split}, \
             {grouped}, {epilogue}>"
        ),
        parameter: "GemmParams",
        checks: format!("{checks} && {}", params_check()),
    }
}
