//! Tensors that replace the operands of a prepared launch.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::operand::{self, View};

/// A view, which must not be a FakeTensor's.
pub fn in_memory(name: &str, view: View) -> PyResult<View> {
    if view.fake {
        return Err(operand::without_memory(name));
    }
    Ok(view)
}

/// The view of a tensor that replaces a bound operand.
pub fn swapped(name: &str, bound: &View, tensor: &Bound<'_, PyAny>) -> PyResult<View> {
    let view = in_memory(name, operand::read(name, tensor)?)?;
    let describe = |v: &View| {
        format!(
            "{} {:?} with strides {:?} on {}",
            v.dtype,
            v.user_shape(),
            v.user_stride(),
            v.device
        )
    };
    // The bound operand may be a FakeTensor.
    let bound_here = View { data: view.data, read_only: view.read_only, fake: view.fake, ..*bound };
    if view != bound_here {
        return Err(PyValueError::new_err(format!(
            "{name} is {}, but the launch was bound for {}",
            describe(&view),
            describe(bound)
        )));
    }
    Ok(view)
}
