//! Numbers in Python objects.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

use crate::epilogue::Number;

/// The number in a Python bool, int or float; None for any other object.
///
/// Like torch, refuses an integer beyond 64 bits. The error message describes the value alone;
/// the caller adds an operand's name or a source line.
pub fn number(value: &Bound<'_, PyAny>) -> Result<Option<Number>, String> {
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(Some(Number::Integer(truth.is_true().into())));
    }
    if value.is_instance_of::<PyInt>() {
        let too_large = |_| format!("{value} does not fit into a 64-bit integer; use a float");
        return value.extract().map(|value| Some(Number::Integer(value))).map_err(too_large);
    }
    Ok(value.cast::<PyFloat>().ok().map(|float| Number::Float(float.value())))
}
