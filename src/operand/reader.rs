//! Reads a Python object into an operand view, through the fastest interface that its type offers.

use std::sync::atomic::{AtomicBool, Ordering};

use dlpark::ffi::DLDeviceType;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::dlpack::{ExchangeApi, TensorDescription, TensorRecord, read_capsule};
use super::refusals::{derives_from, name_operand, refuse_narrow, refuse_negated};
use super::torch::Torch;
use super::{Class, DType, DeviceId, Element, Memory, ObjectCache, View};

static USE_C_EXCHANGE: AtomicBool = AtomicBool::new(true);

/// Whether C functions read operands (true) or only `__dlpack__` does (false).
pub fn uses_c_exchange() -> bool {
    USE_C_EXCHANGE.load(Ordering::Relaxed)
}

pub fn set_c_exchange(on: bool) {
    USE_C_EXCHANGE.store(on, Ordering::Relaxed);
}

/// The interface that reads tensors of one type.
#[derive(Clone, Copy)]
enum TensorReader {
    /// torch's C functions, cheaper than torch's exchange table.
    Torch(&'static Torch),
    /// An exchange table (torch 2.10 and later).
    ExchangeTable(ExchangeApi),
    /// A Python call of `__dlpack__`.
    DlpackMethod,
    /// torch's `FakeTensor`: shape, strides, type and device, without memory.
    FakeTensor,
    /// A weight (N, K) of this type of 4 bits, in int32 words of eight elements, read as (K, N); a
    /// stack of weights as (G, K, N).
    Packed { dtype: DType, is_stack: bool },
}

impl TensorReader {
    fn exchange(self) -> Option<ExchangeApi> {
        match self {
            TensorReader::Torch(torch) => Some(torch.exchange),
            TensorReader::ExchangeTable(api) => Some(api),
            TensorReader::DlpackMethod | TensorReader::FakeTensor | TensorReader::Packed { .. } => {
                None
            }
        }
    }
}

/// The reader of each tensor type, found on the first tensor of that type. See [`ObjectCache`] for
/// lifetime and invalidation: an interface that a type gains later is not used.
static READERS: ObjectCache<TensorReader> = ObjectCache::empty();

fn reader_of(tensor: &Bound<'_, PyAny>) -> PyResult<TensorReader> {
    let tensor_type = tensor.get_type();
    if let Some(reader) = READERS.get(&tensor_type) {
        return Ok(*reader);
    }
    let reader = if derives_from(&tensor_type, "MaskedArray")? {
        return Err(PyTypeError::new_err(
            "is a MaskedArray of NumPy, whose mask a kernel ignores; pass .filled(value) or .data",
        ));
    } else if derives_from(&tensor_type, "FakeTensor")? {
        TensorReader::FakeTensor
    } else if let Some(api) = ExchangeApi::of_type(&tensor_type)? {
        Torch::of_type(&tensor_type, api, tensor)
            .map_or(TensorReader::ExchangeTable(api), TensorReader::Torch)
    } else if tensor_type.hasattr("__dlpack__")? {
        TensorReader::DlpackMethod
    } else {
        let name = tensor_type.name()?;
        return Err(PyTypeError::new_err(format!(
            "is a {name}, which has no __dlpack__; pass a torch, NumPy, CuPy or JAX array"
        )));
    };
    READERS.insert(&tensor_type, reader);
    Ok(reader)
}

/// The current stream of the tensor's framework on a CUDA device: torch's and CuPy's current
/// stream, else the default stream.
pub fn current_stream(tensor: &Bound<'_, PyAny>, device: i32) -> PyResult<u64> {
    if let Some(api) = reader_of(tensor)?.exchange() {
        return api.current_stream(tensor.py(), device);
    }
    if is_cupy(tensor)? { cupy_stream(tensor.py()) } else { Ok(0) }
}

fn is_cupy(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(tensor.get_type().module()?.to_cow()?.split('.').next() == Some("cupy"))
}

/// CuPy's current stream.
fn cupy_stream(py: Python<'_>) -> PyResult<u64> {
    py.import("cupy")?
        .getattr("cuda")?
        .call_method0("get_current_stream")?
        .getattr("ptr")?
        .extract()
}

/// The stream to pass to `__dlpack__`, for arrays on a CUDA device: the caller's stream, else
/// CuPy's current one, on which the launch will run. Without a stream argument CuPy makes the
/// default stream wait, which invalidates a stream capture.
fn export_stream(tensor: &Bound<'_, PyAny>, stream: Option<u64>) -> PyResult<Option<u64>> {
    if stream.is_none() && !is_cupy(tensor)? {
        return Ok(None);
    }
    if let Some(device) = tensor.getattr_opt("__dlpack_device__")? {
        let (kind, _): (u32, i32) = device.call0()?.extract()?;
        if ![DLDeviceType::CUDA.0, DLDeviceType::CUDAMANAGED.0].contains(&kind) {
            return Ok(None);
        }
    }
    stream.map_or_else(|| cupy_stream(tensor.py()), Ok).map(Some)
}

/// Whether the tensor's framework exports its current stream through the exchange table, as torch
/// does. Errors name the operand.
pub fn has_current_stream(name: &str, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let reader = reader_of(tensor).map_err(|error| name_operand(tensor, name, error))?;
    Ok(reader.exchange().is_some())
}

/// Whether the type is a known torch tensor type without its own `__torch_dispatch__`.
pub fn is_plain_torch(tensor: &Bound<'_, PyAny>) -> bool {
    matches!(READERS.get(&tensor.get_type()), Some(TensorReader::Torch(_)))
}

/// The view of a tensor. The caller keeps the tensor alive. Errors name the operand.
pub fn read(name: &str, tensor: &Bound<'_, PyAny>) -> PyResult<View> {
    read_as(name, tensor)
}

/// `read` into an existing view.
pub fn read_into(name: &str, tensor: &Bound<'_, PyAny>, view: &mut View) -> PyResult<()> {
    let read = reader_of(tensor).and_then(|reader| read_with(reader, tensor, None, view));
    read.map_err(|error| name_operand(tensor, name, error))
}

/// The memory of a tensor of any rank. The caller keeps the tensor alive. Errors name the operand.
pub fn read_memory(name: &str, tensor: &Bound<'_, PyAny>) -> PyResult<Memory> {
    read_as(name, tensor)
}

fn read_as<T: TensorRecord>(name: &str, tensor: &Bound<'_, PyAny>) -> PyResult<T> {
    let mut reading = T::UNREAD;
    let read = reader_of(tensor).and_then(|reader| read_with(reader, tensor, None, &mut reading));
    read.map(|()| reading).map_err(|error| name_operand(tensor, name, error))
}

/// A tensor that arguments hold, and the reader of its type.
pub struct Operand {
    pub name: &'static str,
    pub object: Py<PyAny>,
    reader: TensorReader,
}

impl Operand {
    /// Wraps a tensor and reads it. Errors name the operand.
    pub fn new(name: &'static str, tensor: &Bound<'_, PyAny>) -> PyResult<(Operand, View)> {
        let read = || {
            let (reader, mut view) = (reader_of(tensor)?, View::UNREAD);
            read_with(reader, tensor, None, &mut view)?;
            Ok((Operand { name, object: tensor.clone().unbind(), reader }, view))
        };
        read().map_err(|error| name_operand(tensor, name, error))
    }

    /// Wraps the int32 words (N, K / 32, 4) of a weight of elements of 4 bits, in the order of
    /// [`DType::packed_place`], as (K, N). `is_stack`: the words (G, N, K / 8) of several weights,
    /// as (G, K, N).
    pub fn packed(
        name: &'static str,
        words: &Bound<'_, PyAny>,
        dtype: DType,
        is_stack: bool,
    ) -> PyResult<(Operand, View)> {
        let reader = TensorReader::Packed { dtype, is_stack };
        let operand = Operand { name, object: words.clone().unbind(), reader };
        let mut view = View::UNREAD;
        operand.read(words.py(), &mut view)?;
        Ok((operand, view))
    }

    /// Wraps a tensor without reading it. `None` if its type has no cached reader.
    #[inline(always)] // three calls per `GemmArguments`
    pub fn of_known_type(name: &'static str, tensor: &Bound<'_, PyAny>) -> Option<Operand> {
        let reader = *READERS.get(&tensor.get_type())?;
        Some(Operand { name, object: tensor.clone().unbind(), reader })
    }

    /// Reads the tensor for the first time.
    pub fn read(&self, py: Python<'_>, view: &mut View) -> PyResult<()> {
        read_with(self.reader, self.object.bind(py), None, view)
            .map_err(|error| name_operand(self.object.bind(py), self.name, error))
    }

    pub fn clone_ref(&self, py: Python<'_>) -> Operand {
        Operand { object: self.object.clone_ref(py), ..*self }
    }

    /// Whether the tensor still has the memory, type and shape of `view`. False for a tensor
    /// without C functions, which the caller must read again.
    #[inline(always)] // three calls per launch
    pub fn matches_view(&self, py: Python<'_>, view: &View) -> PyResult<bool> {
        match self.reader {
            TensorReader::Torch(torch) if uses_c_exchange() => {
                Ok(torch.matches_view(self.object.bind(py), view))
            }
            _ => self.matches_view_by_exchange(py, view),
        }
    }

    #[cold]
    fn matches_view_by_exchange(&self, py: Python<'_>, view: &View) -> PyResult<bool> {
        match self.reader {
            TensorReader::ExchangeTable(api) if uses_c_exchange() => api
                .matches_view(self.object.bind(py), view)
                .map_err(|error| name_operand(self.object.bind(py), self.name, error)),
            _ => Ok(false),
        }
    }

    /// Reads the tensor again, since its memory may have moved (`resize_`, `set_`, `.data = ...`).
    /// `stream`: the CUDA stream on which `__dlpack__` makes the data ready.
    pub fn reread(&self, py: Python<'_>, stream: Option<u64>) -> PyResult<View> {
        let mut view = View::UNREAD;
        let read = read_with(self.reader, self.object.bind(py), stream, &mut view);
        read.map(|()| view).map_err(|error| name_operand(self.object.bind(py), self.name, error))
    }
}

/// The error for a `FakeTensor` among the operands of a launch.
pub fn without_memory(name: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{name} is a FakeTensor without memory; pass a real tensor to run a kernel"
    ))
}

fn read_with(
    reader: TensorReader,
    tensor: &Bound<'_, PyAny>,
    stream: Option<u64>,
    into: &mut impl TensorRecord,
) -> PyResult<()> {
    if let Some(api) = reader.exchange()
        && uses_c_exchange()
    {
        let filled = match reader {
            TensorReader::Torch(torch) => torch.read(tensor, into).transpose()?.is_some(),
            _ => false,
        };
        if filled {
            return refuse_negated(tensor, into);
        }
        if api.read(tensor, into)? {
            correct_narrow_dtype(tensor, into)?;
            return refuse_negated(tensor, into);
        }
    }
    read_slowly(reader, tensor, stream, into)
}

#[cold]
fn read_slowly(
    reader: TensorReader,
    tensor: &Bound<'_, PyAny>,
    stream: Option<u64>,
    into: &mut impl TensorRecord,
) -> PyResult<()> {
    match reader {
        TensorReader::FakeTensor => read_fake(tensor, into),
        TensorReader::Packed { dtype, is_stack } => {
            read_packed(dtype, is_stack, tensor, stream, into)
        }
        _ => read_protocol(tensor, stream, into),
    }
}

fn read_packed(
    dtype: DType,
    is_stack: bool,
    words: &Bound<'_, PyAny>,
    stream: Option<u64>,
    into: &mut impl TensorRecord,
) -> PyResult<()> {
    /// Words whose elements are in one order (`DType::packed_place`).
    const WORDS: i64 = 4;
    let mut stored = View::UNREAD;
    read_with(reader_of(words)?, words, stream, &mut stored)?;
    let View { data, device, rank, read_only, fake, shape, stride, .. } = stored;
    let (is_whole, expected) = match is_stack {
        true => (shape[2] % WORDS == 0, "(G, N, K / 8): the values of a stack after repack()"),
        false => (shape[2] == WORDS, "(N, K / 32, 4): the values after repack()"),
    };
    if stored.dtype != DType::I32 || rank != 3 || !is_whole {
        return Err(PyValueError::new_err(format!(
            "is {stored}; pass int32 words of shape {expected}"
        )));
    }
    let elements = i64::from(DType::I32.bits() / dtype.bits());
    // The words of a row are contiguous.
    let [outer, inner] = [stride[0], stride[1]];
    let is_contiguous = match is_stack {
        true => outer % WORDS == 0 && inner % WORDS == 0,
        false => outer % WORDS == 0 && (inner == WORDS || shape[1] <= 1),
    };
    if !(is_contiguous && (stride[2] == 1 || shape[2] <= 1)) {
        let strides = stored.user_stride();
        return Err(PyValueError::new_err(format!(
            "has strides {strides:?}; call contiguous() on it first"
        )));
    }
    let [groups, n, words] = if is_stack { shape } else { [1, shape[0], shape[1] * WORDS] };
    let row_step = if is_stack { inner } else { outer } * elements;
    let (shape, strides) = ([groups, words * elements, n], [outer * elements, 1, row_step]);
    let from = usize::from(!is_stack);
    let (shape, strides) = (&shape[from..], Some(&strides[from..]));
    into.fill(TensorDescription { data, dtype, device, shape, strides, read_only, fake })
}

fn read_protocol(
    tensor: &Bound<'_, PyAny>,
    stream: Option<u64>,
    into: &mut impl TensorRecord,
) -> PyResult<()> {
    let py = tensor.py();
    // torch refuses to export a tensor that requires grad. The kernel needs its values, as
    // `torch.mm(out=)` under no_grad does. The detached tensor shares the memory.
    let requires_grad = tensor.getattr_opt("requires_grad")?;
    let is_torch = requires_grad.is_some();
    let detached = match requires_grad {
        Some(flag) if flag.is_truthy()? => tensor.call_method0("detach")?,
        _ => tensor.clone(),
    };
    if !is_torch {
        refuse_narrow(&detached)?;
    }
    // NumPy does not export the types of ml_dtypes. Reinterpret them as integers of the same width.
    let (exported, dtype) = match extension_dtype(&detached)? {
        Some(dtype) => {
            (detached.call_method1("view", (format!("uint{}", dtype.bits()),))?, Some(dtype))
        }
        None => (detached, None),
    };
    let kwargs = PyDict::new(py);
    kwargs.set_item("max_version", (1, 3))?;
    // torch users synchronize streams themselves; other frameworks rely on `__dlpack__` to do so.
    if !is_torch && let Some(handle) = export_stream(tensor, stream)? {
        // DLPack denotes the legacy default stream by 1, CUDA by 0.
        kwargs.set_item("stream", if handle == 0 { 1 } else { handle })?;
    }
    let capsule = match exported.call_method("__dlpack__", (), Some(&kwargs)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            // Exporters before DLPack 1.0 do not accept max_version.
            kwargs.del_item("max_version")?;
            exported.call_method("__dlpack__", (), Some(&kwargs))?
        }
        other => other?,
    };
    read_capsule(&capsule, into)?;
    correct_narrow_dtype(tensor, into)?;
    refuse_negated(tensor, into)?;
    // JAX arrays are immutable, but their export does not set the read-only flag.
    let (known, read_only) = into.dtype_and_read_only();
    *known = dtype.unwrap_or(*known);
    *read_only |= is_of_jax(tensor)?;
    Ok(())
}

/// Whether a tensor is an array of JAX, or stands for one in a trace of JAX.
pub fn is_of_jax(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(tensor.get_type().module()?.to_cow()?.starts_with("jax"))
}

/// Takes the type of sub-byte elements from the tensor's dtype: torch exports them as bytes.
#[inline(always)]
fn correct_narrow_dtype(tensor: &Bound<'_, PyAny>, into: &mut impl TensorRecord) -> PyResult<()> {
    let (known, _) = into.dtype_and_read_only();
    if known.class() == Some(Class::Integer8)
        && let Some(dtype) = tensor.getattr_opt("dtype")?
    {
        let named_dtype = DType::describe(&dtype.str()?.to_cow()?);
        if named_dtype.bits() < 8 {
            *known = named_dtype;
        }
    }
    Ok(())
}

/// The type of a NumPy array whose dtype comes from `ml_dtypes` (bfloat16, float8).
fn extension_dtype(tensor: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    let tensor_type = tensor.get_type();
    if tensor_type.module()?.to_cow()? != "numpy" {
        return Ok(None);
    }
    let name = tensor.getattr("dtype")?.getattr("name")?;
    let dtype = DType::from_name(name.extract::<&str>()?);
    Ok(dtype.filter(|dtype| dtype.element().is_some_and(Element::is_of_ml_dtypes)))
}

fn read_fake(tensor: &Bound<'_, PyAny>, into: &mut impl TensorRecord) -> PyResult<()> {
    let shape: Vec<i64> = tensor.getattr("shape")?.extract()?;
    let strides: Vec<i64> = tensor.call_method0("stride")?.extract()?;
    let device = tensor.getattr("device")?;
    let kind = device.getattr("type")?;
    let device = match kind.extract::<&str>()? {
        "cuda" => DeviceId::Cuda(device.getattr("index")?.extract::<Option<i32>>()?.unwrap_or(0)),
        "cpu" => DeviceId::Cpu,
        other => {
            return Err(PyValueError::new_err(format!(
                "is on device {other}; only CPU and CUDA tensors can be used"
            )));
        }
    };
    let name = tensor.getattr("dtype")?.str()?;
    let dtype = DType::describe(&name.to_cow()?);
    let (shape, strides) = (shape.as_slice(), Some(strides.as_slice()));
    into.fill(TensorDescription {
        data: 0,
        dtype,
        device,
        shape,
        strides,
        read_only: false,
        fake: true,
    })
}
