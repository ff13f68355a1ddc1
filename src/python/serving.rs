//! The kernels that serve a product whose kernel the core chooses, and why none does.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::discovery::target_of;
use super::kernel::rounds_to_tf32;
use super::stream::current_stream;
use super::tuning::{is_recording, ranked};
use crate::driver;
use crate::epilogue::Epilogue;
use crate::kernel as kernels;
use crate::launch::LaunchError;
use crate::operand::{DeviceId, OnceValue};
use crate::problem::Problem;
use crate::tune::{Rounding, Tuned, extents, key};

/// Whether the first call of a product on a tensor's current stream tunes it: tuning allocates
/// memory, which a stream capture prohibits.
pub fn may_record(tensor: &Bound<'_, PyAny>, problem: &Problem) -> PyResult<bool> {
    if problem.device() == DeviceId::Cpu || !is_recording()? {
        return Ok(false);
    }
    Ok(!driver::is_captured(current_stream(tensor, problem.device())?)?)
}

/// The kernels that serve a problem, by rank: at least one.
pub fn serving(
    py: Python<'_>,
    problem: &Problem,
    epilogue: Option<&'static Epilogue>,
    allows_tf32: bool,
) -> PyResult<Tuned> {
    let target = match problem.device() {
        DeviceId::Cpu => None,
        DeviceId::Cuda(_) => Some(target_of(problem, None)?),
    };
    let mut ranked = ranked(py, problem, target, epilogue, allows_tf32, true)?;
    if !allows_tf32 {
        ranked.retain(|position| !rounds_to_tf32(position));
    }
    if !ranked.positions.is_empty() {
        return Ok(ranked);
    }
    Err(unserved(problem, epilogue).into())
}

/// Logs which kernel was chosen for a problem and why; for debugging, also the families' answers
/// and the estimates of the first kernels.
pub fn log_choice(
    problem: &Problem,
    epilogue: Option<&'static Epilogue>,
    allows_tf32: bool,
    ranked: &Tuned,
    chosen: usize,
) {
    const CANDIDATES: usize = 5;
    let Some(extents) = extents(problem).filter(|_| log::log_enabled!(log::Level::Info)) else {
        return;
    };
    let target = target_of(problem, None).ok().filter(|_| problem.device() != DeviceId::Cpu);
    let kernel = kernels::at(epilogue.map_or(chosen, |epilogue| kernels::fused(chosen, epilogue)));
    let reason = match (ranked.positions.iter().position(|at| *at == chosen), target) {
        (Some(place), _) if place < ranked.measured => {
            format!("place {} of {} measured kernels", place + 1, ranked.measured)
        }
        (Some(place), Some(target)) => format!(
            "place {} of {} kernels, estimated at {:.1} us",
            place + 1,
            ranked.positions.len(),
            1e6 * kernel.estimate(problem, target).total_seconds
        ),
        _ => "on the CPU".to_owned(),
    };
    let problem_text = key(problem, epilogue, allows_tf32, Rounding::Exact.name(), extents);
    log::info!("{}: {}, {reason}", problem_text.trim_start_matches("exact "), kernel.name());
    if log::log_enabled!(log::Level::Debug) {
        let policy = |at: usize| (!allows_tf32 && rounds_to_tf32(at)).then(|| "tf32".to_owned());
        log::debug!("{}", kernels::explain(problem, target, epilogue, CANDIDATES, policy));
    }
}

/// Why no kernel serves a problem.
fn unserved(problem: &Problem, epilogue: Option<&Epilogue>) -> LaunchError {
    let views = problem.views();
    let [a, b, out] = [views[0].dtype, views[1].dtype, views[2].dtype];
    let accumulator = problem.accumulator();
    if epilogue.is_some_and(Epilogue::is_dual) {
        return LaunchError::unsupported(
            "no kernel multiplies A by two such matrices: kernels require a chip of compute \
             capability 9.0, float16 or bfloat16, both matrices column-major with rows of a \
             multiple of 16 bytes, N a multiple of 8 and a row-major output; compute the second \
             product by a launch of its own",
        );
    }
    if epilogue.is_some_and(|epilogue| epilogue.joint().is_some()) {
        return LaunchError::unsupported(
            "no kernel multiplies A by these matrices B at once: kernels require float16 or \
             bfloat16, addresses and rows aligned to as many bytes as the kernel reads at a time, \
             and as columns of each matrix but the last a multiple of a tile's (16 to 256); \
             compute the products by launches of their own",
        );
    }
    let operation = kernels::Operation::of(problem);
    let served = kernels::all().iter().filter(|kernel| kernel.facts.operation == operation);
    let types = kernels::Types { a, b, accumulator, out };
    let remedy = types.remedy(served.map(|kernel| kernel.types)).unwrap_or_else(|| {
        "cast the operands to dtypes that cutlass_api.get_kernels() serves".to_owned()
    });
    LaunchError::unsupported(format!(
        "no kernel computes {a} @ {b}, summed in {accumulator}, into {out}; {remedy}"
    ))
}

/// The position of the kernel of this name among all kernels. None if there is none.
pub fn position_of_name(py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    static POSITIONS: OnceValue<Py<PyDict>> = OnceValue::new();
    let positions = POSITIONS.get_or_try_init(py, || {
        let positions = PyDict::new(py);
        for (position, kernel) in kernels::all().iter().enumerate() {
            positions.set_item(kernel.name(), position)?;
        }
        Ok::<_, PyErr>(positions.unbind())
    })?;
    positions.bind(py).get_item(name)?.map(|position| position.extract()).transpose()
}
