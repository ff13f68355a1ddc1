//! What operands are refused for, beside what a view cannot hold, and the names in errors.

use pyo3::exceptions::{PyBufferError, PyException, PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::dlpack::{NULL_POINTER, TensorRecord};

/// Prefixes an exception with the operand's name. Exceptions of a framework (torch: a RuntimeError
/// with its C++ stack) become the BufferError that DLPack specifies. Exits, interrupts and
/// MemoryError pass unchanged.
pub(super) fn name_operand(tensor: &Bound<'_, PyAny>, name: &str, error: PyErr) -> PyErr {
    let py = tensor.py();
    if !error.is_instance_of::<PyException>(py) || error.is_instance_of::<PyMemoryError>(py) {
        return error;
    }
    let mut message = error.value(py).to_string();
    if message == NULL_POINTER {
        message = null_pointer_of(tensor).unwrap_or(message);
    }
    let message = format!("{name} {}", message.lines().next().unwrap_or_default());
    let renamed = if error.is_instance_of::<PyTypeError>(py) {
        PyTypeError::new_err(message)
    } else if error.is_instance_of::<PyValueError>(py) {
        PyValueError::new_err(message)
    } else {
        PyBufferError::new_err(format!(
            "{message}; pass a dense tensor on the CPU or a CUDA device, outside torch.vmap and \
             similar transforms"
        ))
    };
    renamed.set_cause(py, Some(error));
    renamed
}

/// The error for a tensor without memory, if its class is derived from torch's: it holds others.
fn null_pointer_of(tensor: &Bound<'_, PyAny>) -> Option<String> {
    let class = tensor.get_type();
    let (name, module) = (class.name().ok()?.to_string(), class.module().ok()?.to_string());
    let remedy = match module.split('.').next()? {
        _ if name == "DTensor" => "its shard, to_local()",
        "torchao" => "tensor.dequantize(), or a weight of cutlass_api.weights",
        "torch" => return None,
        _ if !derives_from(&class, "Tensor").ok()? => return None,
        _ => "the tensors that it holds",
    };
    Some(format!("is a {module}.{name}, which has no memory of its own; pass {remedy}"))
}

/// Refuses a tensor with torch's negative bit, which DLPack cannot express. Such a tensor (the
/// imaginary part of a conjugate) has even strides into its complex parent; other tensors skip the
/// Python call.
pub(super) fn refuse_negated(
    tensor: &Bound<'_, PyAny>,
    reading: &impl TensorRecord,
) -> PyResult<()> {
    if !reading.may_be_negated() {
        return Ok(());
    }
    if tensor.hasattr("is_neg")? && tensor.call_method0("is_neg")?.is_truthy()? {
        return Err(PyValueError::new_err(
            "has torch's negative bit set; call resolve_neg() on it first",
        ));
    }
    Ok(())
}

/// Refuses an array of NumPy or JAX whose elements have less than 8 bits, which the frameworks
/// store one in a byte.
pub(super) fn refuse_narrow(array: &Bound<'_, PyAny>) -> PyResult<()> {
    let Some(dtype) = array.getattr_opt("dtype")? else { return Ok(()) };
    let Some(name) = dtype.getattr_opt("name")? else { return Ok(()) };
    let name = name.str()?.to_string();
    // float4_e2m1fn, float6_e3m2fn, int2
    let start = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
    let digits = name[start..].split('_').next().unwrap_or_default();
    if digits.parse::<u32>().is_ok_and(|bits| bits < 8) {
        let wide = if name.starts_with("float") { "float16" } else { "int8" };
        return Err(PyValueError::new_err(format!(
            "has dtype {name}, one element in a byte; cast it to {wide}, or pass a weight of \
             cutlass_api.weights"
        )));
    }
    Ok(())
}

/// Whether this is a class of this name or a subclass. Checked by name: torch and NumPy are no
/// dependencies.
pub(super) fn derives_from(tensor_type: &Bound<'_, PyType>, class: &str) -> PyResult<bool> {
    for base in tensor_type.mro() {
        if base.getattr("__name__")?.extract::<&str>().is_ok_and(|name| name == class) {
            return Ok(true);
        }
    }
    Ok(false)
}
