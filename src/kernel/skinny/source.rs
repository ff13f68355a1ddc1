//! The text of the family's programs.

use super::config::{Method, Skinny};
use crate::kernel::program::{ProgramParts, launch_checks, name_of_gemm, orders, params_check};
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
    let [type_a, type_b] = config.operand_types(types);
    let name = name_of_gemm(false, Types { a: type_a, b: type_b, ..types });
    let orders = orders([a_k_major, b_k_major]);
    let splits = if split > 1 { format!("_split{split}") } else { String::new() };
    ProgramParts {
        name: format!(
            "{name}_{orders}_{tokens}x{tile_n}x{tile_k}_{stages}stages{splits}_align{align}"
        ),
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
