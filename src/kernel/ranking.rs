//! The kernels that serve a problem, by estimated time.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use super::cost::chips::Target;
use super::cost::query::CostQuery;
use super::demand::Demand;
use super::fusion::Fusion;
use super::instance::Kernel;
use super::limits::check_limits;
use super::operation::Operation;
use super::space::all;
use super::types::Types;
use crate::operand::DeviceId;
use crate::problem::Problem;

/// Groups of kernels by whether they run on a GPU, their operation and their types.
type Index = FxHashMap<(bool, Operation, Types), Vec<Group>>;

/// Kernels of equal demands: one check of a problem's operands applies to all of them.
struct Group {
    demands: [Demand; 3],
    members: Vec<Member>,
}

struct Member {
    /// A copy, so that a group's kernels lie side by side in memory: loads from [`all`] would miss
    /// the caches.
    kernel: Kernel,
    /// Index into [`all`].
    position: usize,
    ctas_per_sm: u32,
}

/// The index of all kernels. Built when the first problem is ranked.
fn index() -> &'static Index {
    static INDEX: LazyLock<Index> = LazyLock::new(|| {
        let mut index = Index::default();
        for (position, kernel) in all().iter().enumerate() {
            let groups =
                index.entry((kernel.runs_on_gpu(), kernel.operation(), kernel.types)).or_default();
            let demands = kernel.demands();
            let ctas_per_sm = kernel.ctas_per_sm();
            let member = Member { kernel: *kernel, position, ctas_per_sm };
            // The last group is the most likely match.
            match groups.iter_mut().rev().find(|group| group.demands == demands) {
                Some(group) => group.members.push(member),
                None => groups.push(Group { demands, members: vec![member] }),
            }
        }
        index
    });
    &INDEX
}

/// Positions in [`all`] of the kernels that serve a problem on a target (`None`: on the CPU), by
/// estimated time. `fusion`: what they must fuse.
pub fn ranked<'a>(
    problem: &Problem,
    target: Option<Target>,
    fusion: impl Into<Fusion<'a>>,
) -> Vec<usize> {
    let fusion = fusion.into();
    let views = problem.views();
    let types = Types {
        a: views[0].dtype,
        b: views[1].dtype,
        accumulator: problem.accumulator(),
        out: views[2].dtype,
    };
    let key = (problem.device() != DeviceId::Cpu, Operation::of(problem), types);
    let Some(groups) = index().get(&key).filter(|_| check_limits(problem).is_ok()) else {
        return Vec::new();
    };
    let joined = problem.joined();
    let problem = joined.as_ref().unwrap_or(problem);
    let product = problem.mean_product();
    let query = target
        .zip(product.as_deref())
        .map(|(target, product)| CostQuery::new(product, target, fusion.takes_time(types), 0));
    let mut found: Vec<u64> = Vec::new();
    for group in groups
        .iter()
        .filter(|group| group.demands.iter().zip(&views).all(|(demand, view)| demand.is_met(view)))
    {
        let first = &group.members[0].kernel;
        let packed_bytes = product.as_deref().map_or(Ok(0), |product| first.packed_bytes(product));
        let Ok(packed_bytes) = packed_bytes else { continue };
        let query = query.map(|query| CostQuery { packed_bytes, ..query });
        if fusion.has_own_program() {
            let key = |member: &Member| own_key(member.position, problem, fusion, query.as_ref());
            found.extend(group.members.iter().filter_map(key));
            continue;
        }
        for Member { kernel, position, ctas_per_sm } in &group.members {
            let runs = target.is_none_or(|target| kernel.runs_on(target.cc))
                && (fusion == Fusion::Nothing || kernel.check_fusion(problem, fusion).is_ok())
                && kernel.check_precision(problem).is_ok();
            if runs && kernel.check_range_and_extents(problem).is_ok() {
                // Kernels on the CPU have no model and keep the order of [`all`].
                let seconds = query.map_or(0.0, |query| {
                    let family = kernel.design.family();
                    family.estimate(kernel.types, *ctas_per_sm, &query).total_seconds
                });
                debug_assert!(seconds >= 0.0, "{}: {seconds}", kernel.name());
                found.push(sort_key(seconds, *position));
            }
        }
    }
    found.sort_unstable();
    found.into_iter().map(|key| key as u32 as usize).collect()
}

/// The key of the kernel at a position for a dual or a joint GEMM; `None` if it does not serve it.
/// A separate function, to keep the loop over kernels short.
#[inline(never)]
fn own_key(
    position: usize,
    problem: &Problem,
    fusion: Fusion<'_>,
    query: Option<&CostQuery>,
) -> Option<u64> {
    let kernel = &all()[position];
    let runs = query.is_none_or(|query| kernel.runs_on(query.target.cc));
    if !runs || kernel.check_fusion(problem, fusion).is_err() {
        return None;
    }
    let kernel = kernel.with(fusion);
    kernel.check_range_and_extents(problem).ok()?;
    let seconds = query.map_or(0.0, |query| {
        let family = kernel.design.family();
        family.estimate(kernel.types, kernel.ctas_per_sm(), query).total_seconds
    });
    Some(sort_key(seconds, position))
}

/// Orders by seconds, then by position, so that the ranking is deterministic. The bits of
/// non-negative floats sort as the floats do, and one integer sorts fastest.
fn sort_key(seconds: f64, position: usize) -> u64 {
    u64::from((seconds as f32).to_bits()) << 32 | position as u64
}
