//! Process-wide choices.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::operand;

/// Whether operands are read through DLPack's C exchange table (True) or through `__dlpack__` at each call (False).
#[pyfunction]
pub fn get_use_c_exchange() -> bool {
    operand::uses_c_exchange()
}

#[pyfunction]
pub fn set_use_c_exchange(on: bool) {
    operand::set_c_exchange(on);
}

/// Whether float32 operands may be rounded to tf32 for the tensor cores. It is torch's decision to take, where torch is
/// loaded (`torch.backends.cuda.matmul.allow_tf32`, `torch.set_float32_matmul_precision`); elsewhere the answer is no.
pub fn tf32_allowed(py: Python<'_>) -> PyResult<bool> {
    static PRECISION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let precision = match PRECISION.get(py) {
        Some(known) => known,
        None => {
            let modules = py.import("sys")?.getattr("modules")?;
            // None is what hides a module from imports.
            let Some(torch) = modules.get_item("torch").ok().filter(|torch| !torch.is_none())
            else {
                return Ok(false);
            };
            PRECISION.get_or_try_init(py, || {
                Ok::<_, PyErr>(torch.getattr("get_float32_matmul_precision")?.unbind())
            })?
        }
    };
    Ok(precision.bind(py).call0()?.extract::<&str>()? != "highest")
}
