//! Joint GEMMs: several matrices B, whose products lie side by side.

use super::*;
use crate::epilogue::Joint;

/// A product by matrices of so many columns, and what kernels depend on.
fn joint(m: i64, columns: &[i64], align: u32) -> (Problem, Joint) {
    let total = columns.iter().sum();
    let mut problem = product(Bf16, m, total, 4096, TNT);
    problem.b.shape[2] = columns[0];
    problem.further_columns = total - columns[0];
    problem.check().expect("the columns add up");
    let unit = columns[..columns.len() - 1].iter().fold(0, |a, b| divisor(a, *b)) as u32;
    let matrices = columns.len() as u32;
    (Problem::Gemm(problem), Joint { matrices, unit, align, is_plain: true })
}

fn divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

fn columns_of_tile(kernel: &Kernel) -> u32 {
    let tile = match kernel.design {
        Design::Sm90(config) => config.program_tile(kernel.types),
        Design::Skinny(config) => config.tile(),
        _ => panic!("{kernel} serves no joint GEMM"),
    };
    kernel.frame.extents(tile)[1]
}

#[test]
fn tiles_lie_in_one_matrix_and_cost_as_those_of_all_columns() {
    for m in [1, 8, 64, 512] {
        for columns in [&[4096, 1024, 1024][..], &[192, 384], &[64, 96, 32, 5]] {
            let (problem, of) = joint(m, columns, 16);
            let found = ranked(&problem, H100, Fusion::Joint(of));
            assert!(found.len() > 5, "{m} rows of {columns:?}: {} kernels", found.len());
            let one = gemm(Bf16, m, columns.iter().sum(), 4096, TNT);
            for kernel in found.into_iter().map(|position| &all()[position]) {
                assert_eq!(of.unit % columns_of_tile(kernel), 0, "{kernel}");
                let estimate = kernel.estimate_fused(&problem, Target::H100, Fusion::Joint(of));
                assert_eq!(estimate, kernel.estimate(&one, Target::H100), "{kernel}");
            }
        }
    }
}

#[test]
fn kernels_refuse_other_columns_and_alignments() {
    let serving = |columns: &[i64], align| {
        let (problem, of) = joint(8, columns, align);
        ranked(&problem, H100, Fusion::Joint(of)).len()
    };
    assert_eq!(serving(&[40, 40], 16), 0);
    assert!(serving(&[64, 64], 4) > 0 && serving(&[64, 64], 4) < serving(&[64, 64], 16));
    let (problem, of) = joint(8, &[64, 64], 16);
    for kernel in all() {
        if !matches!(kernel.design, Design::Sm90(_) | Design::Skinny(_) | Design::Reference(_)) {
            let refusal = kernel.check_fusion(&problem, Fusion::Joint(of));
            assert_eq!(refusal, Err(Unsupported::NoPanels), "{kernel}");
        }
    }
}
