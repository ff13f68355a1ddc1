//! A launch that is repeated, as a CUDA graph of its own: launching that costs the host about half of what a kernel's launch does
//! (docs/notes/latency.md, version 9).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cudarc::driver::sys::{
    self, CUgraph, CUgraphExec, CUgraphNode, CUlaunchAttributeID, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::device::is_default_stream;
use super::{Device, KernelCall};

/// A graph of one kernel's launch.
pub struct Graph {
    executable: CUgraphExec,
    /// What the executable graph was made from, by which its parameters are changed.
    graph: CUgraph,
    node: CUgraphNode,
    /// The one that it is launched on. Launches of one graph wait for each other, whatever their streams (CUDA driver API,
    /// `cuGraphLaunch`); on a single one they do so anyway.
    stream: u64,
    /// Whether a thread is launching or changing it, for two must not (CUDA driver API, "Graph object thread safety").
    launching: AtomicBool,
}

// SAFETY: a graph may be used from any thread, by one at a time: `launching` sees to it, and whoever drops it has it alone.
unsafe impl Send for Graph {}
unsafe impl Sync for Graph {}

/// How many graphs there are.
static GRAPHS: AtomicUsize = AtomicUsize::new(0);
/// How many there may be: each takes 115 kB of device memory (CUDA 13.0), which these make 30 MB.
const MOST_GRAPHS: usize = 256;
/// The driver from which on a launch takes a graph without branches as one piece (CUDA 12.6).
const IN_ONE_PIECE: i32 = 12060;

/// How many graphs there are in this process.
pub fn graphs() -> usize {
    GRAPHS.load(Ordering::Relaxed)
}

impl Graph {
    /// A graph of a launch, for launches on one stream. None where that does not work out or is not worth while: it can be done without.
    ///
    /// It is made of a node, not by capturing the launch: a capture is lost, and another thread gets an error, where that thread
    /// synchronizes the device meanwhile. That the launch may overlap the one in front is left out: that one is no part of the graph.
    pub fn new(device: &Device, stream: u64, call: &KernelCall<'_>) -> Option<Graph> {
        let _current = device.make_current().ok()?;
        if device.driver_version < IN_ONE_PIECE || !keeps_to_one_context(stream) {
            return None;
        }
        let others = GRAPHS.fetch_add(1, Ordering::Relaxed);
        // From here on, dropping it frees what there is of it.
        let (executable, graph, node) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        let mut made = Graph { executable, graph, node, stream, launching: AtomicBool::new(false) };
        if others >= MOST_GRAPHS {
            return None;
        }
        let mut pointers = [std::ptr::null_mut(); 2];
        let params = call.node(&mut pointers);
        let cluster = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let mut attributes =
            call.config.attributes().iter().filter(|attribute| attribute.id == cluster);
        // SAFETY: pointers are to locals and to what `call` borrows, which the driver copies; each handle is used once it was made.
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

    /// Enqueues the launch again, and tells whether it did. It does not on another stream, on one that is being captured, while another
    /// thread is at it, or where the driver refuses: asked for the launch itself, that says why.
    /// `changed`: the launch, where its parameters have changed.
    ///
    /// # Safety
    /// Every address in the parameters is valid on the device until the launch has run.
    #[inline(always)] // in every launch that is repeated
    pub unsafe fn launch(
        &self,
        device: &Device,
        stream: u64,
        changed: Option<&KernelCall<'_>>,
    ) -> bool {
        if stream != self.stream || self.launching.swap(true, Ordering::Acquire) {
            return false;
        }
        // As in `Call::launch`; other parameters are set with the device's context current.
        let asks = is_default_stream(stream) || changed.is_some();
        let current = if asks { device.make_current().map(Some) } else { Ok(None) };
        // SAFETY: the caller's; no other thread launches the graph.
        let launched = current.is_ok()
            && !is_captured(stream)
            && changed.is_none_or(|call| self.change(call))
            && succeeded(unsafe { sys::cuGraphLaunch(self.executable, stream as CUstream) });
        self.launching.store(false, Ordering::Release);
        launched
    }

    /// Gives further launches other parameters, by the thread that is launching.
    #[inline(never)]
    fn change(&self, call: &KernelCall<'_>) -> bool {
        let mut pointers = [std::ptr::null_mut(); 2];
        let params = call.node(&mut pointers);
        // SAFETY: the node is the graph's, which lives as long as `self`; the driver copies parameters before it returns. Launches that have
        // been made keep theirs.
        with_relaxed_capture(|| {
            succeeded(unsafe {
                sys::cuGraphExecKernelNodeSetParams_v2(self.executable, self.node, &params)
            })
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: both are ours, and nobody else's any more. The driver frees an executable graph when its last launch has run.
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

/// Whether a stream is being captured, or may not be asked because another one is. The launch of a graph would end the capture in an error.
#[inline(always)]
fn is_captured(stream: u64) -> bool {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the pointer is a local's; the driver refuses streams that it does not know.
    let asked = unsafe { sys::cuStreamIsCapturing(stream as CUstream, &mut status) };
    !succeeded(asked) || status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
}

/// Whether what is enqueued on a stream has that stream's order alone, on all of the device. `CU_STREAM_PER_THREAD` is another stream for
/// each thread, and a green context's stream has a part of the multiprocessors, to which a graph of the primary context's kernels would not keep.
fn keeps_to_one_context(stream: u64) -> bool {
    if is_default_stream(stream) {
        return stream != PER_THREAD;
    }
    let mut green = std::ptr::null_mut();
    // SAFETY: the pointer is a local's; the driver refuses streams that it does not know.
    succeeded(unsafe { sys::cuStreamGetGreenCtx(stream as CUstream, &mut green) })
        && green.is_null()
}

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: u64 = 2;

/// Does what would end captures in an error, of streams by this thread, or by any thread in the strictest mode: making, changing and freeing
/// graphs. They touch no stream, which is what such captures are to be kept from.
fn with_relaxed_capture<T>(work: impl FnOnce() -> T) -> T {
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: exchanges this thread's mode for the one given, and back.
    let exchanged = succeeded(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) });
    let result = work();
    if exchanged {
        // SAFETY: as above.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    }
    result
}
