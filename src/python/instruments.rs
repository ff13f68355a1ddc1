//! For tests and benchmarks: the cost of a bare launch, and the number of promoted launches.

use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::arguments::RuntimeArguments;
use super::artifact::CompiledArtifact;
use super::kernel::position_of;
use super::stream::stream_handle;
use crate::kernel;
use crate::launch::{self, PreparedLaunch, promotion};

/// Seconds that the host spends on one bare driver launch, the native floor of benchmarks: the
/// median over `rounds` loops of `launches` driver calls with no other code around them. The stream
/// is synchronized between loops.
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
    let (Some(native), Some(program)) = (&args.get().native, compiled_artifact.get().program(py))
    else {
        return Err(PyValueError::new_err(
            "native_floor takes cutlass_api's own arguments and the artifact of a GPU kernel",
        ));
    };
    let position = position_of(compiled_artifact.get().kernel(py))?;
    let kernel = kernel::at(position);
    let (problem, epilogue) = (&native.problem, native.bound_epilogue());
    if kernel.facts.packs || kernel.workspace_bytes(problem) > 0 {
        return Err(PyValueError::new_err(
            "the kernel packs operands or needs workspace: its launch is more than one driver call",
        ));
    }
    launch::check(kernel, problem, epilogue)?;
    let launch = PreparedLaunch::new(position, problem, epilogue, 0, program.clone())?;
    let device = launch.device();
    let Some(call) = launch.call() else {
        return Err(PyValueError::new_err("the problem is empty, so there is nothing to launch"));
    };
    let _current = device.make_current()?;
    let mut seconds = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..launches {
            // SAFETY: the program is the kernel's, the arguments hold the tensors, and the device
            // is current.
            unsafe { call.launch_current(stream)? };
        }
        seconds.push(start.elapsed().as_secs_f64() / f64::from(launches));
        device.synchronize(stream)?;
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds.get(seconds.len() / 2).copied().unwrap_or_default())
}

/// The number of launches in this process that are promoted to CUDA graphs.
#[pyfunction]
pub fn launch_graphs() -> usize {
    promotion::count()
}
