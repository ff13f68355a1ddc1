//! Users' CUDA C++ kernels: a `__global__` function with a launch configuration, called with
//! tensors and numbers.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{PyTraverseError, PyVisit};

use super::artifact::PyProgram;
use super::cuda_arguments::{Arguments, UserFunction};
use super::ranges::Range;
use super::stream::{StreamArgument, current_stream, optional_handle};
use super::utils::{ComputeCapability, set_package_directories, shown};
use crate::compile::{self, Parameter, Program, UserSource};
use crate::driver::{self, Device, LaunchConfig};
use crate::launch::check_architecture;
use crate::operand;
use crate::tune::{OwnBenchmark, TimedKernel};

/// A user's `__global__` function with its launch configuration. `cutlass_api.cuda_kernel` and the
/// subclasses of `cutlass_api.providers.CudaKernel` construct it.
#[pyclass(module = "cutlass_api", frozen)]
pub struct CudaFunction {
    source: UserSource,
    target: UserFunction,
    /// An int, one to three ints, or a function of the arguments that returns either.
    grid: Py<PyAny>,
    block: [u32; 3],
    cluster: [u32; 3],
    /// Programs by compute capability.
    compiled: Mutex<Vec<(u32, Arc<Compiled>)>>,
}

struct Compiled {
    program: Arc<Program>,
    parameters: Vec<Parameter>,
}

#[pymethods]
impl CudaFunction {
    #[new]
    #[pyo3(signature = (
        source, function, *, grid, block, cluster, shared_bytes, options, contiguous, file, line
    ))]
    #[allow(clippy::too_many_arguments)] // called by the package alone, by keyword
    fn new(
        source: String,
        function: String,
        grid: &Bound<'_, PyAny>,
        block: &Bound<'_, PyAny>,
        cluster: &Bound<'_, PyAny>,
        shared_bytes: &Bound<'_, PyAny>,
        options: Vec<String>,
        contiguous: bool,
        file: String,
        line: usize,
    ) -> PyResult<CudaFunction> {
        let (block, cluster) = (triple("block", block)?, triple("cluster", cluster)?);
        if !grid.is_callable() {
            triple("grid", grid)?;
        }
        // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
        let threads: u64 = block.iter().map(|extent| u64::from(*extent)).product();
        if threads == 0 || threads > 1024 || block[2] > 64 {
            return Err(PyValueError::new_err(format!(
                "block is {block:?}, {threads} threads; CUDA allows 1 to 1024, \
                 and at most 64 along z"
            )));
        }
        let ctas: u64 = cluster.iter().map(|extent| u64::from(*extent)).product();
        if ctas == 0 || ctas > 8 {
            return Err(PyValueError::new_err(format!(
                "cluster is {cluster:?}, {ctas} blocks; every chip with clusters supports 1 to 8"
            )));
        }
        let shared_bytes = shared_bytes.extract().map_err(|_| {
            PyValueError::new_err(format!(
                "shared_bytes is {shared_bytes}; pass a number of bytes, 0 for none"
            ))
        })?;
        let source = UserSource { text: source, file, line, function, options, shared_bytes };
        let (function, names) = (source.function.clone(), source.parameter_names());
        Ok(CudaFunction {
            source,
            target: UserFunction { function, names, contiguous },
            grid: grid.clone().unbind(),
            block,
            cluster,
            compiled: Mutex::default(),
        })
    }

    /// For the garbage collector: the grid may be a method of an object that holds this function.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.grid)
    }

    /// Launches the function on `stream`, or on the current stream. The arguments follow the order
    /// of the function's parameters: a tensor for a pointer, None for a null pointer, a number for
    /// a scalar, a `TensorMap` for a tensor map.
    ///
    /// The first call for each compute capability compiles the function. Raises ValueError or
    /// TypeError with the parameter's name for an unsuitable argument, OverflowError for a number
    /// that the parameter's type does not hold, and RuntimeError with the compiler's messages, or
    /// with CUDA's error name if the launch fails.
    #[pyo3(signature = (*args, stream = None))]
    fn __call__(
        &self,
        args: &Bound<'_, PyTuple>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let name = || Ok((args.clone(), Some(self.source.function.clone())));
        let _range = Range::of_call(args.py(), "cutlass_api::cuda_kernel", name);
        self.launch(args, self.grid.bind(args.py()), stream, None)
    }

    /// Compiles the function, or loads its program from the cache. Loads the program onto the
    /// device if there is one, so that the first call may happen under stream capture. Returns the
    /// `Program`.
    ///
    /// args: as for a call. The program is for the arguments' device; without arguments, for the
    /// first CUDA device. cc: compile for this compute capability instead (90 for an H100); no such
    /// GPU is needed. Raises RuntimeError with the compiler's messages.
    #[pyo3(signature = (*args, cc = None))]
    fn compile(
        &self,
        args: &Bound<'_, PyTuple>,
        cc: Option<ComputeCapability>,
    ) -> PyResult<PyProgram> {
        let arguments = Arguments::read(&self.target, args)?;
        let device = match (cc, args.is_empty()) {
            (None, true) => Some(Device::get(0)?),
            (None, false) => Some(Device::get(arguments.ordinal()?)?),
            (Some(_), true) => Device::usable(0),
            // A FakeTensor may be on a device that this machine does not have.
            (Some(_), false) => match arguments.device()? {
                operand::DeviceId::Cuda(ordinal) => Device::usable(ordinal),
                operand::DeviceId::Cpu => None,
            },
        };
        let cc = cc.map(|cc| cc.0).or(device.map(|device| device.cc)).unwrap_or_default();
        let compiled = self.compiled(args.py(), cc)?;
        if let Some(device) =
            device.filter(|device| compiled.program.architecture.runs_on(device.cc))
        {
            args.py().detach(|| compiled.program.function(device))?;
        }
        Ok(PyProgram(compiled.program.clone()))
    }

    /// Launches the function with another grid. program: the program that `compile` returned; None:
    /// the program for the arguments' device.
    #[pyo3(signature = (args, grid, stream = None, program = None))]
    fn launch(
        &self,
        args: &Bound<'_, PyTuple>,
        grid: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        program: Option<&Bound<'_, PyProgram>>,
    ) -> PyResult<()> {
        let py = args.py();
        let arguments = Arguments::read(&self.target, args)?;
        let device = Device::get(arguments.ordinal()?)?;
        let cc = program.map_or(device.cc, |program| program.get().0.architecture.cc);
        let compiled = self.compiled(py, cc)?;
        if let Some(other) =
            program.filter(|program| !Arc::ptr_eq(&program.get().0, &compiled.program))
        {
            let (other, function) = (&other.get().0.kernel, &self.source.function);
            return Err(PyValueError::new_err(format!(
                "the program is of {other}; pass the one that compile() of {function} returned"
            )));
        }
        let program = &compiled.program;
        check_architecture(program, device)?;
        let values = arguments.values(&compiled.parameters, device, |memory| memory.data)?;
        let stream = StreamArgument { handle: optional_handle(stream)?, is_trusted: false };
        let stream = stream.resolve(arguments.tensor()?, arguments.device()?)?;
        let Some(config) = self.config(args, grid, &arguments, device)? else {
            return Ok(());
        };
        py.detach(|| {
            // SAFETY: each value has the type that the compiler reports for its parameter. The
            // addresses belong to tensors on this device, which the caller holds. As for any CUDA
            // launch, the caller keeps their memory valid until the launch completes. The kernel's
            // author is responsible for its memory accesses.
            unsafe {
                program.function(device)?.launch_values(device, stream, &config.into(), &values)
            }
        })?;
        Ok(())
    }

    /// What a result of the autotuner depends on, for each argument: dtype and number of elements
    /// of a tensor, the value of a number.
    #[pyo3(signature = (*args))]
    fn signature(&self, args: &Bound<'_, PyTuple>) -> PyResult<Vec<String>> {
        Arguments::read(&self.target, args)?.signature()
    }

    /// The index of the CUDA device that holds the tensors among the arguments.
    #[pyo3(signature = (*args))]
    fn device_index(&self, args: &Bound<'_, PyTuple>) -> PyResult<i32> {
        Arguments::read(&self.target, args)?.ordinal()
    }

    /// The names of the function's parameters; empty if its declaration was not found.
    #[getter]
    fn parameters(&self) -> Vec<String> {
        self.target.names.clone()
    }

    /// A hash of the source, the function's name and the options.
    #[getter]
    fn fingerprint(&self) -> String {
        self.source.fingerprint()
    }

    /// Why the tensors' device or layout prevents a launch; None if it does not.
    fn refusal(&self, args: &Bound<'_, PyTuple>) -> PyResult<Option<String>> {
        Ok(Arguments::read(&self.target, args)?.refusal(args.py()))
    }

    /// The name of the `__global__` function.
    #[getter]
    fn name(&self) -> &str {
        &self.source.function
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let UserSource { file, line, function, options, shared_bytes, .. } = &self.source;
        let grid = match self.grid.bind(py) {
            function if function.is_callable() => "computed".to_owned(),
            extents => triple("grid", extents).map_or("unknown".to_owned(), |of| format!("{of:?}")),
        };
        let mut text = format!(
            "<CudaFunction {function}({}) of {file}:{line}, grid={grid}, block={:?}",
            self.target.names.join(", "),
            self.block
        );
        if self.cluster != [1; 3] {
            text += &format!(", cluster={:?}", self.cluster);
        }
        if *shared_bytes > 0 {
            text += &format!(", shared_bytes={shared_bytes}");
        }
        if !options.is_empty() {
            text += &format!(", options={options:?}");
        }
        text + ">"
    }
}

impl CudaFunction {
    fn compiled(&self, py: Python<'_>, cc: u32) -> PyResult<Arc<Compiled>> {
        let lock = || self.compiled.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, known)) = lock().iter().find(|(known, _)| *known == cc) {
            return Ok(known.clone());
        }
        set_package_directories(py)?;
        let (program, parameters) = py.detach(|| compile::compile_user(&self.source, cc))?;
        let compiled = Arc::new(Compiled { program, parameters });
        lock().push((cc, compiled.clone()));
        Ok(compiled)
    }

    /// The launch configuration for these arguments. None if there is nothing to launch.
    fn config(
        &self,
        args: &Bound<'_, PyTuple>,
        grid: &Bound<'_, PyAny>,
        arguments: &Arguments<'_, '_>,
        device: &Device,
    ) -> PyResult<Option<LaunchConfig>> {
        if self.cluster != [1; 3] && device.cc < 90 {
            return Err(PyValueError::new_err(format!(
                "cluster is {:?}, and cuda:{} of compute capability {}.{} has no clusters; \
                 clusters need 9.0 or later",
                self.cluster,
                device.ordinal,
                device.cc / 10,
                device.cc % 10
            )));
        }
        let computed = if grid.is_callable() { Some(grid.call1(args)?) } else { None };
        let ctas = self.ctas(computed.as_ref().unwrap_or(grid), arguments)?;
        Ok(ctas.map(|ctas| LaunchConfig {
            ctas,
            threads: self.block,
            cluster: self.cluster,
            shared_bytes: self.source.shared_bytes,
            overlapping: false,
        }))
    }

    /// The device of the tensors among the arguments, and their address ranges.
    pub fn device_and_ranges(
        &self,
        args: &Bound<'_, PyTuple>,
    ) -> PyResult<(&'static Device, Vec<(u64, u64)>)> {
        let arguments = Arguments::read(&self.target, args)?;
        let device = Device::get(arguments.ordinal()?)?;
        if driver::is_captured(current_stream(arguments.tensor()?, arguments.device()?)?)? {
            return Err(PyRuntimeError::new_err(format!(
                "{} cannot be tuned during a stream capture; call it once before",
                self.source.function
            )));
        }
        Ok((device, arguments.byte_ranges()?))
    }

    /// Records launches of the function on every set of copies of a benchmark of these arguments.
    pub fn record(
        &self,
        args: &Bound<'_, PyTuple>,
        benchmark: &Arc<OwnBenchmark>,
    ) -> PyResult<TimedKernel> {
        let (py, device) = (args.py(), benchmark.device());
        let arguments = Arguments::read(&self.target, args)?;
        let compiled = self.compiled(py, device.cc)?;
        let values_of = |set| {
            arguments.values(&compiled.parameters, device, |memory| {
                benchmark.address(set, memory.byte_range(), memory.data)
            })
        };
        let values = (0..benchmark.sets()).map(values_of).collect::<PyResult<Vec<_>>>()?;
        let Some(config) = self.config(args, self.grid.bind(py), &arguments, device)? else {
            return Err(PyValueError::new_err("the grid is empty, so there is nothing to time"));
        };
        let config = config.into();
        let timed = py.detach(|| {
            let function = compiled.program.function(device)?;
            benchmark.record(|set, stream| {
                // SAFETY: as in `launch`; the addresses are those of the benchmark's copies.
                unsafe { function.launch_values(device, stream, &config, &values[set]) }
            })
        })?;
        Ok(timed)
    }

    /// The grid, checked against CUDA's limits. None if the grid and a tensor are empty: there is
    /// nothing to launch.
    fn ctas(
        &self,
        grid: &Bound<'_, PyAny>,
        arguments: &Arguments<'_, '_>,
    ) -> PyResult<Option<[u32; 3]>> {
        let ctas = triple("grid", grid)?;
        if ctas.contains(&0) {
            if arguments.has_empty_tensor() {
                return Ok(None);
            }
            return Err(PyValueError::new_err(format!(
                "grid is {ctas:?}, so the launch would compute nothing; \
                 round up, as cutlass_api.utils.ceil_div does"
            )));
        }
        if ctas[0] > i32::MAX as u32 || ctas[1] > 65535 || ctas[2] > 65535 {
            return Err(PyValueError::new_err(format!(
                "grid is {ctas:?}; CUDA allows up to {} blocks along x, and 65535 along y and z",
                i32::MAX
            )));
        }
        if ctas.iter().zip(self.cluster).any(|(ctas, cluster)| ctas % cluster != 0) {
            return Err(PyValueError::new_err(format!(
                "grid {ctas:?} is not a multiple of cluster {:?}",
                self.cluster
            )));
        }
        Ok(Some(ctas))
    }
}

/// Up to three extents: an int, or a sequence of ints.
fn triple(name: &str, extents: &Bound<'_, PyAny>) -> PyResult<[u32; 3]> {
    let wrong = || {
        let shown = shown(extents);
        PyTypeError::new_err(format!("{name} is {shown}; pass an int, or one to three ints"))
    };
    let list: Vec<u32> = match extents.extract::<u32>() {
        Ok(one) => vec![one],
        Err(_) => extents.extract().map_err(|_| wrong())?,
    };
    if list.is_empty() || list.len() > 3 {
        return Err(wrong());
    }
    let mut triple = [1; 3];
    triple[..list.len()].copy_from_slice(&list);
    Ok(triple)
}
