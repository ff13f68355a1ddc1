//! Driver errors, with the name of the call and of CUDA's error.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUresult};
use thiserror::Error;

#[derive(Clone, Debug, Error, PartialEq)]
pub enum DriverError {
    #[error(
        "no CUDA driver was found: looked for libcuda.so and libcuda.so.1 on the loader's path; \
         install the NVIDIA driver, or put its folder on LD_LIBRARY_PATH"
    )]
    NotFound,
    #[error(
        "the CUDA driver has version {major}.{minor}, but Rutlass needs 12.0 or later; update the \
         NVIDIA driver"
    )]
    TooOld { major: i32, minor: i32 },
    #[error("CUDA device {ordinal} does not exist: the driver reports {count} devices")]
    NoDevice { ordinal: i32, count: i32 },
    #[error("{call} failed with {name}: {text}{}", remedy(name))]
    Call { call: &'static str, name: String, text: String },
}

/// Errors after which every CUDA call of the process fails (CUDA driver API, "CUresult"), and
/// errors of the hardware that end all contexts on the GPU.
const CONTEXT_IS_LOST: [&str; 13] = [
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_CONTAINED",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_TENSOR_MEMORY_LEAK",
];

/// Errors after the reset of a device, or the end of its primary context.
const CONTEXT_IS_RESET: [&str; 2] =
    ["CUDA_ERROR_CONTEXT_IS_DESTROYED", "CUDA_ERROR_INVALID_CONTEXT"];

/// The driver's answer to each call of a forked process whose parent has used CUDA. In other
/// processes, `cuInit` precedes all calls.
const IS_FORKED: &str = "CUDA_ERROR_NOT_INITIALIZED";

/// What to do about an error that no other arguments avoid, as the end of a message.
fn remedy(name: &str) -> &'static str {
    if name == IS_FORKED {
        "; this process is a fork of one that has used CUDA, and CUDA does not survive a fork. \
         Start processes that use a GPU with multiprocessing.set_start_method(\"spawn\"), or fork \
         before the first use of CUDA"
    } else if CONTEXT_IS_RESET.contains(&name) {
        "; the CUDA context is lost: other code of this process has reset the device \
         (cudaDeviceReset, cuDevicePrimaryCtxReset) or destroyed the context of the stream. \
         Restart the process, and remove the reset"
    } else if CONTEXT_IS_LOST.contains(&name) {
        "; the CUDA context is lost: a kernel that ran before, of this or another library, failed \
         on the GPU, and each CUDA call of this process fails from now on. Restart the process; \
         CUDA_LAUNCH_BLOCKING=1 shows which launch fails"
    } else {
        ""
    }
}

impl DriverError {
    /// Whether this machine has no usable GPU.
    pub fn means_no_gpu(&self) -> bool {
        match self {
            DriverError::NotFound | DriverError::NoDevice { .. } => true,
            DriverError::TooOld { .. } => false,
            DriverError::Call { .. } => self.is_call_with("CUDA_ERROR_NO_DEVICE"),
        }
    }

    /// Whether the device is out of memory.
    pub fn means_no_memory(&self) -> bool {
        self.is_call_with("CUDA_ERROR_OUT_OF_MEMORY")
    }

    /// Whether this process is a fork of one that has used CUDA.
    pub(super) fn means_fork(&self) -> bool {
        self.is_call_with(IS_FORKED)
    }

    /// Whether the driver does not know what was queried.
    pub(super) fn means_unknown(&self) -> bool {
        self.is_call_with("CUDA_ERROR_INVALID_VALUE")
            || self.is_call_with("CUDA_ERROR_NOT_SUPPORTED")
    }

    fn is_call_with(&self, error: &str) -> bool {
        matches!(self, DriverError::Call { name, .. } if name == error)
    }
}

/// Calls the driver. An error names the call.
macro_rules! call {
    (sys::$function:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::error::check(stringify!($function), sys::$function($($argument),*))
    };
}
pub(super) use call;

/// Converts the result of a driver call.
#[inline(always)]
pub(super) fn check(call: &'static str, result: CUresult) -> Result<(), DriverError> {
    if result == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failed(call, result)) }
}

#[cold]
fn failed(call: &'static str, result: CUresult) -> DriverError {
    type Describe = unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult;
    let describe = |query: Describe| {
        let mut text = std::ptr::null();
        // SAFETY: both functions accept any code and return a static string, or leave the pointer
        // null.
        unsafe {
            if query(result, &mut text) != CUresult::CUDA_SUCCESS || text.is_null() {
                return format!("error {}", result as u32);
            }
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    };
    DriverError::Call {
        call: call.trim_end_matches("_v2").trim_end_matches("WithFlags"),
        name: describe(sys::cuGetErrorName),
        text: describe(sys::cuGetErrorString),
    }
}
