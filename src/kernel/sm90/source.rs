//! The text of the family's programs.

use super::config::{Schedule, Sm90};
use super::memory::MOST_SCALE_REGISTERS;
use super::split::{MAX_SPLITS, SPLITS_AT_ONCE, WORD_STRIDE};
use crate::kernel::program::{
    ProgramParts, joint_arguments, launch_checks, name_of_gemm, orders, type_arguments,
};
use crate::kernel::types::Types;

pub fn program(config: &Sm90, types: Types, epilogue: &str) -> ProgramParts {
    let Sm90 { tile: [m, n], cluster: [cluster_m, cluster_n], stages, consumers, .. } = *config;
    let Sm90 { split, over_grid, swapped, groups, align, fast_sums, .. } = *config;
    let [a_k_major, b_k_major] = config.k_major();
    // The operands' types in the order of `wgmma`.
    let ordered = if config.swapped { types.transposed() } else { types };
    let (arguments, [a_row, b_row]) =
        (type_arguments(ordered), [0, 1].map(|at| config.row_bytes(at)));
    let (mut matrices, _) = joint_arguments(config.matrices);
    if config.matrices > 1 {
        matrices += &format!(", {}", config.side_of(config.joined.into()) == 0);
    }
    let groups = groups.argument();
    let schedule = match config.schedule {
        Schedule::Cooperative => "COOPERATIVE",
        Schedule::PingPong => "PING_PONG",
    };
    ProgramParts {
        name: name(config, ordered),
        header: "sm90.cuh",
        definitions: sum_names(config, types),
        work: format!(
            "Sm90Gemm<{arguments}, {a_k_major}, {b_k_major}, {m}, {n}, {a_row}, {b_row}, {stages}, \
             {consumers}, Schedule::{schedule}, {cluster_m}, {cluster_n}, {split}, {over_grid}, \
             {swapped}, {groups}, {align}, {fast_sums}, {epilogue}{matrices}>"
        ),
        parameter: if config.matrices > 1 { "JointSm90Params" } else { "Sm90Params" },
        checks: checks(config, types),
    }
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
    checks += &format!(" && Work::CLUSTER == {cluster} && Work::MIN_CTAS >= {ctas}");
    if config.k_major()[1] {
        let [longest, shortest] = config.slices(1);
        checks +=
            &format!(" && Work::BoxesB::SLICE == {longest} && Work::BoxesB::SHORT == {shortest}");
    }
    if !config.swapped {
        checks += &format!(" && Work::BOX_N == {}", config.box_n(types));
    }
    if config.over_grid {
        checks += &format!(
            " && Work::MAX_SPLITS == {MAX_SPLITS} && Work::SPLITS_AT_ONCE == {SPLITS_AT_ONCE} \
             && Work::WORD_STRIDE == {WORD_STRIDE}"
        );
    }
    if config.promotes_sums(types) {
        let left = config.left_of_sums(types);
        checks += &format!(
            " && Work::Scales::LEFT == {left} && Work::Scales::MOST == {MOST_SCALE_REGISTERS} && \
             (!Work::Scales::PRESENT || Work::Scales::REGISTERS <= {left})"
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
