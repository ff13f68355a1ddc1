//! Launches that are repeated, as a CUDA graph of their own: launching it again costs the host about half of what one kernel's launch does
//! (docs/notes/latency.md, version 9).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus};

use super::device::is_default_stream;
use super::{Device, DriverError};

/// What was enqueued on a stream once, to be enqueued there again as it was.
pub struct Graph {
    executable: CUgraphExec,
    /// Launches of one graph wait for each other, whatever their streams (CUDA driver API, `cuGraphLaunch`). On a single one they do
    /// so anyway.
    stream: u64,
    /// Whether a thread is launching it, for two must not (CUDA driver API, "Graph object thread safety").
    launching: AtomicBool,
}

// SAFETY: a graph may be used from any thread, by one at a time: `launching` sees to it, and whoever drops it has it alone.
unsafe impl Send for Graph {}
unsafe impl Sync for Graph {}

/// How many graphs there are.
static GRAPHS: AtomicUsize = AtomicUsize::new(0);
/// How many there may be: each takes 115 kB of device memory (CUDA 13.0), which these make 30 MB.
const MOST_GRAPHS: usize = 256;
/// The driver from which on a graph of a few kernels in a row is launched at once, and not kernel by kernel (CUDA 12.6).
const LAUNCHES_AT_ONCE: i32 = 12060;

impl Graph {
    /// Captures what `enqueue` enqueues on the stream that it is given, for launches on another one. It must be no more than launches.
    /// None where that does not work out or is not worth while: what the graph would do can be done without.
    pub fn capture(
        device: &Device,
        stream: u64,
        enqueue: impl FnOnce(u64) -> Result<(), DriverError>,
    ) -> Option<Graph> {
        let _current = device.make_current().ok()?;
        if device.driver < LAUNCHES_AT_ONCE || is_captured(stream) {
            return None;
        }
        if GRAPHS.fetch_add(1, Ordering::Relaxed) >= MOST_GRAPHS {
            GRAPHS.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let executable = unprohibited(|| captured(enqueue).and_then(|graph| graph.instantiate()));
        if executable.is_none() {
            GRAPHS.fetch_sub(1, Ordering::Relaxed);
        }
        executable.map(|executable| Graph { executable, stream, launching: AtomicBool::new(false) })
    }

    /// Enqueues all of it again, and tells whether it did. It does not on another stream, on one that is being captured, while another
    /// thread is at it, or where the driver refuses: launched one by one, the driver says why.
    ///
    /// # Safety
    /// Every address in the captured launches is valid on the device until they have run.
    #[inline(always)] // in every launch that is repeated
    pub unsafe fn launch(&self, device: &Device, stream: u64) -> bool {
        if stream != self.stream || self.launching.swap(true, Ordering::Acquire) {
            return false;
        }
        // As in `Function::launch`.
        let current = if is_default_stream(stream) { device.make_current().map(Some) } else { Ok(None) };
        // SAFETY: the caller's; no other thread launches the graph.
        let launched = current.is_ok()
            && !is_captured(stream)
            && unsafe { sys::cuGraphLaunch(self.executable, stream as CUstream) } == CUresult::CUDA_SUCCESS;
        self.launching.store(false, Ordering::Release);
        launched
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is ours, and nobody else's any more. The driver frees it when its last launch has run.
        unprohibited(|| unsafe { sys::cuGraphExecDestroy(self.executable) });
        GRAPHS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a stream is being captured, or may not be asked because another one is.
#[inline(always)]
fn is_captured(stream: u64) -> bool {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the pointer is a local's; the driver refuses streams that it does not know.
    let asked = unsafe { sys::cuStreamIsCapturing(stream as CUstream, &mut status) };
    asked != CUresult::CUDA_SUCCESS || status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
}

/// Does what a capture on this thread, or one that forbids it to all threads, would otherwise end in an error of that capture.
fn unprohibited<T>(work: impl FnOnce() -> T) -> T {
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: exchanges this thread's mode for the one given, and back.
    unsafe {
        sys::cuThreadExchangeStreamCaptureMode(&mut mode);
        let done = work();
        sys::cuThreadExchangeStreamCaptureMode(&mut mode);
        done
    }
}

/// A graph that was captured.
struct Captured(CUgraph);

impl Captured {
    fn instantiate(&self) -> Option<CUgraphExec> {
        let mut executable = std::ptr::null_mut();
        // SAFETY: the pointer is a local's; without flags, the priority is that of the stream of a launch.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, self.0, 0) };
        (made == CUresult::CUDA_SUCCESS).then_some(executable)
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: the graph is ours; what was instantiated from it stands alone.
        unsafe { sys::cuGraphDestroy(self.0) };
    }
}

/// What is enqueued on a stream made for the purpose. A context is current.
fn captured(enqueue: impl FnOnce(u64) -> Result<(), DriverError>) -> Option<Captured> {
    let (mut stream, mut graph) = (std::ptr::null_mut(), std::ptr::null_mut());
    let non_blocking = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: pointers are to locals; the stream is ours, and is destroyed once.
    unsafe {
        if sys::cuStreamCreate(&mut stream, non_blocking) != CUresult::CUDA_SUCCESS {
            return None;
        }
        let begun = sys::cuStreamBeginCapture_v2(stream, relaxed) == CUresult::CUDA_SUCCESS;
        let enqueued = begun && enqueue(stream as u64).is_ok();
        if begun && sys::cuStreamEndCapture(stream, &mut graph) != CUresult::CUDA_SUCCESS {
            graph = std::ptr::null_mut();
        }
        sys::cuStreamDestroy_v2(stream);
        let captured = (!graph.is_null()).then(|| Captured(graph));
        captured.filter(|_| enqueued)
    }
}
