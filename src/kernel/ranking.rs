//! The kernels that serve a problem, by estimated time.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use super::cost::chips::Target;
use super::cost::query::CostQuery;
use super::demand::Demand;
use super::frame::Frame;
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

/// Kernels of equal demands and one frame: one check of a problem's operands applies to all of
/// them.
struct Group {
    demands: [Demand; 3],
    frame: Frame,
    members: Vec<Member>,
}

struct Member {
    /// A copy, so that a group's kernels lie side by side in memory: loads from [`all`] would miss
    /// the caches.
    kernel: Kernel,
    /// Index into [`all`].
    position: usize,
}

/// The index of all kernels. Built when the first problem is ranked.
fn index() -> &'static Index {
    static INDEX: LazyLock<Index> = LazyLock::new(|| {
        let mut index = Index::default();
        for (position, kernel) in all().iter().enumerate() {
            let key = (kernel.runs_on_gpu(), kernel.facts.operation, kernel.types);
            let groups = index.entry(key).or_default();
            let (demands, frame) = (kernel.demands(), kernel.frame);
            let member = Member { kernel: *kernel, position };
            // The last group is the most likely match.
            let is_match = |group: &&mut Group| (group.demands, group.frame) == (demands, frame);
            match groups.iter_mut().rev().find(is_match) {
                Some(group) => group.members.push(member),
                None => groups.push(Group { demands, frame, members: vec![member] }),
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
    // Each frame is made once.
    let in_frames = [Frame::User, Frame::Transposed].map(|frame| {
        (frame.problem(problem), product.as_deref().map(|product| frame.gemm(product)))
    });
    let queries = [0, 1].map(|frame| {
        let takes_time = fusion.takes_time(types);
        let product = target.zip(in_frames[frame].1.as_deref());
        product.map(|(target, product)| CostQuery::new(product, target, takes_time, 0))
    });
    let mut found: Vec<u64> = Vec::new();
    for group in groups
        .iter()
        .filter(|group| group.demands.iter().zip(&views).all(|(demand, view)| demand.is_met(view)))
    {
        let first = &group.members[0].kernel;
        let frame = usize::from(group.frame.is_transposed());
        let (of_program, product) = &in_frames[frame];
        let packed_bytes = product.as_deref().map_or(Ok(0), |product| first.packed_bytes(product));
        let Ok(packed_bytes) = packed_bytes else { continue };
        let query = queries[frame].map(|query| CostQuery { packed_bytes, ..query });
        let request = Request { problem, of_program, query: query.as_ref() };
        if fusion.has_own_program() {
            let key = |member: &Member| request.own_key(member.position, fusion);
            found.extend(group.members.iter().filter_map(key));
            continue;
        }
        for Member { kernel, position } in &group.members {
            let runs = target.is_none_or(|target| kernel.runs_on(target.cc))
                && (fusion == Fusion::Nothing || kernel.check_fusion(problem, fusion).is_ok())
                && kernel.check_precision(problem).is_ok();
            if runs && request.is_served(kernel) {
                found.push(request.key(kernel, *position));
            }
        }
    }
    found.sort_unstable();
    found.into_iter().map(|key| key as u32 as usize).collect()
}

/// A problem as the user passes it and in a program's frame, and the query of the cost model.
struct Request<'a> {
    problem: &'a Problem,
    of_program: &'a Problem,
    /// Kernels on the CPU have no model and keep the order of [`all`].
    query: Option<&'a CostQuery<'a>>,
}

impl Request<'_> {
    fn is_served(&self, kernel: &Kernel) -> bool {
        kernel.check_range(self.of_program).is_ok()
            && kernel.check_extents(self.problem, self.of_program).is_ok()
    }

    /// Orders by seconds.
    fn key(&self, kernel: &Kernel, position: usize) -> u64 {
        let seconds = self.query.map_or(0.0, |query| kernel.estimate_in_frame(query).total_seconds);
        debug_assert!(seconds >= 0.0, "{}: {seconds}", kernel.name());
        sort_key(seconds, position)
    }

    /// The key of the kernel at a position for a dual or a joint GEMM; `None` if it does not serve
    /// it. A separate function, to keep the loop over kernels short.
    #[inline(never)]
    fn own_key(&self, position: usize, fusion: Fusion<'_>) -> Option<u64> {
        let kernel = &all()[position];
        let runs = self.query.is_none_or(|query| kernel.runs_on(query.target.cc));
        if !runs || kernel.check_fusion(self.problem, fusion).is_err() {
            return None;
        }
        let kernel = kernel.with(fusion);
        self.is_served(&kernel).then(|| self.key(&kernel, position))
    }
}

/// Orders by seconds, then by position, so that the ranking is deterministic. The bits of
/// non-negative floats sort as the floats do, and one integer sorts fastest.
fn sort_key(seconds: f64, position: usize) -> u64 {
    u64::from((seconds as f32).to_bits()) << 32 | position as u64
}
