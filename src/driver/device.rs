//! CUDA devices and their primary contexts, which torch and every other runtime client share.

use std::ffi::{CStr, c_char};
use std::sync::{Mutex, OnceLock};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute, CUmemoryPool};

use super::DriverError;
use super::error::call;
use crate::process::delay_forks;

/// One CUDA device. Its primary context is retained for the life of the process.
pub struct Device {
    pub ordinal: i32,
    /// As the driver names it: "NVIDIA H200".
    pub name: String,
    /// Compute capability times ten: 90 for sm_90.
    pub cc: u32,
    pub multiprocessors: u32,
    pub attributes: Attributes,
    /// The driver's version: 12060 for CUDA 12.6.
    pub driver_version: i32,
    pub(super) handle: sys::CUdevice,
    pub(super) context: CUcontext,
    pool: Mutex<Option<Pool>>,
}

/// Attributes that the cost model uses. 0 where the driver does not report one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attributes {
    pub clock_khz: u32,
    pub memory_clock_khz: u32,
    pub memory_bus_bits: u32,
    pub l2_bytes: u32,
    /// The maximum that a CTA may opt in to.
    pub shared_bytes_per_cta: u32,
    pub shared_bytes_per_sm: u32,
}

impl Attributes {
    /// # Errors
    /// If a query fails, except for an attribute that the driver does not know.
    fn read(
        read: impl Fn(CUdevice_attribute) -> Result<u32, DriverError>,
    ) -> Result<Attributes, DriverError> {
        use CUdevice_attribute as Attribute;
        let known = |attribute| match read(attribute) {
            Err(error) if error.means_unknown() => Ok(0),
            result => result,
        };
        Ok(Attributes {
            clock_khz: known(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            memory_clock_khz: known(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            memory_bus_bits: known(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
            l2_bytes: known(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
            shared_bytes_per_cta: known(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )?,
            shared_bytes_per_sm: known(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            )?,
        })
    }
}

struct Pool(CUmemoryPool);

/// Free memory that the pool retains across synchronizations. Without a threshold each
/// synchronization returns the memory to the driver, and the next allocation maps it again.
const POOL_KEEPS_BYTES: u64 = 512 << 20;

// SAFETY: any thread may use a pool's handle; the driver synchronizes access to it.
unsafe impl Send for Pool {}

// SAFETY: any thread may use a context handle; the driver synchronizes access to it.
unsafe impl Send for Device {}
unsafe impl Sync for Device {}

/// Loads and initializes the driver, once in a process. Returns its version. A failed call is
/// repeated by the next one, unless there is no driver, an old one or no device.
fn initialize() -> Result<i32, DriverError> {
    static STATE: OnceLock<Result<i32, DriverError>> = OnceLock::new();
    if let Some(known) = STATE.get() {
        return known.clone();
    }
    match start() {
        Err(error @ DriverError::Call { .. }) if !error.means_no_gpu() => Err(error),
        result => STATE.get_or_init(|| result).clone(),
    }
}

fn start() -> Result<i32, DriverError> {
    // SAFETY: probing only loads libcuda; the calls take valid pointers.
    unsafe {
        if !sys::is_culib_present() {
            return Err(DriverError::NotFound);
        }
        call!(sys::cuInit(0))?;
        let mut version = 0;
        call!(sys::cuDriverGetVersion(&mut version))?;
        // CUDA 12.0 introduced context-independent libraries (cuLibraryLoadData).
        if version < 12000 {
            return Err(DriverError::TooOld { major: version / 1000, minor: version % 1000 / 10 });
        }
        Ok(version)
    }
}

/// The driver's handle of the device of this ordinal.
fn handle_of(ordinal: i32) -> Result<CUdevice, DriverError> {
    let count = Device::count()?;
    if ordinal < 0 || ordinal >= count {
        return Err(DriverError::NoDevice { ordinal, count });
    }
    let mut handle = 0;
    // SAFETY: the pointer is to a local.
    unsafe { call!(sys::cuDeviceGet(&mut handle, ordinal))? };
    Ok(handle)
}

fn attribute_of(handle: CUdevice, which: CUdevice_attribute) -> Result<u32, DriverError> {
    let mut value = 0;
    // SAFETY: the pointer is to a local.
    unsafe { call!(sys::cuDeviceGetAttribute(&mut value, which, handle))? };
    Ok(value as u32)
}

/// The compute capability times ten.
fn capability_of(handle: CUdevice) -> Result<u32, DriverError> {
    let major =
        attribute_of(handle, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor =
        attribute_of(handle, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(10 * major + minor)
}

impl Device {
    /// The device of this ordinal. The first call for an ordinal retains its primary context.
    pub fn get(ordinal: i32) -> Result<&'static Device, DriverError> {
        static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());
        let lock = || DEVICES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let known = |devices: &[&'static Device]| {
            devices.iter().copied().find(|device| device.ordinal == ordinal)
        };
        if let Some(device) = known(&lock()) {
            return Ok(device);
        }
        // A child forked meanwhile would wait for the lock forever.
        let _delay = delay_forks();
        let mut devices = lock();
        if let Some(device) = known(&devices) {
            return Ok(device);
        }
        let device: &'static Device = Box::leak(Box::new(Device::open(ordinal)?));
        devices.push(device);
        Ok(device)
    }

    /// The compute capability times ten of the device of this ordinal, without a context.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn capability(ordinal: i32) -> Result<u32, DriverError> {
        capability_of(handle_of(ordinal)?)
    }

    /// The device of this ordinal, if this process can use it: the machine has it, and the process
    /// is not a fork of one that has used CUDA.
    pub fn usable(ordinal: i32) -> Option<&'static Device> {
        let device = Device::get(ordinal).ok()?;
        match device.make_current() {
            Err(error) if error.means_fork() => None,
            _ => Some(device),
        }
    }

    /// How many devices the machine has.
    ///
    /// # Errors
    /// If there is no driver, or it does not start.
    pub fn count() -> Result<i32, DriverError> {
        initialize()?;
        let mut count = 0;
        // SAFETY: the pointer is to a local.
        unsafe { call!(sys::cuDeviceGetCount(&mut count))? };
        Ok(count)
    }

    fn open(ordinal: i32) -> Result<Device, DriverError> {
        let driver_version = initialize()?;
        let (handle, mut context) = (handle_of(ordinal)?, std::ptr::null_mut());
        // SAFETY: the pointers are to locals that outlive the calls.
        unsafe {
            let mut name = [0 as c_char; 256];
            call!(sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, handle))?;
            let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
            let cc = capability_of(handle)?;
            let attribute = |which| attribute_of(handle, which);
            let multiprocessors =
                attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
            let attributes = Attributes::read(attribute)?;
            // Last: what fails behind it would leave the context retained.
            call!(sys::cuDevicePrimaryCtxRetain(&mut context, handle))?;
            let pool = Mutex::new(None);
            Ok(Device {
                ordinal,
                name,
                cc,
                multiprocessors,
                attributes,
                driver_version,
                handle,
                context,
                pool,
            })
        }
    }

    /// All devices of the name of this one, this one first. A device that cannot be opened is left
    /// out.
    pub fn alike(&'static self) -> Vec<&'static Device> {
        let count = Device::count().unwrap_or(0);
        let others = (0..count).filter(|ordinal| *ordinal != self.ordinal);
        let opened = others.filter_map(|ordinal| Device::get(ordinal).ok());
        std::iter::once(self).chain(opened.filter(|other| other.name == self.name)).collect()
    }

    /// Makes this device's primary context current on the calling thread until the guard is
    /// dropped.
    pub fn make_current(&self) -> Result<ContextGuard, DriverError> {
        let mut current = std::ptr::null_mut();
        // SAFETY: the pointer is to a local; the context is retained for the life of the process.
        unsafe {
            call!(sys::cuCtxGetCurrent(&mut current))?;
            if current == self.context {
                return Ok(ContextGuard { pushed: false });
            }
            call!(sys::cuCtxPushCurrent_v2(self.context))?;
        }
        Ok(ContextGuard { pushed: true })
    }

    /// Waits until all work on a stream of this device has completed.
    pub fn synchronize(&self, stream: u64) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        // SAFETY: the user passed the handle as a stream; the driver rejects unknown handles.
        unsafe { call!(sys::cuStreamSynchronize(stream as sys::CUstream)) }
    }

    /// Copies device memory of this device to the host, after the work on a stream.
    ///
    /// # Safety
    /// The range of `bytes` bytes is valid memory of the device. Any bits are a `T`.
    ///
    /// # Panics
    /// If `to` has fewer than `bytes` bytes.
    pub unsafe fn download<T: Copy>(
        &self,
        stream: u64,
        to: &mut [T],
        from: u64,
        bytes: u64,
    ) -> Result<(), DriverError> {
        assert!(size_of_val(to) as u64 >= bytes, "a buffer of fewer bytes than the copy");
        {
            let _current = self.make_current()?;
            let (to, bytes) = (to.as_mut_ptr().cast(), bytes as usize);
            let stream = stream as sys::CUstream;
            // SAFETY: `to` has the bytes and outlives the copy, which ends before this function
            // does; the rest is guaranteed by the caller.
            unsafe { call!(sys::cuMemcpyDtoHAsync_v2(to, from, bytes, stream)) }?;
        }
        self.synchronize(stream)
    }

    /// Waits until all work on this device's primary context has completed. Fails during a stream
    /// capture.
    pub fn synchronize_all(&self) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        // SAFETY: takes no arguments.
        unsafe { call!(sys::cuCtxSynchronize()) }
    }

    /// Creates the pool that `allocate` uses. A pool cannot be created during stream capture.
    pub fn prepare_to_allocate(&self) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        self.pool().map(|_| ())
    }

    /// Stream-ordered device memory, valid for work enqueued on the stream until it is freed.
    pub fn allocate(&self, stream: u64, bytes: u64) -> Result<PoolMemory, DriverError> {
        let current = self.make_current()?;
        let pool = self.pool()?;
        let mut address = 0;
        // SAFETY: the pool lives as long as the process; the pointer is to a local.
        unsafe {
            call!(sys::cuMemAllocFromPoolAsync(
                &mut address,
                bytes as usize,
                pool,
                stream as sys::CUstream,
            ))?;
        }
        Ok(PoolMemory { address, stream, _current: current })
    }

    /// The device's memory pool, created on first use. A private pool keeps [`POOL_KEEPS_BYTES`]
    /// from affecting other users of the default pool.
    fn pool(&self) -> Result<CUmemoryPool, DriverError> {
        let mut pool = self.pool.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(Pool(pool)) = *pool {
            return Ok(pool);
        }
        let mut created = std::ptr::null_mut();
        // SAFETY: the properties are plain data for which zero means "none". The driver reads them
        // and writes the handle.
        unsafe {
            let mut properties: sys::CUmemPoolProps = std::mem::zeroed();
            properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
            properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
            properties.location.id = self.handle;
            call!(sys::cuMemPoolCreate(&mut created, &properties))?;
            let mut keep = POOL_KEEPS_BYTES;
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            let keep = std::ptr::from_mut(&mut keep).cast();
            if let Err(error) = call!(sys::cuMemPoolSetAttribute(created, attribute, keep)) {
                sys::cuMemPoolDestroy(created);
                return Err(error);
            }
        }
        *pool = Some(Pool(created));
        Ok(created)
    }

    /// Whether a stream belongs to this device's primary context. True for default streams, which
    /// belong to the current context.
    pub fn owns_stream(&self, stream: u64) -> Result<bool, DriverError> {
        if is_default_stream(stream) {
            return Ok(true);
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the user passed the handle as a stream; the driver rejects unknown handles.
        unsafe { call!(sys::cuStreamGetCtx(stream as sys::CUstream, &mut context))? };
        Ok(context == self.context)
    }
}

/// Whether the handle denotes a default stream of the current context: null, `CU_STREAM_LEGACY` (1)
/// or `CU_STREAM_PER_THREAD` (2).
pub(super) fn is_default_stream(stream: u64) -> bool {
    stream <= 2
}

/// Memory of a device's pool. The device's context is current on this thread while the value lives,
/// so that nothing but the driver's refusal keeps the memory from being freed.
pub struct PoolMemory {
    address: u64,
    stream: u64,
    _current: ContextGuard,
}

impl PoolMemory {
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Frees the memory in stream order.
    pub fn free(self) -> Result<(), DriverError> {
        // SAFETY: `self` owns the memory and is consumed.
        unsafe { call!(sys::cuMemFreeAsync(self.address, self.stream as sys::CUstream)) }
    }
}

/// Keeps a device's primary context current on this thread while it lives.
pub struct ContextGuard {
    pushed: bool,
}

impl ContextGuard {
    /// Whether `make_current` changed the current context.
    pub fn was_pushed(&self) -> bool {
        self.pushed
    }
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: pops the context that `make_current` pushed. After an error the context stays
            // current, which later calls tolerate.
            unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}
