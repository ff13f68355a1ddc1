//! A repeated launch as a CUDA graph of one kernel node. Launching the graph costs the host less
//! than launching the kernel.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cudarc::driver::sys::{
    self, CUgraph, CUgraphExec, CUgraphNode, CUlaunchAttributeID, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::device::is_default_stream;
use super::{Device, KernelCall};

/// A graph of one kernel node.
pub struct Graph {
    executable: CUgraphExec,
    /// The graph that `executable` was instantiated from; identifies `node` when parameters change.
    graph: CUgraph,
    node: CUgraphNode,
    /// The stream of every launch. Launches of one graph serialize on any stream (CUDA driver API,
    /// `cuGraphLaunch`), so a single stream loses no overlap.
    stream: u64,
    /// Held while a thread launches or updates the graph, which is not thread-safe (CUDA driver
    /// API, "Graph object thread safety").
    launching: AtomicBool,
}

// SAFETY: `launching` admits one thread at a time, and `drop` has exclusive access.
unsafe impl Send for Graph {}
unsafe impl Sync for Graph {}

/// The number of graphs in this process.
static GRAPHS: AtomicUsize = AtomicUsize::new(0);
/// Limit on the number of graphs. Each takes 115 kB of device memory (CUDA 13.0).
const MAX_GRAPHS: usize = 256;
/// First driver that launches a graph without branches as one piece (CUDA 12.6).
const SINGLE_PIECE_LAUNCH_DRIVER: i32 = 12060;

/// The number of graphs in this process.
pub fn graphs() -> usize {
    GRAPHS.load(Ordering::Relaxed)
}

impl Graph {
    /// A graph of a launch, for launches on one stream. `None` if the driver is too old, the stream
    /// is unsuitable, the limit is reached or a driver call fails: callers then launch the kernel.
    ///
    /// The graph is built from a node. Capturing the launch instead would fail, here and in the
    /// other thread, if that thread synchronizes the device meanwhile. The node omits programmatic
    /// dependent launch, because the preceding launch is not part of the graph.
    pub fn new(device: &Device, stream: u64, call: &KernelCall<'_>) -> Option<Graph> {
        let _current = device.make_current().ok()?;
        if device.driver_version < SINGLE_PIECE_LAUNCH_DRIVER || !keeps_to_one_context(stream) {
            return None;
        }
        let others = GRAPHS.fetch_add(1, Ordering::Relaxed);
        // From here on, dropping `made` frees whatever has been created.
        let (executable, graph, node) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        let mut made = Graph { executable, graph, node, stream, launching: AtomicBool::new(false) };
        if others >= MAX_GRAPHS {
            return None;
        }
        let mut pointers = [std::ptr::null_mut(); 2];
        let params = call.node(&mut pointers);
        let cluster = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let mut attributes =
            call.config.attributes().iter().filter(|attribute| attribute.id == cluster);
        // SAFETY: the pointers are to locals and to borrows of `call`, which the driver copies.
        // Each handle is used after its creation.
        let works = with_relaxed_capture(|| unsafe {
            succeeded(sys::cuGraphCreate(&mut made.graph, 0))
                && succeeded(sys::cuGraphAddKernelNode_v2(
                    &mut made.node,
                    made.graph,
                    std::ptr::null(),
                    0,
                    &params,
                ))
                && attributes.all(|attribute| {
                    succeeded(sys::cuGraphKernelNodeSetAttribute(
                        made.node,
                        attribute.id,
                        &attribute.value,
                    ))
                })
                && succeeded(sys::cuGraphInstantiateWithFlags(&mut made.executable, made.graph, 0))
        });
        works.then_some(made)
    }

    /// Enqueues the launch and returns whether it did. Returns false on another stream, during
    /// stream capture, while another thread launches the graph, and if the driver refuses. The
    /// caller then launches the kernel, which reports the error if there is one. `changed`: the
    /// kernel call, if its parameters have changed.
    ///
    /// # Safety
    /// Every address in the parameters stays valid on the device until the launch has completed.
    #[inline(always)] // in every repeated launch
    pub unsafe fn launch(
        &self,
        device: &Device,
        stream: u64,
        changed: Option<&KernelCall<'_>>,
    ) -> bool {
        if stream != self.stream || self.launching.swap(true, Ordering::Acquire) {
            return false;
        }
        // As in `KernelCall::launch`. Updating parameters requires the device's context to be
        // current.
        let needs_context = is_default_stream(stream) || changed.is_some();
        let current = if needs_context { device.make_current().map(Some) } else { Ok(None) };
        // SAFETY: guaranteed by the caller; no other thread launches the graph.
        let launched = current.is_ok()
            && !is_captured(stream)
            && changed.is_none_or(|call| self.change(call))
            && succeeded(unsafe { sys::cuGraphLaunch(self.executable, stream as CUstream) });
        self.launching.store(false, Ordering::Release);
        launched
    }

    /// Sets the parameters of later launches. The calling thread holds `launching`.
    #[inline(never)]
    fn change(&self, call: &KernelCall<'_>) -> bool {
        let mut pointers = [std::ptr::null_mut(); 2];
        let params = call.node(&mut pointers);
        // SAFETY: the node belongs to the graph, which lives as long as `self`. The driver copies
        // the parameters before it returns; launches already enqueued keep theirs.
        with_relaxed_capture(|| {
            succeeded(unsafe {
                sys::cuGraphExecKernelNodeSetParams_v2(self.executable, self.node, &params)
            })
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: `self` owns both handles. The driver frees an executable graph after its last
        // launch.
        with_relaxed_capture(|| unsafe {
            if !self.executable.is_null() {
                sys::cuGraphExecDestroy(self.executable);
            }
            if !self.graph.is_null() {
                sys::cuGraphDestroy(self.graph);
            }
        });
        GRAPHS.fetch_sub(1, Ordering::Relaxed);
    }
}

fn succeeded(result: CUresult) -> bool {
    result == CUresult::CUDA_SUCCESS
}

/// Whether a stream is being captured, or cannot be queried because another one is. Launching the
/// graph would invalidate the capture.
#[inline(always)]
fn is_captured(stream: u64) -> bool {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the pointer is to a local; the driver rejects unknown streams.
    let result = unsafe { sys::cuStreamIsCapturing(stream as CUstream, &mut status) };
    !succeeded(result) || status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
}

/// Whether work on a stream is ordered by that stream alone and may use the whole device.
/// `CU_STREAM_PER_THREAD` denotes a different stream in each thread. A green context's stream owns
/// some of the multiprocessors, which a graph of the primary context's kernels would ignore.
fn keeps_to_one_context(stream: u64) -> bool {
    if is_default_stream(stream) {
        return stream != PER_THREAD;
    }
    let mut green = std::ptr::null_mut();
    // SAFETY: the pointer is to a local; the driver rejects unknown streams.
    succeeded(unsafe { sys::cuStreamGetGreenCtx(stream as CUstream, &mut green) })
        && green.is_null()
}

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: u64 = 2;

/// Runs calls that would invalidate a stream capture of this thread, or of any thread in global
/// mode: creating, updating and freeing graphs. The calls touch no stream, so the captures stay
/// correct.
fn with_relaxed_capture<T>(work: impl FnOnce() -> T) -> T {
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: swaps this thread's capture mode, and restores it below.
    let exchanged = succeeded(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) });
    let result = work();
    if exchanged {
        // SAFETY: as above.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    }
    result
}
