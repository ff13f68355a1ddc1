//! `Kernel.compile`, and the artifact of a launch.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::arguments::native;
use super::artifact::{CompiledArtifact, PyProgram};
use super::kernel::{PyKernel, must_define, name_of};
use super::utils::{ComputeCapability, class_name, set_package_directories};
use crate::compile::{self, Program};
use crate::driver::Device;
use crate::kernel;
use crate::operand;

#[pymethods]
impl PyKernel {
    /// Compiles the kernel with NVRTC, or loads its program from the cache in the process or on
    /// disk.
    ///
    /// cc: the compute capability to compile for, which needs no GPU; None: the compute capability
    /// of the operands' device. The program is loaded on that device, except for FakeTensors with a
    /// cc. Raises RuntimeError with NVRTC's log if compilation fails, or with the package to
    /// install if NVRTC is missing.
    #[pyo3(signature = (args, cc = None))]
    pub fn compile(
        slf: &Bound<'_, Self>,
        args: &Bound<'_, PyAny>,
        cc: Option<ComputeCapability>,
    ) -> PyResult<CompiledArtifact> {
        let py = slf.py();
        let Some(position) = slf.get().position else {
            return Err(must_define(slf, "compile"));
        };
        let kernel = kernel::at(position);
        let this = slf.clone().into_any().unbind();
        if !kernel.runs_on_gpu() {
            return Ok(CompiledArtifact::of(py.None(), this));
        }
        set_package_directories(py)?;
        let problem = native(args)?.map(|native| &native.problem);
        let is_fake = problem.is_some_and(|problem| problem.is_fake());
        let device = match problem.map(|problem| problem.device()) {
            Some(operand::DeviceId::Cuda(ordinal)) if cc.is_none() => Some(Device::get(ordinal)?),
            // A FakeTensor may be on a device that this machine does not have. A process that
            // compiles for FakeTensors, such as a worker of Inductor, makes no CUDA context.
            Some(operand::DeviceId::Cuda(ordinal)) if !is_fake => Device::usable(ordinal),
            _ => None,
        };
        let Some(cc) = cc.map(|cc| cc.0).or(device.map(|device| device.cc)) else {
            return Err(PyValueError::new_err(
                "the operands are on the CPU, so there is no device to compile for; \
                 pass a compute capability: compile(args, cc=90)",
            ));
        };
        let program = py.detach(|| compile::compile(kernel, cc))?;
        // Load now: the first launch may happen under stream capture.
        if let Some(device) = device.filter(|device| program.architecture.runs_on(device.cc)) {
            py.detach(|| program.load(kernel, device))?;
        }
        Ok(CompiledArtifact::of(Py::new(py, PyProgram(program))?.into_any(), this))
    }
}

/// The artifact that the user passed, or a new one.
pub fn artifact_or_compile<'py>(
    kernel: &Bound<'py, PyKernel>,
    args: &Bound<'py, PyAny>,
    artifact: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, CompiledArtifact>> {
    match artifact {
        Some(artifact) => as_artifact(artifact).cloned(),
        None => Bound::new(kernel.py(), PyKernel::compile(kernel, args, None)?),
    }
}

/// The program in a kernel's artifact.
pub fn program_of<'a>(
    kernel: &'a Bound<'_, PyKernel>,
    artifact: &'a CompiledArtifact,
) -> PyResult<&'a Arc<Program>> {
    check_owner(kernel, artifact)?;
    artifact
        .program(kernel.py())
        .ok_or_else(|| PyValueError::new_err("compiled_artifact holds no program for the GPU"))
}

/// Checks that the user's artifact, if any, belongs to the kernel.
pub fn check_artifact(
    kernel: &Bound<'_, PyKernel>,
    artifact: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    artifact.map_or(Ok(()), |artifact| check_owner(kernel, as_artifact(artifact)?.get()))
}

fn check_owner(kernel: &Bound<'_, PyKernel>, artifact: &CompiledArtifact) -> PyResult<()> {
    if !artifact.is_for(kernel.as_any()) {
        let name = |kernel| name_of(kernel).unwrap_or_else(|| class_name(kernel));
        return Err(PyValueError::new_err(format!(
            "compiled_artifact is of {}; pass one of {}, or None",
            name(artifact.kernel(kernel.py())),
            name(kernel.as_any())
        )));
    }
    Ok(())
}

fn as_artifact<'a, 'py>(
    object: &'a Bound<'py, PyAny>,
) -> PyResult<&'a Bound<'py, CompiledArtifact>> {
    object.cast::<CompiledArtifact>().map_err(|_| {
        let name = class_name(object);
        PyTypeError::new_err(format!(
            "compiled_artifact is a {name}; pass the result of compile(), or None"
        ))
    })
}
