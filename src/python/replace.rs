//! Operands that replace bound ones in a call of a prepared launch.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::operand::{self, View};

/// Returns the view, or an error if the operand has no memory (a FakeTensor).
pub fn in_memory(name: &str, view: View) -> PyResult<View> {
    if view.fake {
        return Err(operand::without_memory(name));
    }
    Ok(view)
}

/// The view of a tensor that replaces a bound operand. The tensor must match the operand in dtype,
/// shape, strides and device. The bound operand may be a FakeTensor, the replacement may not.
pub fn replacement(name: &str, bound: &View, tensor: &Bound<'_, PyAny>) -> PyResult<View> {
    matching(name, bound, operand::read(name, tensor)?)
}

/// The view of an operand that replaces a bound one.
pub fn matching(name: &str, bound: &View, view: View) -> PyResult<View> {
    let view = in_memory(name, view)?;
    if (View { data: bound.data, read_only: bound.read_only, fake: bound.fake, ..view }) != *bound {
        let (new, bound) = (describe(&view), describe(bound));
        return Err(PyValueError::new_err(format!(
            "{name} is {new}, but the launch was bound for {bound}"
        )));
    }
    Ok(view)
}

fn describe(view: &View) -> String {
    format!(
        "{} {:?} with strides {:?} on {}",
        view.dtype,
        view.user_shape(),
        view.user_stride(),
        view.device
    )
}
