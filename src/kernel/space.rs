//! Every kernel there is, and those that serve a problem, best guess first.

use std::sync::{LazyLock, Mutex};

use rustc_hash::FxHashMap;

use super::cost::{CostQuery, ctas_per_sm};
use super::{
    Demand, Design, Elementwise, Kernel, Operation, Simt, Skinny, Sm80, Sm90, Target, Types,
    check_limits,
};
use crate::epilogue::Epilogue;
use crate::operand::Device;
use crate::problem::Problem;

/// Groups of kernels by whether they run on a GPU, what they compute, and on what types.
type Index = FxHashMap<(bool, Operation, Types), Vec<Group>>;

/// Kernels that demand the same of how their operands lie in memory: of the many that there are for some types, a problem's operands
/// decide about a group at a time.
struct Group {
    demands: [Demand; 3],
    members: Vec<Member>,
}

struct Member {
    /// In [`all`].
    position: usize,
    ctas_per_sm: u32,
}

/// Every kernel of every family. The order is the one to try them in where no problem is known: tensor cores first,
/// wide loads and large tiles before others.
pub fn all() -> &'static [Kernel] {
    static KERNELS: LazyLock<Vec<Kernel>> = LazyLock::new(|| {
        // Room for all, some 13 200: where it grows, memory is touched twice.
        let mut kernels = Vec::with_capacity(14_000);
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
            let all = if operation == Operation::Elementwise {
                Types::elementwise()
            } else {
                Types::gemm()
            };
            kernels.extend(all.into_iter().map(|types| Kernel {
                types,
                design: Design::Reference(operation),
                epilogue: None,
            }));
        }
        kernels
    });
    &KERNELS
}

/// Not made before a problem is to be ranked for: a list of all kernels does without.
fn index() -> &'static Index {
    static INDEX: LazyLock<Index> = LazyLock::new(|| {
        let mut index = Index::default();
        for (position, kernel) in all().iter().enumerate() {
            let groups =
                index.entry((kernel.runs_on_gpu(), kernel.operation(), kernel.types)).or_default();
            let (demands, member) =
                (kernel.demands(), Member { position, ctas_per_sm: ctas_per_sm(kernel) });
            // Most often the last.
            match groups.iter_mut().rev().find(|group| group.demands == demands) {
                Some(group) => group.members.push(member),
                None => groups.push(Group { demands, members: vec![member] }),
            }
        }
        index
    });
    &INDEX
}

/// The kernels with epilogues that have been asked for, each kept for the life of the process.
#[derive(Default)]
struct Fused {
    /// Their positions follow those of [`all`].
    kernels: Vec<&'static Kernel>,
    /// By position and address: of epilogues that are equal, `intern` keeps one.
    positions: FxHashMap<(usize, usize), usize>,
}

static FUSED: Mutex<Option<Fused>> = Mutex::new(None);

/// The position of the kernel at a position of [`all`] with an interned epilogue behind it.
pub fn fused(position: usize, epilogue: &'static Epilogue) -> usize {
    let mut fused = FUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Fused { kernels, positions } = fused.get_or_insert_default();
    let address = std::ptr::from_ref(epilogue).addr();
    *positions.entry((position, address)).or_insert_with(|| {
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
    let kernels = all();
    let views = problem.views();
    let types = Types {
        a: views[0].dtype,
        b: views[1].dtype,
        accumulator: problem.accumulator(),
        out: views[2].dtype,
    };
    let asked = (problem.device() != Device::Cpu, Operation::of(problem), types);
    let Some(groups) = index().get(&asked).filter(|_| check_limits(problem).is_ok()) else {
        return Vec::new();
    };
    let product = problem.product();
    let mut found: Vec<u64> = Vec::new();
    for group in groups
        .iter()
        .filter(|group| group.demands.iter().zip(&views).all(|(demand, view)| demand.is_met(view)))
    {
        let first = &kernels[group.members[0].position];
        let copied_bytes = product.as_deref().map_or(Ok(0), |problem| first.copies(problem));
        let Ok(copied_bytes) = copied_bytes else { continue };
        let asked = target.zip(product.as_deref()).map(|(target, problem)| CostQuery {
            problem,
            target,
            fused,
            copied_bytes,
        });
        for Member { position, ctas_per_sm } in &group.members {
            let kernel = &kernels[*position];
            let runs = target.is_none_or(|target| kernel.runs_on(target.cc))
                && (!fused || kernel.takes_epilogues());
            if runs && kernel.check_extents(problem).is_ok() {
                // What no model knows is in the order of the space.
                let seconds = asked.map_or(0.0, |asked| asked.seconds(kernel, *ctas_per_sm));
                debug_assert!(seconds >= 0.0, "{}: {seconds}", kernel.name());
                found.push(keyed(seconds, *position));
            }
        }
    }
    found.sort_unstable();
    found.into_iter().map(|key| key as u32 as usize).collect()
}

/// Seconds, then the position: ties keep the order of the space, so that the ranking is the same on every run. As one integer, which sorts
/// fastest: floats that are not negative are in the order of their bits.
fn keyed(seconds: f64, position: usize) -> u64 {
    u64::from((seconds as f32).to_bits()) << 32 | position as u64
}
