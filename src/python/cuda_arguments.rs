//! The arguments of a user's CUDA C++ function: converts Python objects to kernel parameters.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyTuple};

use super::tensor_map::PyTensorMap;
use super::tensors::DenseTensor;
use super::utils::shown;
use crate::compile::{Parameter, Pointee, ScalarType};
use crate::driver::{Device, ParameterValue};
use crate::operand::{self, DType, Memory};

/// The properties of a user's function that its arguments are checked against.
pub struct UserFunction {
    pub function: String,
    /// The names of the parameters, for messages.
    pub names: Vec<String>,
    /// Whether tensors must be contiguous.
    pub contiguous: bool,
}

impl UserFunction {
    /// The parameter in messages, such as `x of square`.
    fn name_of(&self, at: usize) -> String {
        match self.names.get(at) {
            Some(name) => format!("{name} of {}", self.function),
            None => format!("parameter {} of {}", at + 1, self.function),
        }
    }

    fn not_contiguous(&self, at: usize) -> String {
        format!(
            "{} is not contiguous, and the kernel takes its address alone; \
             pass tensor.contiguous(), \
             or make the kernel with contiguous=False if it also takes the strides",
            self.name_of(at)
        )
    }
}

/// One argument.
enum Argument<'py> {
    Tensor(Memory, Bound<'py, PyAny>),
    /// A tensor map with the memory of its tensor, and the tensor.
    TensorMap(Bound<'py, PyTensorMap>, Memory, Bound<'py, PyAny>),
    None,
    Other(Bound<'py, PyAny>),
}

impl Argument<'_> {
    /// What the argument is, for messages.
    fn kind(&self) -> String {
        match self {
            Argument::Tensor(..) => "a tensor".to_owned(),
            Argument::TensorMap(..) => "a TensorMap".to_owned(),
            Argument::None => "None".to_owned(),
            Argument::Other(object) => shown(object),
        }
    }
}

/// The arguments of a call.
pub struct Arguments<'a, 'py> {
    target: &'a UserFunction,
    values: Vec<Argument<'py>>,
}

impl<'a, 'py> Arguments<'a, 'py> {
    pub fn read(
        target: &'a UserFunction,
        args: &Bound<'py, PyTuple>,
    ) -> PyResult<Arguments<'a, 'py>> {
        let read = |(at, object)| read_argument(|| target.name_of(at), object);
        let values = args.iter().enumerate().map(read).collect::<PyResult<_>>()?;
        Ok(Arguments { target, values })
    }

    fn tensors(&self) -> impl Iterator<Item = (usize, &Memory, &Bound<'py, PyAny>)> {
        self.values.iter().enumerate().filter_map(|(at, value)| match value {
            Argument::Tensor(memory, tensor) | Argument::TensorMap(_, memory, tensor) => {
                Some((at, memory, tensor))
            }
            _ => None,
        })
    }

    /// The first tensor.
    pub fn tensor(&self) -> PyResult<&Bound<'py, PyAny>> {
        let first = self.tensors().next();
        first.map(|(_, _, tensor)| tensor).ok_or_else(|| self.needs_a_tensor())
    }

    fn needs_a_tensor(&self) -> PyErr {
        PyValueError::new_err(format!(
            "there is no tensor among the arguments of {}, and so no device to launch on",
            self.target.function
        ))
    }

    /// Whether a tensor has no elements.
    pub fn has_empty_tensor(&self) -> bool {
        self.tensors().any(|(_, memory, _)| memory.numel == 0)
    }

    /// The device of all tensors.
    pub fn device(&self) -> PyResult<operand::DeviceId> {
        let mut tensors = self.tensors();
        let (first, memory, _) = tensors.next().ok_or_else(|| self.needs_a_tensor())?;
        if let Some((at, other, _)) = tensors.find(|(_, other, _)| other.device != memory.device) {
            return Err(PyValueError::new_err(format!(
                "{} is on {}, and {} on {}; a kernel runs on one device",
                self.target.name_of(first),
                memory.device,
                self.target.name_of(at),
                other.device
            )));
        }
        Ok(memory.device)
    }

    /// The ordinal of the CUDA device of all tensors.
    pub fn ordinal(&self) -> PyResult<i32> {
        match self.device()? {
            operand::DeviceId::Cuda(ordinal) => Ok(ordinal),
            operand::DeviceId::Cpu => Err(PyValueError::new_err(format!(
                "the tensors are on the CPU, and {} runs on a CUDA device; move them there",
                self.target.function
            ))),
        }
    }

    /// Why the tensors' device or layout prevents a launch; None if it does not.
    pub fn refusal(&self, py: Python<'_>) -> Option<String> {
        if let Err(error) = self.ordinal() {
            return Some(error.value(py).to_string());
        }
        // A tensor map holds the strides of its tensor.
        let is_scattered = |value: &Argument<'_>| match value {
            Argument::Tensor(memory, _) => !memory.contiguous,
            _ => false,
        };
        let at = self.values.iter().position(is_scattered).filter(|_| self.target.contiguous)?;
        Some(self.target.not_contiguous(at))
    }

    /// The address ranges of the tensors. Refuses a FakeTensor, which has none.
    pub fn byte_ranges(&self) -> PyResult<Vec<(u64, u64)>> {
        let range = |(at, memory, _): (usize, &Memory, _)| match memory.fake {
            true => Err(operand::without_memory(&self.target.name_of(at))),
            false => Ok(memory.byte_range()),
        };
        self.tensors().map(range).collect()
    }

    /// What a result of the autotuner depends on, for each argument: dtype and number of elements
    /// of a tensor, the value of a number.
    pub fn signature(&self) -> PyResult<Vec<String>> {
        let describe = |value: &Argument<'_>| match value {
            Argument::Tensor(memory, _) => Ok(format!("{}[{}]", memory.dtype, memory.numel)),
            Argument::TensorMap(map, ..) => Ok(map.get().describe()),
            Argument::None => Ok("None".to_owned()),
            Argument::Other(object) => Ok(object.repr()?.to_string()),
        };
        self.values.iter().map(describe).collect()
    }

    /// The values of the parameters. `address`: of a tensor.
    pub fn values(
        &self,
        parameters: &[Parameter],
        device: &Device,
        address: impl Fn(&Memory) -> u64,
    ) -> PyResult<Vec<ParameterValue>> {
        if parameters.len() != self.values.len() {
            let UserFunction { function, names, .. } = self.target;
            let named = match names.len() == parameters.len() {
                true => format!(" ({})", names.join(", ")),
                false => String::new(),
            };
            return Err(PyTypeError::new_err(format!(
                "{function} takes {} arguments{named}, and {} were passed",
                parameters.len(),
                self.values.len()
            )));
        }
        let pairs = parameters.iter().zip(&self.values).enumerate();
        let of_pair = |(at, (parameter, value)): (usize, (&Parameter, &Argument<'py>))| {
            if let (Parameter::TensorMap, Argument::TensorMap(map, memory, _)) = (parameter, value)
            {
                let name = || self.target.name_of(at);
                return map.get().encode(map.py(), name, memory, device, address(memory));
            }
            self.word(at, parameter, value, &address).map(ParameterValue::Word)
        };
        pairs.map(of_pair).collect()
    }

    fn word(
        &self,
        at: usize,
        parameter: &Parameter,
        value: &Argument<'_>,
        address: impl Fn(&Memory) -> u64,
    ) -> PyResult<u64> {
        let name = || self.target.name_of(at);
        match (parameter, value) {
            (Parameter::Pointer { to, constant }, Argument::Tensor(memory, _)) => {
                self.check_memory(at, to, *constant, memory)?;
                Ok(address(memory))
            }
            (Parameter::Pointer { .. }, Argument::None) => Ok(0),
            (Parameter::Pointer { .. }, Argument::Other(object)) => {
                Err(PyTypeError::new_err(format!(
                    "{} is a pointer, and the argument is {}; \
                     pass a tensor, or None for a null pointer",
                    name(),
                    object.repr()?
                )))
            }
            (Parameter::Number(number), Argument::Other(object)) => {
                number_word(*number, &name, object)
            }
            (Parameter::Number(number), value) => Err(PyTypeError::new_err(format!(
                "{} is a number ({}), and the argument is {}; \
                 pass a Python number (tensor.item() reads one)",
                name(),
                number.dtype(),
                value.kind()
            ))),
            (Parameter::Pointer { .. }, value @ Argument::TensorMap(..)) => {
                Err(PyTypeError::new_err(format!(
                    "{} is a pointer, and the argument is {}; pass the tensor",
                    name(),
                    value.kind()
                )))
            }
            (Parameter::TensorMap, value) => Err(PyTypeError::new_err(format!(
                "{} is a tensor map, and the argument is {}; \
                 pass cutlass_api.TensorMap(tensor, box)",
                name(),
                value.kind()
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
        let name = || self.target.name_of(at);
        if memory.fake {
            return Err(operand::without_memory(&name()));
        }
        if let Pointee::Elements { dtypes, alignment, name: element } = to {
            if !dtypes.contains(&memory.dtype) {
                let expected: Vec<String> = dtypes.iter().map(DType::to_string).collect();
                return Err(PyTypeError::new_err(format!(
                    "{} points to {element}, and the tensor has dtype {}; pass one of {}",
                    name(),
                    memory.dtype,
                    expected.join(" or ")
                )));
            }
            if memory.numel > 0 && !memory.data.is_multiple_of(*alignment) {
                return Err(PyValueError::new_err(format!(
                    "{} points to {element}, which the kernel reads at multiples of {alignment} \
                     bytes, and the tensor begins at {:#x}; pass a copy",
                    name(),
                    memory.data
                )));
            }
        }
        if self.target.contiguous && !memory.contiguous {
            return Err(PyValueError::new_err(self.target.not_contiguous(at)));
        }
        if memory.read_only && !constant {
            return Err(PyValueError::new_err(format!(
                "{} is written to (its pointer is not const), and the tensor is read-only; \
                 pass a writable tensor",
                name()
            )));
        }
        Ok(())
    }
}

fn read_argument<'py>(
    name: impl Fn() -> String,
    object: Bound<'py, PyAny>,
) -> PyResult<Argument<'py>> {
    if object.is_none() {
        return Ok(Argument::None);
    }
    if object.is_instance_of::<PyInt>() || object.is_instance_of::<PyFloat>() {
        return Ok(Argument::Other(object));
    }
    if let Ok(map) = object.cast::<PyTensorMap>() {
        let tensor = map.get().tensor(object.py());
        let memory = operand::read_memory(&name(), &tensor)?;
        return Ok(Argument::TensorMap(map.clone(), memory, tensor));
    }
    // After a `resize_`, the operand in `cutlass_api.arguments` (a `DenseTensor`) may be larger
    // than its tensor.
    let (tensor, numel) = match object.cast::<DenseTensor>() {
        Ok(dense) => (dense.get().object(object.py()), Some(dense.get().view().numel())),
        Err(_) => (object.clone(), None),
    };
    if numel.is_none() && !tensor.hasattr("__dlpack__")? {
        return Ok(Argument::Other(object));
    }
    let memory = operand::read_memory(&name(), &tensor)?;
    match numel {
        Some(numel) if numel != memory.numel => Err(PyValueError::new_err(format!(
            "{} has {} elements now, and had {numel} when the arguments were made; \
             make new arguments",
            name(),
            memory.numel
        ))),
        _ => Ok(Argument::Tensor(memory, tensor)),
    }
}

/// A number, converted to its type and stored in the first bytes of a word.
fn number_word(
    number: ScalarType,
    name: &dyn Fn() -> String,
    object: &Bound<'_, PyAny>,
) -> PyResult<u64> {
    let dtype = number.dtype();
    let wrong = |hint: &str| {
        let (name, shown) = (name(), shown(object));
        PyTypeError::new_err(format!("{name} is {dtype}, and the argument is {shown}; {hint}"))
    };
    let outside = || {
        let (name, shown) = (name(), shown(object));
        PyOverflowError::new_err(format!("{name} is {dtype}, which does not hold {shown}"))
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
    // Not `int()`, which truncates floats.
    let index = object.call_method0("__index__").map_err(|_| wrong("pass an int"))?;
    index.extract().map_err(|_| outside())
}
