//! The list without a problem, as PyTorch's NVGEMM backend uses it.

use super::*;

/// Kernels that NVGEMM times: the default of `torch._inductor.config.nvgemm_max_profiling_configs`.
const TIMED: usize = 5;

/// Columns and K of linear layers.
const LAYERS: [(i64, i64); 6] =
    [(11008, 4096), (4096, 11008), (4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336)];

/// The kernels that NVGEMM times on Hopper: it checks the compute capability and `supports`.
fn timed(problem: &Problem) -> Vec<&'static Kernel> {
    let kernels = listed().iter().map(|position| at(*position));
    let supported = kernels.filter(|kernel| kernel.facts.min_cc <= 90);
    supported.filter(|kernel| kernel.supports(problem).is_ok()).take(TIMED).collect()
}

/// The least estimated time of the kernels that NVGEMM times, over that of all kernels.
fn loss(problem: &Problem, target: Target) -> f64 {
    let best = all()[ranked(problem, Some(target), false)[0]].seconds(problem, target);
    let seconds = timed(problem).into_iter().map(|kernel| kernel.seconds(problem, target));
    seconds.fold(f64::INFINITY, f64::min) / best
}

#[test]
fn every_kernel_without_fast_sums_is_listed_once() {
    let mut positions = listed().to_vec();
    positions.sort_unstable();
    let exact = (0..all().len()).filter(|position| !all()[*position].facts.fast_sums);
    assert_eq!(positions, exact.collect::<Vec<_>>());
    assert!(positions.len() < all().len());
}

#[test]
fn the_first_five_kernels_contain_one_that_is_nearly_the_fastest() {
    // 5 % at the rows that applications use most, 30 % elsewhere.
    let exact = [1, 16, 64, 256, 4096];
    let others = [2, 4, 8, 32, 48, 100, 128, 192, 384, 512, 1000, 1024, 2048, 8192];
    for target in [Target::H100, Target::H200] {
        for dtype in [F16, Bf16] {
            for b in Major::BOTH {
                let layout = Layout { a: Major::Row, b, out: Major::Row };
                for (rows, limit) in
                    exact.map(|rows| (rows, 1.05)).into_iter().chain(others.map(|rows| (rows, 1.3)))
                {
                    for (n, k) in LAYERS {
                        let problem = gemm(dtype, rows, n, k, layout);
                        let loss = loss(&problem, target);
                        let first = &all()[ranked(&problem, Some(target), false)[0]];
                        assert!(
                            loss <= limit,
                            "({rows}, {n}, {k}) {layout} with {} MB of L2: {loss:.3} times {}",
                            target.l2_bytes / 1e6,
                            first.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_of_one_operand_meets_different_kernels() {
    // Both orders fit an operand of one row.
    for (n, k) in LAYERS {
        let shapes = |kernel: &Kernel| match kernel.design {
            Design::Sm90(config) => Some((config.tile, config.split, config.over_grid)),
            _ => None,
        };
        let kernels = timed(&gemm(F16, 1, n, k, TNT));
        let found: Vec<_> = kernels.into_iter().filter_map(shapes).collect();
        assert!(found.len() >= 3, "({n}, {k}): {found:?}");
        assert_eq!(found.iter().collect::<HashSet<_>>().len(), found.len(), "({n}, {k})");
    }
}

#[test]
fn every_leading_kernel_exists_in_every_layout() {
    for layout in Layout::all() {
        let of_layout = |kernel: &&Kernel| match kernel.design {
            Design::Sm90(config) => kernel.frame.layout(config.layout) == layout,
            _ => false,
        };
        let types = Types { a: F16, b: F16, accumulator: F32, out: F16 };
        let leading = all().iter().filter(|kernel| kernel.types == types).filter(of_layout);
        let places = leading.filter_map(|kernel| kernel.design.family().leading_place());
        assert_eq!(
            places.collect::<HashSet<_>>(),
            (1..=Sm90::LEADING).collect::<HashSet<_>>(),
            "{layout}"
        );
    }
}

#[test]
fn split_kernels_refuse_problems_that_fill_the_chip() {
    let kernels = || {
        all().iter().filter_map(|kernel| match kernel.design {
            Design::Sm90(config)
                if config.split > 1 && [kernel.types.a, kernel.types.b] == [F16; 2] =>
            {
                Some((kernel, config))
            }
            _ => None,
        })
    };
    let refuses = |kernel: &Kernel, problem: &Problem| {
        let refusal = kernel.supports(problem);
        matches!(refusal, Err(Unsupported::TooMany { .. })).then(|| kernel.check_addresses(problem))
    };
    let mut refused = 0;
    for (kernel, config) in kernels().filter(|(kernel, _)| kernel.types.out == F16) {
        let layout = kernel.frame.layout(config.layout);
        let large = gemm(F16, 4096, 4096, 4096, layout);
        if config.packed == [false, false] && kernel.types.accumulator == F32 {
            assert_eq!(refuses(kernel, &large), Some(Ok(())), "{kernel}");
            refused += 1;
        }
        let one_tile = gemm(F16, 64, 8, 4096, layout);
        assert_eq!(kernel.supports(&one_tile).is_ok(), kernel.types.accumulator == F32);
    }
    assert!(refused > 50, "{refused}");
}
