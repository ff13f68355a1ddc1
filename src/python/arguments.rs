//! Arguments: operands that make a problem.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use super::dtype::{self, PyDType};
use super::epilogue::EpilogueArguments;
use super::tensors::{DenseTensor, ScaledTensor};
use crate::epilogue::{BoundEpilogue, MAIN_OUTPUT};
use crate::launch::PreparedLaunch;
use crate::operand::{self, DType, Operand, View};
use crate::problem::{ElementwiseProblem, GemmProblem, GroupedGemmProblem, Problem, ProblemError};

/// The base of all arguments. A subclass for a kernel written in Python may hold anything.
#[pyclass(module = "cutlass_api.arguments", subclass, frozen)]
pub struct RuntimeArguments {
    /// Hints on how to compute, or None.
    #[pyo3(get)]
    performance: Option<Py<PyAny>>,
    /// None in a subclass written in Python. Boxed: a PyO3 object's contents are moved into it, which copies them.
    pub native: Option<Box<NativeArguments>>,
}

/// Arguments of built-in kernels.
pub struct NativeArguments {
    pub operands: ArrayVec<Operand, 4>,
    pub problem: Problem,
    /// The epilogue as the user passed it.
    pub epilogue: Option<Py<PyAny>>,
    /// The epilogue bound to the problem, if it is `EpilogueArguments`.
    pub fused: Option<Box<(Py<EpilogueArguments>, BoundEpilogue)>>,
    /// Operands with scales: index among the operands, and the tensor as the user wrapped it.
    pub scaled: Vec<(usize, Py<ScaledTensor>)>,
    /// The last kernel that ran on these operands.
    addressed: LastKernel,
    /// The last kernel that supports these arguments.
    supported: LastKernel,
    /// The launch that runs on these operands repeat. Boxed: arguments that run once never allocate it.
    kept: OnceLock<Box<KeptLaunch>>,
}

/// The launch of a kernel that ran these arguments with an artifact. Kernel and artifact are compared by identity.
pub struct KeptLaunch {
    pub kernel: Py<PyAny>,
    pub artifact: Py<PyAny>,
    pub rounds_to_tf32: bool,
    pub launch: PreparedLaunch,
}

/// The position of a built-in kernel, as `kernel::at` counts, or `NONE`.
struct LastKernel(AtomicUsize);

impl LastKernel {
    const NONE: usize = usize::MAX;

    fn none() -> LastKernel {
        LastKernel(AtomicUsize::new(LastKernel::NONE))
    }

    fn is(&self, position: usize) -> bool {
        self.0.load(Ordering::Relaxed) == position
    }

    fn note(&self, position: usize) {
        self.0.store(position, Ordering::Relaxed);
    }
}

#[pymethods]
impl RuntimeArguments {
    #[new]
    #[pyo3(signature = (*args, performance = None, **kwargs))]
    #[allow(unused_variables)]
    fn new(
        args: &Bound<'_, pyo3::types::PyTuple>,
        performance: Option<Py<PyAny>>,
        kwargs: Option<&Bound<'_, pyo3::types::PyDict>>,
    ) -> Self {
        RuntimeArguments { performance, native: None }
    }

    /// For the garbage collector: operands, and the object of an epilogue that is a method, may refer to the arguments. There is
    /// no `__clear__`: another object in such a cycle has one.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.performance)?;
        self.native.as_ref().map_or(Ok(()), |native| native.traverse(&visit))
    }
}

impl RuntimeArguments {
    /// Arguments of a built-in kernel. `unread`: the problem with unread views; `tensors`: in the order of the views.
    #[inline(always)] // constructs the problem in place
    fn of<const N: usize>(
        unread: Problem,
        tensors: [(&'static str, &Bound<'_, PyAny>); N],
        epilogue: Option<Py<PyAny>>,
        performance: Option<Py<PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let mut native = Box::write(Box::new_uninit(), NativeArguments::unread(unread, epilogue));
        native.read(tensors)?;
        let arguments = RuntimeArguments { performance, native: Some(native) };
        Ok(PyClassInitializer::from(arguments))
    }
}

impl NativeArguments {
    /// Arguments whose tensors are not read yet.
    fn unread(problem: Problem, epilogue: Option<Py<PyAny>>) -> NativeArguments {
        NativeArguments {
            operands: ArrayVec::new(),
            problem,
            epilogue,
            fused: None,
            scaled: Vec::new(),
            addressed: LastKernel::none(),
            supported: LastKernel::none(),
            kept: OnceLock::new(),
        }
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for operand in &self.operands {
            visit.call(&operand.object)?;
        }
        visit.call(&self.epilogue)?;
        if let Some(fused) = &self.fused {
            visit.call(&fused.0)?;
        }
        for (_, wrapped) in &self.scaled {
            visit.call(wrapped)?;
        }
        if let Some(kept) = self.kept() {
            visit.call(&kept.kernel)?;
            visit.call(&kept.artifact)?;
        }
        Ok(())
    }

    /// Reads the tensors, in the order of the problem's views.
    fn read<const N: usize>(
        &mut self,
        tensors: [(&'static str, &Bound<'_, PyAny>); N],
    ) -> PyResult<()> {
        let fusing = self
            .epilogue
            .as_ref()
            .and_then(|epilogue| Fusing::of(epilogue, &tensors))
            .transpose()?;
        for ((name, mut tensor), view) in tensors.into_iter().zip(self.problem.views_mut()) {
            if let (Some(fusing), "out") = (&fusing, name) {
                tensor = &fusing.main_output;
            }
            let operand = match Operand::of_known_type(name, tensor) {
                Some(plain) => {
                    plain.read(tensor.py(), view)?;
                    plain
                }
                None => {
                    let scaled = |wrapped| self.scaled.push((self.operands.len(), wrapped));
                    let (operand, read) = unwrapped(name, tensor, scaled)?;
                    *view = read;
                    operand
                }
            };
            self.operands.push(operand);
        }
        self.problem.check()?;
        self.fused = fusing.map(|fusing| fusing.behind(&self.problem)).transpose()?;
        Ok(())
    }

    /// The launch that is kept, on the operands as they were read.
    pub fn kept(&self) -> Option<&KeptLaunch> {
        self.kept.get().map(|kept| &**kept)
    }

    /// Keeps a launch unless one is kept already.
    pub fn keep(&self, launch: KeptLaunch) {
        let _ = self.kept.set(Box::new(launch));
    }

    /// Notes that a kernel ran on the operands as they were read.
    pub fn note_addressed(&self, position: usize) {
        self.addressed.note(position);
    }

    /// Whether no kernel ran on the operands as they were read.
    pub fn are_new(&self) -> bool {
        self.addressed.is(LastKernel::NONE)
    }

    /// Whether the kernel at a position is known to address the operands as they were read.
    pub fn known_addressed(&self, position: usize) -> bool {
        self.addressed.is(position)
    }

    /// Whether the kernel at a position is known to support these arguments.
    pub fn known_supported(&self, position: usize) -> bool {
        self.supported.is(position)
    }

    pub fn note_supported(&self, position: usize) {
        self.supported.note(position);
    }

    /// Whether the operands, the epilogue's included, still are as they were read.
    #[inline(always)] // in every repeated launch
    pub fn are_as_read(&self, py: Python<'_>) -> PyResult<bool> {
        for (operand, view) in self.operands.iter().zip(self.problem.views().iter()) {
            if !operand.still_shows(py, view)? {
                return Ok(false);
            }
        }
        match &self.fused {
            None => Ok(true),
            Some(fused) => fused.0.get().is_as_read(py),
        }
    }

    /// The epilogue bound to a problem, with its operands as they are now.
    pub fn current_epilogue(
        &self,
        py: Python<'_>,
        problem: &Problem,
        stream: Option<u64>,
    ) -> PyResult<Option<BoundEpilogue>> {
        self.fused.as_ref().map(|fused| fused.0.get().behind_now(py, problem, stream)).transpose()
    }

    /// The epilogue bound to the problem as it was read.
    pub fn bound_epilogue(&self) -> Option<&BoundEpilogue> {
        self.fused.as_ref().map(|fused| &fused.1)
    }

    /// The problem with the operands as they are now. If an address or shape changed, it is validated again.
    pub fn current_problem(&self, py: Python<'_>, stream: Option<u64>) -> PyResult<Problem> {
        self.problem_with(|_, operand| operand.reread(py, stream))
    }

    /// The problem with the views that `view` returns, none of which may be a FakeTensor's. A changed problem is validated again.
    pub fn problem_with(
        &self,
        view: impl Fn(usize, &Operand) -> PyResult<View>,
    ) -> PyResult<Problem> {
        let mut problem = self.problem;
        for (position, (operand, now)) in self.operands.iter().zip(problem.views_mut()).enumerate()
        {
            *now = view(position, operand)?;
            if now.fake {
                return Err(operand::without_memory(operand.name));
            }
        }
        if problem != self.problem {
            problem.check()?;
        }
        Ok(problem)
    }

    fn operand(&self, py: Python<'_>, position: usize) -> PyResult<Py<PyAny>> {
        if let Some((_, wrapped)) = self.scaled.iter().find(|(at, _)| *at == position) {
            return Ok(wrapped.clone_ref(py).into_any());
        }
        let (operand, view) = (&self.operands[position], *self.problem.views()[position]);
        Ok(DenseTensor::over(py, operand.clone_ref(py), view)?.into_any())
    }

    fn accumulator(&self) -> Option<DType> {
        match &self.problem {
            Problem::Gemm(p) => Some(p.accumulator),
            Problem::GroupedGemm(p) => Some(p.accumulator),
            Problem::Elementwise(_) => None,
        }
    }
}

/// `EpilogueArguments` before the problem is read.
struct Fusing<'py> {
    epilogue: Bound<'py, EpilogueArguments>,
    /// The tensor passed for D: the output that the kernel writes.
    main_output: Bound<'py, PyAny>,
}

impl<'py> Fusing<'py> {
    /// None for an epilogue of another class, which a kernel written in Python may take.
    #[cold]
    fn of(
        epilogue: &Py<PyAny>,
        tensors: &[(&'static str, &Bound<'py, PyAny>)],
    ) -> Option<PyResult<Fusing<'py>>> {
        let (_, out) = tensors.iter().find(|(name, _)| *name == "out")?;
        let epilogue = epilogue.bind(out.py()).cast::<EpilogueArguments>().ok()?.clone();
        let main_output = || {
            let tensor = epilogue.get().main_output(out.py())?;
            if tensor.is(*out) {
                return Ok(tensor);
            }
            let ((_, out), (_, main)) =
                (unwrapped("out", out, |_| ())?, unwrapped(MAIN_OUTPUT, &tensor, |_| ())?);
            let (shape, out_shape) = (main.user_shape().to_vec(), out.user_shape().to_vec());
            match shape == out_shape {
                true => Ok(tensor),
                false => {
                    Err(ProblemError::OutputShape { name: MAIN_OUTPUT, shape, out_shape }.into())
                }
            }
        };
        Some(main_output().map(|main_output| Fusing { epilogue, main_output }))
    }

    #[cold]
    fn behind(self, problem: &Problem) -> PyResult<Box<(Py<EpilogueArguments>, BoundEpilogue)>> {
        let bound = self.epilogue.get().behind(problem)?;
        Ok(Box::new((self.epilogue.unbind(), bound)))
    }
}

/// The operand in a tensor, a `DenseTensor` or a `ScaledTensor`, with which `scaled` is called.
fn unwrapped(
    name: &'static str,
    tensor: &Bound<'_, PyAny>,
    scaled: impl FnOnce(Py<ScaledTensor>),
) -> PyResult<(Operand, View)> {
    if let Ok(dense) = tensor.cast::<DenseTensor>() {
        return Operand::new(name, &dense.get().object(tensor.py()));
    }
    if let Ok(wrapped) = tensor.cast::<ScaledTensor>() {
        scaled(wrapped.clone().unbind());
        return Operand::new(name, &wrapped.get().base.get().object(tensor.py()));
    }
    Operand::new(name, tensor)
}

/// The dtype of the argument `accumulator_type`, which errors name.
#[inline(always)] // in every `GemmArguments`
pub fn accumulator_type(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    if let Some(dtype) = dtype::known(object) {
        return Ok(*dtype);
    }
    dtype::parse(object).map_err(|error| {
        PyTypeError::new_err(format!("accumulator_type: {}", error.value(object.py())))
    })
}

/// A class of arguments, with getters for its operands by their indices.
macro_rules! arguments {
    ($class:ident, $doc:literal, [$($operand:ident = $position:literal),*]) => {
        #[doc = $doc]
        #[pyclass(module = "cutlass_api.arguments", extends = RuntimeArguments, subclass, frozen)]
        pub struct $class;

        #[pymethods]
        impl $class {
            $(
                #[doc = concat!("The operand ", stringify!($operand), ": a DenseTensor, or the ScaledTensor that was passed.")]
                #[getter($operand)]
                #[allow(non_snake_case)]
                fn $operand(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
                    native_part(slf).map(|arguments| arguments.operand(slf.py(), $position)).transpose()
                }
            )*

            /// The dtype of the accumulator; None for an elementwise operation.
            #[getter]
            fn accumulator_type(slf: &Bound<'_, Self>) -> Option<PyDType> {
                native_part(slf).and_then(NativeArguments::accumulator).map(PyDType)
            }

            /// The fused epilogue, or None.
            #[getter]
            fn epilogue(slf: &Bound<'_, Self>) -> Option<Py<PyAny>> {
                native_part(slf).and_then(|arguments| arguments.epilogue.as_ref()).map(|e| e.clone_ref(slf.py()))
            }
        }
    };
}

fn native_part<'a, T>(arguments: &'a Bound<'_, T>) -> Option<&'a NativeArguments> {
    arguments.cast::<RuntimeArguments>().ok().and_then(|base| base.get().native.as_deref())
}

/// An object as arguments of any class.
pub fn as_arguments<'a, 'py>(
    object: &'a Bound<'py, PyAny>,
) -> PyResult<&'a Bound<'py, RuntimeArguments>> {
    object.cast::<RuntimeArguments>().map_err(|_| {
        let class = object.get_type().name();
        let name = class.map_or_else(|_| "an object".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!(
            "args is a {name}; give GemmArguments or another class of cutlass_api.arguments"
        ))
    })
}

/// The arguments of built-in kernels in an object; None for arguments of a class written in Python.
pub fn native<'a>(args: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a NativeArguments>> {
    Ok(as_arguments(args)?.get().native.as_deref())
}

arguments!(
    GemmArguments,
    "out = A @ B.\n\nA has shape (M, K), B (K, N), out (M, N); or all three a leading batch dimension L. Any strides.\n\
     accumulator_type is the dtype that products are summed in. Raises ValueError if the shapes do not match or the operands\n\
     are on different devices, BufferError if out is read-only.",
    [A = 0, B = 1, out = 2]
);
arguments!(
    GroupedGemmArguments,
    "One GEMM a group, rows of A stacked group after group.\n\nA has shape (TotalM, K) or (1, TotalM, K), B (G, K, N), out\n\
     (TotalM, N) or (1, TotalM, N); offsets is int32 of shape (G,): the end row of each group. Offsets rise from 0 to at\n\
     most TotalM. A group may be empty; rows after the last group are not written.\n\nGPU kernels read the offsets on the\n\
     device, at each launch and each graph replay, so they cannot raise for invalid offsets: an offset below its predecessor\n\
     is read as the predecessor, one above TotalM as TotalM. The CPU raises ValueError.\n\nRaises as GemmArguments does.",
    [A = 0, B = 1, out = 2, offsets = 3]
);
arguments!(
    ElementwiseArguments,
    "out = A + B, element by element. All three have the same shape, of rank 1 to 3. out may be A or B.",
    [A = 0, B = 1, out = 2]
);

#[pymethods]
impl GemmArguments {
    #[new]
    #[pyo3(signature = (A, B, out, accumulator_type, epilogue = None, performance = None))]
    #[allow(non_snake_case)]
    fn new(
        A: &Bound<'_, PyAny>,
        B: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        accumulator_type: &Bound<'_, PyAny>,
        epilogue: Option<Py<PyAny>>,
        performance: Option<Py<PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let accumulator = self::accumulator_type(accumulator_type)?;
        let unread = Problem::Gemm(GemmProblem {
            a: View::UNREAD,
            b: View::UNREAD,
            out: View::UNREAD,
            accumulator,
        });
        let base = RuntimeArguments::of(
            unread,
            [("A", A), ("B", B), ("out", out)],
            epilogue,
            performance,
        )?;
        Ok(base.add_subclass(GemmArguments))
    }
}

#[pymethods]
impl GroupedGemmArguments {
    #[new]
    #[pyo3(signature = (A, B, out, accumulator_type, offsets, epilogue = None, performance = None))]
    #[allow(non_snake_case)]
    fn new(
        A: &Bound<'_, PyAny>,
        B: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        accumulator_type: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        epilogue: Option<Py<PyAny>>,
        performance: Option<Py<PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let accumulator = self::accumulator_type(accumulator_type)?;
        let [a, b, of_out, of_offsets] = [View::UNREAD; 4];
        let unread = GroupedGemmProblem { a, b, out: of_out, offsets: of_offsets, accumulator };
        let tensors = [("A", A), ("B", B), ("out", out), ("offsets", offsets)];
        let base =
            RuntimeArguments::of(Problem::GroupedGemm(unread), tensors, epilogue, performance)?;
        Ok(base.add_subclass(GroupedGemmArguments))
    }
}

#[pymethods]
impl ElementwiseArguments {
    #[new]
    #[pyo3(signature = (A, B, out, epilogue = None, performance = None))]
    #[allow(non_snake_case)]
    fn new(
        A: &Bound<'_, PyAny>,
        B: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        epilogue: Option<Py<PyAny>>,
        performance: Option<Py<PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let unread = Problem::Elementwise(ElementwiseProblem {
            a: View::UNREAD,
            b: View::UNREAD,
            out: View::UNREAD,
        });
        let base = RuntimeArguments::of(
            unread,
            [("A", A), ("B", B), ("out", out)],
            epilogue,
            performance,
        )?;
        Ok(base.add_subclass(ElementwiseArguments))
    }
}
