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
    #[error("{call} failed with {name}: {text}")]
    Call { call: &'static str, name: String, text: String },
}

impl DriverError {
    /// Whether this machine has no usable GPU.
    pub fn means_no_gpu(&self) -> bool {
        match self {
            DriverError::NotFound | DriverError::NoDevice { .. } => true,
            DriverError::TooOld { .. } => false,
            DriverError::Call { name, .. } => name == "CUDA_ERROR_NO_DEVICE",
        }
    }

    /// Whether the device is out of memory.
    pub fn means_no_memory(&self) -> bool {
        matches!(self, DriverError::Call { name, .. } if name == "CUDA_ERROR_OUT_OF_MEMORY")
    }
}

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
        call,
        name: describe(sys::cuGetErrorName),
        text: describe(sys::cuGetErrorString),
    }
}
