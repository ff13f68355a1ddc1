//! Grouped GEMMs.

use super::*;

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
