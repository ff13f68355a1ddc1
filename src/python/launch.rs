//! The last stretch of the road: from a checked problem and a compiled program to the driver's launch call.

use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::arguments::RuntimeArguments;
use super::artifact::CompiledArtifact;
use super::kernel::{kernel_of, unsupported};
use super::stream::stream_handle;
use crate::compile::Program;
use crate::driver::{Device, Grid};
use crate::epilogue::Bound as BoundEpilogue;
use crate::kernel::{Launch, at};
use crate::operand;
use crate::problem::{GemmProblem, Problem};

/// The stream to launch on.
pub struct Stream {
    /// None: the current stream of the framework that owns the operands.
    pub handle: Option<u64>,
    /// Whether the caller vouches that it belongs to the operands' device.
    pub trusted: bool,
}

/// A launch with everything packed that depends on the problem alone, kept from one run to the next.
pub struct Packed {
    /// The kernel's position, as `kernel::at` counts.
    pub position: usize,
    /// None where the output is empty, and there is nothing to launch.
    launch: Option<Launch>,
    /// The parameter block of the epilogue; empty where there is none.
    epilogue: Vec<u64>,
    device: &'static Device,
}

impl Packed {
    /// Packs a problem that the kernel addresses, with the epilogue that it fuses.
    pub fn new(position: usize, problem: &GemmProblem, epilogue: Option<&BoundEpilogue>) -> PyResult<Packed> {
        let operand::Device::Cuda(ordinal) = problem.out.device else {
            return Err(unsupported(&"the operands are on the CPU, the kernel runs on a CUDA device"));
        };
        let (kernel, device) = (at(position), Device::get(ordinal)?);
        let epilogue = epilogue
            .map(|epilogue| epilogue.params(kernel.types.accumulator, kernel.is_transposed()))
            .unwrap_or_default();
        Ok(Packed { position, launch: kernel.launch(problem), epilogue, device })
    }

    /// Enqueues the launch. `tensor` is one of the operands, for asking its framework for the current stream.
    pub fn enqueue(&self, tensor: &Bound<'_, PyAny>, program: &Program, stream: &Stream) -> PyResult<()> {
        let device = self.device;
        if !program.architecture.runs_on(device.cc) {
            return Err(PyValueError::new_err(format!(
                "compiled_artifact is for {}, which does not run on cuda:{} of compute capability {}.{}",
                program.architecture,
                device.ordinal,
                device.cc / 10,
                device.cc % 10
            )));
        }
        let stream = match stream.handle {
            Some(handle) if !stream.trusted && !device.owns_stream(handle)? => {
                return Err(PyValueError::new_err(format!(
                    "stream {handle:#x} belongs to another device than the operands, which are on cuda:{}",
                    device.ordinal
                )));
            }
            Some(handle) => handle,
            None => operand::current_stream(tensor, device.ordinal)?,
        };
        let Some(launch) = &self.launch else {
            return Ok(());
        };
        let grid = Grid { ctas: launch.grid, threads: launch.block, shared_bytes: launch.shared_bytes };
        // The driver may block when the stream's queue is full; other Python threads run meanwhile.
        tensor.py().detach(|| {
            let library = program.library(device)?;
            // SAFETY: the program declares GemmParams as its first parameter, and as its second, if the kernel has an epilogue,
            // the block that was packed for that. The addresses are those of tensors that the
            // caller holds; as everywhere in CUDA, their memory must stay theirs until the stream has come past.
            unsafe { library.launch(device, stream, grid, &launch.params, &self.epilogue) }
        })?;
        Ok(())
    }
}

/// Seconds that the host spends on one bare launch: the median over `rounds` loops of `launches` calls of the driver, with
/// nothing of ours around them. The stream is synchronized between loops. What benchmarks call the native floor.
#[pyfunction]
#[pyo3(signature = (args, compiled_artifact, stream, launches = 100, rounds = 30))]
pub fn native_floor(
    py: Python<'_>,
    args: &Bound<'_, RuntimeArguments>,
    compiled_artifact: &Bound<'_, CompiledArtifact>,
    stream: &Bound<'_, PyAny>,
    launches: u32,
    rounds: usize,
) -> PyResult<f64> {
    let stream = stream_handle(stream)?;
    let (Some(native), Some(program)) = (&args.get().native, compiled_artifact.get().program(py)) else {
        return Err(PyValueError::new_err("give GemmArguments and the artifact of a GPU kernel"));
    };
    let (Problem::Gemm(problem), operand::Device::Cuda(ordinal)) = (&native.problem, native.problem.device()) else {
        return Err(PyValueError::new_err("give a GEMM on a CUDA device"));
    };
    let kernel = kernel_of(compiled_artifact.get().kernel(py))?;
    let Some(launch) = kernel.launch(problem) else {
        return Err(PyValueError::new_err("the problem is empty, so there is nothing to launch"));
    };
    let epilogue = native
        .bound_epilogue()
        .map(|epilogue| epilogue.params(kernel.types.accumulator, kernel.is_transposed()))
        .unwrap_or_default();
    let device = Device::get(ordinal)?;
    let library = program.library(device)?;
    let grid = Grid { ctas: launch.grid, threads: launch.block, shared_bytes: launch.shared_bytes };
    let _current = device.make_current()?;
    let mut seconds = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..launches {
            // SAFETY: as in `launch`; the arguments hold the tensors.
            unsafe { library.launch_current(stream, grid, &launch.params, &epilogue)? };
        }
        seconds.push(start.elapsed().as_secs_f64() / f64::from(launches));
        device.synchronize(stream)?;
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds.get(seconds.len() / 2).copied().unwrap_or_default())
}
