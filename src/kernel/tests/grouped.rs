//! Grouped GEMMs.

use std::collections::BTreeSet;

use super::*;
use crate::kernel::family::LaunchInput;

#[test]
fn a_grouped_launch_has_the_offsets_and_a_tile_for_every_strip() {
    let target = Target { multiprocessors: 1 << 20, ..Target::typical(90) };
    for (rows, n, groups, b) in
        [(8192, 2048, 12, Major::Column), (100, 264, 70, Major::Row), (1, 8, 1, Major::Row)]
    {
        let problem = grouped(Bf16, rows, n, 512, groups, b, 3);
        let found = ranked(&problem, Some(target), false);
        assert!(found.len() >= 10);
        for kernel in found.into_iter().map(|position| &all()[position]) {
            let launch = kernel.launch(&problem, target, 0, None).expect("there is an output");
            let (offsets, batch, [height, width]) = match (launch.params, &kernel.design) {
                (Params::Sm90(params), Design::Sm90(config)) => {
                    params.maps.iter().flatten().for_each(|map| assert_valid(map, kernel));
                    let [a, b, out] =
                        params.maps.map(|map| map.expect("all are aligned").extents[2]);
                    assert_eq!((a, b, out), (1, groups as u64, 1), "{kernel}");
                    let [m, n] = [0, 1].map(|at| i64::from(config.tile[at] * config.cluster[at]));
                    assert_eq!(params.scalars.splits_or_stacked, -1);
                    (params.scalars.offsets, params.scalars.batch, [m, n])
                }
                (
                    Params::Gemm(params),
                    Design::Sm80(Sm80 { tile, .. })
                    | Design::Sgemm(Sgemm { tile, .. })
                    | Design::Simt(Simt { tile, .. }),
                ) => (params.offsets, params.batch, [i64::from(tile[0]), i64::from(tile[1])]),
                _ => panic!("no grouped kernel: {kernel}"),
            };
            let Problem::GroupedGemm(GroupedGemmProblem { offsets: view, .. }) = problem else {
                panic!("not grouped")
            };
            assert_eq!(offsets, GroupOffsets::new(Some(&view)));
            assert_eq!(i64::from(batch), groups);
            // The number of strips is largest if all groups but one end one row into a strip.
            let columns = (n + width - 1) / width;
            let alone = (groups - 1).min(rows);
            let strips = alone + (rows - alone + height - 1) / height;
            let clusters = i64::from(launch.grid / launch.cluster);
            assert!(
                clusters >= strips * columns && clusters <= (strips + groups) * columns,
                "{kernel}"
            );
            assert_eq!(kernel.workspace_bytes(&problem), 0);
        }
    }
}

#[test]
fn masked_groups_are_a_batch_by_the_kernels_of_groups_along_m() {
    let target = Target { multiprocessors: 1 << 20, ..Target::typical(90) };
    for (rows, n, k, groups) in [(512, 4096, 7168, 32), (100, 264, 72, 70), (2, 8, 8, 2)] {
        let problem = masked(grouped(Bf16, rows, n, k, groups, Major::Column, 3));
        let found = ranked(&problem, Some(target), false);
        assert!(found.len() >= 10);
        for kernel in found.into_iter().map(|position| &all()[position]) {
            assert_eq!(kernel.facts.operation, Operation::GroupedGemm);
            let launch = kernel.launch(&problem, target, 0, None).expect("there is an output");
            let (m, batch, strides, tile) = match (launch.params, &kernel.design) {
                (Params::Sm90(params), Design::Sm90(config)) => {
                    params.maps.iter().flatten().for_each(|map| assert_valid(map, kernel));
                    let extents = params.maps.map(|map| map.expect("all are aligned").extents[2]);
                    assert_eq!(extents, [groups as u64; 3], "{kernel}");
                    let [m, n] = [0, 1].map(|at| i64::from(config.tile[at] * config.cluster[at]));
                    let scalars = params.scalars;
                    assert_eq!((scalars.batched, scalars.splits_or_stacked), ([1, 1], 0));
                    (scalars.m, scalars.batch, [rows * k, scalars.out_stride[0]], [m, n])
                }
                (
                    Params::Gemm(params),
                    Design::Sm80(Sm80 { tile, .. })
                    | Design::Sgemm(Sgemm { tile, .. })
                    | Design::Simt(Simt { tile, .. }),
                ) => {
                    let strides = [params.a_stride[0], params.out_stride[0]];
                    (params.m, params.batch, strides, [i64::from(tile[0]), i64::from(tile[1])])
                }
                _ => panic!("no grouped kernel: {kernel}"),
            };
            assert_eq!((i64::from(m), i64::from(batch)), (rows, groups));
            assert_eq!(strides, [rows * k, rows * n]);
            let tiles =
                (rows as u64).div_ceil(tile[0] as u64) * (n as u64).div_ceil(tile[1] as u64);
            assert_eq!(u64::from(launch.grid / launch.cluster), tiles * groups as u64, "{kernel}");
        }
    }
}

/// The same shapes, with `rows` rows for each group.
fn masked(problem: Problem) -> Problem {
    let Problem::GroupedGemm(grouped) = problem else { panic!("not grouped") };
    let groups = grouped.groups();
    let batch = |view: &View| {
        let [_, rows, columns] = view.shape;
        let stride = [rows * columns, columns, 1];
        View { rank: 3, shape: [groups, rows, columns], stride, ..*view }
    };
    let masked = GroupedGemmProblem { a: batch(&grouped.a), out: batch(&grouped.out), ..grouped };
    assert!(masked.is_masked() && masked.check().is_ok());
    Problem::GroupedGemm(masked)
}

#[test]
fn groups_along_k_are_a_batch_that_shares_a_and_b() {
    let target = Target { multiprocessors: 1 << 20, ..Target::typical(90) };
    for (shape @ [m, n, k], groups) in [([2048, 768, 4096], 128), ([72, 136, 0], 3), ([8, 8, 5], 1)]
    {
        let problem = grouped_along_k(Bf16, shape, groups);
        let found = ranked(&problem, Some(target), false);
        assert!(found.len() >= 10);
        for kernel in found.into_iter().map(|position| &all()[position]) {
            assert_eq!(kernel.facts.operation, Operation::GroupedGemmAlongK);
            let launch = kernel.launch(&problem, target, 0, None).expect("there is an output");
            let (depth, batch, batch_strides, tile) = match (launch.params, &kernel.design) {
                (Params::Sm90(params), Design::Sm90(config)) => {
                    params.maps.iter().flatten().for_each(|map| assert_valid(map, kernel));
                    let [a, b, out] =
                        params.maps.map(|map| map.expect("all are aligned").extents[2]);
                    assert_eq!((a, b, out), (1, 1, groups as u64), "{kernel}");
                    let [m, n] = [0, 1].map(|at| i64::from(config.tile[at] * config.cluster[at]));
                    let scalars = params.scalars;
                    (scalars.k, scalars.batch, scalars.batched.map(i64::from), [m, n])
                }
                (
                    Params::Gemm(params),
                    Design::Sm80(Sm80 { tile, .. })
                    | Design::Sgemm(Sgemm { tile, .. })
                    | Design::Simt(Simt { tile, .. }),
                ) => {
                    let strides = [params.a_stride[0], params.b_stride[0]];
                    assert_eq!(params.out_stride[0], m * n);
                    (params.k, params.batch, strides, [i64::from(tile[0]), i64::from(tile[1])])
                }
                _ => panic!("no grouped kernel: {kernel}"),
            };
            assert_eq!((i64::from(depth), i64::from(batch), batch_strides), (k, groups, [0, 0]));
            let tiles = (m as u64).div_ceil(tile[0] as u64) * (n as u64).div_ceil(tile[1] as u64);
            assert_eq!(u64::from(launch.grid / launch.cluster), tiles * groups as u64, "{kernel}");
            assert_eq!(kernel.workspace_bytes(&problem), 0);
        }
    }
}

#[test]
fn groups_along_k_of_float8_are_loaded_along_k() {
    let [m, n, k] = [2048, 768, 8192];
    let problem = grouped_along_k(DType::E4m3, [m, n, k], 128);
    assert_eq!(first_for(&problem).facts.family, "sm90");
    let mut tiles = BTreeSet::new();
    for kernel in kernels_for(&problem).filter(|kernel| kernel.facts.family == "sm90") {
        let Params::Sm90(params) = launch_of(kernel, &problem).params else { panic!("{kernel}") };
        params.maps.iter().flatten().for_each(|map| assert_valid(map, kernel));
        let extents = [0, 1].map(|at| params.maps[at].map(|map| map.extents));
        assert_eq!(extents, [m, n].map(|rows| Some([k as u64, rows as u64, 1])), "{kernel}");
        let Design::Sm90(config) = kernel.design else { panic!("{kernel}") };
        tiles.insert(config.tile);
    }
    assert!(tiles.len() >= 3);
    // Rows of 8200 bytes.
    assert_eq!(first_for(&grouped_along_k(DType::E4m3, [m, n, 8200], 128)).facts.family, "simt");
}

#[test]
fn the_cost_of_groups_along_k_counts_all_of_k_once() {
    let seconds = |k, groups| {
        let problem = grouped_along_k(Bf16, [2048, 768, k], groups);
        first_for(&problem).seconds(&problem, Target::H100)
    };
    // 8192 indices of K take as long in 16 groups as in 8, apart from the outputs' bytes: 25 MB.
    assert!(seconds(65536, 16) < 1.25 * seconds(65536, 8));
    // A group's output takes longer than a few indices of K.
    assert!(seconds(1024, 128) > 4.0 * seconds(1024, 16));
    let problem = grouped_along_k(Bf16, [2048, 768, 8192], 128);
    assert_eq!(first_for(&problem).facts.family, "sm90");
}

#[test]
fn b_of_rank_2_and_out_of_rank_3_mean_groups_along_k() {
    let Problem::GroupedGemm(along_k) = grouped_along_k(Bf16, [64, 32, 16], 1) else {
        unreachable!("a grouped problem")
    };
    assert!(along_k.is_along_k() && along_k.misranked().is_none());
    let along_m = GroupedGemmProblem { out: View { rank: 2, ..along_k.out }, ..along_k };
    assert!(!along_m.is_along_k());
    assert_eq!(along_m.misranked().map(|(name, _, rank)| (name, rank)), Some(("B", 3)));
    let longer = View { shape: [1, 17, 32], ..along_k.b };
    assert!(GroupedGemmProblem { b: longer, ..along_k }.check().is_err());
}

#[test]
fn two_products_in_groups_count_the_columns_of_both_matrices() {
    let target = Target { multiprocessors: 1 << 20, ..Target::typical(90) };
    for (rows, n, groups) in [(8192, 768, 128), (100, 264, 70), (1, 8, 1)] {
        let of = |n, b| grouped(Bf16, rows, n, 512, groups, b, 1);
        let (problem, wide) = (of(n, Major::Column), of(2 * n, Major::Column));
        let (Problem::GroupedGemm(one), Problem::GroupedGemm(both)) = (&problem, &wide) else {
            panic!("not grouped")
        };
        let found = ranked(&problem, H100, Fusion::Dual);
        let kernels: Vec<_> = found.into_iter().map(|position| all()[position]).collect();
        let schedules: BTreeSet<&str> = kernels
            .iter()
            .filter_map(|kernel| match &kernel.design {
                Design::Sm90(config) => Some(config.schedule.name()),
                _ => None,
            })
            .collect();
        assert_eq!(schedules, BTreeSet::from(["cooperative", "pingpong"]));
        for kernel in kernels {
            let dual = kernel.estimate_fused(&problem, Target::H100, Fusion::Dual);
            let plain =
                kernel.estimate_fused(&wide, Target::H100, Fusion::Epilogue { factors: false });
            // The output has half the columns.
            let ratio = dual.total_seconds / plain.total_seconds;
            assert!((0.8..=1.0).contains(&ratio), "{kernel}: {ratio} for {rows} rows");
            assert_eq!(plain.bytes - dual.bytes, (2 * rows * n) as f64);

            let distance = 1 << 20;
            for second in [one.b.data + distance, one.b.data - distance] {
                let factor = View { data: second, ..one.b };
                let request = LaunchInput {
                    types: kernel.types,
                    problem: &problem,
                    is_fused: true,
                    target,
                    workspace: 0,
                    factor: Some(&factor),
                    panels: &[],
                };
                let launch = kernel.with(Fusion::Dual).design.family().launch(&request);
                let launch = launch.expect("there is an output");
                let Params::Sm90(params) = launch.params else { panic!("{kernel}") };
                let [_, b, out] = params.maps.map(|map| map.expect("all are aligned"));
                assert_eq!(b.extents, [512, 2 * n as u64, groups as u64], "{kernel}");
                assert_eq!((b.address, b.second), (one.b.data.min(second), distance));
                assert_eq!(out.extents, [n as u64, rows as u64, 1]);
                let scalars = params.scalars;
                assert_eq!((scalars.n as i64, scalars.batch as i64), (2 * n, groups));
                assert_eq!(scalars.reversed, i32::from(second < one.b.data));
                assert_eq!(scalars.offsets, GroupOffsets::new(Some(&both.offsets)));
                // Tiles are those of one product with the columns of both.
                let launch_of_wide = kernel.launch(&wide, target, 0, None).expect("an output");
                assert_eq!(launch.grid, launch_of_wide.grid, "{kernel}");
            }
        }
        // N in blocks of 8 columns, K-major weights.
        assert!(ranked(&of(n + 4, Major::Column), H100, Fusion::Dual).is_empty());
        assert!(ranked(&of(n, Major::Row), H100, Fusion::Dual).is_empty());
    }
    assert!(ranked(&grouped_along_k(Bf16, [64, 64, 64], 2), H100, Fusion::Dual).is_empty());
}

#[test]
fn rows_of_groups_by_weights_lie_along_the_columns_of_the_program() {
    let target = Target { multiprocessors: 1 << 20, ..Target::typical(90) };
    let (n, k, groups) = (2880, 2944, 32);
    for weight in [DType::E2m1, DType::I4, DType::E4m3, DType::U8] {
        let mut widths = Vec::new();
        for rows in [32, 2048, 32768] {
            let Problem::GroupedGemm(halves) = grouped(Bf16, rows, n, k, groups, Major::Column, 1)
            else {
                panic!("not grouped")
            };
            let b = View { dtype: weight, ..halves.b };
            let problem = Problem::GroupedGemm(GroupedGemmProblem { b, ..halves });
            let of_sm90 = |kernel: &&Kernel| kernel.facts.family == "sm90";
            let kernels: Vec<_> = kernels_for(&problem).filter(of_sm90).collect();
            assert!(kernels.len() >= 4, "{weight}");
            for kernel in &kernels {
                let Design::Sm90(config) = &kernel.design else { panic!("{kernel}") };
                let launch = kernel.launch(&problem, target, 0, None).expect("there is an output");
                let Params::Sm90(params) = launch.params else { panic!("{kernel}") };
                let [a, b, out] = params.maps;
                let packing = i64::from(weight.packing());
                let extents = a.expect("weights are aligned").extents;
                assert_eq!(extents, [k / packing, n, groups].map(|extent| extent as u64));
                let extents = b.expect("activations are aligned").extents;
                assert_eq!(extents, [k, rows, 1].map(|extent| extent as u64));
                assert!(out.is_none(), "{kernel}");
                let scalars = params.scalars;
                assert_eq!((scalars.m, scalars.n), (n as i32, rows as i32));
                assert_eq!((scalars.batch, scalars.batched), (groups as i32, [1, 0]));
                // Only the device knows where the rows of a group end.
                assert_eq!(scalars.boxes[1], config.tile[1] as i32);
                let [columns, width] = config.tile.map(i64::from);
                let alone = (groups - 1).min(rows);
                let strips = alone + (rows - alone + width - 1) / width;
                let tiles = strips * ((n + columns - 1) / columns);
                assert!(i64::from(launch.grid) >= tiles, "{kernel}");
            }
            let Design::Sm90(first) = &kernels[0].design else { panic!("{}", kernels[0]) };
            widths.push(first.tile[1]);
        }
        assert!(widths[0] <= 32 && widths[2] >= 128 && widths.is_sorted(), "{weight}: {widths:?}");
    }
}
