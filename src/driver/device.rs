//! Devices, and the primary context in which torch and every other runtime client work.

use std::sync::{Mutex, OnceLock};

use cudarc::driver::sys::{self, CUcontext, CUdevice_attribute, CUmemoryPool};

use super::DriverError;
use super::error::check;

/// One CUDA device with its primary context, retained for the life of the process.
pub struct Device {
    pub ordinal: i32,
    /// Compute capability, ten times major plus minor: 90 for an H100.
    pub cc: u32,
    pub multiprocessors: u32,
    pub attributes: Attributes,
    /// The driver's version, 12060 for that of CUDA 12.6.
    pub(super) driver: i32,
    pub(super) handle: sys::CUdevice,
    context: CUcontext,
    pool: Mutex<Option<Pool>>,
}

/// Attributes that the cost model uses. 0 where the driver does not report one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attributes {
    pub clock_khz: u32,
    pub memory_clock_khz: u32,
    pub memory_bus_bits: u32,
    pub l2_bytes: u32,
    /// The most that a CTA may opt in to.
    pub shared_bytes_per_cta: u32,
    pub shared_bytes_per_sm: u32,
}

impl Attributes {
    fn read(read: impl Fn(CUdevice_attribute) -> Result<u32, DriverError>) -> Attributes {
        use CUdevice_attribute as Attribute;
        let known = |attribute| read(attribute).unwrap_or(0);
        Attributes {
            clock_khz: known(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
            memory_clock_khz: known(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE),
            memory_bus_bits: known(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH),
            l2_bytes: known(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
            shared_bytes_per_cta: known(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            ),
            shared_bytes_per_sm: known(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            ),
        }
    }
}

struct Pool(CUmemoryPool);

/// What the pool holds on to when nobody uses it. Without, each synchronization would give all of it back to the driver, and
/// the next allocation would take a hundred microseconds.
const POOL_KEEPS_BYTES: u64 = 512 << 20;

// SAFETY: a pool's handle may be used from any thread; the driver synchronizes access to it.
unsafe impl Send for Pool {}

// SAFETY: a context handle may be used from any thread; the driver synchronizes access to it.
unsafe impl Send for Device {}
unsafe impl Sync for Device {}

/// Loads and initializes the driver, once. Returns its version.
fn initialize() -> Result<i32, DriverError> {
    static STATE: OnceLock<Result<i32, DriverError>> = OnceLock::new();
    STATE
        .get_or_init(|| {
            // SAFETY: probing loads libcuda and nothing else; the calls take valid pointers.
            unsafe {
                if !sys::is_culib_present() {
                    return Err(DriverError::NotFound);
                }
                check("cuInit", sys::cuInit(0))?;
                let mut version = 0;
                check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
                // 12.0 brought context-free libraries and kernels (cuLibraryLoadData).
                if version < 12000 {
                    return Err(DriverError::TooOld {
                        major: version / 1000,
                        minor: version % 1000 / 10,
                    });
                }
                Ok(version)
            }
        })
        .clone()
}

impl Device {
    /// The device of this number. Its primary context is made on the first call.
    pub fn get(ordinal: i32) -> Result<&'static Device, DriverError> {
        static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());
        let mut devices = DEVICES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(device) = devices.iter().find(|device| device.ordinal == ordinal) {
            return Ok(device);
        }
        let device: &'static Device = Box::leak(Box::new(Device::open(ordinal)?));
        devices.push(device);
        Ok(device)
    }

    fn open(ordinal: i32) -> Result<Device, DriverError> {
        let driver = initialize()?;
        let (mut count, mut handle, mut context) = (0, 0, std::ptr::null_mut());
        // SAFETY: every call gets pointers to locals that outlive it.
        unsafe {
            check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))?;
            if ordinal < 0 || ordinal >= count {
                return Err(DriverError::NoDevice { ordinal, count });
            }
            check("cuDeviceGet", sys::cuDeviceGet(&mut handle, ordinal))?;
            let attribute = |which| {
                let mut value = 0;
                check(
                    "cuDeviceGetAttribute",
                    sys::cuDeviceGetAttribute(&mut value, which, handle),
                )?;
                Ok::<u32, DriverError>(value as u32)
            };
            let major =
                attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
            let minor =
                attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
            let multiprocessors =
                attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
            let attributes = Attributes::read(attribute);
            check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, handle))?;
            let pool = Mutex::new(None);
            Ok(Device {
                ordinal,
                cc: 10 * major + minor,
                multiprocessors,
                attributes,
                driver,
                handle,
                context,
                pool,
            })
        }
    }

    /// Makes this device's context the calling thread's, until the guard is dropped. Costs one query where it is already.
    pub fn make_current(&self) -> Result<Current, DriverError> {
        let mut current = std::ptr::null_mut();
        // SAFETY: the pointer is a local's; the context is retained for the life of the process.
        unsafe {
            check("cuCtxGetCurrent", sys::cuCtxGetCurrent(&mut current))?;
            if current == self.context {
                return Ok(Current { pushed: false });
            }
            check("cuCtxPushCurrent", sys::cuCtxPushCurrent_v2(self.context))?;
        }
        Ok(Current { pushed: true })
    }

    /// Waits until a stream of this device has run dry.
    pub fn synchronize(&self, stream: u64) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        // SAFETY: the handle is what the user calls a stream; the driver refuses those that it does not know.
        unsafe { check("cuStreamSynchronize", sys::cuStreamSynchronize(stream as sys::CUstream)) }
    }

    /// Makes the pool that `allocate` takes from, which cannot be made while a stream is being captured.
    pub fn prepare_to_allocate(&self) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        self.pool().map(|_| ())
    }

    /// Device memory in the order of a stream: free to use by what is enqueued on it from now on, until `free`.
    pub fn allocate(&self, stream: u64, bytes: u64) -> Result<u64, DriverError> {
        let _current = self.make_current()?;
        let pool = self.pool()?;
        let mut address = 0;
        // SAFETY: the pool lives as long as the process; the pointer is a local's.
        unsafe {
            let result = sys::cuMemAllocFromPoolAsync(
                &mut address,
                bytes as usize,
                pool,
                stream as sys::CUstream,
            );
            check("cuMemAllocFromPoolAsync", result)?;
        }
        Ok(address)
    }

    /// Gives memory from `allocate` back, once the stream has come to this point.
    pub fn free(&self, stream: u64, address: u64) -> Result<(), DriverError> {
        let _current = self.make_current()?;
        // SAFETY: the address came from `allocate`, and is given back once.
        unsafe { check("cuMemFreeAsync", sys::cuMemFreeAsync(address, stream as sys::CUstream)) }
    }

    /// A pool of our own, so that how long it keeps memory is nobody else's concern.
    fn pool(&self) -> Result<CUmemoryPool, DriverError> {
        let mut pool = self.pool.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(Pool(pool)) = *pool {
            return Ok(pool);
        }
        let mut made = std::ptr::null_mut();
        // SAFETY: the properties are plain data, for which zero means "none"; the driver reads them and writes the handle.
        unsafe {
            let mut properties: sys::CUmemPoolProps = std::mem::zeroed();
            properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
            properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
            properties.location.id = self.handle;
            check("cuMemPoolCreate", sys::cuMemPoolCreate(&mut made, &properties))?;
            let mut keep = POOL_KEEPS_BYTES;
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            let set =
                sys::cuMemPoolSetAttribute(made, attribute, std::ptr::from_mut(&mut keep).cast());
            check("cuMemPoolSetAttribute", set)?;
        }
        *pool = Some(Pool(made));
        Ok(made)
    }

    /// Whether a stream belongs to this device's primary context. The default streams belong to every device.
    pub fn owns_stream(&self, stream: u64) -> Result<bool, DriverError> {
        if is_default_stream(stream) {
            return Ok(true);
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the handle is what the user calls a stream; the driver refuses those that it does not know.
        unsafe {
            check("cuStreamGetCtx", sys::cuStreamGetCtx(stream as sys::CUstream, &mut context))?
        };
        Ok(context == self.context)
    }
}

/// Null and the handles 1 and 2, which stand for the current context's default streams (CUDA driver API, `CU_STREAM_LEGACY` and
/// `CU_STREAM_PER_THREAD`).
pub(super) fn is_default_stream(stream: u64) -> bool {
    stream <= 2
}

/// While it lives, the device that made it is current on this thread.
pub struct Current {
    pushed: bool,
}

impl Current {
    /// Whether another one, or none, was current before.
    pub fn is_new(&self) -> bool {
        self.pushed
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: takes off what `make_current` put on. An error here leaves the thread with our context current,
            // which later calls cope with.
            unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}
