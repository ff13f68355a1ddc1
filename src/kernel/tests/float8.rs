//! Float8 kernels of `sm80`: which exist, and their order.

use super::*;
use crate::epilogue::{BlockScale, Scaling};
use crate::operand::DType::{E4m3, E5m2};

const PAIRS: [[DType; 2]; 4] = [[E4m3, E4m3], [E4m3, E5m2], [E5m2, E4m3], [E5m2, E5m2]];

/// A product of these types with a bfloat16 output.
pub(super) fn problem(
    [a, b]: [DType; 2],
    [m, n, k]: [i64; 3],
    layout: Layout,
    fast_sums: bool,
) -> Problem {
    let device = DeviceId::Cuda(0);
    let a = matrix(a, device, m, k, layout.a);
    let b = matrix(b, device, k, n, layout.b);
    let out = matrix(Bf16, device, m, n, layout.out);
    let product = GemmProblem::new(a, b, out, F32).expect("shapes agree");
    let options = ProblemOptions { fast_sums, ..product.options };
    Problem::Gemm(GemmProblem { options, ..product })
}

pub(super) fn on(problem: &Problem, cc: u32) -> Vec<&'static Kernel> {
    let found = ranked(problem, Some(Target::typical(cc)), false);
    found.into_iter().map(|position| &all()[position]).collect()
}

pub(super) fn config(kernel: &Kernel) -> Option<Sm80> {
    match kernel.design {
        Design::Sm80(config) => Some(config),
        _ => None,
    }
}

#[test]
fn float8_runs_on_tensor_cores_that_multiply_it() {
    for types in PAIRS {
        for layout in Layout::all() {
            let problem = problem(types, [512, 768, 1024], layout, false);
            for cc in [89, 100, 103, 110, 120, 121] {
                let kernels = on(&problem, cc);
                assert_eq!(kernels[0].facts.family, "sm80", "{cc}: {}", kernels[0]);
                let families: HashSet<_> =
                    kernels.iter().map(|kernel| kernel.facts.family).collect();
                assert_eq!(families, HashSet::from(["sm80", "simt"]), "{cc}");
            }
            for cc in [80, 86, 87] {
                assert!(
                    on(&problem, cc).iter().all(|kernel| kernel.facts.family == "simt"),
                    "{cc}"
                );
            }
        }
    }
}

#[test]
fn float8_on_hopper_never_ranks_before_sm90() {
    for types in PAIRS {
        for layout in Layout::all() {
            for extents in [[4096; 3], [16, 4096, 4096], [67, 131, 61], [1, 1, 1]] {
                let families: Vec<_> = on(&problem(types, extents, layout, true), 90)
                    .into_iter()
                    .map(|kernel| kernel.facts.family)
                    .collect();
                let first = families.iter().position(|family| *family == "sm80").expect("one");
                assert!(families[..first].contains(&"sm90"), "{layout} {extents:?}");
                assert!(families[first..].iter().all(|family| *family == "sm80"));
            }
        }
    }
}

#[test]
fn float8_tiles_fit_the_extents() {
    let tile = |extents, cc| {
        config(on(&problem([E4m3; 2], extents, TNT, false), cc)[0]).expect("sm80").tile
    };
    for cc in [89, 120] {
        assert_eq!(tile([8192, 8192, 4096], cc), [128, 128, 128], "{cc}");
    }
    // Few rows take small tiles: 32 of 128x128 leave multiprocessors idle.
    assert_eq!([100, 120].map(|cc| tile([16, 4096, 4096], cc)), [[16, 64, 128]; 2]);
    assert_eq!(tile([64, 4096, 4096], 100), [32, 64, 128]);
}

#[test]
fn one_chain_of_float8_products_needs_permission() {
    for layout in Layout::all() {
        let fast = |permitted| {
            let kernels = on(&problem([E4m3, E5m2], [4096; 3], layout, permitted), 89);
            kernels.into_iter().filter_map(config).filter(|config| config.fast_sums).count()
        };
        assert_eq!([false, true].map(fast), [0, 3], "{layout}");
    }
    let kernels = || all().iter().filter_map(|kernel| Some((kernel.types, config(kernel)?)));
    // Chains have totals beside the sums: twice the registers.
    for (types, config) in kernels().filter(|(types, _)| types.a.is_float8()) {
        let sums = config.tile[0] * config.tile[1] / (32 * config.warps[0] * config.warps[1]);
        assert!(sums <= if config.fast_sums { 128 } else { 64 }, "{types:?} {config:?}");
    }
    assert!(kernels().all(|(types, config)| !config.fast_sums || types.a.is_float8()));
}

#[test]
fn float8_groups_along_m_run_on_tensor_cores() {
    let problem = grouped(E4m3, 8192, 2048, 2048, 8, Major::Column, 1);
    let Problem::GroupedGemm(of_float8) = &problem else { unreachable!("a grouped problem") };
    let out = View { dtype: Bf16, ..of_float8.out };
    let kernels = on(&Problem::GroupedGemm(GroupedGemmProblem { out, ..*of_float8 }), 89);
    let first = config(kernels[0]).expect("sm80");
    assert_eq!((first.groups, first.tile), (Groups::AlongM, [128, 128, 128]));
}

#[test]
fn block_scales_fit_registers_and_shared_memory() {
    let scale =
        |extent, depth| BlockScale { scale: 0, zero: None, extent, depth, is_swizzled: false };
    let serving = |a, b| -> HashSet<_> {
        let scaling = Scaling { a: Some(a), b: Some(b), is_of_operands: false };
        let types = Types { a: E4m3, b: E4m3, accumulator: F32, out: Bf16 };
        let kernels = all().iter().filter(|kernel| kernel.types == types);
        let configs = kernels.filter_map(|kernel| Some((kernel, config(kernel)?)));
        let plain = configs.filter(|(_, config)| {
            (config.layout, config.align, config.groups) == (TNT, 16, Groups::None)
        });
        let takes = |kernel: &Kernel| kernel.design.family().takes_scaling(types, &scaling);
        plain.filter(|(kernel, _)| takes(kernel)).map(|(_, config)| config.tile).collect()
    };
    let few_rows = [[64, 64, 128], [32, 64, 128], [16, 64, 128], [32, 32, 128]];
    let others = [[128, 128, 128], [64, 128, 128], [128, 64, 128]];
    let exact: HashSet<_> = few_rows.into_iter().chain(others).collect();
    for depth in [128, 256, BlockScale::WHOLE] {
        assert_eq!(serving(scale(1, 128), scale(128, depth)), exact);
    }
    // Several chains of a K block at a time need registers.
    let small = HashSet::from(few_rows);
    for depth in [32, 64] {
        assert_eq!(serving(scale(1, depth), scale(1, depth)), small);
    }
    for depth in [16, 48, 96] {
        assert!(serving(scale(1, depth), scale(128, 128)).is_empty(), "{depth}");
    }
    let with_zero = BlockScale { zero: Some(1), ..scale(1, 128) };
    assert!(serving(with_zero, scale(128, 128)).is_empty());
}
