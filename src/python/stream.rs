//! Streams of every framework.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt};

use crate::driver;
use crate::operand::{self, DeviceId};

/// The stream argument of a launch.
#[derive(Clone, Copy)]
pub struct StreamArgument {
    /// None: the current stream of the framework that owns the operands.
    pub handle: Option<u64>,
    /// Whether the caller guarantees that the stream belongs to the operands' device.
    pub is_trusted: bool,
}

impl StreamArgument {
    /// The handle of a stream on the operands' device. `tensor` is one of the operands. For CPU
    /// operands the handle is never used.
    pub fn resolve(&self, tensor: &Bound<'_, PyAny>, device: DeviceId) -> PyResult<u64> {
        match (self.handle, device) {
            (Some(handle), _) if self.is_trusted => Ok(handle),
            (_, DeviceId::Cpu) => Ok(0),
            (Some(handle), DeviceId::Cuda(ordinal)) => {
                check_owner(handle, ordinal)?;
                Ok(handle)
            }
            (None, DeviceId::Cuda(ordinal)) => operand::current_stream(tensor, ordinal),
        }
    }
}

/// The handle of the current stream of the tensor's framework on the tensor's device; 0 on the CPU.
pub fn current_stream(tensor: &Bound<'_, PyAny>, device: DeviceId) -> PyResult<u64> {
    StreamArgument { handle: None, is_trusted: true }.resolve(tensor, device)
}

/// torch's current stream if torch is imported and has initialized CUDA, else 0, the null stream.
pub fn torch_stream(py: Python<'_>) -> PyResult<u64> {
    let modules = py.import("sys")?.getattr("modules")?;
    let torch = modules.call_method1("get", ("torch",))?;
    match torch.getattr_opt("cuda")? {
        Some(cuda) if cuda.call_method0("is_initialized")?.is_truthy()? => {
            cuda.call_method0("current_stream")?.getattr("cuda_stream")?.extract()
        }
        _ => Ok(0),
    }
}

fn check_owner(handle: u64, ordinal: i32) -> PyResult<()> {
    if driver::Device::get(ordinal)?.owns_stream(handle)? {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "stream {handle:#x} belongs to another device than the operands, \
         which are on cuda:{ordinal}"
    )))
}

/// The CUDA handle of a `torch.cuda.Stream`, a CuPy stream, a `CUstream` of `cuda.bindings`, or any
/// object with `__cuda_stream__`. An integer is the handle itself.
#[pyfunction]
pub fn stream_handle(stream: &Bound<'_, PyAny>) -> PyResult<u64> {
    if stream.is_instance_of::<PyInt>() {
        return number(stream);
    }
    let handle = if let Some(handle) = stream.getattr_opt("cuda_stream")? {
        handle
    } else if let Some(protocol) = stream.getattr_opt("__cuda_stream__")? {
        // The protocol of cuda.core returns (version, handle).
        protocol.call0()?.get_item(1)?
    } else if let Some(handle) = stream.getattr_opt("ptr")? {
        handle
    } else if stream.hasattr("__int__")? && !stream.is_instance_of::<PyFloat>() {
        stream.call_method0("__int__")?
    } else {
        let name = stream.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "stream is a {name}; pass a torch.cuda.Stream, a CuPy stream, a CUstream of \
             cuda.bindings, the integer handle, or None for the current stream"
        )));
    };
    number(&handle)
}

fn number(handle: &Bound<'_, PyAny>) -> PyResult<u64> {
    handle.extract().map_err(|_| {
        PyValueError::new_err(format!("stream has handle {handle}, which is not a CUDA stream"))
    })
}

/// `stream_handle` of an optional argument, with a fast path for ints.
pub fn optional_handle(stream: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    let Some(stream) = stream else { return Ok(None) };
    if stream.is_exact_instance_of::<PyInt>() {
        // SAFETY: the object is an int. For an int outside u64, the call returns u64::MAX and sets
        // an exception.
        match unsafe { ffi::PyLong_AsUnsignedLongLong(stream.as_ptr()) } {
            u64::MAX => drop(PyErr::take(stream.py())), // `stream_handle` raises the error
            handle => return Ok(Some(handle)),
        }
    }
    handle_of_object(stream)
}

#[cold]
fn handle_of_object(stream: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    stream_handle(stream).map(Some)
}
