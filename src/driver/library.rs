//! A program loaded into the driver, independent of contexts, and the launch of its kernel.

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use arrayvec::ArrayVec;
use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUfunc_st, CUfunction, CUfunction_attribute, CUkernel,
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchAttributeValue_union__bindgen_ty_1 as ClusterDim, CUlaunchConfig, CUlibrary, CUresult,
};

use super::device::is_default_stream;
use super::error::{call, check};
use super::{Device, DriverError, EncodedTensorMap};

/// A cubin loaded with `cuLibraryLoadData`, and its kernel. Serves every device of its
/// architecture.
///
/// A library is never unloaded: a CUDA graph captured with the kernel may be replayed at any later
/// time and does not keep the library alive.
pub struct Library {
    kernel: CUkernel,
    /// Dynamic shared memory that a launch may use, in bytes.
    shared_bytes: u32,
    /// The cache of driver functions. The launch of a function is cheaper than the launch of the
    /// context-independent kernel, which the driver resolves each time.
    functions: [AtomicPtr<CUfunc_st>; CACHED_DEVICES],
}

/// Capacity of `Library::functions`. Each launch on a later device resolves the function again.
const CACHED_DEVICES: usize = 32;

/// A kernel in the primary context of one device.
#[derive(Clone, Copy)]
pub struct Function(CUfunction);

// SAFETY: any thread may use these handles; the driver synchronizes access to them.
unsafe impl Send for Library {}
unsafe impl Sync for Library {}
unsafe impl Send for Function {}
unsafe impl Sync for Function {}

/// The value of a parameter of a user's kernel.
pub enum ParameterValue {
    /// A pointer or a number, in the first bytes of the word.
    Word(u64),
    TensorMap(Box<EncodedTensorMap>),
}

impl ParameterValue {
    fn pointer(&self) -> *mut c_void {
        match self {
            ParameterValue::Word(word) => std::ptr::from_ref(word).cast_mut().cast(),
            ParameterValue::TensorMap(map) => std::ptr::from_ref(&**map).cast_mut().cast(),
        }
    }
}

/// A launch configuration: CTAs, threads per CTA and CTAs per cluster along x, y and z, and dynamic
/// shared memory in bytes.
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    pub ctas: [u32; 3],
    pub threads: [u32; 3],
    pub cluster: [u32; 3],
    pub shared_bytes: u32,
    /// Whether the launch may begin before the preceding one on the stream has completed
    /// (programmatic dependent launch).
    pub overlapping: bool,
}

impl LaunchConfig {
    /// A one-dimensional grid without clusters, dynamic shared memory or programmatic launch.
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

/// A launch configuration in the driver's encoding, without the stream. Encoded once per plan.
#[derive(Clone)]
#[repr(C)] // the attributes come last: most launches have none
pub struct EncodedConfig {
    config: CUlaunchConfig,
    attributes: ArrayVec<CUlaunchAttribute, 2>,
}

// SAFETY: the pointers to the stream and the attributes are null; each launch sets them in a copy.
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

/// A kernel call: function, configuration and parameters.
pub struct KernelCall<'a> {
    pub function: Function,
    pub config: &'a EncodedConfig,
    /// The kernel's first parameter.
    pub params: *const c_void,
    /// The kernel's second parameter, as words. Ignored if the kernel declares none.
    pub epilogue_params: &'a [u64],
}

impl KernelCall<'_> {
    /// Enqueues the call on a stream of the function's device. Any context may be current.
    ///
    /// Only a default stream needs a query of the current context. Every other stream belongs to
    /// one context, as the function does; the driver launches if both contexts agree.
    ///
    /// # Safety
    /// `params` and `epilogue_params` are the parameters that the kernel declares. Every address in
    /// them stays valid on the device until the launch has completed.
    #[inline(always)] // in every repeated launch
    pub unsafe fn launch(&self, device: &Device, stream: u64) -> Result<(), DriverError> {
        // A default stream belongs to the current context, which may be a green context (CUDA
        // driver API, "Green Contexts").
        let _current = if is_default_stream(stream) { Some(device.make_current()?) } else { None };
        // SAFETY: guaranteed by the caller.
        match unsafe { self.enqueue(stream) } {
            CUresult::CUDA_SUCCESS => Ok(()),
            // SAFETY: guaranteed by the caller.
            refused => unsafe { self.retry_in_device_context(device, stream, refused) },
        }
    }

    /// Retries a refused call with the device's context current, unless that context was current
    /// already: some drivers launch in the current context only.
    ///
    /// # Safety
    /// As for [`KernelCall::launch`].
    #[cold]
    #[inline(never)]
    unsafe fn retry_in_device_context(
        &self,
        device: &Device,
        stream: u64,
        refused: CUresult,
    ) -> Result<(), DriverError> {
        let current = device.make_current()?;
        // SAFETY: guaranteed by the caller.
        let result = if current.was_pushed() { unsafe { self.enqueue(stream) } } else { refused };
        check("cuLaunchKernelEx", result)
    }

    /// Enqueues the call with one driver call and no retry.
    ///
    /// # Safety
    /// As for [`KernelCall::launch`]. The device's context is current.
    pub unsafe fn launch_current(&self, stream: u64) -> Result<(), DriverError> {
        // SAFETY: guaranteed by the caller.
        check("cuLaunchKernelEx", unsafe { self.enqueue(stream) })
    }

    /// # Safety
    /// As for [`KernelCall::launch`].
    #[inline(always)]
    unsafe fn enqueue(&self, stream: u64) -> CUresult {
        // SAFETY: guaranteed by the caller. The driver reads as many pointers as the kernel
        // declares.
        unsafe { self.function.call(stream, self.config, &mut self.pointers()) }
    }

    /// Pointers to the parameters, as the driver takes them.
    #[inline(always)]
    fn pointers(&self) -> [*mut c_void; 2] {
        [self.params.cast_mut(), self.epilogue_params.as_ptr().cast_mut().cast()]
    }

    /// The parameters of a graph's kernel node. They point to the kernel parameters through
    /// `pointers`.
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
    /// Loads a cubin and resolves its kernel.
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
        // SAFETY: the cubin is a whole ELF image that the program cache has checked. The driver
        // copies it before it returns.
        unsafe {
            let code = cubin.as_ptr().cast::<c_void>();
            call!(sys::cuLibraryLoadData(
                &mut library,
                code,
                none,
                none.cast(),
                0,
                none.cast(),
                none.cast(),
                0,
            ))?;
            let entry = entry.as_ptr();
            if let Err(error) = call!(sys::cuLibraryGetKernel(&mut kernel, library, entry)) {
                sys::cuLibraryUnload(library);
                return Err(error);
            }
        }
        let functions = std::array::from_fn(|_| AtomicPtr::default());
        Ok(Library { kernel, shared_bytes, functions })
    }

    /// The kernel's function on a device. The first call loads the code and raises the limit of
    /// dynamic shared memory, so that a first launch may happen under stream capture.
    pub fn function(&self, device: &Device) -> Result<Function, DriverError> {
        let known = self.functions.get(device.ordinal as usize);
        let function = known.map_or(std::ptr::null_mut(), |known| known.load(Ordering::Acquire));
        if !function.is_null() {
            return Ok(Function(function));
        }
        let _current = device.make_current()?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the kernel lives as long as `self`; the pointer is to a local.
        unsafe {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = self.shared_bytes as i32;
            call!(sys::cuKernelSetAttribute(attribute, bytes, self.kernel, device.handle))?;
            call!(sys::cuKernelGetFunction(&mut function, self.kernel))?;
        }
        if let Some(known) = known {
            known.store(function, Ordering::Release);
        }
        Ok(Function(function))
    }
}

impl Function {
    /// Launches a kernel with the value of each parameter.
    ///
    /// # Safety
    /// `values` holds the value of each parameter that the kernel declares, in the parameter's
    /// type. Every address among them stays valid on the device until the launch has completed.
    pub unsafe fn launch_values(
        self,
        device: &Device,
        stream: u64,
        config: &EncodedConfig,
        values: &[ParameterValue],
    ) -> Result<(), DriverError> {
        let _current = device.make_current()?;
        let mut arguments: Vec<_> = values.iter().map(ParameterValue::pointer).collect();
        // SAFETY: guaranteed by the caller.
        check("cuLaunchKernelEx", unsafe { self.call(stream, config, &mut arguments) })
    }

    /// Calls the driver, which may refuse unless the device's context is current.
    ///
    /// # Safety
    /// `arguments` points to each parameter that the kernel declares. As for
    /// [`KernelCall::launch`].
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
        // SAFETY: the driver copies attributes and parameters before it returns, and only reads
        // them. The caller guarantees the rest.
        unsafe {
            sys::cuLaunchKernelEx(&config, self.0, arguments.as_mut_ptr(), std::ptr::null_mut())
        }
    }
}
