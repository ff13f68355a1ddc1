//! Whether a kernel serves some arguments.

use pyo3::prelude::*;

use super::arguments::native;
use super::kernel::{PyKernel, rounds_to_tf32};
use super::native_arguments::{NativeArguments, ScaledOperands};
use super::options::{is_vector, tf32_allowed};
use super::status::Status;
use crate::driver::Device;
use crate::kernel;
use crate::operand::{self, DType};

#[pymethods]
impl PyKernel {
    /// A `Status`: truthy if the kernel supports these arguments, else with the reason.
    fn supports(slf: &Bound<'_, Self>, args: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        if let Some(position) = slf.get().position {
            let status = match refusal(py, position, native(args)?)? {
                None => Status::ok(),
                Some(reason) => Status::because(reason),
            };
            return Ok(Py::new(py, status)?.into_any());
        }
        if native(args)?.is_some_and(|native| native.prologue.is_some()) {
            let reason = "the arguments have a prologue, and only built-in kernels compute one";
            return Ok(Py::new(py, Status::because(reason.to_owned()))?.into_any());
        }
        let by_metadata = PyKernel::metadata(slf)?.call_method1("supports", (args,))?;
        if !by_metadata.is_truthy()? {
            return Ok(by_metadata.unbind());
        }
        Ok(slf.call_method1("_supports", (args,))?.unbind())
    }

    /// The checks of `supports` beyond the metadata. Subclasses may define it.
    #[allow(unused_variables)]
    fn _supports(&self, args: &Bound<'_, PyAny>) -> Status {
        Status::ok()
    }
}

/// Why the built-in kernel at a position does not serve some arguments; None if it does.
pub fn refusal(
    py: Python<'_>,
    position: usize,
    arguments: Option<&NativeArguments>,
) -> PyResult<Option<String>> {
    let Some(native) = arguments else {
        return Ok(Some("built-in kernels take cutlass_api's own arguments".to_owned()));
    };
    let kernel = kernel::at(position);
    if let Err(reason) = kernel.supports(&native.product()) {
        return Ok(Some(reason.to_string()));
    }
    if let operand::DeviceId::Cuda(ordinal) = native.problem.device() {
        match Device::get(ordinal) {
            Ok(device) if !kernel.runs_on(device.cc) => {
                let (major, minor, chips) = (device.cc / 10, device.cc % 10, kernel.chips());
                return Ok(Some(format!(
                    "cuda:{ordinal} has compute capability {major}.{minor}, the kernel runs on \
                     {chips}"
                )));
            }
            // A FakeTensor may be on a device that this machine does not have.
            Err(error) if !error.means_no_gpu() => return Err(error.into()),
            _ => {}
        }
    }
    let is_scaled = kernel.epilogue.is_some_and(|epilogue| epilogue.graph.scaling.is_some());
    if let Some(scaled) = native.scaled.as_ref().filter(|_| !is_scaled) {
        return Ok(Some(format!(
            "{} has scales, and the kernel reads none",
            scaled_name(native, scaled)
        )));
    }
    if let Err(reason) = kernel.fuses(&native.problem, native.bound_epilogue()) {
        return Ok(Some(reason.to_string()));
    }
    policy(py, position, native, &mut None)
}

/// The name of the first operand with scales.
fn scaled_name(arguments: &NativeArguments, scaled: &ScaledOperands) -> &'static str {
    scaled.tensors.first().map_or("A", |(at, _)| arguments.operands[*at].name)
}

/// Why a built-in kernel that supports the problem must not serve the arguments: an epilogue or
/// scales that the problem does not contain, or torch's float32 precision setting. None if the
/// kernel may serve them. `tf32` caches the setting, which costs a call into torch.
pub fn policy(
    py: Python<'_>,
    position: usize,
    arguments: &NativeArguments,
    tf32: &mut Option<bool>,
) -> PyResult<Option<String>> {
    if let (Some(epilogue), None) = (&arguments.epilogue, &arguments.fused) {
        let class = epilogue.bind(py).get_type().name()?;
        return Ok(Some(format!(
            "the epilogue is a {class}, and the kernel fuses EpilogueArguments only"
        )));
    }
    if let Some(scaled) = &arguments.scaled
        && let Some(reason) = &scaled.refusal
    {
        return Ok(Some(format!("{} has scales: {reason}", scaled_name(arguments, scaled))));
    }
    // Check the operand's type first: loading the kernel misses the caches.
    let has_prologue = arguments.prologue.is_some();
    if (!has_prologue && arguments.problem.views()[0].dtype != DType::F32)
        || !rounds_to_tf32(position)
    {
        return Ok(None);
    }
    let product = arguments.product();
    if product.views()[0].dtype != DType::F32 {
        return Ok(None);
    }
    let allowed = match *tf32 {
        Some(allowed) => allowed,
        None => *tf32.insert(tf32_allowed(py, &product)?),
    };
    if allowed {
        return Ok(None);
    }
    let reason = match is_vector(&product) {
        true => "float32 kernels multiply one row or column as fast",
        false => "torch.set_float32_matmul_precision(\"high\") allows that",
    };
    Ok(Some(format!("the kernel rounds float32 operands to tf32; {reason}")))
}
