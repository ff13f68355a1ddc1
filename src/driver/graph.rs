//! CUDA graphs of one kernel node. A graph launch costs the host about half as much as a kernel
//! launch. `launch::promotion` decides when to use one.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{
    self, CUgraph, CUgraphExec, CUgraphNode, CUlaunchAttributeID, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::device::is_default_stream;
use super::error::check;
use super::{Device, DriverError, KernelCall};

/// A graph of one kernel launch.
pub struct Graph {
    executable: CUgraphExec,
    /// The graph that `executable` was instantiated from. Parameter updates refer to its node.
    graph: CUgraph,
    node: CUgraphNode,
    /// The stream of all launches. Launches of one graph are serialized, also across streams (CUDA
    /// driver API, `cuGraphLaunch`), so one stream per graph loses no concurrency.
    stream: u64,
    /// Whether a thread launches or updates the graph. Only one thread may do so at a time (CUDA
    /// driver API, "Graph object thread safety").
    is_in_use: AtomicBool,
}

// SAFETY: any thread may use a graph, one at a time. `is_in_use` excludes other threads, and `drop`
// has exclusive access.
unsafe impl Send for Graph {}
unsafe impl Sync for Graph {}

impl Graph {
    /// A graph of a kernel call, for launches on one stream. None if the driver refuses.
    ///
    /// The graph is built from a node instead of by stream capture: a capture fails if another
    /// thread synchronizes the device. The node has no attribute for programmatic dependent launch,
    /// because the preceding launch is not part of the graph.
    pub fn new(device: &Device, stream: u64, call: &KernelCall<'_>) -> Option<Graph> {
        let _current = device.make_current().ok()?;
        // If a later call fails, dropping `new` frees the handles created so far.
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
        // SAFETY: the pointers are to locals and to data that `call` borrows. The driver copies
        // both. Each handle is used after the call that creates it.
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

    /// Enqueues the launch. Returns false and enqueues nothing on another stream, on a stream under
    /// capture, while another thread uses the graph, or if the driver refuses. `changed`: the call
    /// whose parameters replace the graph's.
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
        // A default stream belongs to the current context (see `KernelCall::launch`), and parameter
        // updates need the device's context, too.
        let needs_context = is_default_stream(stream) || changed.is_some();
        let current = if needs_context { device.make_current().map(Some) } else { Ok(None) };
        // SAFETY: guaranteed by the caller; no other thread uses the graph.
        let launched = current.is_ok()
            // A graph launch would invalidate a capture.
            && capture_status(stream) == (CUresult::CUDA_SUCCESS, NO_CAPTURE)
            && changed.is_none_or(|call| self.update(call))
            && is_success(unsafe { sys::cuGraphLaunch(self.executable, stream as CUstream) });
        self.is_in_use.store(false, Ordering::Release);
        launched
    }

    /// Sets the parameters of later launches. The caller has set `is_in_use`.
    #[inline(never)]
    fn update(&self, call: &KernelCall<'_>) -> bool {
        let mut pointers = [std::ptr::null_mut(); 2];
        let params = call.node(&mut pointers);
        // SAFETY: the node belongs to the graph, which lives as long as `self`. The driver copies
        // the parameters before it returns; launches already enqueued keep theirs.
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

/// Whether a stream is under capture. True if another capture makes the driver refuse the query, as
/// for the legacy default stream.
///
/// # Errors
/// If the query fails for another reason.
pub fn is_captured(stream: u64) -> Result<bool, DriverError> {
    match capture_status(stream) {
        (CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, _) => Ok(true),
        (result, status) => check("cuStreamIsCapturing", result).map(|()| status != NO_CAPTURE),
    }
}

const NO_CAPTURE: CUstreamCaptureStatus = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;

fn capture_status(stream: u64) -> (CUresult, CUstreamCaptureStatus) {
    let mut status = NO_CAPTURE;
    // SAFETY: the pointer is to a local; the driver rejects unknown handles.
    let result = unsafe { sys::cuStreamIsCapturing(stream as CUstream, &mut status) };
    (result, status)
}

/// Whether a stream belongs to a green context, which owns some of the device's multiprocessors.
/// True if the driver does not know the stream.
pub fn is_green_context_stream(stream: u64) -> bool {
    if is_default_stream(stream) {
        return false;
    }
    let mut green = std::ptr::null_mut();
    // SAFETY: the pointer is to a local; the driver rejects unknown handles.
    let result = unsafe { sys::cuStreamGetGreenCtx(stream as CUstream, &mut green) };
    !is_success(result) || !green.is_null()
}

/// The handle `CU_STREAM_PER_THREAD`: another stream in each thread.
pub const PER_THREAD_STREAM: u64 = 2;

/// Runs driver calls that a capture in progress would prohibit (a global capture of any thread, or
/// a thread-local capture of this thread): creating, updating and freeing graphs. These calls touch
/// no stream, so they do not affect the capture.
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
