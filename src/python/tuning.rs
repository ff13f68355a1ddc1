//! The tuner's benchmark and store for `cutlass_api.tuning`, and the ranking that uses the store.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyUserWarning, PyValueError};
use pyo3::prelude::*;

use super::arguments::{RuntimeArguments, as_arguments};
use super::artifact::{CompiledArtifact, PyProgram};
use super::kernel::{self, PyKernel, position_of};
use super::utils::set_package_directories;
use crate::compile;
use crate::epilogue::{BoundEpilogue, Epilogue};
use crate::kernel::{self as kernels, Target};
use crate::launch::choices;
use crate::problem::Problem;
use crate::tune::{
    self, Benchmark, Extents, Measurement, Mode, Rounding, Store, TimedKernel, Tuned,
};

/// Kernels by rank, as [`tune::ranked`]. Raises warnings of the store.
pub fn ranked(
    py: Python<'_>,
    problem: &Problem,
    target: Option<Target>,
    epilogue: Option<&'static Epilogue>,
    is_of_device: bool,
) -> PyResult<Tuned> {
    let others = match is_of_device {
        true => keys_of_functions(py, problem)?,
        false => Vec::new(),
    };
    let tuned = tune::ranked(problem, target, epilogue, is_of_device, &others)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    if tuned.warns {
        warn(py)?;
    }
    Ok(tuned)
}

/// Functions of extents that `autotune(key=)` was passed, and their names.
static FUNCTIONS: Mutex<Vec<(String, Py<PyAny>)>> = Mutex::new(Vec::new());

/// Lets rankings of this process look for keys of a function of (batch, M, N, K). A function of the
/// same name replaces the earlier one.
#[pyfunction]
pub fn register_tuning_key(name: String, function: Py<PyAny>) {
    let mut functions = FUNCTIONS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    functions.retain(|(known, _)| *known != name);
    functions.push((name, function));
}

/// For each registered function, its name and its result for a problem.
fn keys_of_functions(py: Python<'_>, problem: &Problem) -> PyResult<Vec<(String, Extents)>> {
    let functions: Vec<_> = {
        let functions = FUNCTIONS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        functions.iter().map(|(name, of)| (name.clone(), of.clone_ref(py))).collect()
    };
    let Some(extents) = tune::extents(problem).filter(|_| !functions.is_empty()) else {
        return Ok(Vec::new());
    };
    let [batch, m, n, k] = extents;
    let call = |(name, function): (String, Py<PyAny>)| {
        Ok((name, function.call1(py, ((batch, m, n, k),))?.extract(py)?))
    };
    functions.into_iter().map(call).collect()
}

/// Tunes a problem whose kernel the core chooses, if `CUTLASS_API_TUNE` is record: times the
/// kernels at these positions and stores the results.
pub fn record(
    py: Python<'_>,
    problem: &Problem,
    epilogue: Option<&BoundEpilogue>,
    positions: impl Iterator<Item = usize>,
) -> PyResult<()> {
    let benchmark = py.detach(|| Benchmark::new(problem, epilogue))?;
    let kernels = positions.map(|at| kernel::object(py, at)).collect::<PyResult<Vec<_>>>()?;
    let benchmark = TuningBenchmark(Arc::new(benchmark));
    py.import("cutlass_api.tuning")?.call_method1("_record", (benchmark, kernels)).map(drop)
}

/// Whether products whose kernel the core chooses are tuned at their first call.
pub fn is_recording() -> PyResult<bool> {
    Ok(mode()? == Mode::Record)
}

fn mode() -> PyResult<Mode> {
    Mode::current().map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Raises the store's warnings as UserWarning.
fn warn(py: Python<'_>) -> PyResult<()> {
    let warnings = Store::get().take_warnings();
    let class = py.get_type::<PyUserWarning>();
    for warning in warnings {
        let text = std::ffi::CString::new(warning.replace('\0', ""))?;
        PyErr::warn(py, &class, &text, 2)?;
    }
    Ok(())
}

/// Times kernels on copies of the operands of arguments.
///
/// args: GemmArguments or GroupedGemmArguments on a GPU. Raises ValueError for other arguments and
/// for FakeTensors, RuntimeError if the device has too little memory.
#[pyclass(module = "cutlass_api.tuning", frozen)]
pub struct TuningBenchmark(Arc<Benchmark>);

#[pymethods]
impl TuningBenchmark {
    #[new]
    fn new(py: Python<'_>, args: &Bound<'_, PyAny>) -> PyResult<TuningBenchmark> {
        let arguments: &Bound<'_, RuntimeArguments> = as_arguments(args)?;
        let Some(native) = arguments.get().native.as_deref() else {
            return Err(PyValueError::new_err(
                "kernels are tuned for cutlass_api's own arguments; pass GemmArguments or \
                 GroupedGemmArguments",
            ));
        };
        if tune::extents(&native.problem).is_none() {
            return Err(PyValueError::new_err(
                "an elementwise sum has nothing to tune; pass GemmArguments or \
                 GroupedGemmArguments",
            ));
        }
        let (problem, bound) = (native.problem, native.bound_epilogue());
        let benchmark = py.detach(|| Benchmark::new(&problem, bound))?;
        Ok(TuningBenchmark(Arc::new(benchmark)))
    }

    /// The device's name, as the driver reports it.
    #[getter]
    fn device(&self) -> &str {
        &self.0.device().name
    }

    /// The driver's major version, as CUDA counts.
    #[getter]
    fn driver(&self) -> i32 {
        tune::driver_of(self.0.device())
    }

    /// Batch (or groups), M, N and K.
    #[getter]
    fn extents(&self) -> (i64, i64, i64, i64) {
        let [batch, m, n, k] = tune::extents(self.0.problem()).unwrap_or_default();
        (batch, m, n, k)
    }

    /// The key of the problem in the store. name: "exact", "pow2", or the name of a function, whose
    /// result is passed as extents.
    #[pyo3(signature = (name, extents = None))]
    fn key(&self, name: &str, extents: Option<Extents>) -> String {
        let rounding = Rounding::ALL.into_iter().find(|rounding| rounding.name() == name);
        let own = tune::extents(self.0.problem()).unwrap_or_default();
        let rounded = rounding.map_or(own, |rounding| rounding.round(own));
        tune::key(self.0.problem(), self.0.epilogue(), name, extents.unwrap_or(rounded))
    }

    /// Compiles a kernel for the benchmark's device. Several threads may do so at once.
    fn compile(&self, py: Python<'_>, kernel: &Bound<'_, PyKernel>) -> PyResult<CompiledArtifact> {
        let of_kernel = kernels::at(position_of(kernel.as_any())?);
        set_package_directories(py)?;
        let program = py.detach(|| compile::compile(of_kernel, self.0.device().cc))?;
        let program = Py::new(py, PyProgram(program))?.into_any();
        Ok(CompiledArtifact::of(program, kernel.clone().into_any().unbind()))
    }

    /// Records the launches of an artifact's kernel. Raises what its launch raises.
    fn record(
        &self,
        py: Python<'_>,
        artifact: &Bound<'_, CompiledArtifact>,
    ) -> PyResult<TimedLaunches> {
        let position = position_of(artifact.get().kernel(py))?;
        let program = artifact.get().program(py).cloned().ok_or_else(|| {
            PyValueError::new_err("the artifact holds no program for a GPU; compile its kernel")
        })?;
        Ok(TimedLaunches(py.detach(|| self.0.record(position, &program))?))
    }
}

/// The launches of one kernel on every set of operands of a benchmark.
#[pyclass(module = "cutlass_api.tuning", frozen)]
pub struct TimedLaunches(TimedKernel);

#[pymethods]
impl TimedLaunches {
    /// Seconds of one launch: the mean of this many replays on all sets of operands.
    #[pyo3(signature = (replays = 1))]
    fn turn(&self, py: Python<'_>, replays: u32) -> PyResult<f64> {
        Ok(py.detach(|| self.0.turn(replays))?)
    }

    /// Launches of one replay.
    #[getter]
    fn launches(&self) -> usize {
        self.0.launches()
    }
}

/// A row of the store: device, driver, key, kernel, program, seconds.
type Row = (String, i32, String, String, String, f64);

/// All results of the store.
#[pyfunction]
pub fn tuning_results(py: Python<'_>) -> PyResult<Vec<Row>> {
    let all = Store::get().all();
    warn(py)?;
    let row = |of: Measurement| (of.device, of.driver, of.key, of.kernel, of.program, of.seconds);
    Ok(all.into_iter().map(row).collect())
}

/// Adds results to the store.
#[pyfunction]
pub fn add_tuning_results(py: Python<'_>, rows: Vec<Row>) -> PyResult<()> {
    let measurement = |(device, driver, key, kernel, program, seconds)| Measurement {
        device,
        driver,
        key,
        kernel,
        program,
        seconds,
    };
    let rows: Vec<_> = rows.into_iter().map(measurement).collect();
    py.detach(|| Store::get().add(&rows));
    forget_choices(py);
    warn(py)
}

/// Removes all results of the store.
#[pyfunction]
pub fn clear_tuning_results(py: Python<'_>) -> PyResult<()> {
    py.detach(|| Store::get().clear());
    forget_choices(py);
    warn(py)
}

/// Lets the next call of each product choose its kernel anew.
fn forget_choices(py: Python<'_>) {
    let forgotten = choices().take();
    // Dropping a choice frees its CUDA graphs, which may wait for another thread.
    py.detach(|| drop(forgotten));
}

/// The name of a kernel without its epilogue, and the fingerprint of its program: how the store
/// names it.
#[pyfunction]
pub fn tuning_identity(kernel: &Bound<'_, PyAny>) -> PyResult<(String, String)> {
    let kernel = kernels::at(position_of(kernel)?);
    let fingerprint = compile::fingerprint(kernel).ok_or_else(|| {
        PyValueError::new_err("the kernel has no program; pass a kernel for a GPU")
    })?;
    Ok((kernels::Kernel { epilogue: None, ..*kernel }.name(), fingerprint))
}

/// Off, use or record: the value of CUTLASS_API_TUNE. Raises ValueError for another value.
#[pyfunction]
pub fn tuning_mode() -> PyResult<&'static str> {
    Ok(match mode()? {
        Mode::Off => "off",
        Mode::Use => "use",
        Mode::Record => "record",
    })
}
