//! `cutlass_api.matmul`: chooses, compiles and caches a kernel, and runs it.

use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use super::dtype::{
    self, accumulator_type as parse_accumulator, natural_accumulator, natural_output,
};
use super::product::{EpilogueOperands, broadcast, run};
use super::ranges::Range;
use super::trace::trace_epilogue;
use crate::operand::{self, DType, DeviceId, ObjectCache, OnceValue, View};
use crate::problem::{GemmProblem, Problem};

/// Returns A @ B, or epilogue(A @ B, **operands), computed by the kernel that ranks first.
///
/// A has shape (*, M, K), B (*, K, N); batch dimensions broadcast. A vector A (K,) counts as a row,
/// B (K,) as a column, and the output lacks that dimension. out: the output; None allocates it in
/// out_dtype, by default A's and B's common dtype (int32 for integers, bfloat16 for float8).
/// accumulator_type: None means int32 for integers, float64 if A or B is float64, else float32.
/// epilogue: an epilogue function or its source (cutlass_api.fusion). Its parameters are passed as
/// keywords, tensors or numbers that broadcast to the output; so are its outputs except D, tensors
/// that are written. The first call for each combination of shapes, strides and dtypes chooses and
/// compiles a kernel, and later calls reuse it.
///
/// Of torch tensors: follows autocast as `torch.matmul` does, unless `out` is passed. If an operand
/// requires grad, or torch traces or transforms the call (torch.compile, torch.export, make_fx,
/// vmap, FakeTensors), `matmul` calls torch.ops.cutlass_api.mm, bmm or mm_epilogue. Autograd sees
/// the write to `out`.
///
/// Raises ValueError if shapes do not match or no kernel serves the dtypes; RuntimeError if a
/// tensor has a tangent, and if `out` is passed and an operand requires grad.
#[pyfunction]
#[pyo3(signature = (
    A, B, out = None, accumulator_type = None, *, out_dtype = None, epilogue = None, **operands
))]
#[allow(non_snake_case)]
pub fn matmul<'py>(
    A: &Bound<'py, PyAny>,
    B: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    accumulator_type: Option<&Bound<'py, PyAny>>,
    out_dtype: Option<&Bound<'py, PyAny>>,
    epilogue: Option<&Bound<'py, PyAny>>,
    operands: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let _range =
        Range::of_call(A.py(), "cutlass_api::matmul", || Ok((PyTuple::new(A.py(), [A, B])?, None)));
    Call { a: A, b: B, out, accumulator_type, out_dtype, epilogue, operands }.run()
}

/// The arguments of `matmul`.
struct Call<'a, 'py> {
    a: &'a Bound<'py, PyAny>,
    b: &'a Bound<'py, PyAny>,
    out: Option<&'a Bound<'py, PyAny>>,
    accumulator_type: Option<&'a Bound<'py, PyAny>>,
    out_dtype: Option<&'a Bound<'py, PyAny>>,
    epilogue: Option<&'a Bound<'py, PyAny>>,
    operands: Option<&'a Bound<'py, PyDict>>,
}

impl<'py> Call<'_, 'py> {
    fn run(&self) -> PyResult<Bound<'py, PyAny>> {
        let py = self.a.py();
        let classes = [TensorClass::of(self.a)?, TensorClass::of(self.b)?];
        let has_torch = classes.iter().any(|class| *class != TensorClass::Foreign);
        if self.wants_gradient(py)? || has_torch && is_traced(py)? {
            return self.through("cutlass_api.ops");
        }
        let mut gemm = GemmProblem::UNREAD;
        let mut read = |a, b| {
            operand::read_into("A", a, &mut gemm.a)
                .and_then(|()| operand::read_into("B", b, &mut gemm.b))
                .map(|()| gemm.a.device)
        };
        let device = match read(self.a, self.b) {
            Ok(device) => device,
            Err(error) => return self.unread(error),
        };
        let cast = match self.out {
            None if operand::has_current_stream("A", self.a)? => autocast(self.a, self.b, device)?,
            _ => None,
        };
        let a = match &cast {
            Some((a, b)) => {
                read(a, b)?;
                a
            }
            None => self.a,
        };
        if dispatch_in_python(classes) {
            return self.through("cutlass_api.ops");
        }
        let batched = match broadcast(&mut gemm.a, &mut gemm.b) {
            Ok(batched) => batched,
            Err(error) => return self.unread(error),
        };
        let dtype = self.out_dtype.map(dtype::parse).transpose()?;
        let out = match self.out {
            Some(out) => out.clone(),
            None => allocate(a, &gemm.a, &gemm.b, batched, dtype)?,
        };
        operand::read_into("out", &out, &mut gemm.out)?;
        if let Some(dtype) = dtype.filter(|dtype| *dtype != gemm.out.dtype) {
            return Err(PyValueError::new_err(format!(
                "out has dtype {}, but out_dtype is {dtype}; omit out_dtype",
                gemm.out.dtype
            )));
        }
        gemm.accumulator = match self.accumulator_type {
            Some(object) => parse_accumulator(object)?,
            None => natural_accumulator(gemm.a.dtype, gemm.b.dtype),
        };
        match self.epilogue {
            None => {
                self.refuse_operands()?;
                run(a, &Problem::Gemm(gemm), None, None)?;
            }
            Some(epilogue) => {
                let traced = trace_epilogue(py, epilogue)?;
                let graph = &traced.get().graph;
                let second = graph.factor().map(|at| &graph.inputs[at]);
                let cast = match (&cast, second) {
                    (Some(_), Some(name)) => self.autocast_operand(name, device)?,
                    _ => None,
                };
                let operands = cast.as_ref().or(self.operands);
                let fused = EpilogueOperands::named(graph, &gemm.out, operands)?;
                run(a, &Problem::Gemm(gemm), Some(&fused), None)?;
            }
        }
        self.increment_versions(py)?;
        Ok(out)
    }

    /// The operands of the epilogue, with the second matrix B as autocast casts it.
    #[cold]
    fn autocast_operand(
        &self,
        name: &str,
        device: DeviceId,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(operands) = self.operands else { return Ok(None) };
        let Some(tensor) = operands.get_item(name)? else { return Ok(None) };
        let Some((second, _)) = autocast(&tensor, &tensor, device)? else { return Ok(None) };
        let operands = operands.copy()?;
        operands.set_item(name, second)?;
        Ok(Some(operands))
    }

    /// Calls the function `matmul` of a Python module with the same arguments.
    #[cold]
    fn through(&self, module: &str) -> PyResult<Bound<'py, PyAny>> {
        let py = self.a.py();
        let kwargs = match self.operands {
            Some(operands) => operands.copy()?,
            None => PyDict::new(py),
        };
        kwargs.set_item("out_dtype", self.out_dtype)?;
        kwargs.set_item("epilogue", self.epilogue)?;
        let positional = (self.a, self.b, self.out, self.accumulator_type);
        py.import(module)?.getattr("matmul")?.call(positional, Some(&kwargs))
    }

    /// Computes a product of vectors or of more than one batch dimension, or whose operands have no
    /// view and are torch tensors that the operators serve or refuse by kind. Otherwise returns the
    /// error.
    #[cold]
    fn unread(&self, error: PyErr) -> PyResult<Bound<'py, PyAny>> {
        let classes = [TensorClass::of(self.a)?, TensorClass::of(self.b)?];
        let has_subclass = dispatch_in_python(classes);
        for (tensor, class) in [self.a, self.b].into_iter().zip(classes) {
            // A proxy of torch.fx, for example.
            if class == TensorClass::Foreign && tensor.hasattr("__torch_function__")? {
                return self.through("cutlass_api.ops");
            }
            if let Some(rank) = tensor.getattr_opt(intern!(tensor.py(), "ndim"))?
                && !matches!(rank.extract::<usize>()?, 2 | 3)
                && !has_subclass
            {
                return self.through("cutlass_api._batches");
            }
        }
        // torch exports no DLPack view of a sparse tensor, for example.
        let is_refused = error.is_instance_of::<PyBufferError>(self.a.py());
        match has_subclass || is_refused && !classes.contains(&TensorClass::Foreign) {
            true => self.through("cutlass_api.ops"),
            false => Err(error),
        }
    }

    /// Whether autograd records the call. Refuses tensors with tangents, and gradients of a product
    /// into `out`.
    fn wants_gradient(&self, py: Python<'py>) -> PyResult<bool> {
        let mut query = AutogradQuery::default();
        query.add(py, "A", self.a)?;
        query.add(py, "B", self.b)?;
        for (name, operand) in self.operands.into_iter().flatten() {
            query.add(py, &name.to_string(), &operand)?;
        }
        if let Some(out) = self.out {
            query.add(py, "out", out)?;
            if query.wants_gradient {
                return Err(PyRuntimeError::new_err(
                    "an operand of cutlass_api.matmul requires grad, and a product into out has no \
                     gradient: omit out, or call matmul under torch.no_grad() or \
                     torch.inference_mode()",
                ));
            }
        }
        Ok(query.wants_gradient)
    }

    fn refuse_operands(&self) -> PyResult<()> {
        match self.operands.filter(|operands| !operands.is_empty()) {
            None => Ok(()),
            Some(operands) => Err(PyTypeError::new_err(format!(
                "matmul() got an unexpected keyword argument '{}'; the operands of an epilogue \
                 need epilogue=",
                operands.keys().get_item(0)?
            ))),
        }
    }

    /// The new versions make autograd raise if it saved an overwritten tensor for backward.
    fn increment_versions(&self, py: Python<'py>) -> PyResult<()> {
        let increment = |tensor: &Bound<'py, PyAny>| -> PyResult<()> {
            if TensorClass::of(tensor)? != TensorClass::Foreign {
                torch(py)?.increment_version.bind(py).call1(((tensor,),))?;
            }
            Ok(())
        };
        if let Some(out) = self.out {
            increment(out)?;
        }
        let (Some(epilogue), Some(operands)) = (self.epilogue, self.operands) else {
            return Ok(());
        };
        for output in &trace_epilogue(py, epilogue)?.get().graph.outputs {
            if let Some(tensor) = operands.get_item(&output.name)? {
                increment(&tensor)?;
            }
        }
        Ok(())
    }
}

/// What torch knows about a tensor's class.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TensorClass {
    /// torch's, without a `__torch_dispatch__` of its own.
    Plain,
    /// torch's, with its own `__torch_dispatch__`, as FakeTensor.
    Dispatching,
    /// Another framework's.
    Foreign,
}

impl TensorClass {
    fn of(tensor: &Bound<'_, PyAny>) -> PyResult<TensorClass> {
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
fn dispatch_in_python(classes: [TensorClass; 2]) -> bool {
    classes.contains(&TensorClass::Dispatching) && !classes.contains(&TensorClass::Foreign)
}

/// What autograd says about the tensors of a call.
#[derive(Default)]
struct AutogradQuery {
    /// Whether one requires grad, and grad mode is on.
    wants_gradient: bool,
    /// Whether a level of forward-mode differentiation is open outside of `torch.func`; None before
    /// the first look. Without a level, no tensor has a tangent.
    has_dual_level: Option<bool>,
}

impl AutogradQuery {
    /// Raises RuntimeError for a tensor with a tangent.
    fn add(&mut self, py: Python<'_>, name: &str, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
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
struct Torch {
    module: Py<PyModule>,
    forward_mode: Py<PyModule>,
    increment_version: Py<PyAny>,
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

fn torch(py: Python<'_>) -> PyResult<&Torch> {
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
fn is_traced(py: Python<'_>) -> PyResult<bool> {
    let torch = torch(py)?;
    Ok(torch.dispatch_modes.bind(py).call0()?.is_truthy()?
        || !torch.transform_level.bind(py).call0()?.is_none()
        || torch.is_jit_tracing.bind(py).call0()?.is_truthy()?)
}

/// A and B as torch's autocast casts them for `torch.mm`; None if autocast is off for their device.
#[allow(clippy::type_complexity)]
fn autocast<'py>(
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    device: DeviceId,
) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    let py = a.py();
    let functions = torch(py)?;
    let device = match device {
        DeviceId::Cpu => intern!(py, "cpu"),
        DeviceId::Cuda(_) => intern!(py, "cuda"),
    };
    if !functions.is_autocast_enabled.bind(py).call1((device,))?.is_truthy()? {
        return Ok(None);
    }
    let torch = functions.module.bind(py);
    let to = torch.call_method1("get_autocast_dtype", (device,))?;
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

/// `_empty_strided_cuda`, if it allocates on the tensor's device.
fn empty_cuda<'py>(
    tensor: &Bound<'py, PyAny>,
    device: DeviceId,
) -> PyResult<Option<&'py Bound<'py, PyAny>>> {
    let (DeviceId::Cuda(ordinal), true) = (device, operand::is_plain_torch(tensor)) else {
        return Ok(None);
    };
    let Some((empty, current_device)) = &torch(tensor.py())?.empty_cuda else { return Ok(None) };
    let is_current = current_device.bind(tensor.py()).call0()?.extract::<i32>()? == ordinal;
    Ok(is_current.then(|| empty.bind(tensor.py())))
}

/// Allocates an output tensor of A's framework on A's device.
fn allocate<'py>(
    tensor: &Bound<'py, PyAny>,
    a: &View,
    b: &View,
    batched: bool,
    dtype: Option<DType>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    let dtype = dtype.unwrap_or_else(|| natural_output(a.dtype, b.dtype));
    if dtype == a.dtype
        && let Some(empty) = empty_cuda(tensor, a.device)?
    {
        let dtype = tensor.getattr(intern!(py, "dtype"))?;
        let (l, m, n) = (a.shape[0], a.shape[1], b.shape[2]);
        // As torch, count empty dimensions as 1 in strides.
        let (of_m, of_l) = (n.max(1), m.max(1) * n.max(1));
        return match batched {
            true => empty.call1(((l, m, n), (of_l, of_m, 1), dtype)),
            false => empty.call1(((m, n), (of_m, 1), dtype)),
        };
    }
    let shape = if batched {
        PyTuple::new(py, [a.shape[0], a.shape[1], b.shape[2]])?
    } else {
        PyTuple::new(py, [a.shape[1], b.shape[2]])?
    };
    let kwargs = PyDict::new(py);
    if let Some(new_empty) = tensor.getattr_opt(intern!(py, "new_empty"))? {
        if dtype == a.dtype {
            return new_empty.call1((shape,));
        }
        kwargs.set_item("dtype", torch(py)?.module.bind(py).getattr(dtype.to_string())?)?;
        return new_empty.call((shape,), Some(&kwargs));
    }
    let module = tensor.get_type().module()?.to_string();
    match module.split('.').next() {
        Some(framework @ ("numpy" | "cupy")) => {
            kwargs.set_item("dtype", dtype.to_string())?;
            py.import(framework)?.call_method("empty", (shape,), Some(&kwargs)).map_err(|error| {
                match error.is_instance_of::<PyTypeError>(py) {
                    true => PyTypeError::new_err(format!(
                        "out is needed: {framework} has no {dtype}, the dtype of A @ B"
                    )),
                    false => error,
                }
            })
        }
        _ => Err(PyTypeError::new_err(format!(
            "out is needed: a {} is immutable, or of an unknown framework",
            tensor.get_type().name()?
        ))),
    }
}
