//! Promotion: a short launch that repeats becomes a CUDA graph of one kernel node on one stream,
//! whose launch takes the host less time than a kernel launch. This file decides which launches,
//! when, and on which streams; `driver::Graph` creates and launches graphs.
//! docs/design/launching.md explains the rules.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

use crate::driver::{
    Device, DriverError, Graph, KernelCall, PER_THREAD_STREAM, is_green_context_stream,
};
use crate::process::drop_unlocked;

/// Launches before promotion, on any streams; the graph is for the stream of the last of them. If
/// repetition stops right after promotion, the cost is one graph instantiation.
const LAUNCHES_BEFORE_PROMOTION: u32 = 20;
/// Launches until the next attempt after a promotion failed.
const LAUNCHES_BEFORE_RETRY: u32 = 1000;
/// Longest estimated duration in seconds of a kernel that is promoted. A graph does not overlap
/// with the work before and after it on the stream. Kernels this short take less GPU time than host
/// time to launch, so no work queues up to overlap with; longer kernels would lose the overlap.
const LONGEST_SECONDS: f64 = 2e-6;
/// Most promoted launches in a process. A graph takes about 115 kB of device memory (CUDA 13.0).
const MOST_GRAPHS: usize = 256;
/// The first driver version with constant-time launches of straight-line graphs (CUDA 12.6). Older
/// drivers launch node by node, which takes longer than a kernel launch.
const OLDEST_DRIVER: i32 = 12060;
/// `0` in this environment variable switches promotion off.
const SWITCH: &str = "CUTLASS_API_LAUNCH_GRAPHS";

static IS_ENABLED: AtomicBool = AtomicBool::new(true);
static GRAPHS: AtomicUsize = AtomicUsize::new(0);

/// Whether promotion is on: launches are promoted, and promoted launches run as graphs.
pub fn is_enabled() -> bool {
    IS_ENABLED.load(Ordering::Relaxed)
}

/// Switches promotion on or off. While promotion is off, promoted launches run as kernels and keep
/// their graphs.
pub fn set_enabled(on: bool) {
    IS_ENABLED.store(on, Ordering::Relaxed);
}

/// Reads the switch from the environment once per process.
pub fn read_environment() {
    static READ: Once = Once::new();
    READ.call_once(|| set_enabled(std::env::var_os(SWITCH).is_none_or(|value| value != "0")));
}

/// Promoted launches in this process.
pub fn count() -> usize {
    GRAPHS.load(Ordering::Relaxed)
}

/// Switches promotion off in a forked child that has graphs of its parent: the driver refuses the
/// child's launches of kernels, but not those of graphs (580, H200), and these break the parent.
pub fn forget_parent() {
    if count() > 0 {
        set_enabled(false);
    }
}

/// How far a launch is from promotion, and the graph that it is promoted to.
pub struct Promotion {
    graph: OnceLock<PromotedGraph>,
    /// Whether the launch's parameters differ from the graph's. Written by the thread that owns the
    /// launch.
    has_new_parameters: AtomicBool,
    is_eligible: bool,
    /// Launches until the next attempt; 0 if the launch is promoted or not eligible.
    launches_left: AtomicU32,
}

impl Promotion {
    /// `seconds`: the estimated duration of a launch of one kernel call.
    pub fn of(seconds: Option<f64>) -> Promotion {
        Promotion::new(seconds.is_some_and(|seconds| seconds <= LONGEST_SECONDS))
    }

    fn new(is_eligible: bool) -> Promotion {
        Promotion {
            graph: OnceLock::new(),
            has_new_parameters: AtomicBool::new(false),
            is_eligible,
            launches_left: AtomicU32::new(if is_eligible { LAUNCHES_BEFORE_PROMOTION } else { 0 }),
        }
    }

    /// Enqueues a launch as its promoted graph if the graph can run on this stream, else as a
    /// kernel. Promotes the launch if promotion is due.
    ///
    /// # Errors
    /// If the driver rejects the kernel launch.
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
            // SAFETY: guaranteed by the caller.
            if unsafe { graph.launch(device, stream, changed.then_some(call)) } {
                self.has_new_parameters.store(false, Ordering::Relaxed);
                return Ok(());
            }
        }
        // SAFETY: guaranteed by the caller.
        unsafe { call.launch(device, stream)? };
        if is_enabled && self.is_due() {
            self.promote(device, stream, call);
        }
        Ok(())
    }

    /// Records that the next launch has other parameters than the graph.
    pub fn note_new_parameters(&self) {
        self.has_new_parameters.store(true, Ordering::Relaxed);
    }

    /// Counts a launch. Returns whether promotion is due. Launches of concurrent threads may count
    /// once.
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
                // If another thread has set a graph, that graph stays and has that launch's
                // parameters.
                if self.graph.set(graph).is_ok() {
                    self.has_new_parameters.store(false, Ordering::Relaxed);
                }
            }
            None => self.launches_left.store(LAUNCHES_BEFORE_RETRY, Ordering::Relaxed),
        }
    }
}

impl Drop for Promotion {
    /// Frees the graph without the interpreter's lock: the driver may block on another thread,
    /// which may wait for the lock.
    fn drop(&mut self) {
        if let Some(graph) = self.graph.take() {
            drop_unlocked(graph);
        }
    }
}

impl Clone for Promotion {
    /// The promotion of a copied launch starts at zero, since a graph has one owner.
    fn clone(&self) -> Promotion {
        Promotion::new(self.is_eligible)
    }
}

/// A graph that [`count`] includes.
struct PromotedGraph(Graph);

/// Whether launches on a stream gain by a graph, and compute the same. The per-thread default
/// stream is another stream in each thread. A green context's stream is limited to some
/// multiprocessors, but a graph of the primary context's kernels would use all.
fn suits_graphs(device: &Device, stream: u64) -> bool {
    device.driver_version >= OLDEST_DRIVER
        && stream != PER_THREAD_STREAM
        && !is_green_context_stream(stream)
}

impl PromotedGraph {
    /// None if a graph does not suit the stream, if the process has [`MOST_GRAPHS`], or if the
    /// driver refuses.
    fn new(device: &Device, stream: u64, call: &KernelCall<'_>) -> Option<PromotedGraph> {
        if !suits_graphs(device, stream) {
            return None;
        }
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
