//! What users ask for: operands that make a problem.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::dtype::{self, PyDType};
use super::launch::Packed;
use super::tensors::{DenseTensor, ScaledTensor};
use crate::operand::{DType, Operand, View};
use crate::problem::{ElementwiseProblem, GemmProblem, GroupedGemmProblem, Problem};

/// The base of all arguments. A subclass of one's own, for a kernel of one's own, holds what it likes.
#[pyclass(module = "cutlass_api.arguments", subclass, frozen)]
pub struct RuntimeArguments {
    /// Hints on how to compute, or None.
    #[pyo3(get)]
    performance: Option<Py<PyAny>>,
    pub native: Option<NativeArguments>,
}

/// Arguments that Rutlass's own kernels understand.
pub struct NativeArguments {
    pub operands: ArrayVec<Operand, 4>,
    pub problem: Problem,
    pub epilogue: Option<Py<PyAny>>,
    /// An operand that came with scales, as the user wrapped it, and its place among the operands.
    pub scaled: Vec<(usize, Py<ScaledTensor>)>,
    /// The launch of the kernel that ran these arguments first, which is mostly the only one.
    packed: OnceLock<Packed>,
    /// Whether that kernel has been found to support these arguments, and not only to address them.
    supported: AtomicBool,
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
}

impl NativeArguments {
    fn new(
        tensors: &[(&'static str, &Bound<'_, PyAny>)],
        epilogue: Option<Py<PyAny>>,
        problem: impl FnOnce(&[View]) -> PyResult<Problem>,
    ) -> PyResult<NativeArguments> {
        let mut operands: ArrayVec<Operand, 4> = ArrayVec::new();
        let mut scaled = Vec::new();
        for (name, tensor) in tensors {
            let py = tensor.py();
            let operand = if let Ok(dense) = tensor.cast::<DenseTensor>() {
                Operand::new(name, &dense.get().object(py))?
            } else if let Ok(wrapped) = tensor.cast::<ScaledTensor>() {
                scaled.push((operands.len(), wrapped.clone().unbind()));
                Operand::new(name, &wrapped.get().base.get().object(py))?
            } else {
                Operand::new(name, tensor)?
            };
            operands.push(operand);
        }
        let views: ArrayVec<View, 4> = operands.iter().map(|operand| operand.view).collect();
        let problem = problem(&views)?;
        let (packed, supported) = (OnceLock::new(), AtomicBool::new(false));
        Ok(NativeArguments { operands, problem, epilogue, scaled, packed, supported })
    }

    /// The launch packed for the kernel at a position, if the operands are still as they were then.
    pub fn packed(&self, py: Python<'_>, position: usize) -> PyResult<Option<&Packed>> {
        match self.packed.get() {
            Some(packed) if packed.position == position && self.are_as_read(py)? => Ok(Some(packed)),
            _ => Ok(None),
        }
    }

    /// Keeps a launch for `packed`, if it is of the operands as they were read, and the first.
    pub fn keep_packed(&self, packed: Packed, problem: &Problem) {
        if *problem == self.problem {
            let _ = self.packed.set(packed);
        }
    }

    /// Whether the kernel at a position is known to support these arguments.
    pub fn known_supported(&self, position: usize) -> bool {
        self.supported.load(Ordering::Relaxed) && self.packed.get().is_some_and(|packed| packed.position == position)
    }

    /// Notes that the kernel at a position supports these arguments, if it is the one whose launch is packed.
    pub fn note_supported(&self, position: usize) {
        if self.packed.get().is_some_and(|packed| packed.position == position) {
            self.supported.store(true, Ordering::Relaxed);
        }
    }

    pub fn are_as_read(&self, py: Python<'_>) -> PyResult<bool> {
        for operand in &self.operands {
            if !operand.is_as_read(py)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The problem as the operands describe it now. Where memory or shape are others than when the arguments were made,
    /// it is checked anew.
    pub fn current_problem(&self, py: Python<'_>, stream: Option<u64>) -> PyResult<Problem> {
        self.problem_with(|_, operand| operand.reread(py, stream))
    }

    /// The problem with each operand's view as `view` gives it, which must have memory behind it.
    pub fn problem_with(&self, view: impl Fn(usize, &Operand) -> PyResult<View>) -> PyResult<Problem> {
        let mut views: ArrayVec<View, 4> = ArrayVec::new();
        let mut moved = false;
        for (position, operand) in self.operands.iter().enumerate() {
            let view = view(position, operand)?;
            if view.fake {
                return Err(PyValueError::new_err(format!(
                    "{} is a FakeTensor: it has no memory, and nothing can be run on it",
                    operand.name
                )));
            }
            moved |= view != operand.view;
            views.push(view);
        }
        if moved { self.rebuild(&views) } else { Ok(self.problem) }
    }

    fn rebuild(&self, views: &[View]) -> PyResult<Problem> {
        Ok(match (&self.problem, views) {
            (Problem::Gemm(p), [a, b, out]) => Problem::Gemm(GemmProblem::new(*a, *b, *out, p.accumulator)?),
            (Problem::GroupedGemm(p), [a, b, out, offsets]) => {
                Problem::GroupedGemm(GroupedGemmProblem::new(*a, *b, *out, *offsets, p.accumulator)?)
            }
            (Problem::Elementwise(_), [a, b, out]) => Problem::Elementwise(ElementwiseProblem::new(*a, *b, *out)?),
            _ => self.problem,
        })
    }

    fn operand(&self, py: Python<'_>, position: usize) -> PyResult<Py<PyAny>> {
        if let Some((_, wrapped)) = self.scaled.iter().find(|(at, _)| *at == position) {
            return Ok(wrapped.clone_ref(py).into_any());
        }
        Ok(DenseTensor::over(py, &self.operands[position])?.into_any())
    }

    fn accumulator(&self) -> Option<DType> {
        match &self.problem {
            Problem::Gemm(p) => Some(p.accumulator),
            Problem::GroupedGemm(p) => Some(p.accumulator),
            Problem::Elementwise(_) => None,
        }
    }
}

fn accumulator_type(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    dtype::parse(object)
        .map_err(|error| PyTypeError::new_err(format!("accumulator_type: {}", error.value(object.py()))))
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
    arguments.cast::<RuntimeArguments>().ok().and_then(|base| base.get().native.as_ref())
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
     (TotalM, N) or (1, TotalM, N); offsets is int32 of shape (G,), the row after the last of each group.",
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
        let native = NativeArguments::new(&[("A", A), ("B", B), ("out", out)], epilogue, |views| {
            Ok(Problem::Gemm(GemmProblem::new(views[0], views[1], views[2], accumulator)?))
        })?;
        let base = RuntimeArguments { performance, native: Some(native) };
        Ok(PyClassInitializer::from(base).add_subclass(GemmArguments))
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
        let tensors = [("A", A), ("B", B), ("out", out), ("offsets", offsets)];
        let native = NativeArguments::new(&tensors, epilogue, |views| {
            let problem = GroupedGemmProblem::new(views[0], views[1], views[2], views[3], accumulator)?;
            Ok(Problem::GroupedGemm(problem))
        })?;
        let base = RuntimeArguments { performance, native: Some(native) };
        Ok(PyClassInitializer::from(base).add_subclass(GroupedGemmArguments))
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
        let native = NativeArguments::new(&[("A", A), ("B", B), ("out", out)], epilogue, |views| {
            Ok(Problem::Elementwise(ElementwiseProblem::new(views[0], views[1], views[2])?))
        })?;
        let base = RuntimeArguments { performance, native: Some(native) };
        Ok(PyClassInitializer::from(base).add_subclass(ElementwiseArguments))
    }
}
