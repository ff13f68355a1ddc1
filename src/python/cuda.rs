//! Kernels of the user's own: CUDA C++ with a launch geometry, called with tensors and numbers.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use super::artifact::PyProgram;
use super::launch::{Stream, check_architecture};
use super::stream::optional_handle;
use super::tensors::DenseTensor;
use super::utils::{ComputeCapability, set_package_directories};
use crate::compile::{self, Parameter, Pointee, ScalarType, UserSource};
use crate::driver::{Device, LaunchConfig};
use crate::operand::{self, DType, Memory};

/// A `__global__` function of the user's own, with its launch geometry. Made by `cutlass_api.cuda_kernel`, and by the kernel
/// classes derived from `cutlass_api.providers.CudaKernel`.
#[pyclass(module = "cutlass_api", frozen)]
pub struct CudaFunction {
    source: UserSource,
    /// In the order of the function's parameters; for messages.
    names: Vec<String>,
    /// An int, a tuple of up to three, or a function of the arguments that returns such.
    grid: Py<PyAny>,
    block: [u32; 3],
    cluster: [u32; 3],
    contiguous: bool,
    /// What has been compiled, by compute capability.
    compiled: Mutex<Vec<(u32, Arc<Compiled>)>>,
}

struct Compiled {
    program: Arc<compile::Program>,
    parameters: Vec<Parameter>,
}

/// What stands for a parameter of the function in a call.
enum Given<'py> {
    Memory(Memory, Bound<'py, PyAny>),
    Nothing,
    Other(Bound<'py, PyAny>),
}

#[pymethods]
impl CudaFunction {
    #[new]
    #[pyo3(signature = (source, function, *, grid, block, cluster, shared_bytes, options, contiguous, file, line))]
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
                "block is {block:?}, {threads} threads; there are 1 to 1024, and at most 64 along z"
            )));
        }
        let ctas: u64 = cluster.iter().map(|extent| u64::from(*extent)).product();
        if ctas == 0 || ctas > 8 {
            return Err(PyValueError::new_err(format!(
                "cluster is {cluster:?}, {ctas} blocks; every chip with clusters takes 1 to 8"
            )));
        }
        let shared_bytes = shared_bytes.extract().map_err(|_| {
            PyValueError::new_err(format!(
                "shared_bytes is {shared_bytes}; give a number of bytes, 0 for none"
            ))
        })?;
        let source = UserSource { text: source, file, line, function, options, shared_bytes };
        let names = source.parameter_names();
        let grid = grid.clone().unbind();
        Ok(CudaFunction {
            source,
            names,
            grid,
            block,
            cluster,
            contiguous,
            compiled: Mutex::default(),
        })
    }

    /// For the collector of cycles: the grid may be a method of what holds the function.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.grid)
    }

    /// Launches the function on the current stream, or on `stream`. Tensors stand for pointers, numbers for what is passed by
    /// value, None for a null pointer, in the order of the function's parameters.
    ///
    /// Compiles at the first call on each kind of device. Raises ValueError or TypeError, naming the parameter, for what does
    /// not fit, and OverflowError for a number that the parameter's type does not hold; RuntimeError with the compiler's messages,
    /// or with CUDA's error name if the launch fails.
    #[pyo3(signature = (*args, stream = None))]
    fn __call__(
        &self,
        args: &Bound<'_, PyTuple>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.launch(args, self.grid.bind(args.py()), stream, None)
    }

    /// Compiles the function, or finds it compiled, and loads it where there is a device to load it onto. A first call then has
    /// nothing left to do, and can be captured into a CUDA graph. Returns the `Program`.
    ///
    /// args: as for a call; the program is for the device that holds them. Without, it is for the first CUDA device. cc: the
    /// compute capability to compile for instead (90 for an H100), which may be one that this machine does not have. Raises
    /// RuntimeError with the compiler's messages.
    #[pyo3(signature = (*args, cc = None))]
    fn compile(
        &self,
        args: &Bound<'_, PyTuple>,
        cc: Option<ComputeCapability>,
    ) -> PyResult<PyProgram> {
        let given = self.given(args)?;
        let device = match (cc, args.is_empty()) {
            (None, true) => Some(Device::get(0)?),
            (None, false) => Some(Device::get(self.ordinal(&given)?)?),
            (Some(_), true) => Device::get(0).ok(),
            // FakeTensors may be on a device that this machine does not have, and others on none at all.
            (Some(_), false) => match self.device_of(&given)? {
                operand::Device::Cuda(ordinal) => Device::get(ordinal).ok(),
                operand::Device::Cpu => None,
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

    /// Launches with a grid, as the constructor takes it, and with the program that `compile` returned (None: the one of the
    /// arguments' device).
    #[pyo3(signature = (args, grid, stream = None, program = None))]
    fn launch(
        &self,
        args: &Bound<'_, PyTuple>,
        grid: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        program: Option<&Bound<'_, PyProgram>>,
    ) -> PyResult<()> {
        let py = args.py();
        let given = self.given(args)?;
        let device = Device::get(self.ordinal(&given)?)?;
        let cc = match program {
            Some(program) => program.get().0.architecture.cc,
            None => device.cc,
        };
        let compiled = self.compiled(py, cc)?;
        if let Some(other) =
            program.filter(|program| !Arc::ptr_eq(&program.get().0, &compiled.program))
        {
            let (other, function) = (&other.get().0.kernel, &self.source.function);
            return Err(PyValueError::new_err(format!(
                "the program, of {other}, is not what compile() of {function} returned"
            )));
        }
        let program = &compiled.program;
        check_architecture(program, device)?;
        if self.cluster != [1; 3] && device.cc < 90 {
            return Err(PyValueError::new_err(format!(
                "cluster is {:?}, and cuda:{} of compute capability {}.{} has no clusters; 9.0 and later have",
                self.cluster,
                device.ordinal,
                device.cc / 10,
                device.cc % 10
            )));
        }
        let words = self.words(&compiled.parameters, &given)?;
        let stream = Stream { handle: optional_handle(stream)?, trusted: false };
        let tensor = given.iter().find_map(|given| match given {
            Given::Memory(_, tensor) => Some(tensor),
            _ => None,
        });
        let Some(tensor) = tensor else { return Err(self.needs_a_tensor()) };
        let stream = stream.resolve(tensor, device)?;
        let computed = if grid.is_callable() { Some(grid.call1(args)?) } else { None };
        let Some(ctas) = self.ctas(computed.as_ref().unwrap_or(grid), &given)? else {
            return Ok(());
        };
        let shared_bytes = self.source.shared_bytes;
        let grid = LaunchConfig {
            ctas,
            threads: self.block,
            cluster: self.cluster,
            shared_bytes,
            overlapping: false,
        };
        py.detach(|| {
            // SAFETY: there is a word for each parameter of the signature that the compiler told, of the type that it told.
            // The addresses are those of tensors on this device that the caller holds; as everywhere in CUDA, their memory must
            // stay theirs until the stream has come past, and what the kernel does with them is its author's to answer for.
            unsafe { program.function(device)?.launch_words(device, stream, &grid.into(), &words) }
        })?;
        Ok(())
    }

    /// Why the function cannot be launched with these tensors because of where or how they lie; None if it can.
    fn refusal(&self, args: &Bound<'_, PyTuple>) -> PyResult<Option<String>> {
        let given = self.given(args)?;
        if let Err(error) = self.ordinal(&given) {
            return Ok(Some(error.value(args.py()).to_string()));
        }
        let scattered =
            |given: &Given<'_>| matches!(given, Given::Memory(memory, _) if !memory.contiguous);
        let at = given.iter().position(scattered).filter(|_| self.contiguous);
        Ok(at.map(|at| self.not_contiguous(at)))
    }

    /// The name of the `__global__` function.
    #[getter]
    fn name(&self) -> &str {
        &self.source.function
    }

    fn __repr__(&self) -> String {
        format!("<CudaFunction {} of {}>", self.source.function, self.source.file)
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

    /// What messages call a parameter.
    fn name_of(&self, at: usize) -> String {
        let function = &self.source.function;
        match self.names.get(at) {
            Some(name) => format!("{name} of {function}"),
            None => format!("parameter {} of {function}", at + 1),
        }
    }

    fn given<'py>(&self, args: &Bound<'py, PyTuple>) -> PyResult<Vec<Given<'py>>> {
        args.iter()
            .enumerate()
            .map(|(at, object)| {
                if object.is_none() {
                    return Ok(Given::Nothing);
                }
                if object.is_instance_of::<PyInt>() || object.is_instance_of::<PyFloat>() {
                    return Ok(Given::Other(object));
                }
                let (tensor, bound) = match object.cast::<DenseTensor>() {
                    Ok(dense) => (dense.get().object(args.py()), Some(dense.get().view().numel())),
                    Err(_) => (object.clone(), None),
                };
                if bound.is_none() && !tensor.hasattr("__dlpack__")? {
                    return Ok(Given::Other(object));
                }
                let memory = operand::read_memory(&self.name_of(at), &tensor)?;
                if bound.is_some_and(|bound| bound != memory.numel) {
                    return Err(PyValueError::new_err(format!(
                        "{} has {} elements now, and had {} when the arguments were made; make them anew",
                        self.name_of(at),
                        memory.numel,
                        bound.unwrap_or_default()
                    )));
                }
                Ok(Given::Memory(memory, tensor))
            })
            .collect()
    }

    fn not_contiguous(&self, at: usize) -> String {
        format!(
            "{} is not contiguous, and the kernel is told an address alone; pass tensor.contiguous(), or contiguous=False where \
             the kernel is made if it is told the strides, too",
            self.name_of(at)
        )
    }

    fn needs_a_tensor(&self) -> PyErr {
        PyValueError::new_err(format!(
            "there is no tensor among the arguments of {}, and so no device to launch on",
            self.source.function
        ))
    }

    fn device_of(&self, given: &[Given<'_>]) -> PyResult<operand::Device> {
        let mut found: Option<(usize, operand::Device)> = None;
        for (at, given) in given.iter().enumerate() {
            let Given::Memory(memory, _) = given else { continue };
            match found {
                Some((first, device)) if device != memory.device => {
                    return Err(PyValueError::new_err(format!(
                        "{} is on {}, and {} on {}; a kernel runs on one device",
                        self.name_of(first),
                        device,
                        self.name_of(at),
                        memory.device
                    )));
                }
                _ => found = found.or(Some((at, memory.device))),
            }
        }
        found.map(|(_, device)| device).ok_or_else(|| self.needs_a_tensor())
    }

    fn ordinal(&self, given: &[Given<'_>]) -> PyResult<i32> {
        match self.device_of(given)? {
            operand::Device::Cuda(ordinal) => Ok(ordinal),
            operand::Device::Cpu => Err(PyValueError::new_err(format!(
                "the tensors are on the CPU, and {} runs on a CUDA device; move them there",
                self.source.function
            ))),
        }
    }

    /// The grid, within CUDA's limits. None where there is nothing to launch, because a tensor has no elements.
    fn ctas(&self, grid: &Bound<'_, PyAny>, given: &[Given<'_>]) -> PyResult<Option<[u32; 3]>> {
        let ctas = triple("grid", grid)?;
        if ctas.contains(&0) {
            if given
                .iter()
                .any(|given| matches!(given, Given::Memory(memory, _) if memory.numel == 0))
            {
                return Ok(None);
            }
            return Err(PyValueError::new_err(format!(
                "grid is {ctas:?}, so that nothing would be computed; round up, as cutlass_api.utils.ceil_div does"
            )));
        }
        if ctas[0] > i32::MAX as u32 || ctas[1] > 65535 || ctas[2] > 65535 {
            return Err(PyValueError::new_err(format!(
                "grid is {ctas:?}; CUDA has up to {} blocks along x, and 65535 along y and z",
                i32::MAX
            )));
        }
        if ctas.iter().zip(self.cluster).any(|(ctas, cluster)| ctas % cluster != 0) {
            return Err(PyValueError::new_err(format!(
                "grid {ctas:?} is no multiple of cluster {:?}",
                self.cluster
            )));
        }
        Ok(Some(ctas))
    }

    /// The parameters as the function takes them, each in the first bytes of a word.
    fn words(&self, parameters: &[Parameter], given: &[Given<'_>]) -> PyResult<Vec<u64>> {
        if parameters.len() != given.len() {
            let names = if self.names.len() == parameters.len() {
                format!(" ({})", self.names.join(", "))
            } else {
                String::new()
            };
            return Err(PyTypeError::new_err(format!(
                "{} takes {} arguments{names}, and {} were given",
                self.source.function,
                parameters.len(),
                given.len()
            )));
        }
        parameters
            .iter()
            .zip(given)
            .enumerate()
            .map(|(at, (parameter, given))| self.word(at, parameter, given))
            .collect()
    }

    fn word(&self, at: usize, parameter: &Parameter, given: &Given<'_>) -> PyResult<u64> {
        let name = || self.name_of(at);
        match (parameter, given) {
            (Parameter::Pointer { to, constant }, Given::Memory(memory, _)) => {
                self.check_memory(at, to, *constant, memory)?;
                Ok(memory.data)
            }
            (Parameter::Pointer { .. }, Given::Nothing) => Ok(0),
            (Parameter::Pointer { .. }, Given::Other(object)) => {
                Err(PyTypeError::new_err(format!(
                    "{} is a pointer, and {} was given; pass a tensor, or None for a null pointer",
                    name(),
                    object.repr()?
                )))
            }
            (Parameter::Number(number), Given::Other(object)) => {
                number_word(*number, &name, object)
            }
            (Parameter::Number(number), given) => Err(PyTypeError::new_err(format!(
                "{} is a number ({}), and {} was given; pass a Python number (tensor.item() reads one)",
                name(),
                number.dtype(),
                if matches!(given, Given::Nothing) { "None" } else { "a tensor" }
            ))),
        }
    }

    fn check_memory(
        &self,
        at: usize,
        to: &Pointee,
        constant: bool,
        memory: &Memory,
    ) -> PyResult<()> {
        let name = || self.name_of(at);
        if memory.fake {
            return Err(operand::without_memory(&name()));
        }
        if let Pointee::Elements { dtypes, alignment, name: element } = to {
            if !dtypes.contains(&memory.dtype) {
                let wanted: Vec<String> = dtypes.iter().map(DType::to_string).collect();
                return Err(PyTypeError::new_err(format!(
                    "{} points to {element}, and a tensor of dtype {} was given; pass one of {}",
                    name(),
                    memory.dtype,
                    wanted.join(" or ")
                )));
            }
            if memory.numel > 0 && !memory.data.is_multiple_of(*alignment) {
                return Err(PyValueError::new_err(format!(
                    "{} points to {element}, which is read at multiples of {alignment} bytes, and the tensor begins at {:#x}; \
                     pass a copy",
                    name(),
                    memory.data
                )));
            }
        }
        if self.contiguous && !memory.contiguous {
            return Err(PyValueError::new_err(self.not_contiguous(at)));
        }
        if memory.read_only && !constant {
            return Err(PyValueError::new_err(format!(
                "{} is written to (its pointer is not const), and the tensor is read-only; pass one that can be written",
                name()
            )));
        }
        Ok(())
    }
}

/// A number in the bytes that a parameter of its type has.
fn number_word(
    number: ScalarType,
    name: &dyn Fn() -> String,
    object: &Bound<'_, PyAny>,
) -> PyResult<u64> {
    let dtype = number.dtype();
    let shown = || object.repr().map_or_else(|_| "an object".to_owned(), |text| text.to_string());
    let wrong = |hint: &str| {
        PyTypeError::new_err(format!("{} is {dtype}, and {} was given; {hint}", name(), shown()))
    };
    let outside = || {
        PyOverflowError::new_err(format!("{} is {dtype}, which does not hold {}", name(), shown()))
    };
    match number {
        ScalarType::F32 | ScalarType::F64 => {
            let value: f64 = object.extract().map_err(|_| wrong("pass a number"))?;
            if number == ScalarType::F64 {
                return Ok(value.to_bits());
            }
            let narrow = value as f32;
            if value.is_finite() && narrow.is_infinite() {
                return Err(outside());
            }
            Ok(u64::from(narrow.to_bits()))
        }
        ScalarType::Bool => match object.cast::<PyBool>() {
            Ok(value) => Ok(u64::from(value.is_true())),
            Err(_) => Err(wrong("pass True or False")),
        },
        ScalarType::Signed { bytes } => {
            let value: i64 = integer(object, &wrong, &outside)?;
            let spare = 64 - 8 * bytes;
            if value << spare >> spare != value { Err(outside()) } else { Ok(value as u64) }
        }
        ScalarType::Unsigned { bytes } => {
            let value: u64 = integer(object, &wrong, &outside)?;
            let spare = 64 - 8 * bytes;
            if value << spare >> spare != value { Err(outside()) } else { Ok(value) }
        }
    }
}

fn integer<'py, T: for<'a> FromPyObject<'a, 'py, Error = PyErr>>(
    object: &Bound<'py, PyAny>,
    wrong: &dyn Fn(&str) -> PyErr,
    outside: &dyn Fn() -> PyErr,
) -> PyResult<T> {
    // Whatever Python takes for an index: not floats, whose fraction would be lost.
    let index = object.call_method0("__index__").map_err(|_| wrong("pass an int"))?;
    index.extract().map_err(|_| outside())
}

/// Up to three extents: an int, or a sequence of ints.
fn triple(name: &str, extents: &Bound<'_, PyAny>) -> PyResult<[u32; 3]> {
    let wrong = || {
        let shown = extents.repr().map_or_else(|_| "an object".to_owned(), |text| text.to_string());
        PyTypeError::new_err(format!("{name} is {shown}; give an int, or one to three of them"))
    };
    let given: Vec<u32> = match extents.extract::<u32>() {
        Ok(one) => vec![one],
        Err(_) => extents.extract().map_err(|_| wrong())?,
    };
    if given.is_empty() || given.len() > 3 {
        return Err(wrong());
    }
    let mut triple = [1; 3];
    triple[..given.len()].copy_from_slice(&given);
    Ok(triple)
}
