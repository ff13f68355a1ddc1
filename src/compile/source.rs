//! The text of a program: a few lines that include one family's header and name its template parameters.

use super::{ENTRY, PACK_ENTRY, REDUCE_ENTRY};
use crate::epilogue::Reduction;
use crate::epilogue::functor;
use crate::kernel::{
    Design, Elementwise, Kernel, Major, Method, Pack, Reduce, Schedule, Simt, Skinny, Sm90, Types,
};

macro_rules! headers {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../kernels/", $name)))),*]
    };
}

/// The CUDA headers by the names that programs include them under, embedded in the extension.
pub(super) const HEADERS: &[(&str, &str)] = headers![
    "common/choose.cuh",
    "common/cluster.cuh",
    "common/epilogue.cuh",
    "common/field.cuh",
    "common/fusion.cuh",
    "common/groups.cuh",
    "common/mbarrier.cuh",
    "common/operand_tile.cuh",
    "common/params.cuh",
    "common/ptx.cuh",
    "common/raster.cuh",
    "common/stmatrix.cuh",
    "common/tma.cuh",
    "common/types.cuh",
    "common/vector.cuh",
    "common/wgmma.cuh",
    "elementwise.cuh",
    "pack.cuh",
    "reduce.cuh",
    "simt.cuh",
    "skinny.cuh",
    "sm80.cuh",
    "sm90.cuh",
    "sm90/boxes.cuh",
    "sm90/cluster_split.cuh",
    "sm90/config.cuh",
    "sm90/consumer.cuh",
    "sm90/grid_split.cuh",
    "sm90/params.cuh",
    "sm90/pipeline.cuh",
    "sm90/producer.cuh",
    "sm90/registers.cuh",
    "sm90/shared_memory.cuh",
    "sm90/store.cuh",
    "sm90/store_rows.cuh",
    "sm90/store_transposed.cuh",
    "sm90/tile_order.cuh",
];

/// The program that copies operands with elements of this many bytes.
pub(super) fn pack(size: i64) -> String {
    format!(
        r#"#include "pack.cuh"

using Copy = Pack<{size}, {size}>;
static_assert(Copy::THREADS == {threads}, "host and kernel disagree");

extern "C" __global__ void __launch_bounds__(Copy::THREADS, Copy::MIN_CTAS)
{PACK_ENTRY}(const __grid_constant__ PackParams params) {{
    Copy::run(params);
}}
"#,
        threads = Pack::THREADS
    )
}

/// The program that folds the partial results of these reductions.
pub(super) fn reduce(reductions: &[Reduction]) -> String {
    let one = |Reduction { fold, compute, out, .. }: &Reduction| {
        format!("Reduce<{}, fused::{}, {}>", compute.short_name(), fold.name(), out.short_name())
    };
    let all: Vec<String> = reductions.iter().map(one).collect();
    format!(
        r#"#include "reduce.cuh"

static_assert({first}::THREADS == {threads}, "host and kernel disagree");

extern "C" __global__ void __launch_bounds__({threads})
{REDUCE_ENTRY}(const __grid_constant__ ReduceParams<{count}> params) {{
    reduce_all<{all}>(params);
}}
"#,
        first = all[0],
        threads = Reduce::THREADS,
        count = all.len(),
        all = all.join(", ")
    )
}

/// That the host launches with what the kernel was written for.
fn agreement(threads: u32, shared_bytes: u32) -> String {
    format!("Work::THREADS == {threads} && Work::SMEM_BYTES == {shared_bytes}")
}

/// Which registers hold a thread's sums of each block of 64 rows: `SumNames` of common/wgmma.cuh.
fn sum_names(config: &Sm90, types: Types) -> String {
    let blocks = config.m_blocks();
    let count = config.sum_registers(types) / blocks;
    let names = |block| {
        (block * count..(block + 1) * count).map(|i| format!("s{i}")).collect::<Vec<_>>().join(", ")
    };
    let text = |block| format!("{{ static constexpr char text[] = \"{}\"; }};\n", names(block));
    (0..blocks)
        .map(|block| format!("template <> struct ptx::SumNames<{block}> {}", text(block)))
        .collect()
}

/// The program of a kernel; `None` for kernels that are not compiled. Kernels that differ only in how the user's
/// operands map onto it (a column-major output and its transpose) have the same text, and so share a cubin.
pub fn source(kernel: &Kernel) -> Option<String> {
    let epilogue = if kernel.epilogue.is_some() { "Epilogue" } else { "Identity" };
    let mut definitions = String::new();
    let (header, family, parameter, checks) = match &kernel.design {
        Design::Reference(_) => return None,
        Design::Simt(config) => {
            let types = kernel.types;
            let [m, n, k] = config.tile;
            let family = format!(
                "SimtGemm<{}, {}, {}, {}, {m}, {n}, {k}, {}, {epilogue}>",
                types.a.short_name(),
                types.b.short_name(),
                types.accumulator.short_name(),
                types.out.short_name(),
                config.grouped
            );
            ("simt.cuh", family, "GemmParams", agreement(Simt::THREADS, 0))
        }
        Design::Elementwise(config) => {
            let types = kernel.types;
            let (element, accumulator) = (types.out.short_name(), types.accumulator.short_name());
            let family = format!("ElementwiseAdd<{element}, {accumulator}, {epilogue}>");
            let [_, n, _] = config.tile(types);
            let checks = format!("{} && Work::TILE == {n}", agreement(Elementwise::THREADS, 0));
            ("elementwise.cuh", family, "ElementwiseParams", checks)
        }
        Design::Skinny(config) => {
            // A and B are of one type, so that it is the same in both frames.
            let types = kernel.types;
            let [a_k_major, b_k_major] = config.k_major();
            let [tile_n, tile_k] = config.tile;
            let method = match config.method {
                Method::TensorCores => "MMA",
                Method::Fma => "FMA",
            };
            let family = format!(
                "SkinnyGemm<{}, {}, {a_k_major}, {b_k_major}, {}, {tile_n}, {tile_k}, {}, {}, {}, {}, Method::{method}, {epilogue}>",
                types.a.short_name(),
                types.out.short_name(),
                config.tokens,
                config.warps_n,
                config.stages,
                config.split,
                config.align
            );
            (
                "skinny.cuh",
                family,
                "GemmParams",
                agreement(Skinny::THREADS, config.shared_bytes(types)),
            )
        }
        Design::Sm80(config) => {
            let program = config.program();
            let types = if program == *config { kernel.types } else { kernel.types.transposed() };
            let [m, n, k] = program.tile;
            let [warps_m, warps_n] = program.warps;
            let family = format!(
                "Sm80Gemm<{}, {}, {}, {}, {}, {}, {m}, {n}, {k}, {warps_m}, {warps_n}, {}, {}, {}, {epilogue}>",
                types.a.short_name(),
                types.b.short_name(),
                types.accumulator.short_name(),
                types.out.short_name(),
                program.layout.a == Major::Row,
                program.layout.b == Major::Column,
                program.stages,
                program.align,
                program.grouped
            );
            (
                "sm80.cuh",
                family,
                "GemmParams",
                agreement(program.threads(), program.shared_bytes(types)),
            )
        }
        Design::Sm90(config) => {
            let types = kernel.types;
            let [a_k_major, b_k_major] = config.k_major();
            let ([m, n], [cluster_m, cluster_n]) = (config.tile, config.cluster);
            let schedule = match config.schedule {
                Schedule::Cooperative => "COOPERATIVE",
                Schedule::PingPong => "PING_PONG",
            };
            let family = format!(
                "Sm90Gemm<{}, {}, {}, {}, {a_k_major}, {b_k_major}, {m}, {n}, {}, {}, {}, Schedule::{schedule}, {cluster_m}, {cluster_n}, {}, {}, {}, {}, {}, {epilogue}>",
                types.a.short_name(),
                types.b.short_name(),
                types.accumulator.short_name(),
                types.out.short_name(),
                config.row_bytes(1),
                config.stages,
                config.consumers,
                config.split,
                config.over_grid,
                config.swapped,
                config.grouped,
                config.align
            );
            let (cluster, ctas) = (config.cluster_size(), config.ctas_per_sm(types));
            let mut checks = agreement(config.threads(), config.shared_bytes(types));
            checks += &format!(" && Work::CLUSTER == {cluster} && Work::MIN_CTAS >= {ctas}");
            let [longest, shortest] = config.slices(1);
            if b_k_major {
                checks += &format!(
                    " && Work::BoxesB::SLICE == {longest} && Work::BoxesB::SHORT == {shortest}"
                );
            }
            if !config.swapped {
                checks += &format!(" && Work::BOX_N == {}", config.box_n(types));
            }
            definitions += &sum_names(config, types);
            ("sm90.cuh", family, "Sm90Params", checks)
        }
    };
    let (declared, passed) = match kernel.epilogue {
        Some(epilogue) => {
            definitions += "#include \"common/fusion.cuh\"\n\n";
            definitions += &functor(epilogue, kernel.types.accumulator, kernel.is_transposed());
            (", const __grid_constant__ EpilogueParams epilogue", "Epilogue{epilogue}")
        }
        None => ("", "Identity{}"),
    };
    Some(format!(
        r#"#include "{header}"
{definitions}
using Work = {family};
// What the host launches with is what the kernel was written for.
static_assert({checks}, "host and kernel disagree");

extern "C" __global__ void __launch_bounds__(Work::THREADS, Work::MIN_CTAS)
{ENTRY}(const __grid_constant__ {parameter} params{declared}) {{
    Work::run(params, {passed});
}}
"#
    ))
}
