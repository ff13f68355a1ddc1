//! Grouped GEMMs.

use super::*;

#[test]
fn groups_are_for_the_tensor_cores_where_they_can_be() {
    let family = |problem: &Problem, cc| {
        let found = ranked(problem, Some(Target::typical(cc)), false);
        assert!(
            found.iter().all(|position| all()[*position].operation() == Operation::GroupedGemm)
        );
        all()[*found.first().expect("simt serves everything")].design
    };
    for dtype in [F16, Bf16] {
        for b in Major::BOTH {
            for (rows, groups) in [(8192, 12), (64, 64), (5, 3)] {
                assert!(matches!(
                    family(&grouped(dtype, rows, 2048, 1024, groups, b, 1), 90),
                    Design::Sm90(_)
                ));
                assert!(matches!(
                    family(&grouped(dtype, rows, 2048, 1024, groups, b, 1), 80),
                    Design::Sm80(_)
                ));
                // Rows of 1027 elements are aligned to 2 bytes, rows of 1026 elements to 4 bytes.
                for odd in [1027, 1026].into_iter().filter(|_| rows > 5) {
                    assert!(matches!(
                        family(&grouped(dtype, rows, odd, odd, groups, b, 1), 90),
                        Design::Sm80(_)
                    ));
                }
            }
        }
    }
    for (k, align) in [(64, 16), (63, 4)] {
        let design = family(&grouped(F32, 100, 64, k, 3, Major::Row, 1), 90);
        assert!(matches!(design, Design::Sgemm(config) if config.align == align), "{design:?}");
    }
}

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
fn without_groups_or_rows_nothing_is_launched() {
    for (rows, n, groups) in [(100, 64, 0), (0, 64, 3), (100, 0, 3)] {
        let problem = grouped(Bf16, rows, n, 64, groups, Major::Row, 1);
        let found = ranked(&problem, H100, false);
        assert!(!found.is_empty());
        assert!(found.iter().all(|position| {
            all()[*position].launch(&problem, Target::typical(90), 0, None).is_none()
        }));
    }
}

#[test]
fn one_offset_a_group_or_no_kernel() {
    let Problem::GroupedGemm(mut problem) = grouped(Bf16, 64, 64, 64, 4, Major::Row, 1) else {
        panic!("not grouped")
    };
    problem.offsets.shape[2] = 3;
    assert!(ranked(&Problem::GroupedGemm(problem), H100, false).is_empty());
    let kernel = all()
        .iter()
        .find(|kernel| kernel.operation() == Operation::GroupedGemm && kernel.types.a == Bf16);
    let kernel = kernel.expect("there are some");
    assert_eq!(
        kernel.check_addresses(&Problem::GroupedGemm(problem)),
        Err(match kernel.types.out {
            Bf16 => Unsupported::Offsets { offsets: 3, groups: 4 },
            expected => Unsupported::DType { name: "out", actual: Bf16, expected },
        })
    );
}
