//! Process-wide options.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::launch::{device_checks, promotion};
use crate::operand;
use crate::operand::{DType, OnceValue};
use crate::problem::Problem;

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

/// Whether offsets and indices on a GPU are checked before each launch: `CUTLASS_API_CHECK=1`.
#[pyfunction]
pub fn get_device_checks() -> bool {
    device_checks::are_enabled()
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

/// Whether kernels may round the operands of a problem to tf32: if torch allows it, but not for one
/// row or column, where reading the other operand takes the time and float32 kernels are as fast.
#[inline(always)] // in every `matmul`
pub fn tf32_allowed(py: Python<'_>, problem: &Problem) -> PyResult<bool> {
    match problem.views()[0].dtype {
        DType::F32 if !is_vector(problem) => torch_allows_tf32(py),
        _ => Ok(false),
    }
}

/// Whether the output of a product has one row or one column.
pub fn is_vector(problem: &Problem) -> bool {
    problem.product().is_some_and(|product| product.m() == 1 || product.n() == 1)
}

/// What torch's own float32 products follow: `torch.backends.cuda.matmul.fp32_precision`, which
/// `torch.backends.fp32_precision` and the older settings change, too. Without torch, kernels must
/// not round. torch's getters of the older settings raise if the newer one differs.
fn torch_allows_tf32(py: Python<'_>) -> PyResult<bool> {
    static PRECISION: OnceValue<(Py<PyAny>, Py<PyTuple>)> = OnceValue::new();
    let (getter, arguments) = match PRECISION.get(py) {
        Some(known) => known,
        None => {
            let modules = py.import("sys")?.getattr("modules")?;
            // None in `sys.modules` blocks the import of a module.
            let Some(torch) = modules.get_item("torch").ok().filter(|torch| !torch.is_none())
            else {
                return Ok(false);
            };
            PRECISION.get_or_try_init(py, || {
                let new = torch.getattr("_C")?.getattr_opt("_get_fp32_precision_getter")?;
                let (getter, arguments) = match new {
                    Some(getter) => (getter, PyTuple::new(py, ["cuda", "matmul"])?),
                    None => (torch.getattr("get_float32_matmul_precision")?, PyTuple::empty(py)),
                };
                Ok::<_, PyErr>((getter.unbind(), arguments.unbind()))
            })?
        }
    };
    let precision = getter.bind(py).call1(arguments.bind(py))?;
    Ok(matches!(precision.extract()?, "tf32" | "high" | "medium"))
}
