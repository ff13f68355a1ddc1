//! Mixed kernels of `sm80`: which exist, and their order.

use super::float8::{config, on, problem};
use super::*;
use crate::epilogue::{BlockScale, Scaling};
use crate::operand::DType::{E4m3, I8, U8};

const PAIRS: [[DType; 2]; 4] = [[Bf16, I8], [Bf16, U8], [I8, Bf16], [U8, Bf16]];

#[test]
fn mixed_products_of_many_rows_run_on_tensor_cores() {
    // Operands aligned to 16 bytes, to 4, and to an element.
    let extents = [[512, 768, 1024], [500, 772, 1028], [501, 771, 1021]];
    for (types, layout) in PAIRS.into_iter().flat_map(|pair| Layout::all().map(move |l| (pair, l)))
    {
        for problem in extents.map(|extents| problem(types, extents, layout, false)) {
            for cc in [80, 86, 89, 100, 120] {
                let families: Vec<_> =
                    on(&problem, cc).iter().map(|kernel| kernel.facts.family).collect();
                assert_eq!(families[0], "sm80", "{cc} {types:?} {layout}");
                assert!(families.contains(&"simt"), "{cc} {types:?} {layout}");
            }
            let on_hopper = on(&problem, 90);
            let first = on_hopper.iter().position(|kernel| kernel.facts.family == "sm80");
            let first = first.expect("sm80 serves the problem");
            assert!(first > 0 && on_hopper[first..].iter().all(|at| at.facts.family == "sm80"));
        }
    }
}

#[test]
fn float8_weights_need_the_conversion_instruction() {
    let problem = problem([Bf16, E4m3], [512, 768, 1024], TNT, false);
    let first = |cc| on(&problem, cc)[0].facts.family;
    assert_eq!([80, 86, 89, 120].map(first), ["simt", "simt", "sm80", "sm80"]);
}

#[test]
fn few_rows_of_mixed_products_belong_to_skinny() {
    for cc in [80, 89, 120] {
        let first = |m| on(&problem([Bf16, I8], [m, 4096, 4096], TNT, false), cc)[0].facts.family;
        assert_eq!([1, 8, 16].map(first), ["skinny"; 3], "{cc}");
        assert_eq!([17, 64, 4096].map(first), ["sm80"; 3], "{cc}");
    }
}

#[test]
fn pipelines_of_few_rows_are_deep() {
    for (cc, m, tile) in [(89, 64, [32, 64, 64]), (80, 32, [32, 64, 64]), (120, 32, [16, 64, 64])] {
        let first = config(on(&problem([Bf16, I8], [m, 4096, 4096], TNT, false), cc)[0]);
        let first = first.expect("sm80");
        assert_eq!((first.tile, first.stages), (tile, 6), "{cc}");
    }
}

#[test]
fn groups_of_weights_along_k_are_refused() {
    let depth = |depth| BlockScale { scale: 0, zero: None, extent: 1, depth, is_swizzled: false };
    for kernel in all().iter().filter(|kernel| [kernel.types.a, kernel.types.b] == [Bf16, I8]) {
        if config(kernel).is_none() {
            continue;
        }
        for depth in [64, 128, BlockScale::WHOLE].map(depth) {
            let scaling = Scaling { a: None, b: Some(depth), is_of_operands: true };
            assert!(!kernel.design.family().takes_scaling(kernel.types, &scaling), "{kernel}");
        }
    }
}
