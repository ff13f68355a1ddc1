//! What torch's dispatcher would do with a call: record it, trace it, cast it.

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

use crate::operand::{self, DeviceId, ObjectCache, OnceValue};

/// What torch knows about a tensor's class.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TensorClass {
    /// torch's, without a `__torch_dispatch__` of its own.
    Plain,
    /// torch's, with its own `__torch_dispatch__`, as FakeTensor.
    Dispatching,
    /// Another framework's.
    Foreign,
}

impl TensorClass {
    pub fn of(tensor: &Bound<'_, PyAny>) -> PyResult<TensorClass> {
        static CLASSES: ObjectCache<TensorClass> = ObjectCache::empty();
        let class = tensor.get_type();
        if let Some(known) = CLASSES.get(&class) {
            return Ok(*known);
        }
        let found = TensorClass::find(&class)?;
        CLASSES.insert(&class, found);
        Ok(found)
    }

    fn find(class: &Bound<'_, PyType>) -> PyResult<TensorClass> {
        let py = class.py();
        // Do not import torch for other tensors.
        let modules = py.import("sys")?.getattr("modules")?;
        let torch = modules.call_method1("get", ("torch",))?;
        let Some(base) = torch.getattr_opt("Tensor")? else { return Ok(TensorClass::Foreign) };
        if !class.is_subclass(&base)? {
            return Ok(TensorClass::Foreign);
        }
        let dispatch = "__torch_dispatch__";
        match class.getattr(dispatch)?.is(&base.getattr(dispatch)?) {
            true => Ok(TensorClass::Plain),
            false => Ok(TensorClass::Dispatching),
        }
    }
}

/// Whether both operands are torch tensors, and one dispatches in Python.
pub fn dispatch_in_python(classes: [TensorClass; 2]) -> bool {
    classes.contains(&TensorClass::Dispatching) && !classes.contains(&TensorClass::Foreign)
}

/// What autograd says about the tensors of a call.
#[derive(Default)]
pub struct AutogradQuery {
    /// Whether one requires grad, and grad mode is on.
    pub wants_gradient: bool,
    /// Whether a level of forward-mode differentiation is open outside of `torch.func`; None before
    /// the first look. Without a level, no tensor has a tangent.
    has_dual_level: Option<bool>,
}

impl AutogradQuery {
    /// Raises RuntimeError for a tensor with a tangent.
    pub fn add(&mut self, py: Python<'_>, name: &str, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        if TensorClass::of(tensor)? == TensorClass::Foreign {
            return Ok(());
        }
        let torch = torch(py)?;
        let requires_grad = tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()?;
        self.wants_gradient = self.wants_gradient
            || requires_grad && torch.is_grad_enabled.bind(py).call0()?.is_truthy()?;
        let forward_mode = torch.forward_mode.bind(py);
        let has_dual_level = match self.has_dual_level {
            Some(known) => known,
            // Inside of a transform of `torch.func`, the operators look for tangents.
            None => {
                forward_mode.getattr(intern!(py, "_current_level"))?.extract::<i64>()? >= 0
                    && torch.transform_level.bind(py).call0()?.is_none()
            }
        };
        self.has_dual_level = Some(has_dual_level);
        if has_dual_level
            && !forward_mode.call_method1("unpack_dual", (tensor,))?.getattr("tangent")?.is_none()
        {
            return Err(PyRuntimeError::new_err(format!(
                "{name} has a tangent, and cutlass_api.matmul computes none: \
                 detach {name}, or use torch.matmul"
            )));
        }
        Ok(())
    }
}

/// torch's modules and functions, looked up at the first use with a torch tensor.
pub struct Torch {
    pub module: Py<PyModule>,
    forward_mode: Py<PyModule>,
    pub increment_version: Py<PyAny>,
    is_autocast_enabled: Py<PyAny>,
    is_grad_enabled: Py<PyAny>,
    /// The function by which Inductor's code allocates on the current CUDA device, without torch's
    /// dispatcher, and the one that returns the current device. None in builds without them.
    empty_cuda: Option<(Py<PyAny>, Py<PyAny>)>,
    is_jit_tracing: Py<PyAny>,
    /// Returns the level of the innermost transform of `torch.func`, or None.
    transform_level: Py<PyAny>,
    /// Returns the number of active dispatch modes.
    dispatch_modes: Py<PyAny>,
}

pub fn torch(py: Python<'_>) -> PyResult<&Torch> {
    static TORCH: OnceValue<Torch> = OnceValue::new();
    TORCH.get_or_try_init(py, || {
        let module = py.import("torch")?;
        let native = module.getattr("_C")?;
        let inductors = || -> PyResult<(Py<PyAny>, Py<PyAny>)> {
            let guards = native.getattr("_dynamo")?.getattr("guards")?;
            let empty = guards.getattr("_empty_strided_cuda")?;
            Ok((empty.unbind(), native.getattr("_cuda_getDevice")?.unbind()))
        };
        Ok(Torch {
            is_autocast_enabled: module.getattr("is_autocast_enabled")?.unbind(),
            empty_cuda: inductors().ok(),
            forward_mode: py.import("torch.autograd.forward_ad")?.unbind(),
            // `torch.autograd.graph.increment_version` calls this function from Python.
            increment_version: native.getattr("_increment_version")?.unbind(),
            is_grad_enabled: module.getattr("is_grad_enabled")?.unbind(),
            is_jit_tracing: native.getattr("_is_tracing")?.unbind(),
            transform_level: native.getattr("_functorch")?.getattr("maybe_current_level")?.unbind(),
            dispatch_modes: native.getattr("_len_torch_dispatch_stack")?.unbind(),
            module: module.unbind(),
        })
    })
}

/// Whether torch traces or transforms calls: `torch.jit.trace`, a dispatch mode (make_fx,
/// FakeTensorMode, FlopCounterMode), or `torch.func` (vmap).
pub fn is_traced(py: Python<'_>) -> PyResult<bool> {
    let torch = torch(py)?;
    Ok(torch.dispatch_modes.bind(py).call0()?.is_truthy()?
        || !torch.transform_level.bind(py).call0()?.is_none()
        || torch.is_jit_tracing.bind(py).call0()?.is_truthy()?)
}

fn device_type(py: Python<'_>, is_cuda: bool) -> &Bound<'_, PyString> {
    if is_cuda { intern!(py, "cuda") } else { intern!(py, "cpu") }
}

/// Whether autocast is on for a type of devices.
fn casts(py: Python<'_>, is_cuda: bool) -> PyResult<bool> {
    torch(py)?.is_autocast_enabled.bind(py).call1((device_type(py, is_cuda),))?.is_truthy()
}

/// A and B as torch's autocast casts them for `torch.mm`; None if autocast is off for their device.
#[allow(clippy::type_complexity)]
pub fn autocast<'py>(
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    device: DeviceId,
) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    let py = a.py();
    let functions = torch(py)?;
    let is_cuda = matches!(device, DeviceId::Cuda(_));
    if !casts(py, is_cuda)? {
        return Ok(None);
    }
    let torch = functions.module.bind(py);
    let to = torch.call_method1("get_autocast_dtype", (device_type(py, is_cuda),))?;
    let cast = |tensor: &Bound<'py, PyAny>| {
        if TensorClass::of(tensor)? == TensorClass::Foreign {
            return Ok(tensor.clone());
        }
        // Like torch, cast floating-point tensors except float64.
        let is_float = tensor.call_method0("is_floating_point")?.is_truthy()?;
        let is_double = tensor.getattr("dtype")?.eq(torch.getattr("float64")?)?;
        if is_float && !is_double { tensor.call_method1("to", (&to,)) } else { Ok(tensor.clone()) }
    };
    Ok(Some((cast(a)?, cast(b)?)))
}

/// A row-major tensor (l, m, n), or (m, n) if it is no batch, on this tensor's device, of its dtype
/// or `dtype`, from the allocator that Inductor's code calls. None where it serves another device.
pub fn empty_cuda<'py>(
    tensor: &Bound<'py, PyAny>,
    device: DeviceId,
    [l, m, n]: [i64; 3],
    is_batch: bool,
    dtype: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = tensor.py();
    let (DeviceId::Cuda(ordinal), true) = (device, operand::is_plain_torch(tensor)) else {
        return Ok(None);
    };
    let Some((empty, current_device)) = &torch(py)?.empty_cuda else { return Ok(None) };
    if current_device.bind(py).call0()?.extract::<i32>()? != ordinal {
        return Ok(None);
    }
    let empty = empty.bind(py);
    let dtype = match dtype {
        Some(dtype) => dtype.clone(),
        None => tensor.getattr(intern!(py, "dtype"))?,
    };
    // As torch, count empty dimensions as 1 in strides.
    let (of_m, of_l) = (n.max(1), m.max(1) * n.max(1));
    match is_batch {
        true => empty.call1(((l, m, n), (of_l, of_m, 1), dtype)).map(Some),
        false => empty.call1(((m, n), (of_m, 1), dtype)).map(Some),
    }
}

/// Whether torch's dispatcher would do nothing but compute: the input has no class that dispatches,
/// and nothing records, traces or casts a call with these tensors.
#[pyfunction]
#[pyo3(signature = (input, *operands))]
pub fn computes_alone(input: &Bound<'_, PyAny>, operands: &Bound<'_, PyTuple>) -> PyResult<bool> {
    let py = input.py();
    if TensorClass::of(input)? != TensorClass::Plain || is_traced(py)? {
        return Ok(false);
    }
    let torch = torch(py)?;
    let level = torch.forward_mode.bind(py).getattr(intern!(py, "_current_level"))?;
    if level.extract::<i64>()? >= 0 {
        return Ok(false); // forward mode: a tensor may have a tangent
    }
    if torch.is_grad_enabled.bind(py).call0()?.is_truthy()? {
        for tensor in operands.iter_borrowed().chain([input.as_borrowed()]) {
            let requires_grad = tensor.getattr_opt(intern!(py, "requires_grad"))?;
            if requires_grad.map_or(Ok(false), |flag| flag.is_truthy())? {
                return Ok(false);
            }
        }
    }
    let is_cuda = input.getattr(intern!(py, "is_cuda"))?.is_truthy()?;
    Ok(!casts(py, is_cuda)?)
}
