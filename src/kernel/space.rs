//! Every kernel there is, and those that serve a problem, best guess first.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use super::{Design, Elementwise, Kernel, Operation, Simt, Skinny, Sm80, Sm90, Target, Types};
use crate::epilogue::Epilogue;
use crate::operand::DType;
use crate::problem::Problem;

struct Space {
    kernels: Vec<Kernel>,
    /// Positions in `kernels` by operation and types.
    index: HashMap<(Operation, DType, DType, DType), Vec<usize>>,
}

fn space() -> &'static Space {
    static SPACE: OnceLock<Space> = OnceLock::new();
    SPACE.get_or_init(|| {
        let mut kernels = Vec::new();
        for types in Types::gemm() {
            kernels.extend(Sm90::configs(types).into_iter().map(|config| Kernel {
                types,
                design: Design::Sm90(config),
                epilogue: None,
            }));
        }
        for types in Types::gemm() {
            kernels.extend(Sm80::configs(types).into_iter().map(|config| Kernel {
                types,
                design: Design::Sm80(config),
                epilogue: None,
            }));
        }
        for types in Types::gemm() {
            kernels.extend(Skinny::configs(types).into_iter().map(|config| Kernel {
                types,
                design: Design::Skinny(config),
                epilogue: None,
            }));
        }
        for types in Types::gemm() {
            kernels.extend(Simt::configs(types).map(|config| Kernel {
                types,
                design: Design::Simt(config),
                epilogue: None,
            }));
        }
        kernels.extend(Types::elementwise().into_iter().map(|types| Kernel {
            types,
            design: Design::Elementwise(Elementwise),
            epilogue: None,
        }));
        for operation in [Operation::Gemm, Operation::GroupedGemm, Operation::Elementwise] {
            let all = if operation == Operation::Elementwise { Types::elementwise() } else { Types::gemm() };
            kernels.extend(all.into_iter().map(|types| Kernel {
                types,
                design: Design::Reference(operation),
                epilogue: None,
            }));
        }
        let mut index: HashMap<_, Vec<usize>> = HashMap::new();
        for (position, kernel) in kernels.iter().enumerate() {
            let Types { a, b, out, .. } = kernel.types;
            index.entry((kernel.operation(), a, b, out)).or_default().push(position);
        }
        Space { kernels, index }
    })
}

/// Every kernel of every family. The order is the one to try them in where no problem is known: tensor cores first,
/// wide loads and large tiles before others.
pub fn all() -> &'static [Kernel] {
    &space().kernels
}

/// The kernels with epilogues that have been asked for, each kept for the life of the process.
#[derive(Default)]
struct Fused {
    /// Their positions follow those of [`all`].
    kernels: Vec<&'static Kernel>,
    positions: HashMap<(usize, &'static Epilogue), usize>,
}

static FUSED: Mutex<Option<Fused>> = Mutex::new(None);

/// The position of the kernel at a position of [`all`] with an epilogue behind it.
pub fn fused(position: usize, epilogue: &'static Epilogue) -> usize {
    let mut fused = FUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Fused { kernels, positions } = fused.get_or_insert_default();
    *positions.entry((position, epilogue)).or_insert_with(|| {
        kernels.push(Box::leak(Box::new(Kernel { epilogue: Some(epilogue), ..all()[position] })));
        all().len() + kernels.len() - 1
    })
}

/// The kernel at a position: one of [`all`], or one that [`fused`] has made.
pub fn at(position: usize) -> &'static Kernel {
    let plain = all();
    plain.get(position).unwrap_or_else(|| {
        let fused = FUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // A position comes from nowhere but `fused`.
        fused.as_ref().map_or(&plain[0], |fused| fused.kernels[position - plain.len()])
    })
}

/// Positions in [`all`] of the kernels that serve a problem on a target (`None`: on the CPU), fastest guess first. `fused`: an
/// epilogue is to be computed behind the sums.
pub fn ranked(problem: &Problem, target: Option<Target>, fused: bool) -> Vec<usize> {
    let space = space();
    let types = |operands: [&crate::operand::View; 3]| (operands[0].dtype, operands[1].dtype, operands[2].dtype);
    let (operation, (a, b, out)) = match problem {
        Problem::Gemm(p) => (Operation::Gemm, types([&p.a, &p.b, &p.out])),
        Problem::GroupedGemm(p) => (Operation::GroupedGemm, types([&p.a, &p.b, &p.out])),
        Problem::Elementwise(p) => (Operation::Elementwise, types([&p.a, &p.b, &p.out])),
    };
    let Some(candidates) = space.index.get(&(operation, a, b, out)) else {
        return Vec::new();
    };
    let mut found: Vec<(f64, usize)> = candidates
        .iter()
        .map(|position| (*position, &space.kernels[*position]))
        .filter(|(_, kernel)| !fused || kernel.takes_epilogues())
        .filter(|(_, kernel)| target.is_none_or(|t| kernel.runs_on(t.cc)) && kernel.supports(problem).is_ok())
        .map(|(position, kernel)| (target.map_or(0.0, |t| t.seconds(kernel, problem, fused)), position))
        .collect();
    // Ties keep the order of the space, so that the ranking is the same on every run.
    found.sort_by(|left, right| left.0.total_cmp(&right.0));
    found.into_iter().map(|(_, position)| position).collect()
}
