//! CUDA graphs of one kernel node. Launching one costs the host about half of what a kernel launch
//! does; `launch::promotion` decides when.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{
    self, CUgraph, CUgraphExec, CUgraphNode, CUlaunchAttributeID, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::device::is_default_stream;
use super::{Device, KernelCall};

/// A graph of one kernel launch.
pub struct Graph {
    executable: CUgraphExec,
    /// What the executable graph is instantiated from: its node names the kernel whose parameters
    /// change.
    graph: CUgraph,
    node: CUgraphNode,
    /// The stream of all launches. Launches of one graph wait for each other on any stream (CUDA
    /// driver API, `cuGraphLaunch`); on one stream that costs nothing.
    stream: u64,
    /// Whether a thread launches or changes the graph: two must not at once (CUDA driver API,
    /// "Graph object thread safety").
    is_in_use: AtomicBool,
}

// SAFETY: any thread may use a graph, one at a time: `is_in_use` ensures that, and `drop` has
// exclusive access.
unsafe impl Send for Graph {}
unsafe impl Sync for Graph {}

/// The first driver that launches a graph without branches in one piece (CUDA 12.6). Older ones
/// launch node by node.
const LAUNCHES_IN_ONE_PIECE: i32 = 12060;

impl Graph {
    /// A graph of a launch, for launches on one stream. None if the driver refuses, or a graph
    /// would not be faster or not keep to the stream's context.
    ///
    /// Made from a node, not by stream capture, which breaks if another thread synchronizes the
    /// device meanwhile. The attribute for programmatic dependent launch is left out: the launch
    /// before this one is not part of the graph.
    pub fn new(device: &Device, stream: u64, call: &KernelCall<'_>) -> Option<Graph> {
        let _current = device.make_current().ok()?;
        if device.driver_version < LAUNCHES_IN_ONE_PIECE || !has_primary_context(stream) {
            return None;
        }
        // From here on, dropping `new` frees what exists of it.
        let mut new = Graph {
            executable: std::ptr::null_mut(),
            graph: std::ptr::null_mut(),
            node: std::ptr::null_mut(),
            stream,
            is_in_use: AtomicBool::new(false),
        };
        let mut pointers = [std::ptr::null_mut(); 2];
        let params = call.node(&mut pointers);
        let cluster = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let mut attributes =
            call.config.attributes().iter().filter(|attribute| attribute.id == cluster);
        // SAFETY: pointers are to locals and to what `call` borrows, which the driver copies; each
        // handle is used after the call that makes it.
        let succeeded = allowed_during_capture(|| unsafe {
            is_success(sys::cuGraphCreate(&mut new.graph, 0))
                && is_success(sys::cuGraphAddKernelNode_v2(
                    &mut new.node,
                    new.graph,
                    std::ptr::null(),
                    0,
                    &params,
                ))
                && attributes.all(|attribute| {
                    is_success(sys::cuGraphKernelNodeSetAttribute(
                        new.node,
                        attribute.id,
                        &attribute.value,
                    ))
                })
                && is_success(sys::cuGraphInstantiateWithFlags(&mut new.executable, new.graph, 0))
        });
        succeeded.then_some(new)
    }

    /// Enqueues the launch. False, with nothing enqueued, on another stream, on a stream under
    /// capture, while another thread uses the graph, and if the driver refuses. `changed`: the
    /// launch, if its parameters differ from the graph's.
    ///
    /// # Safety
    /// Every address in the parameters is valid on the device until the launch has run.
    pub unsafe fn launch(
        &self,
        device: &Device,
        stream: u64,
        changed: Option<&KernelCall<'_>>,
    ) -> bool {
        if stream != self.stream || self.is_in_use.swap(true, Ordering::Acquire) {
            return false;
        }
        // Default streams belong to the current context (as in `KernelCall::launch`), and
        // parameters are set in it.
        let needs_context = is_default_stream(stream) || changed.is_some();
        let current = if needs_context { device.make_current().map(Some) } else { Ok(None) };
        // SAFETY: the caller's; no other thread uses the graph.
        let launched = current.is_ok()
            && !is_captured(stream)
            && changed.is_none_or(|call| self.change(call))
            && is_success(unsafe { sys::cuGraphLaunch(self.executable, stream as CUstream) });
        self.is_in_use.store(false, Ordering::Release);
        launched
    }

    /// Sets the parameters of further launches. The thread has `is_in_use`.
    #[inline(never)]
    fn change(&self, call: &KernelCall<'_>) -> bool {
        let mut pointers = [std::ptr::null_mut(); 2];
        let params = call.node(&mut pointers);
        // SAFETY: the node is the graph's, which lives as long as `self`; the driver copies
        // parameters before it returns. Earlier launches keep theirs.
        allowed_during_capture(|| {
            is_success(unsafe {
                sys::cuGraphExecKernelNodeSetParams_v2(self.executable, self.node, &params)
            })
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: `self` owns both handles. The driver frees an executable graph after its last
        // launch has run.
        allowed_during_capture(|| unsafe {
            if !self.executable.is_null() {
                sys::cuGraphExecDestroy(self.executable);
            }
            if !self.graph.is_null() {
                sys::cuGraphDestroy(self.graph);
            }
        });
    }
}

fn is_success(result: CUresult) -> bool {
    result == CUresult::CUDA_SUCCESS
}

/// Whether a stream is under capture, or the driver refuses the query because another stream is. A
/// graph launch would invalidate the capture.
fn is_captured(stream: u64) -> bool {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the pointer is a local's; the driver refuses handles that are no streams.
    let result = unsafe { sys::cuStreamIsCapturing(stream as CUstream, &mut status) };
    !is_success(result) || status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
}

/// Whether a handle names one stream, with all multiprocessors of its device.
/// `CU_STREAM_PER_THREAD` names another stream in each thread. The stream of a green context has
/// some of the multiprocessors, and a graph of the primary context's kernels would run on all of
/// them.
fn has_primary_context(stream: u64) -> bool {
    if is_default_stream(stream) {
        return stream != PER_THREAD;
    }
    let mut green = std::ptr::null_mut();
    // SAFETY: the pointer is a local's; the driver refuses handles that are no streams.
    let result = unsafe { sys::cuStreamGetGreenCtx(stream as CUstream, &mut green) };
    is_success(result) && green.is_null()
}

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: u64 = 2;

/// Runs driver calls that a capture in progress would prohibit (a global one by any thread, a
/// thread-local one by this thread): making, changing and freeing graphs. They touch no stream, so
/// they are safe.
fn allowed_during_capture<T>(work: impl FnOnce() -> T) -> T {
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: exchanges this thread's mode with `mode`.
    let exchanged = is_success(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) });
    let result = work();
    if exchanged {
        // SAFETY: as above; restores the thread's mode.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    }
    result
}
