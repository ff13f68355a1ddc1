//! `cutlass_api.matmul`: chooses, compiles and caches a kernel, and runs it.

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use super::arguments::accumulator_type as parse_accumulator;
use super::discovery::target_of;
use super::host::Interpreter;
use super::kernel::rounds_to_tf32;
use super::options::tf32_allowed;
use super::run::run_reference;
use super::stream::StreamArgument;
use super::utils::set_package_directories;
use crate::compile;
use crate::driver;
use crate::kernel as kernels;
use crate::launch::{ChoiceKey, KernelChoice, LastLaunch, LaunchError, LaunchRequest, choices};
use crate::operand::{self, DType, DeviceId, View};
use crate::problem::{GemmProblem, Problem};

/// Returns A @ B, computed by the kernel that ranks first.
///
/// A has shape (M, K) or (L, M, K), B (K, N) or (L, K, N). An operand of rank 2
/// or of batch 1 is broadcast over the other's batch. out: the output; None allocates it in A's and
/// B's common dtype (int32 for integers, bfloat16 for float8). accumulator_type: None means int32
/// for integers, float64 if A or B is float64, else float32. The first call for each combination of
/// shapes, strides and dtypes chooses and compiles a kernel, and later calls reuse it.
///
/// Follows torch's autocast as `torch.mm` does, unless `out` is passed. Computes no gradients.
/// Autograd sees the write to `out`.
///
/// Raises RuntimeError if a tensor requires grad or has a tangent, and while torch records a trace,
/// because the trace would lack the product; ValueError if shapes do not match or no kernel serves
/// the dtypes.
#[pyfunction]
#[pyo3(signature = (A, B, out = None, accumulator_type = None))]
#[allow(non_snake_case)]
pub fn matmul<'py>(
    A: &Bound<'py, PyAny>,
    B: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    accumulator_type: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = A.py();
    refuse_gradients(py, &[("A", Some(A)), ("B", Some(B)), ("out", out)])?;
    let cast = if out.is_none() { autocast(A, B)? } else { None };
    let user_out = out;
    let (A, B) = match &cast {
        Some((a, b)) => (a, b),
        None => (A, B),
    };
    let mut gemm = GemmProblem {
        a: View::UNREAD,
        b: View::UNREAD,
        out: View::UNREAD,
        accumulator: DType::F32,
    };
    operand::read_into("A", A, &mut gemm.a)?;
    operand::read_into("B", B, &mut gemm.b)?;
    if operand::is_plain_torch(A) || operand::is_plain_torch(B) {
        refuse_traces(py)?;
    }
    let batched = broadcast(&mut gemm.a, &mut gemm.b)?;
    let out = match out {
        Some(out) => out.clone(),
        None => allocate(A, &gemm.a, &gemm.b, batched)?,
    };
    operand::read_into("out", &out, &mut gemm.out)?;
    gemm.accumulator = match accumulator_type {
        Some(object) => parse_accumulator(object)?,
        None => natural_accumulator(gemm.a.dtype, gemm.b.dtype),
    };
    gemm.check()?;
    let views = [("A", &gemm.a), ("B", &gemm.b), ("out", &gemm.out)];
    if let Some((name, _)) = views.into_iter().find(|(_, view)| view.fake) {
        return Err(operand::without_memory(name));
    }
    let allows_tf32 = gemm.a.dtype == DType::F32 && tf32_allowed(py)?;
    let key = ChoiceKey::new(&gemm, allows_tf32);
    let problem = Problem::Gemm(gemm);
    let known = choices().get(&key);
    let choice = match known {
        Some(choice) => choice,
        None => {
            let choice = choose(py, &problem, allows_tf32)?;
            let (choice, dropped) = choices().keep(key, choice);
            // Dropping a choice frees its CUDA graphs. The driver may then block on a thread that
            // waits for the GIL.
            py.detach(|| drop(dropped));
            choice
        }
    };
    match &choice.program {
        Some(program) => {
            let request = LaunchRequest {
                position: choice.position,
                problem: &problem,
                epilogue: None,
                program,
                last: &choice.last,
                is_checked: true, // the kernel ranked first for a problem of this key
            };
            let stream = StreamArgument { handle: None, is_trusted: true };
            let handle = stream.resolve(A, problem.device())?;
            request.enqueue(&Interpreter(py), handle, None, false)?;
        }
        None => run_reference(py, &problem, None)?,
    }
    // The new version makes autograd raise if it saved the overwritten tensor for backward.
    if let Some(out) = user_out
        && is_torch(out)?
    {
        torch(py)?.increment_version.bind(py).call1(((out,),))?;
    }
    Ok(out)
}

/// Ranks the kernels and compiles the first.
fn choose(py: Python<'_>, problem: &Problem, allows_tf32: bool) -> PyResult<KernelChoice> {
    let device = match problem.device() {
        DeviceId::Cpu => None,
        DeviceId::Cuda(ordinal) => Some(driver::Device::get(ordinal)?),
    };
    let target = device.map(|_| target_of(problem, None)).transpose()?;
    let allowed = |position: &usize| allows_tf32 || !rounds_to_tf32(*position);
    let Some(position) = kernels::ranked(problem, target, false).into_iter().find(allowed) else {
        let views = problem.views();
        let [a, b, c] = [views[0].dtype, views[1].dtype, views[2].dtype];
        let accumulator = problem.accumulator();
        let reason = format!("no kernel computes {a} @ {b}, summed in {accumulator}, into {c}");
        return Err(LaunchError::unsupported(reason).into());
    };
    let Some(device) = device else {
        return Ok(KernelChoice { position, program: None, last: LastLaunch::default() });
    };
    set_package_directories(py)?;
    // Load now: the first launch may happen under stream capture.
    let program = py.detach(|| {
        let kernel = &kernels::all()[position];
        let program = compile::compile(kernel, device.cc)?;
        program.load(kernel, device)?;
        Ok::<_, compile::CompileError>(program)
    })?;
    Ok(KernelChoice { position, program: Some(program), last: LastLaunch::default() })
}

/// torch's modules and functions, looked up at the first use with a torch tensor.
struct Torch {
    module: Py<PyModule>,
    tensor: Py<PyAny>,
    forward_mode: Py<PyModule>,
    increment_version: Py<PyAny>,
    /// Returns the state of an active `torch.jit.trace`, or None.
    tracing_state: Py<PyAny>,
    /// Returns the number of active dispatch modes.
    dispatch_modes: Py<PyAny>,
}

fn torch(py: Python<'_>) -> PyResult<&Torch> {
    static TORCH: PyOnceLock<Torch> = PyOnceLock::new();
    TORCH.get_or_try_init(py, || {
        let module = py.import("torch")?;
        let native = module.getattr("_C")?;
        Ok(Torch {
            tensor: module.getattr("Tensor")?.unbind(),
            forward_mode: py.import("torch.autograd.forward_ad")?.unbind(),
            // `torch.autograd.graph.increment_version` calls this function from Python.
            increment_version: native.getattr("_increment_version")?.unbind(),
            tracing_state: native.getattr("_get_tracing_state")?.unbind(),
            dispatch_modes: native.getattr("_len_torch_dispatch_stack")?.unbind(),
            module: module.unbind(),
        })
    })
}

/// Whether this is a torch tensor.
fn is_torch(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = tensor.py();
    // Do not import torch for other tensors.
    Ok(operand::is_plain_torch(tensor)
        || tensor.hasattr(intern!(py, "requires_grad"))?
            && tensor.is_instance(torch(py)?.tensor.bind(py))?)
}

/// Refuses tensors that autograd differentiates.
fn refuse_gradients(py: Python<'_>, tensors: &[(&str, Option<&Bound<'_, PyAny>>)]) -> PyResult<()> {
    let mut forward = None;
    for (name, tensor) in tensors {
        let Some(tensor) = tensor else { continue };
        let Some(flag) = tensor.getattr_opt(intern!(py, "requires_grad"))? else { continue };
        if flag.is_truthy()?
            && torch(py)?.module.bind(py).call_method0("is_grad_enabled")?.is_truthy()?
        {
            return Err(PyRuntimeError::new_err(format!(
                "{name} requires grad, and cutlass_api.matmul computes no gradients: \
                 call it under torch.no_grad() or torch.inference_mode(), \
                 detach {name}, or use torch.matmul"
            )));
        }
        let forward = match forward {
            Some(forward) => forward,
            None => *forward.insert(forward_mode(py)?),
        };
        let Some(forward) = forward else { continue };
        if !forward.call_method1("unpack_dual", (tensor,))?.getattr("tangent")?.is_none() {
            return Err(PyRuntimeError::new_err(format!(
                "{name} has a tangent, and cutlass_api.matmul computes none: \
                 detach {name}, or use torch.matmul"
            )));
        }
    }
    Ok(())
}

/// Refuses to run while torch records a trace (`torch.jit.trace`, `make_fx`). The trace would
/// record the allocation of `out`, and not the product.
fn refuse_traces(py: Python<'_>) -> PyResult<()> {
    let torch = torch(py)?;
    let is_recording = || -> PyResult<bool> {
        if !torch.tracing_state.bind(py).call0()?.is_none() {
            return Ok(true);
        }
        if !torch.dispatch_modes.bind(py).call0()?.is_truthy()? {
            return Ok(false);
        }
        // Other dispatch modes only observe, so results stay correct if they miss the product.
        let modules = py.import("sys")?.getattr("modules")?;
        let proxies = modules.call_method1("get", ("torch.fx.experimental.proxy_tensor",))?;
        Ok(!proxies.is_none() && !proxies.call_method0("get_proxy_mode")?.is_none())
    };
    if is_recording()? {
        return Err(PyRuntimeError::new_err(
            "torch records a trace, in which cutlass_api.matmul would be missing: \
             use torch.matmul in traced code",
        ));
    }
    Ok(())
}

/// torch's module for forward-mode differentiation, if a dual level is open. Without a level, no
/// tensor has a tangent.
fn forward_mode(py: Python<'_>) -> PyResult<Option<&Bound<'_, PyModule>>> {
    let module = torch(py)?.forward_mode.bind(py);
    let level: i64 = module.getattr(intern!(py, "_current_level"))?.extract()?;
    Ok((level >= 0).then_some(module))
}

/// A and B as torch's autocast casts them for `torch.mm`; None if autocast is off for their device.
#[allow(clippy::type_complexity)]
fn autocast<'py>(
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    let py = a.py();
    if !operand::has_current_stream("A", a)? {
        return Ok(None);
    }
    let torch = torch(py)?.module.bind(py);
    let device = match operand::read("A", a)?.device {
        DeviceId::Cpu => intern!(py, "cpu"),
        DeviceId::Cuda(_) => intern!(py, "cuda"),
    };
    if !torch.call_method1(intern!(py, "is_autocast_enabled"), (device,))?.is_truthy()? {
        return Ok(None);
    }
    let to = torch.call_method1("get_autocast_dtype", (device,))?;
    let cast = |tensor: &Bound<'py, PyAny>| {
        if !is_torch(tensor)? {
            return Ok(tensor.clone());
        }
        // Like torch, cast floating-point tensors except float64.
        let is_float = tensor.call_method0("is_floating_point")?.is_truthy()?;
        let is_double = tensor.getattr("dtype")?.eq(torch.getattr("float64")?)?;
        if is_float && !is_double { tensor.call_method1("to", (&to,)) } else { Ok(tensor.clone()) }
    };
    Ok(Some((cast(a)?, cast(b)?)))
}

/// Broadcasts both operands to one rank and one batch; a repeated matrix has batch stride 0.
/// Returns whether there is a batch.
fn broadcast(a: &mut View, b: &mut View) -> PyResult<bool> {
    for (name, view) in [("A", &*a), ("B", &*b)] {
        if view.rank < 2 {
            let (rank, shape) = (view.rank, view.user_shape());
            return Err(PyValueError::new_err(format!(
                "{name} must have rank 2 or 3, but has rank {rank} (shape {shape:?})"
            )));
        }
    }
    if a.rank == 2 && b.rank == 2 {
        return Ok(false);
    }
    let batch = if a.shape[0] == 1 { b.shape[0] } else { a.shape[0] };
    for view in [a, b] {
        view.rank = 3;
        if view.shape[0] == 1 {
            view.shape[0] = batch;
        }
    }
    Ok(true)
}

fn natural_accumulator(a: DType, b: DType) -> DType {
    if a.is_integer() && b.is_integer() {
        DType::I32
    } else if a == DType::F64 || b == DType::F64 {
        DType::F64
    } else {
        DType::F32
    }
}

/// Allocates an output tensor of A's framework on A's device.
fn allocate<'py>(
    tensor: &Bound<'py, PyAny>,
    a: &View,
    b: &View,
    batched: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    let dtype = match (a.dtype, b.dtype) {
        (a, b) if a.is_integer() && b.is_integer() => DType::I32,
        (DType::E4m3 | DType::E5m2, DType::E4m3 | DType::E5m2) => DType::Bf16,
        (a, b) if a.is_integer() => b,
        (a, _) => a,
    };
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
