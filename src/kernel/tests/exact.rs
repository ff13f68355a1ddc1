//! The order of kernels for float32 without rounding and for float64.

use super::*;

/// A float64 product and its first kernel on a chip.
fn float64_on([m, n, k]: [i64; 3], target: Target) -> (Problem, &'static Kernel) {
    let plain = product(DType::F64, m, n, k, TNT);
    let problem = Problem::Gemm(GemmProblem { accumulator: DType::F64, ..plain });
    (problem, &all()[ranked(&problem, Some(target), false)[0]])
}

#[test]
fn float64_runs_on_tensor_cores_that_are_faster_than_fma() {
    for extents in [[512; 3], [1024; 3], [4096; 3], [64, 4096, 4096]] {
        for cc in [80, 90, 100] {
            let (_, kernel) = float64_on(extents, Target::typical(cc));
            assert_eq!(kernel.facts.family, "sm80", "{cc}: {extents:?}");
        }
    }
    for cc in [86, 89, 120] {
        let (_, kernel) = float64_on([4096; 3], Target::typical(cc));
        assert_eq!(kernel.facts.family, "simt", "{cc}");
    }
}

#[test]
fn float64_tiles_fit_the_number_of_multiprocessors() {
    for (extent, tile) in [(4096, [128, 128]), (2048, [128, 128]), (1024, [64, 64])] {
        let (_, kernel) = float64_on([extent; 3], Target::H100);
        let Design::Sm80(config) = kernel.design else { panic!("{kernel}") };
        assert_eq!(config.tile[..2], tile, "{extent}");
    }
    // 64 tiles of 64x64 leave half of the multiprocessors idle.
    for extents in [[512; 3], [64, 4096, 4096]] {
        let (_, kernel) = float64_on(extents, Target::H100);
        let Design::Sm80(config) = kernel.design else { panic!("{kernel}") };
        assert_eq!(config.tile, [32, 32, 32], "{extents:?}");
    }
}

/// The first kernels that do not round float32 operands.
fn exact_float32_on([m, n, k]: [i64; 3], layout: Layout, target: Target) -> Vec<&'static Kernel> {
    let found = ranked(&gemm(F32, m, n, k, layout), Some(target), false);
    let rounds = |kernel: &&Kernel| matches!(kernel.facts.family, "sm90" | "sm80");
    found.into_iter().map(|at| &all()[at]).filter(|kernel| !rounds(kernel)).collect()
}

#[test]
fn float32_tiles_fit_the_number_of_multiprocessors() {
    for layout in Layout::all() {
        for (extents, tiles, split) in [
            ([4096; 3], 128 * 128, 1),
            ([2048; 3], 128 * 128, 1),
            ([1024; 3], 128 * 64, 1),
            ([512; 3], 64 * 64, 2),
            ([64, 4096, 4096], 64 * 64, 2),
        ] {
            let kernel = exact_float32_on(extents, layout, Target::H100)[0];
            let Design::Sgemm(config) = kernel.design else { panic!("{kernel}") };
            let found = (config.tile[0] * config.tile[1], config.split, config.align);
            assert_eq!(found, (tiles, split, 16), "{layout} {extents:?}");
        }
    }
    // 64 tiles of 64x64 leave half of the multiprocessors idle. 8.0 has no clusters.
    let problem = gemm(F32, 64, 4096, 4096, TNT);
    let kernel = exact_float32_on([64, 4096, 4096], TNT, Target::H100)[0];
    let launch = kernel.launch(&problem, Target::H100, 0, None).expect("there is an output");
    assert_eq!((launch.grid, launch.cluster), (128, 2));
    let kernel = exact_float32_on([64, 4096, 4096], TNT, Target::A100)[0];
    assert!(matches!(kernel.design, Design::Sgemm(config) if config.split == 1));
}

#[test]
fn float32_without_a_contiguous_dimension_runs_on_simt() {
    let plain = product(F32, 256, 256, 256, TNT);
    let a = View { stride: [0, 1024, 2], ..plain.a };
    let problem = Problem::Gemm(GemmProblem { a, ..plain });
    let found = ranked(&problem, Some(Target::A100), false);
    assert!(matches!(all()[found[0]].design, Design::Simt(_)), "{}", all()[found[0]].name());
    assert!(
        exact_float32_on([256, 256, 255], TNT, Target::A100)
            .iter()
            .any(|kernel| matches!(kernel.design, Design::Sgemm(config) if config.align == 4))
    );
}
