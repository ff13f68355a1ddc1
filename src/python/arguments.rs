//! What users ask for: operands that make a problem.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use super::artifact::CompiledArtifact;
use super::dtype::{self, PyDType};
use super::epilogue::EpilogueArguments;
use super::kernel::PyKernel;
use super::launch::Ready;
use super::tensors::{DenseTensor, ScaledTensor};
use crate::epilogue::{BoundEpilogue, MAIN_OUTPUT};
use crate::operand::{self, DType, Operand, View};
use crate::problem::{ElementwiseProblem, GemmProblem, GroupedGemmProblem, Problem, ProblemError};

/// The base of all arguments. A subclass of one's own, for a kernel of one's own, holds what it likes.
#[pyclass(module = "cutlass_api.arguments", subclass, frozen)]
pub struct RuntimeArguments {
    /// Hints on how to compute, or None.
    #[pyo3(get)]
    performance: Option<Py<PyAny>>,
    /// A block of its own: it is filled in where it stays, while an object's contents are moved on their way into it.
    pub native: Option<Box<NativeArguments>>,
}

/// Arguments that Rutlass's own kernels understand.
pub struct NativeArguments {
    pub operands: ArrayVec<Operand, 4>,
    pub problem: Problem,
    /// What the user gave; and, where it is our own `EpilogueArguments`, these behind the problem.
    pub epilogue: Option<Py<PyAny>>,
    pub fused: Option<Box<(Py<EpilogueArguments>, BoundEpilogue)>>,
    /// An operand that came with scales, as the user wrapped it, and its place among the operands.
    pub scaled: Vec<(usize, Py<ScaledTensor>)>,
    /// The kernel that has addressed these operands in a run, and the one that has been found to support them.
    addressed: Known,
    supported: Known,
    /// Arguments that are run once, as torch.compile's code makes them, never allocate it.
    kept: OnceLock<Box<Kept>>,
}

/// The launch of a kernel that has run some arguments before, with the artifact that it was given.
#[repr(C)] // as `Ready`
pub struct Kept {
    pub kernel: Py<PyKernel>,
    pub artifact: Py<CompiledArtifact>,
    /// The kernel's, as `kernel::at` counts.
    pub position: usize,
    pub rounds_to_tf32: bool,
    pub ready: Ready,
}

/// The last kernel of which something was found out, by its place in `kernel::all()`.
struct Known(AtomicUsize);

impl Known {
    /// The place of no kernel.
    const NOTHING: usize = usize::MAX;

    fn nothing() -> Known {
        Known(AtomicUsize::new(Known::NOTHING))
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

    /// For the collector of cycles: an operand, or the object that an epilogue function belongs to, may hold the arguments. (Nothing here
    /// can be let go of; what else is in the cycle can.)
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.performance)?;
        self.native.as_ref().map_or(Ok(()), |native| native.traverse(&visit))
    }
}

impl RuntimeArguments {
    /// Arguments of ours: a problem whose tensors are yet to be read, and the tensors in the order of its views.
    #[inline(always)] // so that a problem is made where it stays
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
    /// Arguments whose tensors are yet to be read. `problem` says all but what they show.
    fn unread(problem: Problem, epilogue: Option<Py<PyAny>>) -> NativeArguments {
        NativeArguments {
            operands: ArrayVec::new(),
            problem,
            epilogue,
            fused: None,
            scaled: Vec::new(),
            addressed: Known::nothing(),
            supported: Known::nothing(),
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

    /// The launch that is kept. It is of the operands as they were read.
    pub fn kept(&self) -> Option<&Kept> {
        self.kept.get().map(|kept| &**kept)
    }

    /// Keeps a launch, unless one is kept already.
    pub fn keep(&self, launch: Kept) {
        let _ = self.kept.set(Box::new(launch));
    }

    /// Notes that a kernel has run on the operands as they were read.
    pub fn note_addressed(&self, position: usize) {
        self.addressed.note(position);
    }

    /// Whether no kernel has run on the operands as they were read.
    pub fn are_new(&self) -> bool {
        self.addressed.is(Known::NOTHING)
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

    #[inline(always)] // in every launch that is repeated
    pub fn are_as_read(&self, py: Python<'_>) -> PyResult<bool> {
        for (operand, view) in self.operands.iter().zip(self.problem.views().iter()) {
            if !operand.matches_view(py, view)? {
                return Ok(false);
            }
        }
        match &self.fused {
            None => Ok(true),
            Some(fused) => fused.0.get().is_as_read(py),
        }
    }

    /// The epilogue behind the problem, with its operands as they are now.
    pub fn current_epilogue(
        &self,
        py: Python<'_>,
        problem: &Problem,
        stream: Option<u64>,
    ) -> PyResult<Option<BoundEpilogue>> {
        self.fused.as_ref().map(|fused| fused.0.get().bind_current(py, problem, stream)).transpose()
    }

    /// The epilogue behind the problem as it was made.
    pub fn bound_epilogue(&self) -> Option<&BoundEpilogue> {
        self.fused.as_ref().map(|fused| &fused.1)
    }

    /// The problem as the operands describe it now. Where memory or shape are others than when the arguments were made,
    /// it is checked anew.
    pub fn current_problem(&self, py: Python<'_>, stream: Option<u64>) -> PyResult<Problem> {
        self.problem_with(|_, operand| operand.reread(py, stream))
    }

    /// The problem with each operand's view as `view` gives it, which must have memory behind it.
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

/// An epilogue of ours on its way into arguments.
struct Fusing<'py> {
    epilogue: Bound<'py, EpilogueArguments>,
    /// The tensor that stands for D, which is what is written.
    main_output: Bound<'py, PyAny>,
}

impl<'py> Fusing<'py> {
    /// None where the epilogue is of another class, for a kernel of the user's own.
    #[cold]
    fn of(
        epilogue: &Py<PyAny>,
        tensors: &[(&'static str, &Bound<'py, PyAny>)],
    ) -> Option<PyResult<Fusing<'py>>> {
        let (_, out) = tensors.iter().find(|(name, _)| *name == "out")?;
        let epilogue = epilogue.bind(out.py()).cast::<EpilogueArguments>().ok()?.clone();
        let main_output = || {
            let given = epilogue.get().main_output(out.py())?;
            if given.is(*out) {
                return Ok(given);
            }
            let ((_, out), (_, main)) =
                (unwrapped("out", out, |_| ())?, unwrapped(MAIN_OUTPUT, &given, |_| ())?);
            let (shape, out_shape) = (main.user_shape().to_vec(), out.user_shape().to_vec());
            match shape == out_shape {
                true => Ok(given),
                false => {
                    Err(ProblemError::OutputShape { name: MAIN_OUTPUT, shape, out_shape }.into())
                }
            }
        };
        Some(main_output().map(|main_output| Fusing { epilogue, main_output }))
    }

    #[cold]
    fn behind(self, problem: &Problem) -> PyResult<Box<(Py<EpilogueArguments>, BoundEpilogue)>> {
        let bound = self.epilogue.get().bind(problem)?;
        Ok(Box::new((self.epilogue.unbind(), bound)))
    }
}

/// The operand in a tensor, or in one of our wrappers of tensors; `scaled` is told where that one has scales.
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

/// The type that the argument of this name says. Errors name it.
#[inline(always)] // in every `GemmArguments`
pub fn accumulator_type(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    if let Some(dtype) = dtype::known(object) {
        return Ok(*dtype);
    }
    dtype::parse(object).map_err(|error| {
        PyTypeError::new_err(format!("accumulator_type: {}", error.value(object.py())))
    })
}

/// The getters that arguments of all kinds share. Each class states which operand stands where.
macro_rules! arguments {
    ($class:ident, $doc:literal, [$($operand:ident = $position:literal),*]) => {
        #[doc = $doc]
        #[pyclass(module = "cutlass_api.arguments", extends = RuntimeArguments, subclass, frozen)]
        pub struct $class;

        #[pymethods]
        impl $class {
            $(
                #[doc = concat!("The operand ", stringify!($operand), ": a DenseTensor, or the ScaledTensor that was given.")]
                #[getter($operand)]
                #[allow(non_snake_case)]
                fn $operand(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
                    native(slf).map(|arguments| arguments.operand(slf.py(), $position)).transpose()
                }
            )*

            /// The type that products are summed in; None for an elementwise operation.
            #[getter]
            fn accumulator_type(slf: &Bound<'_, Self>) -> Option<PyDType> {
                native(slf).and_then(NativeArguments::accumulator).map(PyDType)
            }

            /// What is fused behind the operation, or None.
            #[getter]
            fn epilogue(slf: &Bound<'_, Self>) -> Option<Py<PyAny>> {
                native(slf).and_then(|arguments| arguments.epilogue.as_ref()).map(|e| e.clone_ref(slf.py()))
            }
        }
    };
}

/// The native part of any of our argument classes.
fn native<'a, T>(arguments: &'a Bound<'_, T>) -> Option<&'a NativeArguments> {
    arguments.cast::<RuntimeArguments>().ok().and_then(|base| base.get().native.as_deref())
}

arguments!(
    GemmArguments,
    "out = A @ B.\n\nA has shape (M, K), B (K, N), out (M, N); or all three a leading batch dimension L. Any strides.\n\
     accumulator_type is the type that products are summed in. Raises ValueError where the shapes do not fit each other,\n\
     the operands are on different devices, or out cannot be written.",
    [A = 0, B = 1, out = 2]
);
arguments!(
    GroupedGemmArguments,
    "One GEMM a group, rows of A stacked group after group.\n\nA has shape (TotalM, K) or (1, TotalM, K), B (G, K, N), out\n\
     (TotalM, N) or (1, TotalM, N); offsets is int32 of shape (G,), the row after the last of each group. The numbers in it\n\
     rise from 0 to at most TotalM; a group may be empty, and rows behind the last one are left as they are. GPU kernels read\n\
     them on the device, at each launch and at each replay of a graph, so that nothing can be raised for others there: a\n\
     number below an earlier one then counts as that, one above TotalM as TotalM. The CPU raises ValueError for them.\n\
     Raises ValueError where shapes or dtypes do not fit, as GemmArguments does.",
    [A = 0, B = 1, out = 2, offsets = 3]
);
arguments!(
    ElementwiseArguments,
    "out = A + B, element by element. All three have one shape, of rank 1 to 3. out may be A or B itself.",
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
