//! Products whose kernel the core chooses: `matmul` and `launch_gemm`.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::choosing::Product;
use super::dtype::{accumulator_type as parse_accumulator, natural_accumulator};
use super::fused_operands::{EpilogueOperands, output_values, output_values_of_one};
use super::host::Interpreter;
use super::joint::{inputs_of_matrices, matrices_of};
use super::options::tf32_allowed;
use super::parameter::input_values;
use super::prologue::PrologueArguments;
use super::ranges::{self, Range};
use super::run::run_reference;
use super::serving::{may_record, position_of_name, serving};
use super::stream::current_stream;
use super::trace::trace_epilogue;
use crate::kernel as kernels;
use crate::launch::choices;
use crate::operand::{self, DType, OnceValue, Operand, View};
use crate::problem::{GemmProblem, GroupedGemmProblem, OperandValue, Problem, ProblemOptions};

/// Computes out = epilogue(A @ B, *operands) on the current stream of A's framework. The operators
/// of `torch.ops.cutlass_api` and code that Inductor generates call this function.
///
/// A has shape (M, K) or (L, M, K), B (K, N) or (L, K, N); a batch of extent 1 is broadcast. B may
/// be a list of 2 to 4 matrices, as in `GemmArguments`. With offsets, int32 of shape (G,), A is
/// (TotalM, K), B (G, K, N), or A (M, TotalK), B (TotalK, N) and out (G, M, N), and the product is
/// a grouped GEMM. With an index too, int32 of shape (TotalM,), row i of out is of row index[i] of
/// A, which may have any number of rows. operands: tensors or numbers, one per parameter of the
/// epilogue after the accumulator; for a list B, also lists of vectors. out: the output, or a tuple
/// of the outputs in the order of the epilogue's return. epilogue: an epilogue function or its
/// source; None: out = A @ B. kernel: the name of the kernel to run if it serves the operands;
/// otherwise, and if None, the kernel that ranks first runs. Its first call for each combination of
/// shapes, strides and dtypes compiles it. fast_sums: whether sums of float8 products may keep 14
/// bits. free_multiprocessors: how many multiprocessors persistent kernels leave to other work.
/// `PerformanceControls` describes both.
///
/// element: an element type of less than 8 bits, of a weight B, which is then int32 words
/// (N, K / 32, 4) in the order of `Weight.repack`.
///
/// prologue: `PrologueArguments`, with the views that their tensors had at construction.
///
/// Reads FakeTensors as an error, casts nothing, and records nothing for autograd.
///
/// Raises ValueError if the operands do not fit or no kernel serves them.
#[pyfunction]
#[pyo3(signature = (
    A, B, *operands, out, epilogue = None, kernel = None, offsets = None, index = None,
    accumulator_type = None, fast_sums = false, free_multiprocessors = 0, element = None,
    prologue = None
))]
#[allow(non_snake_case, clippy::too_many_arguments)]
pub fn launch_gemm(
    A: &Bound<'_, PyAny>,
    B: &Bound<'_, PyAny>,
    operands: &Bound<'_, PyTuple>,
    out: &Bound<'_, PyAny>,
    epilogue: Option<&Bound<'_, PyAny>>,
    kernel: Option<&Bound<'_, PyAny>>,
    offsets: Option<&Bound<'_, PyAny>>,
    index: Option<&Bound<'_, PyAny>>,
    accumulator_type: Option<&Bound<'_, PyAny>>,
    fast_sums: bool,
    free_multiprocessors: u32,
    element: Option<&str>,
    prologue: Option<&Bound<'_, PrologueArguments>>,
) -> PyResult<()> {
    // In torch's profilers, the dispatcher has a range for each operator.
    let _range = ranges::nvtx_records().then(|| {
        let inputs = || Ok((PyTuple::new(A.py(), [A, B])?, None));
        Range::begin(A.py(), "cutlass_api::launch_gemm", inputs)
    });
    let preferred = kernel.map(|name| position_of_name(A.py(), name)).transpose()?.flatten();
    let options = ProblemOptions { fast_sums, free_multiprocessors };
    let call = GemmCall {
        a: A,
        b: B,
        element,
        operands,
        out,
        epilogue,
        offsets,
        index,
        accumulator_type,
        options,
        prologue: prologue.map(|prologue| prologue.get()),
    };
    call.read(|problem, epilogue| run(A, problem, epilogue, preferred))
}

/// Checks the arguments of `launch_gemm` and launches nothing. The operands may be FakeTensors.
///
/// Raises what `launch_gemm` raises if the operands do not fit or no kernel serves them. On a
/// machine without a GPU, operands on a CUDA device are checked for compute capability 9.0.
#[pyfunction]
#[pyo3(signature = (
    A, B, *operands, out, epilogue = None, offsets = None, index = None, fast_sums = false,
    element = None, prologue = None
))]
#[allow(non_snake_case, clippy::too_many_arguments)]
pub fn check_gemm(
    A: &Bound<'_, PyAny>,
    B: &Bound<'_, PyAny>,
    operands: &Bound<'_, PyTuple>,
    out: &Bound<'_, PyAny>,
    epilogue: Option<&Bound<'_, PyAny>>,
    offsets: Option<&Bound<'_, PyAny>>,
    index: Option<&Bound<'_, PyAny>>,
    fast_sums: bool,
    element: Option<&str>,
    prologue: Option<&Bound<'_, PrologueArguments>>,
) -> PyResult<()> {
    let (accumulator_type, options) = (None, ProblemOptions { fast_sums, ..Default::default() });
    let call = GemmCall {
        a: A,
        b: B,
        element,
        operands,
        out,
        epilogue,
        offsets,
        index,
        accumulator_type,
        options,
        prologue: prologue.map(|prologue| prologue.get()),
    };
    call.read(|problem, epilogue| {
        problem.check()?;
        let bound = epilogue.map(|operands| operands.fuse(problem)).transpose()?;
        let epilogue = bound.map(|bound| bound.epilogue);
        let product = problem.of_activations(epilogue);
        let problem = product.as_ref().unwrap_or(problem);
        serving(A.py(), problem, epilogue, tf32_allowed(A.py(), problem)?).map(|_| ())
    })
}

/// The arguments of `launch_gemm`.
struct GemmCall<'a, 'py> {
    a: &'a Bound<'py, PyAny>,
    b: &'a Bound<'py, PyAny>,
    /// The element type of B's words, if B is a weight of 4 bits.
    element: Option<&'a str>,
    operands: &'a Bound<'py, PyTuple>,
    out: &'a Bound<'py, PyAny>,
    epilogue: Option<&'a Bound<'py, PyAny>>,
    offsets: Option<&'a Bound<'py, PyAny>>,
    index: Option<&'a Bound<'py, PyAny>>,
    accumulator_type: Option<&'a Bound<'py, PyAny>>,
    options: ProblemOptions,
    prologue: Option<&'a PrologueArguments>,
}

impl GemmCall<'_, '_> {
    /// Passes the problem, and the operands of the epilogue, to `body`.
    fn read(
        &self,
        body: impl FnOnce(&Problem, Option<&EpilogueOperands<'_>>) -> PyResult<()>,
    ) -> PyResult<()> {
        let traced = self.epilogue.map(|function| trace_epilogue(self.a.py(), function));
        let traced = traced.transpose()?;
        let graph = traced.as_ref().map(|traced| &traced.get().graph);
        let mut a = View::UNREAD;
        operand::read_into("A", self.a, &mut a)?;
        let matrices = matrices_of(self.b)?;
        let first = matrices.as_ref().map_or(self.b, |matrices| &matrices[0]);
        let mut b = read_factor(first, self.element, self.offsets.is_some())?;
        let main;
        let (out, outputs) = match (self.out.cast::<PyTuple>(), graph) {
            (Ok(outs), Some(graph)) => {
                let (at, values) = output_values(graph, outs)?;
                main = outs.get_item(at)?;
                (&main, values)
            }
            _ => (self.out, Vec::new()),
        };
        let out = operand::read("out", out)?;
        let accumulator = match self.accumulator_type {
            Some(object) => parse_accumulator(object)?,
            None => natural_accumulator(a.dtype, b.dtype),
        };
        let options = self.options;
        let problem = match self.offsets {
            Some(offsets) => {
                let offsets = operand::read("offsets", offsets)?;
                let options = ProblemOptions { free_multiprocessors: 0, ..options };
                let index = self.index.map(|index| operand::read("index", index)).transpose()?;
                let index = index.unwrap_or(View::UNREAD);
                let groups = GroupedGemmProblem { a, b, out, offsets, index, accumulator, options };
                Problem::GroupedGemm(groups)
            }
            None => {
                broadcast(&mut a, &mut b)?;
                Problem::Gemm(GemmProblem { a, b, out, accumulator, options, further_columns: 0 })
            }
        };
        if graph.is_none() && !self.operands.is_empty() {
            return Err(PyTypeError::new_err(
                "operands are passed without an epilogue; pass epilogue=, a function of the \
                 accumulator and the operands",
            ));
        }
        if let Some(matrices) = matrices {
            if self.element.is_some() {
                return Err(PyTypeError::new_err(
                    "B is a list of matrices, and a weight of 4 bits is passed; pass one matrix B",
                ));
            }
            let mut problem = problem;
            let (graph, inputs) =
                inputs_of_matrices(&mut problem, &matrices, graph, self.operands)?;
            let outputs = match outputs.is_empty() {
                true => output_values_of_one(graph, &out)?,
                false => outputs,
            };
            let prologue = self.prologue;
            return body(&problem, Some(&EpilogueOperands { graph, inputs, outputs, prologue }));
        }
        let prologue = self.prologue;
        let Some(graph) = graph else {
            let alone = prologue.map(|of| EpilogueOperands::of_prologue(of, &out));
            return body(&problem, alone.as_ref());
        };
        let operands = match outputs.is_empty() {
            true => EpilogueOperands::ordered(graph, &out, self.operands)?,
            false => {
                let inputs = input_values(graph, self.operands)?;
                EpilogueOperands { graph, inputs, outputs, prologue: None }
            }
        };
        body(&problem, Some(&EpilogueOperands { prologue, ..operands }))
    }
}

/// Reads B, or a weight of 4 bits as B: `element` is the type of its elements. `is_stack`: as
/// [`Operand::packed`] takes it.
pub fn read_factor(b: &Bound<'_, PyAny>, element: Option<&str>, is_stack: bool) -> PyResult<View> {
    let Some(name) = element else { return operand::read("B", b) };
    let dtype = DType::packed(name).ok_or_else(|| {
        PyValueError::new_err(format!("element is {name}, which is no type of weights"))
    })?;
    Ok(Operand::packed("B", b, dtype, is_stack)?.1)
}

/// Runs a product by the preferred kernel, or by the one that ranks first. `tensor` is an operand:
/// its framework's current stream is used.
pub fn run(
    tensor: &Bound<'_, PyAny>,
    problem: &Problem,
    epilogue: Option<&EpilogueOperands<'_>>,
    preferred: Option<usize>,
) -> PyResult<()> {
    let py = tensor.py();
    problem.check()?;
    refuse_fake(problem, epilogue)?;
    let activations = match epilogue {
        Some(EpilogueOperands { prologue: Some(prologue), .. }) => of_type(prologue, problem),
        _ => None,
    };
    let allows_tf32 = tf32_allowed(py, activations.as_ref().unwrap_or(problem))?;
    let product = Product { problem, epilogue, allows_tf32, preferred, most_workspace: u64::MAX };
    let key = product.key();
    let known = choices().get(&key);
    let choice = match known {
        Some(choice) => choice,
        None => product.choose_and_keep(py, key, || may_record(tensor, problem))?,
    };
    let bound = product.bind(&choice)?;
    let Some(request) = product.request(&choice, bound.as_ref()) else {
        return run_reference(py, problem, bound.as_ref());
    };
    let bytes = kernels::at(choice.position).workspace_bytes(problem);
    let workspace = allocate_workspace(tensor, bytes)?;
    let view = workspace.as_ref().map(|tensor| operand::read("workspace", tensor)).transpose()?;
    let handle = current_stream(tensor, problem.device())?;
    request.enqueue(&Interpreter(py), handle, view.as_ref(), false)?;
    Ok(())
}

/// The product with the type of the activations that a prologue computes.
#[cold]
fn of_type(prologue: &PrologueArguments, problem: &Problem) -> Option<Problem> {
    let Problem::Gemm(gemm) = problem else { return None };
    let a = View { dtype: prologue.dtype_for(gemm.a.dtype), ..gemm.a };
    Some(Problem::Gemm(GemmProblem { a, ..*gemm }))
}

/// Workspace from torch's allocator, which frees it in stream order and knows about stream capture.
/// None for other frameworks: the launch then allocates from the driver's pool.
fn allocate_workspace<'py>(
    tensor: &Bound<'py, PyAny>,
    bytes: u64,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if bytes == 0 || !operand::is_plain_torch(tensor) {
        return Ok(None);
    }
    static UINT8: OnceValue<Py<PyDict>> = OnceValue::new();
    let py = tensor.py();
    let kwargs = UINT8.get_or_try_init(py, || {
        let kwargs = PyDict::new(py);
        kwargs.set_item("dtype", py.import("torch")?.getattr("uint8")?)?;
        Ok::<_, PyErr>(kwargs.unbind())
    })?;
    let new_empty = tensor.getattr(intern!(py, "new_empty"))?;
    new_empty.call((bytes,), Some(kwargs.bind(py))).map(Some)
}

fn refuse_fake(problem: &Problem, epilogue: Option<&EpilogueOperands<'_>>) -> PyResult<()> {
    if problem.views().iter().any(|view| view.fake) {
        let operands = problem.operands();
        let fake = operands.iter().find(|(_, view)| view.fake);
        return Err(operand::without_memory(fake.map_or("A", |(name, _)| name)));
    }
    let Some(EpilogueOperands { graph, inputs, outputs, prologue }) = epilogue else {
        return Ok(());
    };
    if let Some(name) = prologue.and_then(PrologueArguments::fake) {
        return Err(operand::without_memory(name));
    }
    let is_fake = |value: &OperandValue| matches!(value, OperandValue::Tensor(view) if view.fake);
    if let Some(at) = inputs.iter().position(is_fake) {
        return Err(operand::without_memory(&graph.inputs[at]));
    }
    match outputs.iter().position(is_fake) {
        Some(at) => Err(operand::without_memory(&graph.outputs[at].name)),
        None => Ok(()),
    }
}

/// Broadcasts both operands to one rank and one batch; a repeated matrix has batch stride 0.
/// Returns whether there is a batch.
pub fn broadcast(a: &mut View, b: &mut View) -> PyResult<bool> {
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
