//! The last stretch of the road: from a checked problem and a compiled program to the driver's launch call.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::kernel::unsupported;
use crate::compile::Program;
use crate::driver::{Device, Grid};
use crate::kernel::Kernel;
use crate::operand;
use crate::problem::GemmProblem;

/// The stream to launch on.
pub struct Stream {
    /// None: the current stream of the framework that owns the operands.
    pub handle: Option<u64>,
    /// Whether the caller vouches that it belongs to the operands' device.
    pub trusted: bool,
}

/// Enqueues one launch. `tensor` is one of the operands, for asking its framework for the current stream.
pub fn launch(
    kernel: &Kernel,
    tensor: &Bound<'_, PyAny>,
    problem: &GemmProblem,
    program: &Program,
    stream: Stream,
) -> PyResult<()> {
    let operand::Device::Cuda(ordinal) = problem.out.device else {
        return Err(unsupported(&"the operands are on the CPU, the kernel runs on a CUDA device"));
    };
    let device = Device::get(ordinal)?;
    if !program.architecture.runs_on(device.cc) {
        return Err(PyValueError::new_err(format!(
            "compiled_artifact is for {}, which does not run on cuda:{ordinal} of compute capability {}.{}",
            program.architecture,
            device.cc / 10,
            device.cc % 10
        )));
    }
    let stream = match stream.handle {
        Some(handle) if !stream.trusted && !device.owns_stream(handle)? => {
            return Err(PyValueError::new_err(format!(
                "stream {handle:#x} belongs to another device than the operands, which are on cuda:{ordinal}"
            )));
        }
        Some(handle) => handle,
        None => operand::current_stream(tensor, ordinal)?,
    };
    let Some(launch) = kernel.launch(problem) else {
        return Ok(());
    };
    let grid = Grid { ctas: launch.grid, threads: launch.block, shared_bytes: launch.shared_bytes };
    // The driver may block when the stream's queue is full; other Python threads run meanwhile.
    tensor.py().detach(|| {
        let library = program.library(device)?;
        // SAFETY: the program declares GemmParams as its one parameter. The addresses are those of tensors that the
        // caller holds; as everywhere in CUDA, their memory must stay theirs until the stream has come past.
        unsafe { library.launch(device, stream, grid, &launch.params) }
    })?;
    Ok(())
}
