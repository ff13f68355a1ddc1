//! Problems with 1 to 64 rows or columns.

use super::*;

/// The skinny kernels that serve a problem, in the order of the ranking.
fn skinny(problem: &Problem, target: Target) -> Vec<(&'static Kernel, Skinny)> {
    let found = ranked(problem, Some(target), false).into_iter().map(|position| &all()[position]);
    let of_family = |kernel: &'static Kernel| match kernel.design {
        Design::Skinny(config) => Some((kernel, config)),
        _ => None,
    };
    found.filter_map(of_family).collect()
}

#[test]
fn skinny_launches_cover_more_rows_than_they_are_offered_for() {
    let is_half =
        |kernel: &&Kernel| [kernel.types.a, kernel.types.b, kernel.types.out] == [F16, F16, F16];
    for kernel in all().iter().filter(is_half) {
        let Design::Skinny(config) = kernel.design else { continue };
        let layout = Layout { a: config.a, b: config.b, out: Major::Row };
        let (layout, [m, n]) = (kernel.frame.layout(layout), kernel.frame.pair([4096, 5000]));
        let problem = gemm(F16, m, n, 256, layout);
        assert!(matches!(
            kernel.supports(&problem),
            Err(Unsupported::TooMany { extent: 4096, .. })
        ));
        assert_eq!(kernel.check_addresses(&problem), Ok(()), "{kernel}");
        let launch = launch_of(kernel, &problem);
        let tiles = 4096u32.div_ceil(config.rows) * 5000u32.div_ceil(config.tile[0]);
        assert_eq!(launch.grid, tiles * config.split, "{kernel}");
    }
}

#[test]
fn narrow_problems_of_unaligned_rows_have_skinny_kernels_too() {
    for layout in Layout::all() {
        for (m, n) in [(5, 4095), (4095, 5)] {
            for cc in [80, 86, 90, 120] {
                let found = skinny(&gemm(F32, m, n, 4097, layout), Target::typical(cc));
                assert!(
                    found.iter().all(|(kernel, config)| config.align == 4 && kernel.runs_on(cc))
                );
                let found = skinny(&gemm(F16, m, n, 4097, layout), Target::typical(cc));
                assert!(found.iter().all(|(_, config)| config.align == 2));
                assert!(cc != 90 || !found.is_empty());
            }
        }
    }
}

#[test]
fn skinny_launches_read_all_of_the_wide_operand() {
    let (rows, columns) = (gemm(F16, 8, 5000, 4096, TNT), gemm(F16, 5000, 8, 4096, TNT));
    for (problem, frame) in [(rows, Frame::User), (columns, Frame::Transposed)] {
        let found = skinny(&problem, Target::typical(90));
        assert!(found.iter().any(|(_, config)| config.split > 1));
        for (kernel, config) in found {
            assert_eq!(kernel.frame, frame);
            let launch = launch_of(kernel, &problem);
            let Params::Gemm(params) = launch.params else { panic!("not its parameters") };
            assert_eq!((params.m, params.n, params.k), (8, 5000, 4096));
            assert_eq!(launch.grid, 5000u32.div_ceil(config.tile[0]) * config.split);
            assert_eq!((launch.cluster, launch.block), (config.split, Skinny::THREADS));
            assert_eq!(launch.shared_bytes, kernel.facts.shared_bytes);
            assert!(config.split == 1 || kernel.facts.min_cc == 90);
            // Grids overlap on Hopper, where the grid fills the chip or an SM holds one CTA.
            let elsewhere =
                kernel.launch(&problem, Target::typical(100), 0, None).expect("there is an output");
            assert!(!elsewhere.overlapping);
            let many = Target { multiprocessors: 5000, ..Target::typical(90) };
            let alone = kernel.facts.ctas_per_sm == 1;
            assert_eq!(
                kernel.launch(&problem, many, 0, None).expect("there is an output").overlapping,
                alone
            );
            let few = Target { multiprocessors: 10, ..Target::typical(90) };
            assert!(kernel.launch(&problem, few, 0, None).expect("there is an output").overlapping);
        }
    }
}

#[test]
fn skinny_kernels_fit_the_chips_that_they_run_on() {
    let all_chips = [80, 86, 89, 90, 100, 120];
    let (mut everywhere, mut on_some) = (0, 0);
    for kernel in all().iter().filter(|kernel| matches!(kernel.design, Design::Skinny(_))) {
        assert!(kernel.facts.shared_bytes <= 227 * 1024, "{kernel}");
        assert!(kernel.runs_on(90) && kernel.runs_on(100), "{kernel}");
        match all_chips.iter().all(|cc| kernel.runs_on(*cc)) {
            true => everywhere += 1,
            false => on_some += 1,
        }
        assert_eq!(
            kernel.runs_on(86),
            kernel.facts.min_cc == 80 && kernel.facts.shared_bytes <= 99 * 1024
        );
    }
    assert!(everywhere > 50 && on_some > 50, "{everywhere} {on_some}");
    for dtype in [F16, F32] {
        for cc in [80, 86, 89, 100, 120] {
            let found = ranked(&gemm(dtype, 1, 4096, 4096, TNT), Some(Target::typical(cc)), false);
            let rounds = |kernel: &Kernel| dtype == F32 && matches!(kernel.design, Design::Sm80(_));
            let first = found
                .iter()
                .map(|position| &all()[*position])
                .find(|kernel| !rounds(kernel))
                .expect("some");
            assert!(matches!(first.design, Design::Skinny(_)), "{dtype} {cc} {first}");
        }
    }
}

/// A row of bfloat16 by weights of this type.
fn mixed(weights: DType, n: i64, free_multiprocessors: u32) -> GemmProblem {
    let plain = product(Bf16, 1, n, 4096, TNT);
    let options = ProblemOptions { free_multiprocessors, ..plain.options };
    GemmProblem { b: View { dtype: weights, ..plain.b }, options, ..plain }
}

#[test]
fn persistent_kernels_fill_the_chip_once() {
    for weights in [DType::I4, DType::I8] {
        let mut persistent = 0;
        for kernel in all() {
            let Design::Skinny(config) = kernel.design else { continue };
            if [kernel.types.a, kernel.types.b] != [Bf16, weights] {
                continue;
            }
            let ctas = |n, free| launch_of(kernel, &Problem::Gemm(mixed(weights, n, free))).grid;
            if config.split > 1 {
                assert_eq!(ctas(28672, 100), config.split * 28672u32.div_ceil(config.tile[0]));
                continue;
            }
            let slots = |multiprocessors| multiprocessors * kernel.facts.ctas_per_sm;
            assert_eq!(ctas(28672, 0), slots(132), "{kernel}");
            assert_eq!(ctas(28672, 100), slots(32), "{kernel}");
            assert_eq!(ctas(1001, 0), 1001u32.div_ceil(16), "{kernel}");
            persistent += 1;
        }
        assert!(persistent > 4, "{persistent}");
    }
}

#[test]
fn ranges_divide_few_matrices_evenly_and_many_by_tiles() {
    let config = all().iter().find_map(|kernel| match kernel.design {
        Design::Skinny(config) if config.is_persistent(kernel.types) => Some(config),
        _ => None,
    });
    let config = Skinny { tile: [64, 1024], rows: 8, ..config.expect("there are kernels") };
    let ranges = |batch: i64| {
        let stacked =
            |view: View| View { rank: 3, shape: [batch, view.shape[1], view.shape[2]], ..view };
        let GemmProblem { a, b, out, .. } = mixed(DType::I8, 1000, 0);
        let problem = GemmProblem {
            a: stacked(a),
            b: stacked(b),
            out: stacked(out),
            ..mixed(DType::I8, 1000, 0)
        };
        let ranges = config.ranges(&problem, 264);
        (ranges.ctas(), ranges.longest())
    };
    assert_eq!(ranges(1), (63, 1));
    assert_eq!(ranges(5), (5 * 52, 2));
    assert_eq!(ranges(100), (100 * 16, 4));
}
