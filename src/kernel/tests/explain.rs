//! Explanations of which kernels serve a problem.

use super::*;

fn answer(explanation: &Explanation, family: &str) -> FamilyAnswer {
    let found = explanation.families.iter().find(|answer| answer.family == family);
    found.expect("a family of this name").clone()
}

fn reason(explanation: &Explanation, family: &str) -> String {
    answer(explanation, family).refusal.expect("it serves nothing").to_string()
}

#[test]
fn refusals_are_those_of_the_nearest_kernels() {
    let explanation = explain(&gemm(F16, 4096, 4096, 4096, TNT), H100, false, 0, |_| None);
    assert_eq!(reason(&explanation, "skinny"), "M is 4096, and the kernel serves at most 64");
    assert_eq!(reason(&explanation, "elementwise"), "it computes elementwise_add, not gemm");
    assert_eq!(reason(&explanation, "reference"), "out is on cuda:0, the kernel runs on the CPU");

    let explanation =
        explain(&gemm(F16, 256, 256, 256, TNT), Some(Target::A100), false, 0, |_| None);
    assert_eq!(
        reason(&explanation, "sm90"),
        "the device has compute capability 8.0, the kernel runs on 9.0 only"
    );

    let explanation = explain(&gemm(DType::F64, 256, 256, 256, TNT), H100, false, 0, |_| None);
    assert_eq!(reason(&explanation, "sm90"), "A has dtype float64, the kernel works on float16");

    // float16 operands with float32 output are not packed: rows must be aligned.
    let plain = product(F16, 256, 256, 256, TNT);
    let out = View { dtype: F32, ..plain.out };
    let b = View { data: plain.b.data + 2, ..plain.b };
    let unaligned = Problem::Gemm(GemmProblem { b, out, ..plain });
    let explanation = explain(&unaligned, H100, false, 0, |_| None);
    assert!(reason(&explanation, "sm90").starts_with("B is aligned to 2 bytes"));
}

#[test]
fn faster_memory_makes_bandwidth_bound_problems_cheaper() {
    let problem = gemm(F16, 8, 16384, 16384, TNT);
    for family in ["skinny", "sm90"] {
        let position = ranked(&problem, H100, false)
            .into_iter()
            .find(|position| all()[*position].facts.family == family)
            .expect("the family serves it");
        let [h100, h200] =
            [Target::H100, Target::H200].map(|target| all()[position].estimate(&problem, target));
        assert!(h200.memory_seconds < h100.memory_seconds, "{family}");
        assert!(h200.total_seconds < h100.total_seconds, "{family}");
        assert_eq!(h200.arithmetic_seconds, h100.arithmetic_seconds, "{family}");
    }
}

#[test]
fn the_first_kernel_of_each_family_is_listed_with_its_rank() {
    let problem = gemm(F16, 64, 4096, 11008, TNT);
    let explanation = explain(&problem, H100, false, 2, |_| None);
    let ranked = ranked(&problem, H100, false);
    for candidate in &explanation.candidates {
        assert_eq!(ranked[candidate.rank - 1], candidate.position);
    }
    let families: Vec<_> =
        explanation.candidates.iter().map(|known| all()[known.position].facts.family).collect();
    assert_eq!(families[..2], ["sm90", "sm90"]);
    for family in ["sm80", "skinny", "simt"] {
        assert_eq!(families.iter().filter(|known| **known == family).count(), 1, "{family}");
    }
}
