//! What timing launches takes: a stream of our own, device memory and copies, and recordings (CUDA
//! graphs of captured launches) that events time.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::driver::sys::{
    self, CUdriverProcAddressQueryResult, CUevent, CUgraph, CUgraphExec, CUresult, CUstream,
    CUstreamCaptureMode,
};

use super::error::{call, check};
use super::{Device, DriverError};

/// A stream that does not synchronize with the default stream.
pub struct Stream {
    device: &'static Device,
    handle: CUstream,
}

// SAFETY: any thread may use these handles, one at a time: a graph must not be launched by two
// threads at once (CUDA driver API, "Graph object thread safety"), so `Recording` is not `Sync`.
unsafe impl Send for Stream {}
unsafe impl Send for Recording {}

impl Stream {
    pub fn new(device: &'static Device) -> Result<Stream, DriverError> {
        const NON_BLOCKING: u32 = 1; // CU_STREAM_NON_BLOCKING
        let _current = device.make_current()?;
        let mut handle = null_mut();
        // SAFETY: the pointer is to a local.
        unsafe { call!(sys::cuStreamCreate(&mut handle, NON_BLOCKING))? };
        Ok(Stream { device, handle })
    }

    /// The handle, as launches take it.
    pub fn handle(&self) -> u64 {
        self.handle as u64
    }

    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// Enqueues a copy from device memory, on `source`, into memory of the stream's device.
    ///
    /// # Safety
    /// Both ranges of `bytes` bytes stay valid until the copy has run.
    pub unsafe fn copy(
        &self,
        to: u64,
        source: &Device,
        from: u64,
        bytes: u64,
    ) -> Result<(), DriverError> {
        let _current = self.device.make_current()?;
        let bytes = bytes as usize;
        // SAFETY: guaranteed by the caller; each context is that of its address.
        unsafe {
            if source.ordinal == self.device.ordinal {
                return call!(sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.handle));
            }
            let (to_context, from_context) = (self.device.context, source.context);
            call!(sys::cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, self.handle))
        }
    }

    /// Enqueues a fill of device memory with a byte.
    ///
    /// # Safety
    /// The range of `bytes` bytes stays valid until the fill has run.
    pub unsafe fn fill(&self, address: u64, byte: u8, bytes: u64) -> Result<(), DriverError> {
        let _current = self.device.make_current()?;
        // SAFETY: guaranteed by the caller.
        unsafe { call!(sys::cuMemsetD8Async(address, byte, bytes as usize, self.handle)) }
    }

    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.device.synchronize(self.handle())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The driver destroys the stream once its work has completed.
        // SAFETY: `self` owns the handle.
        unsafe { sys::cuStreamDestroy_v2(self.handle) };
    }
}

/// Device memory, freed when the value is dropped.
pub struct DeviceMemory {
    device: &'static Device,
    address: u64,
}

impl DeviceMemory {
    pub fn allocate(device: &'static Device, bytes: u64) -> Result<DeviceMemory, DriverError> {
        let _current = device.make_current()?;
        let mut address = 0;
        // SAFETY: the pointer is to a local. The driver refuses 0 bytes.
        unsafe { call!(sys::cuMemAlloc_v2(&mut address, bytes.max(1) as usize))? };
        Ok(DeviceMemory { device, address })
    }

    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // An address belongs to one device, so that another current context serves as well.
        let _current = self.device.make_current();
        // SAFETY: `self` owns the memory. The driver waits for work that uses it.
        unsafe { sys::cuMemFree_v2(self.address) };
    }
}

/// A captured sequence of launches, and the events that time its replays.
pub struct Recording {
    device: &'static Device,
    graph: CUgraph,
    executable: CUgraphExec,
    events: [CUevent; 2],
}

impl Recording {
    /// Captures what `work` enqueues on a stream.
    ///
    /// # Errors
    /// If `work` fails or the driver refuses the capture.
    pub fn of<E: From<DriverError>>(
        stream: &Stream,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Recording, E> {
        // Other threads may call the driver as usual during a relaxed capture.
        const MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let device = stream.device;
        let _current = device.make_current()?;
        // If a later call fails, dropping `new` frees the handles created so far.
        let (graph, executable, events) = (null_mut(), null_mut(), [null_mut(); 2]);
        let mut new = Recording { device, graph, executable, events };
        // SAFETY: the pointers are to fields of a local; each handle is used after its creation.
        unsafe {
            call!(sys::cuStreamBeginCapture_v2(stream.handle, MODE))?;
            let done = work();
            let ended = call!(sys::cuStreamEndCapture(stream.handle, &mut new.graph));
            done?;
            ended?;
            call!(sys::cuGraphInstantiateWithFlags(&mut new.executable, new.graph, 0))?;
            for event in &mut new.events {
                call!(sys::cuEventCreate(event, 0))?;
            }
        }
        Ok(new)
    }

    /// Seconds of this many replays on a stream, one after the other.
    ///
    /// # Safety
    /// The memory that the captured launches use is valid.
    pub unsafe fn seconds(&self, stream: &Stream, replays: u32) -> Result<f64, DriverError> {
        let _current = self.device.make_current()?;
        let [begin, end] = self.events;
        let mut milliseconds = 0.0;
        // SAFETY: `self` owns graph and events; the pointer is to a local.
        unsafe {
            call!(sys::cuEventRecord(begin, stream.handle))?;
            for _ in 0..replays {
                call!(sys::cuGraphLaunch(self.executable, stream.handle))?;
            }
            call!(sys::cuEventRecord(end, stream.handle))?;
            call!(sys::cuEventSynchronize(end))?;
            if let Some(elapsed_time) = elapsed_time()? {
                check("cuEventElapsedTime", elapsed_time(&mut milliseconds, begin, end))?;
            }
        }
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

type ElapsedTime = Option<unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult>;

/// `cuEventElapsedTime`, as CUDA 12.0 declares it. The bindings declare the function of CUDA 12.8
/// alone.
fn elapsed_time() -> Result<ElapsedTime, DriverError> {
    const CUDA: i32 = 12_000;
    let (mut function, mut status) =
        (null_mut(), CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS);
    // SAFETY: the pointers are to locals. The driver returns a function of the named version, which
    // has this type.
    unsafe {
        let name = c"cuEventElapsedTime".as_ptr();
        call!(sys::cuGetProcAddress_v2(name, &mut function, CUDA, 0, &mut status))?;
        Ok(std::mem::transmute::<*mut c_void, ElapsedTime>(function))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _current = self.device.make_current(); // the handles have their context
        // SAFETY: `self` owns the handles. The driver frees an executable graph and an event after
        // their last use on the device.
        unsafe {
            for event in self.events.into_iter().filter(|event| !event.is_null()) {
                sys::cuEventDestroy_v2(event);
            }
            if !self.executable.is_null() {
                sys::cuGraphExecDestroy(self.executable);
            }
            if !self.graph.is_null() {
                sys::cuGraphDestroy(self.graph);
            }
        }
    }
}
