//! Explains for each family whether and why it serves a problem, and the estimates of the first
//! kernels.

use std::fmt;

use thiserror::Error;

use super::cost::chips::Target;
use super::cost::query::Estimate;
use super::fusion::Fusion;
use super::instance::Kernel;
use super::ranking::ranked;
use super::space::all;
use super::unsupported::Unsupported;
use crate::problem::Problem;

/// The kernels that serve a problem, and the reasons why other kernels do not.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// In the order of `design.rs`.
    pub families: Vec<FamilyAnswer>,
    /// The first kernels of the ranking, and the first kernel of each other family.
    pub candidates: Vec<Candidate>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FamilyAnswer {
    pub family: &'static str,
    /// Number of kernels of the family.
    pub kernels: usize,
    /// Number of kernels that serve the problem.
    pub serving: usize,
    /// Why no kernel serves the problem: the most frequent refusal among the kernels that passed
    /// the most checks. None if a kernel serves it.
    pub refusal: Option<NotOffered>,
}

/// Why a kernel is not offered for a problem on a chip.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum NotOffered {
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    #[error(
        "the device has compute capability {}.{}, the kernel runs on {chips}",
        cc / 10,
        cc % 10
    )]
    Chip { cc: u32, chips: String },
    /// A choice of the caller, such as no rounding to tf32.
    #[error("{0}")]
    Policy(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Place in the ranking, from 1.
    pub rank: usize,
    /// Index into [`all`].
    pub position: usize,
    /// [`Estimate::UNKNOWN`] on the CPU, and if no model covers the kernel.
    pub estimate: Estimate,
}

/// Explains which kernels serve a problem on a target (`None`: on the CPU). `fusion`: what they
/// must fuse. `count`: kernels to list from the start of the ranking. `policy`: returns why the
/// kernel at a position must not serve the problem although it can.
pub fn explain<'a>(
    problem: &Problem,
    target: Option<Target>,
    fusion: impl Into<Fusion<'a>>,
    count: usize,
    mut policy: impl FnMut(usize) -> Option<String>,
) -> Explanation {
    let fusion = fusion.into();
    let mut families: Vec<(FamilyAnswer, Nearest)> = Vec::new();
    for (position, kernel) in all().iter().enumerate() {
        let name = kernel.facts.family;
        // Kernels of a family follow each other.
        if families.last().is_none_or(|(answer, _)| answer.family != name) {
            let answer = FamilyAnswer { family: name, kernels: 0, serving: 0, refusal: None };
            families.push((answer, Nearest::none()));
        }
        let Some((answer, nearest)) = families.last_mut() else { continue };
        answer.kernels += 1;
        let refusal = refusal(kernel, problem, target, fusion);
        match refusal.or_else(|| policy(position).map(NotOffered::Policy)) {
            None => answer.serving += 1,
            Some(refusal) => nearest.add(refusal),
        }
    }
    let answer = |(answer, nearest): (FamilyAnswer, Nearest)| match answer.serving {
        0 => FamilyAnswer { refusal: nearest.most_frequent(), ..answer },
        _ => answer,
    };
    let mut candidates: Vec<Candidate> = Vec::new();
    let allowed =
        ranked(problem, target, fusion).into_iter().filter(|position| policy(*position).is_none());
    for (before, position) in allowed.enumerate() {
        let kernel = &all()[position];
        let listed = |known: &Candidate| all()[known.position].facts.family == kernel.facts.family;
        if before < count || !candidates.iter().any(listed) {
            let estimate = target
                .map_or(Estimate::UNKNOWN, |target| kernel.estimate_fused(problem, target, fusion));
            candidates.push(Candidate { rank: before + 1, position, estimate });
        }
    }
    Explanation { families: families.into_iter().map(answer).collect(), candidates }
}

/// A line per family, then a table of the candidates: terms of the estimate in microseconds, and
/// names.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for FamilyAnswer { family, kernels, serving, refusal } in &self.families {
            match refusal {
                None => writeln!(f, "{family:12} {serving} of {kernels} kernels serve it")?,
                Some(reason) => writeln!(f, "{family:12} none of {kernels} kernels: {reason}")?,
            }
        }
        if self.candidates.iter().any(|candidate| candidate.estimate.is_known()) {
            write!(
                f,
                "\nrank   total arithmetic  memory   cache  launch  waves  kernel (us, estimated)"
            )?;
        }
        for Candidate { rank, position, estimate } in &self.candidates {
            let name = all()[*position].name();
            if !estimate.is_known() {
                write!(f, "\n{rank:4}  {name}")?;
                continue;
            }
            let [total, arithmetic, memory, cache, launch] = [
                estimate.total_seconds,
                estimate.arithmetic_seconds,
                estimate.memory_seconds,
                estimate.cache_seconds,
                estimate.launch_seconds,
            ]
            .map(|seconds| 1e6 * seconds);
            let waves = estimate.waves;
            write!(
                f,
                "\n{rank:4} {total:7.2} {arithmetic:10.2} {memory:7.2} {cache:7.2} \
                 {launch:7.2} {waves:6.1}  {name}"
            )?;
        }
        Ok(())
    }
}

fn refusal(
    kernel: &Kernel,
    problem: &Problem,
    target: Option<Target>,
    fusion: Fusion<'_>,
) -> Option<NotOffered> {
    if let Err(reason) = kernel.with(fusion).supports(problem) {
        return Some(reason.into());
    }
    if let Some(Target { cc, .. }) = target.filter(|target| !kernel.runs_on(target.cc)) {
        return Some(NotOffered::Chip { cc, chips: kernel.chips() });
    }
    kernel.check_fusion(problem, fusion).err().map(NotOffered::from)
}

/// The refusals of the kernels that passed the most checks, with their frequencies.
struct Nearest {
    passed: (u32, i64),
    refusals: Vec<(NotOffered, usize)>,
}

impl Nearest {
    fn none() -> Nearest {
        Nearest { passed: (0, i64::MIN), refusals: Vec::new() }
    }

    fn add(&mut self, refusal: NotOffered) {
        let passed = passed_checks(&refusal);
        if passed > self.passed {
            *self = Nearest { passed, refusals: Vec::new() };
        }
        if passed == self.passed {
            match self.refusals.iter_mut().find(|(known, _)| *known == refusal) {
                Some((_, count)) => *count += 1,
                None => self.refusals.push((refusal, 1)),
            }
        }
    }

    /// The first of equally frequent refusals.
    fn most_frequent(self) -> Option<NotOffered> {
        let most = self.refusals.iter().map(|(_, count)| *count).max()?;
        self.refusals.into_iter().find(|(_, count)| *count == most).map(|(refusal, _)| refusal)
    }
}

/// The position of the failed check in the order of [`Kernel::supports`], and how close the kernel
/// came to passing it.
fn passed_checks(refusal: &NotOffered) -> (u32, i64) {
    let operand = |name: &str| match name {
        "A" => 0u32,
        "B" => 2,
        _ => 4,
    };
    let passed = match refusal {
        NotOffered::Unsupported(reason) => match reason {
            Unsupported::Operation { .. } => 0,
            Unsupported::DType { name: "accumulator_type", .. } => 40,
            Unsupported::DType { name, .. } => 1 + operand(name),
            Unsupported::Device { .. } => 10,
            Unsupported::Rank { .. } | Unsupported::Offsets { .. } | Unsupported::Extent { .. } => {
                20
            }
            Unsupported::TooMany { .. }
            | Unsupported::Shallow { .. }
            | Unsupported::Uneven { .. }
            | Unsupported::UnevenDual { .. } => 21,
            Unsupported::Layout { name, .. } => 30 + operand(name),
            Unsupported::LongStride { name, .. } | Unsupported::Alignment { name, .. } => {
                31 + operand(name)
            }
            Unsupported::FusesNone { .. }
            | Unsupported::Epilogue { .. }
            | Unsupported::MatricesFarApart { .. } => 50,
            Unsupported::NoEpilogues | Unsupported::NoProducts | Unsupported::FastSums => 61,
            Unsupported::NoScales | Unsupported::NoPanels | Unsupported::NoIndex => 62,
            Unsupported::UnevenPanels { .. } | Unsupported::UnalignedPanels { .. } => 63,
        },
        NotOffered::Chip { .. } => 60,
        NotOffered::Policy(_) => 64,
    };
    let closeness = match refusal {
        NotOffered::Unsupported(Unsupported::TooMany { limit, .. }) => *limit,
        NotOffered::Unsupported(Unsupported::Shallow { least, .. }) => -least,
        NotOffered::Unsupported(Unsupported::UnevenPanels { tile, .. }) => -i64::from(*tile),
        NotOffered::Unsupported(Unsupported::Alignment { expected, .. }) => -expected,
        _ => 0,
    };
    (passed, closeness)
}
