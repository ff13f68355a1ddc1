//! The text of the family's programs.

use super::config::{Method, Skinny};
use crate::kernel::program::{ProgramParts, launch_checks, params_check};
use crate::kernel::types::Types;

pub fn program(config: &Skinny, types: Types, epilogue: &str) -> ProgramParts {
    let [a, b] = config.operand_types(types).map(|dtype| dtype.short_name());
    let out = types.out.short_name();
    let [a_k_major, b_k_major] = config.k_major();
    let Skinny { tokens, tile: [tile_n, tile_k], warps_n, stages, split, align, .. } = *config;
    let method = match config.method {
        Method::TensorCores => "MMA",
        Method::Fma => "FMA",
    };
    let checks = launch_checks(Skinny::THREADS, config.shared_bytes(types));
    ProgramParts {
        header: "skinny.cuh",
        definitions: String::new(),
        work: format!(
            "SkinnyGemm<{a}, {b}, {out}, {a_k_major}, {b_k_major}, {tokens}, {tile_n}, {tile_k}, \
             {warps_n}, {stages}, {split}, {align}, Method::{method}, {epilogue}>"
        ),
        parameter: "GemmParams",
        checks: format!("{checks} && {}", params_check()),
    }
}
