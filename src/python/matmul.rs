//! `cutlass_api.matmul`: chooses, compiles and caches a kernel, and runs it.

use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::dispatch::{
    AutogradQuery, TensorClass, autocast, dispatch_in_python, empty_cuda, is_traced, torch,
};
use super::dtype::{
    self, accumulator_type as parse_accumulator, natural_accumulator, natural_output,
};
use super::fused_operands::EpilogueOperands;
use super::product::{broadcast, run};
use super::ranges::Range;
use super::trace::trace_epilogue;
use crate::operand::{self, DType, DeviceId, View};
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
        let dtype = self.out_dtype.map(|dtype| dtype::parse_as("out_dtype", dtype)).transpose()?;
        let out = match self.out {
            Some(out) => out.clone(),
            None => allocate(a, &gemm.a, &gemm.b, batched, dtype)?,
        };
        operand::read_into("out", &out, &mut gemm.out)?;
        if gemm.out.read_only && operand::is_of_jax(&out)? {
            return Err(PyValueError::new_err(
                "out is read-only, as all arrays of JAX are; omit out, and call \
                 cutlass_api.jax.matmul",
            ));
        }
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
        if has_subclass || is_refused && !classes.contains(&TensorClass::Foreign) {
            return self.through("cutlass_api.ops");
        }
        // A trace's stand-in has no memory.
        match operand::is_of_jax(self.a)? || operand::is_of_jax(self.b)? {
            true if !error.is_instance_of::<PyValueError>(self.a.py()) => {
                Err(PyTypeError::new_err(
                    "A or B is traced by JAX and has no memory yet; call cutlass_api.jax.matmul",
                ))
            }
            _ => Err(error),
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
    let extents = [a.shape[0], a.shape[1], b.shape[2]];
    if dtype == a.dtype
        && let Some(out) = empty_cuda(tensor, a.device, extents, batched, None)?
    {
        return Ok(out);
    }
    let shape = PyTuple::new(py, &extents[usize::from(!batched)..])?;
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
        Some("jax" | "jaxlib") => Err(PyTypeError::new_err(
            "out is missing, and arrays of JAX are immutable; call cutlass_api.jax.matmul, or pass \
             a writable out",
        )),
        _ => Err(PyTypeError::new_err(format!(
            "out is needed: a {} is immutable, or of an unknown framework",
            tensor.get_type().name()?
        ))),
    }
}
