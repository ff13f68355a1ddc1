//! The text of the family's programs.

use super::config::{Schedule, Sm90};
use super::memory::MOST_SCALE_REGISTERS;
use super::split::{MAX_SPLITS, SPLITS_AT_ONCE, WORD_STRIDE};
use crate::kernel::program::{ProgramParts, joint_arguments, launch_checks, name_of_gemm, orders};
use crate::kernel::types::Types;

pub fn program(config: &Sm90, types: Types, epilogue: &str) -> ProgramParts {
    // The operands' types in the order of `wgmma`.
    let ordered = if config.swapped { types.transposed() } else { types };
    ProgramParts {
        name: name(config, ordered),
        header: "sm90.cuh",
        definitions: parameters(config, ordered) + &sum_names(config, types),
        work: format!("Sm90Gemm<Parameters, {epilogue}>"),
        parameter: if config.matrices > 1 { "JointSm90Params" } else { "Sm90Params" },
        checks: checks(config, types),
    }
}

/// The constants of a program, by the names that `Sm90Config` uses. `types`: in the order of
/// `wgmma`.
fn parameters(config: &Sm90, types: Types) -> String {
    let Sm90 { tile: [m, n], cluster: [cluster_m, cluster_n], stages, consumers, .. } = *config;
    let Sm90 { split, over_grid, swapped, groups, align, fast_sums, matrices, .. } = *config;
    let Types { a, b, accumulator, out } = types;
    let [a, b, accumulator, out] = [a, b, accumulator, out].map(|dtype| dtype.short_name());
    let [a_k_major, b_k_major] = config.k_major();
    let [a_row, b_row] = [0, 1].map(|at| config.row_bytes(at));
    let matrices_are_a = matrices > 1 && config.side_of(config.joined.into()) == 0;
    let schedule = match config.schedule {
        Schedule::Cooperative => "COOPERATIVE",
        Schedule::PingPong => "PING_PONG",
    };
    format!(
        "struct Parameters {{
  using A = {a}; using B = {b};
  using Accumulator = {accumulator}; using Out = {out};
  static constexpr bool A_K_MAJOR = {a_k_major}, B_K_MAJOR = {b_k_major};
  static constexpr int TILE_M = {m}, TILE_N = {n}, STAGES = {stages}, CONSUMERS = {consumers};
  static constexpr int A_ROW_BYTES = {a_row}, B_ROW_BYTES = {b_row}, A_ALIGN = {align};
  static constexpr int CLUSTER_M = {cluster_m}, CLUSTER_N = {cluster_n}, SPLIT = {split};
  static constexpr bool OVER_GRID = {over_grid}, OUT_TRANSPOSED = {swapped};
  static constexpr bool FAST_SUMS = {fast_sums}, MATRICES_ARE_A = {matrices_are_a};
  static constexpr int MATRICES = {matrices};
  static constexpr Schedule SCHEDULE = Schedule::{schedule};
  static constexpr Groups GROUPS = {groups};
}};
",
        groups = groups.argument(),
    )
}

/// The name of the program. `types`: in the order of `wgmma`.
fn name(config: &Sm90, types: Types) -> String {
    let Sm90 { tile: [m, n], cluster: [cluster_m, cluster_n], stages, consumers, .. } = *config;
    let (schedule, orders) = (config.schedule.name(), orders(config.k_major()));
    let mut name = name_of_gemm(config.groups, types);
    name += &format!(
        "_{orders}_{m}x{n}_{schedule}{consumers}_{stages}stages_cluster{cluster_m}x{cluster_n}"
    );
    if config.split > 1 {
        let split = if config.over_grid { "gridsplit" } else { "split" };
        name += &format!("_{split}{}", config.split);
    }
    if config.swapped {
        name += "_swapped";
    }
    if config.loads_by_threads() {
        name += &format!("_align{}", config.align);
    }
    if config.fast_sums {
        name += "_fast";
    }
    name + &joint_arguments(config.matrices).1
}

/// Conditions that the host and the program compute the same values.
fn checks(config: &Sm90, types: Types) -> String {
    let (cluster, ctas) = (config.cluster_size(), config.ctas_per_sm(types));
    let mut checks = launch_checks(config.threads(), config.shared_bytes(types));
    checks += &format!(" && Work::Config::CLUSTER == {cluster} && Work::MIN_CTAS >= {ctas}");
    if config.k_major()[1] {
        let [longest, shortest] = config.slices(1);
        let boxes = "Work::Producer::BoxesB";
        checks += &format!(" && {boxes}::SLICE == {longest} && {boxes}::SHORT == {shortest}");
    }
    if !config.swapped {
        checks += &format!(" && Work::Memory::BOX_N == {}", config.box_n(types));
    }
    if config.over_grid {
        checks += &format!(
            " && GridSplitWord::MAX_SPLITS == {MAX_SPLITS} \
             && GridSplitWord::WORD_STRIDE == {WORD_STRIDE} \
             && Work::Registers::SPLITS_AT_ONCE == {SPLITS_AT_ONCE}"
        );
    }
    if config.promotes_sums(types) {
        let (scales, left) = ("Work::Registers::Scales", config.left_of_sums(types));
        checks += &format!(
            " && {scales}::LEFT == {left} && {scales}::MOST == {MOST_SCALE_REGISTERS} \
             && (!{scales}::PRESENT || {scales}::REGISTERS <= {left})"
        );
    }
    checks
}

/// The registers of a thread's sums, for each block of 64 rows: `SumNames` of common/wgmma.cuh.
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
