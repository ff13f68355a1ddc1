//! The tuner's benchmark and store for `cutlass_api.tuning`, and the ranking that uses the store.

use std::ffi::CString;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyException, PyUserWarning, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::arguments::{RuntimeArguments, as_arguments};
use super::artifact::{CompiledArtifact, PyProgram};
use super::cuda::CudaFunction;
use super::kernel::{self, PyKernel, position_of};
use super::options::tf32_allowed;
use super::utils::set_package_directories;
use crate::compile;
use crate::driver::Device;
use crate::epilogue::{BoundEpilogue, Epilogue};
use crate::kernel::{self as kernels, Target};
use crate::launch::choices;
use crate::problem::Problem;
use crate::process::{delay_forks, drop_unlocked};
use crate::tune::{
    self, Benchmark, CheckOptions, Extents, Measurement, Mode, OwnBenchmark, Rounding, Store,
    TimedKernel, Tuned,
};

/// Kernels by rank, as [`tune::ranked`]. `is_of_device`: whether the target is the operands'
/// device. Raises warnings of the store, and ValueError if `CUTLASS_API_TUNE` has an unknown value.
pub fn ranked(
    py: Python<'_>,
    problem: &Problem,
    target: Option<Target>,
    epilogue: Option<&'static Epilogue>,
    allows_tf32: bool,
    is_of_device: bool,
) -> PyResult<Tuned> {
    let product = problem.of_activations(epilogue);
    let problem = product.as_ref().unwrap_or(problem);
    let uses_store = is_of_device && mode()? != Mode::Off;
    let user_keys = if uses_store { user_keys(py, problem)? } else { Vec::new() };
    let tuned = tune::ranked(problem, target, epilogue, allows_tf32, uses_store, &user_keys);
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
fn user_keys(py: Python<'_>, problem: &Problem) -> PyResult<Vec<(String, Extents)>> {
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
/// kernels at these positions and stores the results. A failure leaves the ranking to the cost
/// model, with a warning.
pub fn record(
    py: Python<'_>,
    problem: &Problem,
    epilogue: Option<&BoundEpilogue>,
    positions: impl Iterator<Item = usize>,
) -> PyResult<()> {
    let tune = || {
        let benchmark = TuningBenchmark::of(py, problem, epilogue, None, None)?;
        let kernels = positions.map(|at| kernel::object(py, at)).collect::<PyResult<Vec<_>>>()?;
        py.import("cutlass_api.tuning")?.call_method1("_record", (benchmark, kernels)).map(drop)
    };
    match tune() {
        Err(error) if error.is_instance_of::<PyException>(py) => {
            let text = CString::new(format!("a product was not tuned: {error}").replace('\0', ""))?;
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 2)
        }
        result => result,
    }
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
    for warning in warnings {
        let text = CString::new(warning.replace('\0', ""))?;
        PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 2)?;
    }
    Ok(())
}

/// Times kernels on copies of the operands of arguments.
///
/// args: GemmArguments or GroupedGemmArguments on a GPU. device: the ordinal of the GPU that times;
/// None: the one of the operands. checks: whether `record` compares outputs with the CPU reference.
/// tolerance: of this comparison, relative to the element's magnitude plus the root mean square of
/// the output; None: by types and K. Raises ValueError for other arguments, for FakeTensors, and
/// for problems that the reference does not compute, RuntimeError if the device does not exist or
/// has too little memory.
#[pyclass(module = "cutlass_api.tuning", frozen)]
pub struct TuningBenchmark {
    benchmark: Unlocked<Arc<Benchmark>>,
    allows_tf32: bool,
}

impl TuningBenchmark {
    fn of(
        py: Python<'_>,
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
        device: Option<i32>,
        tolerance: Option<Option<f64>>,
    ) -> PyResult<TuningBenchmark> {
        let product = problem.of_activations(epilogue.map(|bound| bound.epilogue));
        let allows_tf32 = tf32_allowed(py, product.as_ref().unwrap_or(problem))?;
        let device = device.map(Device::get).transpose()?;
        let check = tolerance.map(|tolerance| CheckOptions { tolerance, allows_tf32 });
        let benchmark = py.detach(|| Benchmark::new(problem, epilogue, device, check))?;
        Ok(TuningBenchmark { benchmark: Unlocked::new(Arc::new(benchmark)), allows_tf32 })
    }
}

/// A value that is dropped without the GIL: freeing device memory and graphs waits for work on the
/// device, which may call Python.
struct Unlocked<T: Send>(Option<T>);

impl<T: Send> Unlocked<T> {
    fn new(value: T) -> Unlocked<T> {
        Unlocked(Some(value))
    }

    fn get(&self) -> PyResult<&T> {
        self.0.as_ref().ok_or_else(|| PyValueError::new_err("the benchmark is freed"))
    }
}

impl<T: Send> Drop for Unlocked<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            drop_unlocked(value);
        }
    }
}

#[pymethods]
impl TuningBenchmark {
    #[new]
    #[pyo3(signature = (args, *, device = None, checks = false, tolerance = None))]
    fn new(
        py: Python<'_>,
        args: &Bound<'_, PyAny>,
        device: Option<i32>,
        checks: bool,
        tolerance: Option<f64>,
    ) -> PyResult<TuningBenchmark> {
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
        let (problem, epilogue) = (&native.problem, native.bound_epilogue());
        TuningBenchmark::of(py, problem, epilogue, device, checks.then_some(tolerance))
    }

    /// The device's name, as the driver reports it.
    #[getter]
    fn device(&self) -> PyResult<&str> {
        Ok(&self.benchmark.get()?.device().name)
    }

    /// The ordinals of all GPUs of this name, the benchmark's first.
    fn alike(&self) -> PyResult<Vec<i32>> {
        let alike = self.benchmark.get()?.device().alike();
        Ok(alike.into_iter().map(|device| device.ordinal).collect())
    }

    /// The driver's major version, as CUDA counts.
    #[getter]
    fn driver(&self) -> PyResult<i32> {
        Ok(tune::driver_of(self.benchmark.get()?.device()))
    }

    /// Batch (or groups), M, N and K.
    #[getter]
    fn extents(&self) -> PyResult<(i64, i64, i64, i64)> {
        let [batch, m, n, k] = tune::extents(self.benchmark.get()?.problem()).unwrap_or_default();
        Ok((batch, m, n, k))
    }

    /// The key of the problem in the store. name: "exact", "pow2", or the name of a function, whose
    /// result is passed as extents.
    #[pyo3(signature = (name, extents = None))]
    fn key(&self, name: &str, extents: Option<Extents>) -> PyResult<String> {
        let benchmark = self.benchmark.get()?;
        let rounding = Rounding::ALL.into_iter().find(|rounding| rounding.name() == name);
        let own = tune::extents(benchmark.problem()).unwrap_or_default();
        let extents = extents.unwrap_or(rounding.map_or(own, |rounding| rounding.round(own)));
        let (problem, epilogue) = (benchmark.problem(), benchmark.epilogue());
        Ok(tune::key(problem, epilogue, self.allows_tf32, name, extents))
    }

    /// Compiles a kernel for the benchmark's device. Several threads may do so at once.
    fn compile(&self, py: Python<'_>, kernel: &Bound<'_, PyKernel>) -> PyResult<CompiledArtifact> {
        let of_kernel = kernels::at(position_of(kernel.as_any())?);
        set_package_directories(py)?;
        let program = {
            let cc = self.benchmark.get()?.device().cc;
            py.detach(|| compile::compile(of_kernel, cc))?
        };
        let program = Py::new(py, PyProgram(program))?.into_any();
        Ok(CompiledArtifact::of(program, kernel.clone().into_any().unbind()))
    }

    /// Records the launches of an artifact's kernel. Raises what its launch raises, and
    /// RuntimeError if an output differs from the CPU reference's.
    fn record(
        &self,
        py: Python<'_>,
        artifact: &Bound<'_, CompiledArtifact>,
    ) -> PyResult<TimedLaunches> {
        let position = position_of(artifact.get().kernel(py))?;
        let program = artifact.get().program(py).cloned().ok_or_else(|| {
            PyValueError::new_err("the artifact holds no program for a GPU; compile its kernel")
        })?;
        let benchmark = self.benchmark.get()?;
        let timed = py.detach(|| benchmark.record(position, &program))?;
        Ok(TimedLaunches(Unlocked::new(timed)))
    }

    fn __repr__(&self) -> PyResult<String> {
        let benchmark = self.benchmark.get()?;
        Ok(format!("<TuningBenchmark on {}: {}>", benchmark.device().name, benchmark.problem()))
    }
}

/// The launches of one kernel on every set of operands of a benchmark.
#[pyclass(module = "cutlass_api.tuning", frozen)]
pub struct TimedLaunches(Unlocked<TimedKernel>);

#[pymethods]
impl TimedLaunches {
    /// Seconds of one launch: the mean of this many replays on all sets of operands.
    #[pyo3(signature = (replays = 1))]
    fn turn(&self, py: Python<'_>, replays: u32) -> PyResult<f64> {
        let timed = self.0.get()?;
        Ok(py.detach(|| timed.turn(replays))?)
    }

    /// Launches of one replay.
    #[getter]
    fn launches(&self) -> PyResult<usize> {
        Ok(self.0.get()?.launches())
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("<TimedLaunches of {} launches>", self.0.get()?.launches()))
    }
}

/// Times users' functions on copies of the tensors among these arguments.
///
/// function: one that takes the arguments. Raises RuntimeError during a stream capture, and if the
/// device has too little memory.
#[pyclass(module = "cutlass_api.tuning", frozen)]
pub struct CudaBenchmark {
    benchmark: Unlocked<Arc<OwnBenchmark>>,
    args: Py<PyTuple>,
}

#[pymethods]
impl CudaBenchmark {
    #[new]
    fn new(
        py: Python<'_>,
        function: &Bound<'_, CudaFunction>,
        args: Bound<'_, PyTuple>,
    ) -> PyResult<CudaBenchmark> {
        let (device, ranges) = function.get().device_and_ranges(&args)?;
        let benchmark = py.detach(|| OwnBenchmark::new(device, &ranges))?;
        Ok(CudaBenchmark { benchmark: Unlocked::new(Arc::new(benchmark)), args: args.unbind() })
    }

    /// The device's name, as the driver reports it.
    #[getter]
    fn device(&self) -> PyResult<&str> {
        Ok(&self.benchmark.get()?.device().name)
    }

    /// The driver's major version, as CUDA counts.
    #[getter]
    fn driver(&self) -> PyResult<i32> {
        Ok(tune::driver_of(self.benchmark.get()?.device()))
    }

    /// Records launches of a function with the arguments. Raises what its launch raises.
    fn record(
        &self,
        py: Python<'_>,
        function: &Bound<'_, CudaFunction>,
    ) -> PyResult<TimedLaunches> {
        let timed = function.get().record(self.args.bind(py), self.benchmark.get()?)?;
        Ok(TimedLaunches(Unlocked::new(timed)))
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("<CudaBenchmark on {}>", self.benchmark.get()?.device().name))
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

/// Adds results to the store. replaces: whether earlier results of the same problems are removed.
/// persists: whether they are written to the file, beyond this process.
#[pyfunction]
#[pyo3(signature = (rows, replaces = false, persists = true))]
pub fn add_tuning_results(
    py: Python<'_>,
    rows: Vec<Row>,
    replaces: bool,
    persists: bool,
) -> PyResult<()> {
    let measurement = |(device, driver, key, kernel, program, seconds)| Measurement {
        device,
        driver,
        key,
        kernel,
        program,
        seconds,
    };
    let rows: Vec<_> = rows.into_iter().map(measurement).collect();
    py.detach(|| {
        let _delay = delay_forks();
        Store::get().add(&rows, replaces, persists);
    });
    forget_choices();
    warn(py)
}

/// Removes all results of the store.
#[pyfunction]
pub fn clear_tuning_results(py: Python<'_>) -> PyResult<()> {
    py.detach(|| {
        let _delay = delay_forks();
        Store::get().clear();
    });
    forget_choices();
    warn(py)
}

/// Lets the next call of each product choose its kernel anew.
fn forget_choices() {
    let forgotten = choices().take();
    // Each choice frees a CUDA graph.
    drop_unlocked(forgotten);
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

/// Replaces the mode of this process, off, use or record, until None restores that of
/// CUTLASS_API_TUNE. The choices of `matmul` and the operators are made anew. Raises ValueError for
/// another mode.
#[pyfunction]
#[pyo3(signature = (mode))]
pub fn replace_tuning_mode(mode: Option<&str>) -> PyResult<()> {
    let parsed = mode.map(|mode| Mode::parse(Some(mode))).transpose();
    Mode::replace(parsed.map_err(|error| PyValueError::new_err(error.to_string()))?);
    forget_choices();
    Ok(())
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
