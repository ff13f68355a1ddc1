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
fn every_family_answers_once_and_counts_its_kernels() {
    let problem = gemm(F16, 4096, 4096, 4096, TNT);
    let explanation = explain(&problem, H100, false, 5, |_| None);
    let names: Vec<_> = explanation.families.iter().map(|answer| answer.family).collect();
    assert_eq!(names, ["sm90", "sm80", "skinny", "simt", "elementwise", "reference"]);
    let counted: usize = explanation.families.iter().map(|answer| answer.kernels).sum();
    assert_eq!(counted, all().len());
    let serving: usize = explanation.families.iter().map(|answer| answer.serving).sum();
    assert_eq!(serving, ranked(&problem, H100, false).len());
    assert!(
        explanation.families.iter().all(|answer| (answer.serving == 0) == answer.refusal.is_some())
    );
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
fn candidates_are_ranked_and_have_the_terms_of_the_model() {
    let problem = gemm(F16, 4096, 4096, 4096, TNT);
    let explanation = explain(&problem, H100, false, 3, |_| None);
    let first: Vec<_> = explanation.candidates.iter().take(3).collect();
    for (candidate, position) in first.into_iter().zip(ranked(&problem, H100, false)) {
        assert_eq!(candidate.position, position);
        let Estimate { waves, bytes, arithmetic_seconds, total_seconds, .. } = candidate.estimate;
        assert_eq!(candidate.estimate, all()[position].estimate(&problem, Target::H100));
        assert_eq!(bytes, 3.0 * 2.0 * 4096.0 * 4096.0);
        assert!(waves >= 1.0 && arithmetic_seconds > 0.0 && arithmetic_seconds < total_seconds);
    }
    let cpu = explain(&problem.on(DeviceId::Cpu), None, false, 3, |_| None);
    assert!(cpu.candidates.iter().all(|candidate| !candidate.estimate.is_known()));
    assert!(!cpu.candidates.is_empty());
}

#[test]
fn faster_memory_makes_bandwidth_bound_problems_cheaper() {
    let problem = gemm(F16, 8, 16384, 16384, TNT);
    for family in ["skinny", "sm90"] {
        let position = ranked(&problem, H100, false)
            .into_iter()
            .find(|position| all()[*position].family() == family)
            .expect("the family serves it");
        let [h100, h200] =
            [Target::H100, Target::H200].map(|target| all()[position].estimate(&problem, target));
        assert!(h200.memory_seconds < h100.memory_seconds, "{family}");
        assert!(h200.total_seconds < h100.total_seconds, "{family}");
        assert_eq!(h200.arithmetic_seconds, h100.arithmetic_seconds, "{family}");
    }
}

#[test]
fn policy_takes_kernels_out_and_states_its_reason() {
    let problem = gemm(F32, 256, 256, 256, TNT);
    let no_tensor_cores = |position: usize| {
        let tensor_cores = ["sm90", "sm80"].contains(&all()[position].family());
        tensor_cores.then(|| "it rounds to tf32".to_owned())
    };
    let explanation = explain(&problem, H100, false, 3, no_tensor_cores);
    assert_eq!(reason(&explanation, "sm90"), "it rounds to tf32");
    assert!(answer(&explanation, "simt").serving > 0);
    assert!(
        explanation
            .candidates
            .iter()
            .all(|candidate| no_tensor_cores(candidate.position).is_none())
    );
    let text = explanation.to_string();
    assert!(text.contains("sm80         none of") && text.contains("kernels: it rounds to tf32"));
    assert_eq!(text.lines().count(), 6 + 1 + 1 + 3, "{text}");
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
        explanation.candidates.iter().map(|known| all()[known.position].family()).collect();
    assert_eq!(families[..2], ["sm90", "sm90"]);
    for family in ["sm80", "skinny", "simt"] {
        assert_eq!(families.iter().filter(|known| **known == family).count(), 1, "{family}");
    }
}
