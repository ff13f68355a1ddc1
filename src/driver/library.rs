//! A compiled program in the driver, free of contexts, and the launch of its kernel.

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use arrayvec::ArrayVec;
use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUfunc_st, CUfunction, CUfunction_attribute, CUkernel,
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchAttributeValue_union__bindgen_ty_1 as ClusterDim, CUlaunchConfig, CUlibrary, CUresult,
};

use super::device::is_default_stream;
use super::error::check;
use super::{Device, DriverError};

/// A cubin loaded with `cuLibraryLoadData`, and the kernel in it. Serves every device of its architecture.
///
/// It is never unloaded: a CUDA graph that was captured with the kernel may be replayed at any time later, and does not
/// keep the library alive. Programs are few and small.
pub struct Library {
    kernel: CUkernel,
    /// Dynamic shared memory that a launch may use, in bytes.
    shared_bytes: u32,
    /// The kernel as each device's primary context has it, once prepared there. Launching one takes 50 ns less than launching the
    /// context-free kernel, which the driver looks up again.
    functions: [AtomicPtr<CUfunc_st>; CACHED_DEVICES],
}

/// Devices that a library remembers its function for; of further ones it asks at each launch.
const CACHED_DEVICES: usize = 32;

/// A kernel in the context of one device.
#[derive(Clone, Copy)]
pub struct Function(CUfunction);

// SAFETY: libraries and kernels are handles that any thread may use; the driver synchronizes access to them.
unsafe impl Send for Library {}
unsafe impl Sync for Library {}
unsafe impl Send for Function {}
unsafe impl Sync for Function {}

/// The shape of a launch: CTAs, threads of each, CTAs of a cluster, each along x, y and z; dynamic shared memory in bytes.
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    pub ctas: [u32; 3],
    pub threads: [u32; 3],
    pub cluster: [u32; 3],
    pub shared_bytes: u32,
    /// Whether the launch may begin before the one in front of it on the stream has ended (programmatic dependent launch).
    pub overlapping: bool,
}

impl LaunchConfig {
    /// So many CTAs of so many threads, side by side and with nothing else to it.
    pub fn plain(ctas: u32, threads: u32) -> LaunchConfig {
        LaunchConfig {
            ctas: [ctas, 1, 1],
            threads: [threads, 1, 1],
            cluster: [1; 3],
            shared_bytes: 0,
            overlapping: false,
        }
    }
}

/// A grid as the driver takes it, but for the stream: made once where a launch is repeated.
#[derive(Clone)]
#[repr(C)] // the attributes, of which most launches have none, last
pub struct EncodedConfig {
    config: CUlaunchConfig,
    attributes: ArrayVec<CUlaunchAttribute, 2>,
}

// SAFETY: the pointers in it, to the stream and the attributes, are null; a launch fills in those of its own copy.
unsafe impl Send for EncodedConfig {}
unsafe impl Sync for EncodedConfig {}

impl From<LaunchConfig> for EncodedConfig {
    fn from(launch: LaunchConfig) -> EncodedConfig {
        let mut attributes = ArrayVec::new();
        let mut add = |id, fill: &dyn Fn(&mut CUlaunchAttributeValue)| {
            let mut value = CUlaunchAttributeValue { pad: [0; 64] };
            fill(&mut value);
            attributes.push(CUlaunchAttribute { id, pad: [0; 4], value });
        };
        if launch.cluster != [1; 3] {
            let [x, y, z] = launch.cluster;
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            add(id, &|value| value.clusterDim = ClusterDim { x, y, z });
        }
        if launch.overlapping {
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            add(id, &|value| value.programmaticStreamSerializationAllowed = 1);
        }
        let config = CUlaunchConfig {
            gridDimX: launch.ctas[0],
            gridDimY: launch.ctas[1],
            gridDimZ: launch.ctas[2],
            blockDimX: launch.threads[0],
            blockDimY: launch.threads[1],
            blockDimZ: launch.threads[2],
            sharedMemBytes: launch.shared_bytes,
            hStream: std::ptr::null_mut(),
            attrs: std::ptr::null_mut(),
            numAttrs: attributes.len() as u32,
        };
        EncodedConfig { config, attributes }
    }
}

impl EncodedConfig {
    pub(super) fn attributes(&self) -> &[CUlaunchAttribute] {
        &self.attributes
    }
}

/// A launch: what, how, and with which parameters.
pub struct KernelCall<'a> {
    pub function: Function,
    pub config: &'a EncodedConfig,
    /// What the kernel declares as its first parameter.
    pub params: *const c_void,
    /// Its second, unless it has none.
    pub epilogue_params: &'a [u64],
}

impl KernelCall<'_> {
    /// Enqueues the launch on a stream of the device that the function is of, whichever is current.
    ///
    /// On a stream that was made it is not asked which context is current, 20 ns of each launch: function and stream belong to one context
    /// each, and the driver launches where both are the same, or refuses (what it answers in each case: docs/notes/latency.md).
    ///
    /// # Safety
    /// `params` and `more` are what the kernel declares, and every address in them is valid on the device until the launch has run.
    #[inline(always)] // in every launch that is repeated
    pub unsafe fn launch(&self, device: &Device, stream: u64) -> Result<(), DriverError> {
        // A default stream is the current context's, whichever that is: a green context's (CUDA driver API, "Green Contexts"), too.
        let _current = if is_default_stream(stream) { Some(device.make_current()?) } else { None };
        // SAFETY: the caller's.
        match unsafe { self.enqueue(stream) } {
            CUresult::CUDA_SUCCESS => Ok(()),
            // SAFETY: the caller's.
            refused => unsafe { self.retry_in_device_context(device, stream, refused) },
        }
    }

    /// Once more, with the device's context current, unless it was when the launch was refused: a driver may launch in the current context
    /// alone.
    ///
    /// # Safety
    /// As for [`Call::launch`].
    #[cold]
    #[inline(never)]
    unsafe fn retry_in_device_context(
        &self,
        device: &Device,
        stream: u64,
        refused: CUresult,
    ) -> Result<(), DriverError> {
        let current = device.make_current()?;
        // SAFETY: the caller's.
        let result = if current.was_pushed() { unsafe { self.enqueue(stream) } } else { refused };
        check("cuLaunchKernelEx", result)
    }

    /// The driver's call alone.
    ///
    /// # Safety
    /// As for [`Call::launch`]; the device is current.
    pub unsafe fn launch_current(&self, stream: u64) -> Result<(), DriverError> {
        // SAFETY: the caller's.
        check("cuLaunchKernelEx", unsafe { self.enqueue(stream) })
    }

    /// # Safety
    /// As for [`Call::launch`].
    #[inline(always)]
    unsafe fn enqueue(&self, stream: u64) -> CUresult {
        // SAFETY: the caller's. The driver looks at as many as the kernel declares.
        unsafe { self.function.call(stream, self.config, &mut self.pointers()) }
    }

    /// To each parameter, as the driver asks for them.
    #[inline(always)]
    fn pointers(&self) -> [*mut c_void; 2] {
        [self.params.cast_mut(), self.epilogue_params.as_ptr().cast_mut().cast()]
    }

    /// As the node of a graph has it. It points to the parameters by way of `pointers`.
    pub(super) fn node(&self, pointers: &mut [*mut c_void; 2]) -> CUDA_KERNEL_NODE_PARAMS {
        *pointers = self.pointers();
        let config = &self.config.config;
        CUDA_KERNEL_NODE_PARAMS {
            func: self.function.0,
            gridDimX: config.gridDimX,
            gridDimY: config.gridDimY,
            gridDimZ: config.gridDimZ,
            blockDimX: config.blockDimX,
            blockDimY: config.blockDimY,
            blockDimZ: config.blockDimZ,
            sharedMemBytes: config.sharedMemBytes,
            kernelParams: pointers.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        }
    }
}

impl Library {
    /// Loads a cubin and finds its kernel.
    pub fn load(
        cubin: &[u8],
        entry: &str,
        shared_bytes: u32,
        device: &Device,
    ) -> Result<Library, DriverError> {
        let _current = device.make_current()?;
        let (mut library, mut kernel): (CUlibrary, CUkernel) =
            (std::ptr::null_mut(), std::ptr::null_mut());
        let entry = CString::new(entry).unwrap_or_default();
        let none = std::ptr::null_mut();
        // SAFETY: the cubin is a whole ELF image that our own cache has checked; the driver copies it before it returns.
        unsafe {
            let code = cubin.as_ptr().cast::<c_void>();
            let loaded = sys::cuLibraryLoadData(
                &mut library,
                code,
                none,
                none.cast(),
                0,
                none.cast(),
                none.cast(),
                0,
            );
            check("cuLibraryLoadData", loaded)?;
            let found = sys::cuLibraryGetKernel(&mut kernel, library, entry.as_ptr());
            if let Err(error) = check("cuLibraryGetKernel", found) {
                sys::cuLibraryUnload(library);
                return Err(error);
            }
        }
        let functions = std::array::from_fn(|_| AtomicPtr::default());
        Ok(Library { kernel, shared_bytes, functions })
    }

    /// The kernel on a device. The first time, its code is loaded there and its limit of shared memory lifted, so that nothing is left
    /// for a launch to do: one may then be captured into a graph straight away.
    pub fn function(&self, device: &Device) -> Result<Function, DriverError> {
        let known = self.functions.get(device.ordinal as usize);
        let function = known.map_or(std::ptr::null_mut(), |known| known.load(Ordering::Acquire));
        if !function.is_null() {
            return Ok(Function(function));
        }
        let _current = device.make_current()?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the kernel lives as long as `self`; the pointer is a local's.
        unsafe {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let set = sys::cuKernelSetAttribute(
                attribute,
                self.shared_bytes as i32,
                self.kernel,
                device.handle,
            );
            check("cuKernelSetAttribute", set)?;
            check("cuKernelGetFunction", sys::cuKernelGetFunction(&mut function, self.kernel))?;
        }
        if let Some(known) = known {
            known.store(function, Ordering::Release);
        }
        Ok(Function(function))
    }
}

impl Function {
    /// As [`Call::launch`], of a kernel with one parameter a word: each lies in the first bytes of its own.
    ///
    /// # Safety
    /// There is a word for each parameter that the kernel declares, with its value, none larger than a word. Every address among
    /// them is valid on the device until the launch has run.
    pub unsafe fn launch_words(
        self,
        device: &Device,
        stream: u64,
        config: &EncodedConfig,
        words: &[u64],
    ) -> Result<(), DriverError> {
        let _current = device.make_current()?;
        let mut arguments: Vec<*mut c_void> =
            words.iter().map(|word| std::ptr::from_ref(word).cast_mut().cast()).collect();
        // SAFETY: the caller's.
        check("cuLaunchKernelEx", unsafe { self.call(stream, config, &mut arguments) })
    }

    /// The call. Where another device's context is current, or none, the driver may refuse it.
    ///
    /// # Safety
    /// There is a pointer to each parameter that the kernel declares; the rest as for [`Call::launch`].
    #[inline(always)]
    unsafe fn call(
        self,
        stream: u64,
        config: &EncodedConfig,
        arguments: &mut [*mut c_void],
    ) -> CUresult {
        let config = CUlaunchConfig {
            hStream: stream as sys::CUstream,
            attrs: config.attributes.as_ptr().cast_mut(),
            ..config.config
        };
        // SAFETY: the driver copies attributes and parameters before it returns, and only reads them. The rest the caller vouches
        // for.
        unsafe {
            sys::cuLaunchKernelEx(&config, self.0, arguments.as_mut_ptr(), std::ptr::null_mut())
        }
    }
}
