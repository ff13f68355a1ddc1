//! The handlers of XLA's custom calls, by which programs of JAX compute products.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use rustc_hash::FxBuildHasher;

use super::choosing::Product;
use super::dtype::{self, accumulator_type};
use super::fused_operands::EpilogueOperands;
use super::options::is_vector;
use super::product::broadcast;
use super::trace::{TracedEpilogue, trace_epilogue};
use crate::epilogue::{ExpressionGraph, MAIN_OUTPUT};
use crate::kernel as kernels;
use crate::launch::{Host, choices};
use crate::operand::{DType, DeviceId, View};
use crate::problem::{GemmProblem, OperandValue, Problem};
use crate::process::{Shared, delay_forks};
use crate::reference;
use crate::xla::{self, Buffer, Call, CallFrame, Error, Refusal, Stage};

/// A product as XLA calls it: operands A, B and those of the epilogue, and the outputs.
struct XlaProduct {
    problem: Problem,
    epilogue: Option<EpilogueOperands<'static>>,
    allows_tf32: bool,
}

impl XlaProduct {
    /// The views are row-major. `transposed`: whether the memory of A and of B holds the transposed
    /// matrices. `epilogue`: the source, or "" for the product alone.
    fn new(
        mut operands: Vec<View>,
        outputs: Vec<View>,
        transposed: [bool; 2],
        accumulator: DType,
        epilogue: &str,
        allows_tf32: bool,
    ) -> PyResult<XlaProduct> {
        let graph = graph_of(epilogue)?;
        let main = graph.map_or(Some(0), |graph| {
            graph.outputs.iter().position(|output| output.name == MAIN_OUTPUT)
        });
        let (inputs, results) =
            graph.map_or((0, 1), |graph| (graph.inputs.len(), graph.outputs.len()));
        let out = main.and_then(|at| outputs.get(at).copied());
        let Some(out) = out.filter(|_| (operands.len(), outputs.len()) == (2 + inputs, results))
        else {
            return Err(PyTypeError::new_err(format!(
                "{} operands and {} outputs are passed; the epilogue takes {inputs} beside A and \
                 B, and returns {results}",
                operands.len(),
                outputs.len()
            )));
        };
        let inputs = operands.split_off(2);
        let factor = |at: usize| match transposed[at] && operands[at].rank >= 2 {
            true => column_major(&operands[at]).unwrap_or(operands[at]),
            false => operands[at],
        };
        let (mut a, mut b) = (factor(0), factor(1));
        broadcast(&mut a, &mut b)?;
        let problem = Problem::Gemm(GemmProblem { a, b, out, accumulator, ..GemmProblem::UNREAD });
        problem.check()?;
        let allows_tf32 = allows_tf32 && a.dtype == DType::F32 && !is_vector(&problem);
        let [inputs, outputs] =
            [inputs, outputs].map(|views| views.into_iter().map(OperandValue::Tensor).collect());
        let epilogue =
            graph.map(|graph| EpilogueOperands { graph, inputs, outputs, prologue: None });
        Ok(XlaProduct { problem, epilogue, allows_tf32 })
    }

    /// The product, whose kernel may use this many bytes of workspace.
    fn with_workspace(&self, most_workspace: u64) -> Product<'_> {
        Product {
            problem: &self.problem,
            epilogue: self.epilogue.as_ref(),
            allows_tf32: self.allows_tf32,
            preferred: None,
            most_workspace,
        }
    }
}

/// The graph of an epilogue's source; None for "". Needs the interpreter once for each source.
fn graph_of(source: &str) -> PyResult<Option<&'static ExpressionGraph>> {
    static GRAPHS: Shared<HashMap<String, &'static ExpressionGraph, FxBuildHasher>> =
        Shared::new(HashMap::with_hasher(FxBuildHasher));
    if source.is_empty() {
        return Ok(None);
    }
    if let Some(graph) = GRAPHS.with(|graphs| graphs.get(source).copied()) {
        return Ok(Some(graph));
    }
    let traced = attached(|py| trace_epilogue(py, source.into_pyobject(py)?.as_any()))?;
    // Choices of kernels refer to graphs by address.
    let traced: &'static Py<TracedEpilogue> = Box::leak(Box::new(traced));
    let graph = &traced.get().graph;
    Ok(Some(GRAPHS.with(|graphs| *graphs.entry(source.to_owned()).or_insert(graph))))
}

/// Runs work with the interpreter's lock, for which XLA's thread may wait.
fn attached<T>(work: impl FnOnce(Python<'_>) -> PyResult<T>) -> PyResult<T> {
    let ended = || Err(PyRuntimeError::new_err("Python's interpreter has ended"));
    Python::try_attach(work).unwrap_or_else(ended)
}

/// A thread of XLA, which does not hold the interpreter's lock.
struct XlaThread;

impl Host for XlaThread {
    fn unlocked<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        work()
    }

    /// XLA releases none.
    fn release_cached_memory(&self) -> bool {
        false
    }
}

fn views(buffers: Vec<Buffer<'_>>, device: DeviceId) -> Result<Vec<View>, Refusal> {
    let view = |Buffer { dtype, data, dims }: Buffer<'_>| {
        View::row_major(dtype, device, data, dims)
            .ok_or_else(|| Refusal::invalid(format!("an operand has rank {}", dims.len())))
    };
    buffers.into_iter().map(view).collect()
}

/// An array whose memory holds the transposed matrices, from its row-major view.
fn column_major(view: &View) -> Option<View> {
    let [l, m, n] = view.shape;
    let dims = [l, n, m];
    let stored = View::row_major(view.dtype, view.device, view.data, &dims[3 - view.rank..])?;
    Some(View { fake: view.fake, ..stored.transposed() })
}

/// Serves a call: chooses a kernel, and launches it unless the execution is yet to come.
fn run(call: &Call<'_>, device: DeviceId) -> Result<(), Refusal> {
    let refuse = |error: PyErr| {
        let text = Python::try_attach(|py| error.value(py).to_string());
        Refusal::invalid(text.unwrap_or_default())
    };
    let operands = views(call.operands()?, device)?;
    let mut outputs = views(call.results()?, device)?;
    // The last result is workspace.
    let workspace = outputs.pop();
    let transposed = [call.flag("a_is_transposed")?, call.flag("b_is_transposed")?];
    let accumulator = call.text("accumulator_type")?;
    let accumulator = DType::from_name(accumulator)
        .ok_or_else(|| Refusal::invalid(format!("accumulator_type is {accumulator}")))?;
    let (epilogue, allows_tf32) = (call.text("epilogue")?, call.flag("allows_tf32")?);
    let product =
        XlaProduct::new(operands, outputs, transposed, accumulator, epilogue, allows_tf32)
            .map_err(refuse)?;
    let product = product.with_workspace(workspace.map_or(0, |view| view.bytes() as u64));
    let key = product.key();
    let known = {
        // This thread holds the lock of the choices without the interpreter's lock.
        let _delay = delay_forks();
        choices().get(&key)
    };
    let choice = match known {
        Some(choice) => choice,
        None => attached(|py| product.choose_and_keep(py, key, || Ok(false))).map_err(refuse)?,
    };
    if call.stage == Stage::Initialize {
        return Ok(());
    }
    let bound = product.bind(&choice).map_err(refuse)?;
    let Some(launch) = product.request(&choice, bound.as_ref()) else {
        // SAFETY: XLA holds the buffers until the call returns, and nothing else writes them. All
        // are on the CPU, and none is fake.
        let computed = unsafe { reference::run(product.problem, bound.as_ref()) };
        return computed.map_err(Refusal::internal);
    };
    let bytes = kernels::at(choice.position).workspace_bytes(product.problem);
    // A program that was lowered without this device may bring too little.
    let workspace = workspace.filter(|view| bytes > 0 && view.bytes() as u64 >= bytes);
    let enqueued = launch.enqueue(&XlaThread, call.stream()?, workspace.as_ref(), false);
    enqueued.map(drop).map_err(Refusal::internal)
}

extern "C" fn serve_cpu(frame: *const CallFrame) -> *mut Error {
    // SAFETY: XLA calls handlers, with its frames.
    unsafe { xla::serve(frame, false, |call| run(call, DeviceId::Cpu)) }
}

extern "C" fn serve_cuda(frame: *const CallFrame) -> *mut Error {
    // A call enqueues the same kernels each time, and XLA keeps its buffers, workspace included,
    // for a command buffer.
    // SAFETY: XLA calls handlers, with its frames.
    unsafe { xla::serve(frame, true, |call| run(call, DeviceId::Cuda(call.device_ordinal()?))) }
}

/// The handlers that compute products, as capsules by platform of `jax.ffi.register_ffi_target`.
/// The handler of CUDA also serves the stage `initialize`, in which it compiles.
#[pyfunction]
pub fn xla_handlers(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    type Handler = extern "C" fn(*const CallFrame) -> *mut Error;
    let handlers = PyDict::new(py);
    for (platform, handler) in [("cpu", serve_cpu as Handler), ("CUDA", serve_cuda as Handler)] {
        let Some(pointer) = NonNull::new(handler as *mut c_void) else { continue };
        // SAFETY: functions live as long as the process, and the capsule frees nothing.
        let capsule = unsafe { PyCapsule::new_with_pointer(py, pointer, c"cutlass_api") }?;
        handlers.set_item(platform, capsule)?;
    }
    Ok(handlers)
}

/// Names of fields, and their offsets.
type Fields = Vec<(&'static str, usize)>;

/// The structs of XLA's interface as the handlers read them: name, size without padding at the end,
/// names and offsets of the fields.
#[pyfunction]
pub fn xla_structs() -> Vec<(&'static str, usize, Fields)> {
    let of = |layout: xla::Layout| (layout.name, layout.size, layout.fields);
    xla::layouts().into_iter().map(of).collect()
}

/// The dtype and shape of an array.
type Described<'py> = (Bound<'py, PyAny>, Vec<i64>);

/// Checks a product of JAX arrays, and returns the bytes of workspace of the kernel that ranks
/// first: 0 on the CPU.
///
/// operands, outputs: dtype and shape of each, in the order of the custom call, without the
/// workspace. transposed: whether the memory of A and of B holds the transposed matrix. epilogue:
/// the source, or "". is_cuda: whether the call runs on a GPU; without one, workspace is counted
/// for a typical chip of compute capability 9.0.
///
/// Raises ValueError if the operands do not fit or no kernel serves them, TypeError for an unknown
/// dtype.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn xla_workspace(
    py: Python<'_>,
    operands: Vec<Described<'_>>,
    outputs: Vec<Described<'_>>,
    transposed: [bool; 2],
    accumulator: &Bound<'_, PyAny>,
    epilogue: &str,
    allows_tf32: bool,
    is_cuda: bool,
) -> PyResult<u64> {
    let device = if is_cuda { DeviceId::Cuda(0) } else { DeviceId::Cpu };
    let view = |(object, shape): &Described<'_>| {
        let view = View::row_major(dtype::parse(object)?, device, 0, shape);
        let view = view.ok_or_else(|| PyValueError::new_err("an operand has more than rank 3"))?;
        Ok(View { fake: true, ..view })
    };
    let views = operands.iter().map(view).collect::<PyResult<Vec<_>>>()?;
    let outputs = outputs.iter().map(view).collect::<PyResult<Vec<_>>>()?;
    let accumulator = accumulator_type(accumulator)?;
    let product = XlaProduct::new(views, outputs, transposed, accumulator, epilogue, allows_tf32)?;
    product.with_workspace(u64::MAX).first_workspace(py)
}
