//! Promotion: a short launch that repeats on one stream becomes a CUDA graph of one kernel node,
//! whose launch costs the host less than a kernel launch. All of the policy is in this file;
//! `driver::Graph` makes and launches graphs. docs/design/launching.md has the measurements behind
//! the constants.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

use super::LaunchPlan;
use crate::driver::{Device, DriverError, Graph, KernelCall};

/// Launches after which a launch is promoted. If repetition stops right after promotion, the cost
/// is one graph instantiation.
const LAUNCHES_BEFORE_PROMOTION: u32 = 20;
/// Launches until the next attempt after a promotion failed.
const LAUNCHES_BEFORE_RETRY: u32 = 1000;
/// Longest estimated duration in seconds of a kernel that is promoted. A graph starts after the
/// work before it on the stream has ended, and ends before the work behind it starts. Kernels this
/// short take the GPU less time than they take the host to launch, so no work is waiting; longer
/// kernels would lose the overlap.
const LONGEST_SECONDS: f64 = 2e-6;
/// Most promoted launches in a process. A graph takes about 115 kB of device memory (CUDA 13.0).
const MOST_GRAPHS: usize = 256;
/// `0` in this environment variable switches promotion off.
const SWITCH: &str = "CUTLASS_API_LAUNCH_GRAPHS";

static IS_ENABLED: AtomicBool = AtomicBool::new(true);
static GRAPHS: AtomicUsize = AtomicUsize::new(0);

/// Whether launches are promoted, and promoted launches run as graphs.
pub fn is_enabled() -> bool {
    IS_ENABLED.load(Ordering::Relaxed)
}

/// Switches promotion on or off. While it is off, promoted launches run as kernels; their graphs
/// are kept.
pub fn set_enabled(on: bool) {
    IS_ENABLED.store(on, Ordering::Relaxed);
}

/// Reads the switch from the environment, once a process.
pub fn read_environment() {
    static READ: Once = Once::new();
    READ.call_once(|| set_enabled(std::env::var_os(SWITCH).is_none_or(|value| value != "0")));
}

/// Promoted launches in this process.
pub fn count() -> usize {
    GRAPHS.load(Ordering::Relaxed)
}

/// How far a launch is from promotion, and the graph that it is promoted to.
pub struct Promotion {
    graph: OnceLock<PromotedGraph>,
    /// Whether the launch's parameters differ from the graph's. Written by the thread that owns the
    /// launch.
    has_new_parameters: AtomicBool,
    is_eligible: bool,
    /// Launches until the next attempt; 0 if none is due: the launch was promoted, or is not
    /// eligible.
    launches_left: AtomicU32,
}

impl Promotion {
    pub fn of(plan: &LaunchPlan) -> Promotion {
        Promotion::new(plan.is_one_call() && plan.estimated_seconds() <= LONGEST_SECONDS)
    }

    fn new(is_eligible: bool) -> Promotion {
        Promotion {
            graph: OnceLock::new(),
            has_new_parameters: AtomicBool::new(false),
            is_eligible,
            launches_left: AtomicU32::new(if is_eligible { LAUNCHES_BEFORE_PROMOTION } else { 0 }),
        }
    }

    /// Enqueues a launch, as the graph that it was promoted to if the graph can run on this stream,
    /// else as a kernel. Promotes the launch if that is due.
    ///
    /// # Safety
    /// As for [`KernelCall::launch`]. `call` is the same at each call, except for the values of its
    /// parameters.
    #[inline(always)] // into `Kernel.run`
    pub unsafe fn enqueue(
        &self,
        device: &Device,
        stream: u64,
        call: &KernelCall<'_>,
    ) -> Result<(), DriverError> {
        let is_enabled = is_enabled();
        if is_enabled && let Some(PromotedGraph(graph)) = self.graph.get() {
            let changed = self.has_new_parameters.load(Ordering::Relaxed);
            // SAFETY: the caller's.
            if unsafe { graph.launch(device, stream, changed.then_some(call)) } {
                self.has_new_parameters.store(false, Ordering::Relaxed);
                return Ok(());
            }
        }
        // SAFETY: the caller's.
        unsafe { call.launch(device, stream)? };
        if is_enabled && self.is_due() {
            self.promote(device, stream, call);
        }
        Ok(())
    }

    /// Notes that the next launch has other parameters than the last one.
    pub fn note_new_parameters(&self) {
        self.has_new_parameters.store(true, Ordering::Relaxed);
    }

    /// Counts a launch. Returns whether promotion is due. Two threads may count as one.
    fn is_due(&self) -> bool {
        let left = self.launches_left.load(Ordering::Relaxed);
        if left > 0 {
            self.launches_left.store(left - 1, Ordering::Relaxed);
        }
        left == 1
    }

    #[cold]
    fn promote(&self, device: &Device, stream: u64, call: &KernelCall<'_>) {
        match PromotedGraph::new(device, stream, call) {
            Some(graph) => {
                // If another thread was first, its graph stays, with the parameters of that
                // thread's launch.
                if self.graph.set(graph).is_ok() {
                    self.has_new_parameters.store(false, Ordering::Relaxed);
                }
            }
            None => self.launches_left.store(LAUNCHES_BEFORE_RETRY, Ordering::Relaxed),
        }
    }
}

impl Clone for Promotion {
    /// The promotion of a copy of the launch, which starts anew: a graph has one owner.
    fn clone(&self) -> Promotion {
        Promotion::new(self.is_eligible)
    }
}

/// A graph that is counted.
struct PromotedGraph(Graph);

impl PromotedGraph {
    /// None if there are too many graphs, or the driver makes none for this device and stream.
    fn new(device: &Device, stream: u64, call: &KernelCall<'_>) -> Option<PromotedGraph> {
        let graph = (GRAPHS.fetch_add(1, Ordering::Relaxed) < MOST_GRAPHS)
            .then(|| Graph::new(device, stream, call))
            .flatten()
            .map(PromotedGraph);
        if graph.is_none() {
            GRAPHS.fetch_sub(1, Ordering::Relaxed);
        }
        graph
    }
}

impl Drop for PromotedGraph {
    fn drop(&mut self) {
        GRAPHS.fetch_sub(1, Ordering::Relaxed);
    }
}
