//! Process-wide options.

use pyo3::prelude::*;

use crate::launch::promotion;
use crate::operand;
use crate::operand::OnceValue;

/// Whether operands are read through DLPack's C exchange table (True) or through `__dlpack__` at
/// each call (False).
#[pyfunction]
pub fn get_use_c_exchange() -> bool {
    operand::uses_c_exchange()
}

#[pyfunction]
pub fn set_use_c_exchange(on: bool) {
    operand::set_c_exchange(on);
}

/// Whether short launches that repeat are promoted to CUDA graphs.
#[pyfunction]
pub fn get_launch_promotion() -> bool {
    promotion::is_enabled()
}

#[pyfunction]
pub fn set_launch_promotion(on: bool) {
    promotion::set_enabled(on);
}

/// Whether kernels may round float32 operands to tf32. torch decides, if it is imported
/// (`torch.backends.cuda.matmul.allow_tf32`, `torch.set_float32_matmul_precision`); without torch
/// they must not.
pub fn tf32_allowed(py: Python<'_>) -> PyResult<bool> {
    static PRECISION: OnceValue<Py<PyAny>> = OnceValue::new();
    let precision = match PRECISION.get(py) {
        Some(known) => known,
        None => {
            let modules = py.import("sys")?.getattr("modules")?;
            // None in `sys.modules` blocks the import of a module.
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
