//! Streams as every framework spells them.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyInt;

/// The CUDA handle of a stream: of a `torch.cuda.Stream`, a CuPy stream, a `CUstream` of `cuda.bindings`, any object with
/// `__cuda_stream__`, or an integer that is the handle already.
#[pyfunction]
pub fn stream_handle(stream: &Bound<'_, PyAny>) -> PyResult<u64> {
    if stream.is_instance_of::<PyInt>() {
        return number(stream);
    }
    let handle = if let Some(handle) = stream.getattr_opt("cuda_stream")? {
        handle
    } else if let Some(protocol) = stream.getattr_opt("__cuda_stream__")? {
        // cuda.core's protocol: (version, handle).
        protocol.call0()?.get_item(1)?
    } else if let Some(handle) = stream.getattr_opt("ptr")? {
        handle
    } else if stream.hasattr("__int__")? && !stream.is_instance_of::<pyo3::types::PyFloat>() {
        stream.call_method0("__int__")?
    } else {
        let name = stream.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "stream is a {name}; give a torch.cuda.Stream, a CuPy stream, a CUstream of cuda.bindings, the integer \
             handle, or None for the current stream"
        )));
    };
    number(&handle)
}

fn number(handle: &Bound<'_, PyAny>) -> PyResult<u64> {
    handle.extract().map_err(|_| {
        PyValueError::new_err(format!("stream has handle {handle}, which is no CUDA stream"))
    })
}

/// As `stream_handle`, of a stream that may be left out.
#[inline(always)] // in every launch
pub fn optional_handle(stream: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    let Some(stream) = stream else { return Ok(None) };
    if stream.is_exact_instance_of::<PyInt>() {
        // SAFETY: an int. What is none of a u64 is the largest of them, with an exception, which `number` words.
        match unsafe { ffi::PyLong_AsUnsignedLongLong(stream.as_ptr()) } {
            u64::MAX => drop(PyErr::take(stream.py())),
            handle => return Ok(Some(handle)),
        }
    }
    of_object(stream)
}

/// Out of the way of the handles of generated code.
#[cold]
fn of_object(stream: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    stream_handle(stream).map(Some)
}
