//! The one-line door: a product of two tensors, with the kernel chosen, compiled and remembered behind it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use rustc_hash::FxBuildHasher;

use super::arguments::accumulator_type as parse_accumulator;
use super::discovery::target_of;
use super::kernel as python_kernel;
use super::kernel::{run_reference, unsupported};
use super::launch::{LastLaunch, Stream, Work};
use super::options::tf32_allowed;
use super::utils::set_package_directories;
use crate::compile::{self, Program};
use crate::driver;
use crate::kernel as kernels;
use crate::operand::{self, DType, Device, View};
use crate::problem::{GemmProblem, Problem};

/// All that the choice of a kernel depends on: the problem but for its addresses, of which only the alignment counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    operands: [OperandKey; 3],
    accumulator: DType,
    device: Device,
    tf32: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct OperandKey {
    dtype: DType,
    shape: [i64; 3],
    stride: [i64; 3],
    /// The address modulo the widest load, 16 bytes.
    misalignment: u64,
}

impl OperandKey {
    fn of(view: &View) -> OperandKey {
        OperandKey {
            dtype: view.dtype,
            shape: view.shape,
            stride: view.stride,
            misalignment: view.data % 16,
        }
    }
}

/// The kernel chosen for a problem, its program (None on the CPU), and its last launch.
struct Choice {
    position: usize,
    program: Option<Arc<Program>>,
    last: LastLaunch,
}

/// The choices that were made, by what they depend on.
struct Choices(HashMap<Key, Arc<Choice>, FxBuildHasher>);

static CHOICES: Mutex<Choices> = Mutex::new(Choices(HashMap::with_hasher(FxBuildHasher)));

impl Choices {
    /// How many are kept, where other extents come at each call: some kilobytes each. Then every other one is forgotten, to be ranked anew if it
    /// comes again (its program stays). To tell which of them was used last would cost every call.
    const MOST: usize = 4096;

    /// Keeps a choice, unless another thread has made one meanwhile; returns the one kept, and those that are kept no longer.
    fn keep(&mut self, key: Key, choice: Choice) -> (Arc<Choice>, Vec<Arc<Choice>>) {
        let mut old = Vec::new();
        if self.0.len() >= Choices::MOST && !self.0.contains_key(&key) {
            let mut goes = false;
            let every_other = self.0.extract_if(|_, _| {
                goes = !goes;
                goes
            });
            old.extend(every_other.map(|(_, choice)| choice));
        }
        (self.0.entry(key).or_insert_with(|| Arc::new(choice)).clone(), old)
    }
}

/// A @ B, by the best known kernel.
///
/// A has shape (M, K) or (L, M, K), B (K, N) or (L, K, N); where one has a batch and the other none, or a batch of 1, it
/// serves every matrix of the other. out: where to write, and what is returned; None allocates it, in A's and B's common
/// dtype (int32 for integers, bfloat16 for float8). accumulator_type: None means float32, or the natural one of the dtype
/// (float64, int32). The kernel is chosen and compiled at the first call of each kind and remembered from then on.
///
/// Follows torch's autocast as `torch.mm` does (not where `out` is given). Computes no gradients: raises RuntimeError for
/// tensors that autograd watches or that have tangents, and where torch records a trace, which would lack the product; tells
/// autograd that `out` was written. Raises ValueError where shapes do not fit or no kernel serves the dtypes.
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
    let given = out;
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
    let GemmProblem { a, b, out: c, accumulator } = &gemm;
    if let Some((name, _)) =
        [("A", a), ("B", b), ("out", c)].into_iter().find(|(_, view)| view.fake)
    {
        return Err(operand::without_memory(name));
    }
    let key = Key {
        operands: [OperandKey::of(a), OperandKey::of(b), OperandKey::of(c)],
        accumulator: *accumulator,
        device: c.device,
        tf32: a.dtype == DType::F32 && tf32_allowed(py)?,
    };
    let problem = Problem::Gemm(gemm);
    let choices = || CHOICES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let known = choices().0.get(&key).cloned();
    let choice = match known {
        Some(choice) => choice,
        None => {
            let choice = choose(py, &problem, key.tf32)?;
            let (choice, old) = choices().keep(key, choice);
            // Graphs of theirs are freed by the driver, which may wait for a thread that waits for Python.
            py.detach(|| drop(old));
            choice
        }
    };
    match &choice.program {
        Some(program) => {
            let stream = Stream { handle: None, trusted: true };
            let (position, last) = (choice.position, &choice.last);
            // It was chosen among those that address operands which lie and are aligned like these.
            let work = Work {
                position,
                problem: &problem,
                epilogue: None,
                program,
                last,
                known_addressed: true,
            };
            work.enqueue(A, None, &stream, false)?;
        }
        None => run_reference(py, &problem, None)?,
    }
    // torch's autograd refuses to go back through a tensor that was written since it was saved, if it is told of the write.
    if let Some(out) = given
        && is_torch(out)?
    {
        torch(py)?.increment_version.bind(py).call1(((out,),))?;
    }
    Ok(out)
}

fn choose(py: Python<'_>, problem: &Problem, tf32: bool) -> PyResult<Choice> {
    let device = match problem.device() {
        Device::Cpu => None,
        Device::Cuda(ordinal) => Some(driver::Device::get(ordinal)?),
    };
    let target = device.map(|_| target_of(problem, None)).transpose()?;
    let allowed = |position: &usize| tf32 || !python_kernel::rounds_to_tf32(*position);
    let Some(position) = kernels::ranked(problem, target, false).into_iter().find(allowed) else {
        let views = problem.views();
        let [a, b, c] = [views[0].dtype, views[1].dtype, views[2].dtype];
        let accumulator = problem.accumulator();
        return Err(unsupported(&format!(
            "no kernel computes {a} @ {b}, summed in {accumulator}, into {c}"
        )));
    };
    let Some(device) = device else {
        return Ok(Choice { position, program: None, last: LastLaunch::default() });
    };
    set_package_directories(py)?;
    // Loaded here, so that a launch may be captured into a graph straight away.
    let program = py.detach(|| {
        let kernel = &kernels::all()[position];
        let program = compile::compile(kernel, device.cc)?;
        program.load(kernel, device)?;
        Ok::<_, compile::CompileError>(program)
    })?;
    Ok(Choice { position, program: Some(program), last: LastLaunch::default() })
}

/// What is asked of torch, looked up once: only asked for where a tensor is torch's.
struct Torch {
    module: Py<PyModule>,
    tensor: Py<PyAny>,
    forward_mode: Py<PyModule>,
    increment_version: Py<PyAny>,
    /// What `torch.jit.trace` records into, or None; and how many modes see what goes through the dispatcher.
    tracing_state: Py<PyAny>,
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
            // What `torch.autograd.graph.increment_version` calls, without the Python frame in between.
            increment_version: native.getattr("_increment_version")?.unbind(),
            tracing_state: native.getattr("_get_tracing_state")?.unbind(),
            dispatch_modes: native.getattr("_len_torch_dispatch_stack")?.unbind(),
            module: module.unbind(),
        })
    })
}

/// Whether this is a tensor of torch, which alone have gradients.
fn is_torch(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = tensor.py();
    // Others need not bring torch with them.
    Ok(operand::is_plain_torch(tensor)
        || tensor.hasattr(intern!(py, "requires_grad"))?
            && tensor.is_instance(torch(py)?.tensor.bind(py))?)
}

/// Gradients would be lost without a word: these tensors need torch.mm, or torch.no_grad().
fn refuse_gradients(py: Python<'_>, tensors: &[(&str, Option<&Bound<'_, PyAny>>)]) -> PyResult<()> {
    let mut forward = None;
    for (name, tensor) in tensors {
        let Some(tensor) = tensor else { continue };
        let Some(flag) = tensor.getattr_opt(intern!(py, "requires_grad"))? else { continue };
        if flag.is_truthy()?
            && torch(py)?.module.bind(py).call_method0("is_grad_enabled")?.is_truthy()?
        {
            return Err(PyRuntimeError::new_err(format!(
                "{name} requires grad, and cutlass_api.matmul computes no gradients: call it under torch.no_grad() or \
                 torch.inference_mode(), detach {name}, or use torch.matmul"
            )));
        }
        let forward = match forward {
            Some(forward) => forward,
            None => *forward.insert(forward_mode(py)?),
        };
        let Some(forward) = forward else { continue };
        if !forward.call_method1("unpack_dual", (tensor,))?.getattr("tangent")?.is_none() {
            return Err(PyRuntimeError::new_err(format!(
                "{name} has a tangent, and cutlass_api.matmul computes none: detach {name}, or use torch.matmul"
            )));
        }
    }
    Ok(())
}

/// What torch records (`torch.jit.trace`, `make_fx`) goes through its dispatcher: `out` would be allocated in the trace, and nothing write it.
fn refuse_traces(py: Python<'_>) -> PyResult<()> {
    let torch = torch(py)?;
    let recorded = || -> PyResult<bool> {
        if !torch.tracing_state.bind(py).call0()?.is_none() {
            return Ok(true);
        }
        if !torch.dispatch_modes.bind(py).call0()?.is_truthy()? {
            return Ok(false);
        }
        // Other modes may watch: what they see less of is right all the same.
        let modules = py.import("sys")?.getattr("modules")?;
        let proxies = modules.call_method1("get", ("torch.fx.experimental.proxy_tensor",))?;
        Ok(!proxies.is_none() && !proxies.call_method0("get_proxy_mode")?.is_none())
    };
    if recorded()? {
        return Err(PyRuntimeError::new_err(
            "torch records a trace, in which cutlass_api.matmul would be missing: use torch.matmul in what is traced",
        ));
    }
    Ok(())
}

/// torch's module for forward-mode differentiation while one of its levels is open, which alone gives tensors tangents.
fn forward_mode(py: Python<'_>) -> PyResult<Option<&Bound<'_, PyModule>>> {
    let module = torch(py)?.forward_mode.bind(py);
    let level: i64 = module.getattr(intern!(py, "_current_level"))?.extract()?;
    Ok((level >= 0).then_some(module))
}

/// A and B as torch's autocast would hand them to its own product, where it is on for their device.
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
        Device::Cpu => intern!(py, "cpu"),
        Device::Cuda(_) => intern!(py, "cuda"),
    };
    if !torch.call_method1(intern!(py, "is_autocast_enabled"), (device,))?.is_truthy()? {
        return Ok(None);
    }
    let to = torch.call_method1("get_autocast_dtype", (device,))?;
    let cast = |tensor: &Bound<'py, PyAny>| {
        if !is_torch(tensor)? {
            return Ok(tensor.clone());
        }
        // As in torch: floating-point tensors but float64 follow, others stay as they are.
        let is_float = tensor.call_method0("is_floating_point")?.is_truthy()?;
        let is_double = tensor.getattr("dtype")?.eq(torch.getattr("float64")?)?;
        if is_float && !is_double { tensor.call_method1("to", (&to,)) } else { Ok(tensor.clone()) }
    };
    Ok(Some((cast(a)?, cast(b)?)))
}

/// Brings both operands to one rank and one batch: a matrix, or a batch of one, repeats with stride 0. Whether there is a batch.
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

/// A new tensor for the product, of A's framework and on its device.
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
                        "out is needed: {framework} has no {dtype}, which A @ B is in"
                    )),
                    false => error,
                }
            })
        }
        _ => Err(PyTypeError::new_err(format!(
            "out is needed: a {} cannot be written once it is made, or is of a framework that is not known here",
            tensor.get_type().name()?
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(misalignment: u64) -> Key {
        let operand =
            OperandKey { dtype: DType::F32, shape: [1, 2, 3], stride: [0, 3, 1], misalignment };
        Key { operands: [operand; 3], accumulator: DType::F32, device: Device::Cpu, tf32: false }
    }

    fn choice(position: usize) -> Choice {
        Choice { position, program: None, last: LastLaunch::default() }
    }

    #[test]
    fn choices_are_kept_until_there_are_too_many() {
        let mut choices = Choices(HashMap::default());
        for at in 0..Choices::MOST {
            let (kept, old) = choices.keep(key(at as u64), choice(at));
            assert_eq!((kept.position, old.len()), (at, 0));
        }
        // Of two threads that chose for the same, the first; that is no further one.
        let (kept, old) = choices.keep(key(7), choice(0));
        assert_eq!((kept.position, old.len(), choices.0.len()), (7, 0, Choices::MOST));
        let (kept, old) = choices.keep(key(1 << 40), choice(1));
        let half = Choices::MOST / 2;
        assert_eq!((kept.position, old.len(), choices.0.len()), (1, half, half + 1));
    }
}
