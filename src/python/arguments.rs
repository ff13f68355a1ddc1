//! The argument classes: the operands of a problem, with its accumulator type and epilogue.

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use super::dtype::{self, PyDType};
use super::native_arguments::NativeArguments;
use super::prologue::PrologueArguments;
use super::utils::{brief, class_name};
use crate::problem::{
    ElementwiseProblem, GemmProblem, GroupedGemmProblem, Problem, ProblemOptions,
};

/// The base of all arguments. A subclass for a kernel written in Python may hold anything.
#[pyclass(module = "cutlass_api.arguments", subclass, frozen)]
pub struct RuntimeArguments {
    /// Hints on how to compute, or None.
    #[pyo3(get)]
    performance: Option<Py<PyAny>>,
    /// None in a subclass written in Python. Boxed, because PyO3 copies the contents into the
    /// object.
    pub native: Option<Box<NativeArguments>>,
}

#[pymethods]
impl RuntimeArguments {
    #[new]
    #[pyo3(signature = (*args, performance = None, **kwargs))]
    #[allow(unused_variables)]
    fn new(
        args: &Bound<'_, PyTuple>,
        performance: Option<Py<PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> Self {
        RuntimeArguments { performance, native: None }
    }

    /// For the garbage collector: an operand, or the instance whose method is the epilogue, may
    /// refer to the arguments. No `__clear__` is needed: another object in such a cycle has one.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.performance)?;
        self.native.as_ref().map_or(Ok(()), |native| native.traverse(&visit))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let facts = slf.get().facts(slf.py());
        let space = if facts.is_empty() { "" } else { " " };
        format!("<{}{space}{facts}>", class_name(slf.as_any()))
    }
}

impl RuntimeArguments {
    /// The operands, as they were at construction, and the options, for a `repr`.
    pub fn facts(&self, py: Python<'_>) -> String {
        let mut facts = Vec::new();
        if let Some(native) = &self.native {
            facts.push(native.problem.to_string());
            if let (Some(_), Some(fused)) = (&native.matrices, &native.fused) {
                for (name, view) in fused.1.panels() {
                    facts.push(format!("{name}={view}"));
                }
            }
            for (at, tensor) in native.scaled.iter().flat_map(|scaled| &scaled.tensors) {
                let name = native.operands[*at].name;
                facts.push(format!("scales of {name}: {}", tensor.get().facts_of_scales(py)));
            }
            if let Some(prologue) = &native.prologue {
                facts.push(format!("prologue={}", brief(prologue.bind(py).as_any())));
            }
            if let Some(epilogue) = &native.epilogue {
                facts.push(format!("epilogue={}", brief(epilogue.bind(py))));
            }
        }
        if let Some(performance) = &self.performance {
            facts.push(format!("performance={}", brief(performance.bind(py))));
        }
        facts.join(", ")
    }

    /// Arguments of a built-in kernel. `unread`: the problem with unread views. `tensors` follow
    /// the order of the views.
    #[inline(always)] // constructs the problem in place
    fn of<const N: usize>(
        unread: Problem,
        tensors: [(&'static str, &Bound<'_, PyAny>); N],
        epilogue: Option<Py<PyAny>>,
        performance: Option<Py<PyAny>>,
        prologue: Option<Py<PrologueArguments>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let mut native = Box::write(Box::new_uninit(), NativeArguments::unread(unread, epilogue));
        native.prologue = prologue;
        let native = match native.read(tensors) {
            Ok(()) => Some(native),
            // Only kernels written in Python take the operand.
            Err(_) if stands_for_none(&tensors)? => None,
            Err(error) => return Err(error),
        };
        Ok(PyClassInitializer::from(RuntimeArguments { performance, native }))
    }
}

/// Whether the core has no counterpart of an operand: its `__cutlass_operand__` returns None.
#[cold]
fn stands_for_none(tensors: &[(&'static str, &Bound<'_, PyAny>)]) -> PyResult<bool> {
    for (_, tensor) in tensors {
        if let Some(convert) = tensor.getattr_opt(intern!(tensor.py(), "__cutlass_operand__"))?
            && convert.call0()?.is_none()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The options in `PerformanceControls`.
#[inline(always)]
fn options(py: Python<'_>, performance: Option<&Py<PyAny>>) -> PyResult<ProblemOptions> {
    let mut options = ProblemOptions::default();
    let Some(controls) = performance.map(|controls| controls.bind(py)) else { return Ok(options) };
    if let Some(value) = controls.getattr_opt(intern!(py, "fast_sums"))? {
        options.fast_sums = value.extract()?;
    }
    if let Some(value) = controls.getattr_opt(intern!(py, "free_multiprocessors"))? {
        options.free_multiprocessors = value.extract().map_err(|_| {
            PyValueError::new_err(format!(
                "free_multiprocessors is {value}; pass an integer that is not negative"
            ))
        })?;
    }
    Ok(options)
}

/// A class of arguments: its constructor, which makes the unread problem of required parameters
/// and `performance`, and getters for the operands, by their places among the views.
macro_rules! arguments {
    (
        $class:ident($($parameter:ident),*), $doc:literal, [$($operand:ident = $position:literal),*],
        $performance:ident => $unread:expr
        $(, $prologue:ident)?
        $(; $optional:ident = $place:literal)?
    ) => {
        #[doc = $doc]
        #[pyclass(module = "cutlass_api.arguments", extends = RuntimeArguments, subclass, frozen)]
        pub struct $class;

        #[pymethods]
        #[allow(non_snake_case)]
        impl $class {
            #[new]
            #[inline(always)] // in the constructor of `OpenGemmArguments`, too
            #[allow(clippy::too_many_arguments)]
            #[pyo3(signature = (
                $($parameter,)* epilogue = None, performance = None $(, $prologue = None)?
                $(, $optional = None)?
            ))]
            fn new(
                $($parameter: &Bound<'_, PyAny>,)*
                epilogue: Option<Py<PyAny>>,
                performance: Option<Py<PyAny>>,
                $($prologue: Option<Py<PrologueArguments>>,)?
                $($optional: Option<&Bound<'_, PyAny>>,)?
            ) -> PyResult<PyClassInitializer<Self>> {
                let tensors = [$((stringify!($operand), $operand)),*];
                // A subclass written in Python makes its operands itself: it passes `...`.
                if tensors[0].1.is(tensors[0].1.py().Ellipsis()) {
                    let base = RuntimeArguments { performance, native: None };
                    return Ok(PyClassInitializer::from(base).add_subclass($class));
                }
                let prologue: Option<Py<PrologueArguments>> = None;
                $(let prologue = prologue.or($prologue);)?
                let $performance = performance.as_ref();
                let unread = $unread;
                $(if let Some($optional) = $optional {
                    let [a, b, out, offsets] = tensors;
                    let all = [a, b, out, offsets, (stringify!($optional), $optional)];
                    let unread = unread.with_index();
                    let base = RuntimeArguments::of(unread, all, epilogue, performance, prologue)?;
                    return Ok(base.add_subclass($class));
                })?
                let base = RuntimeArguments::of(unread, tensors, epilogue, performance, prologue)?;
                Ok(base.add_subclass($class))
            }

            $(
                #[doc = concat!(
                    "The operand ", stringify!($optional), ": a DenseTensor, or None."
                )]
                #[getter($optional)]
                fn $optional(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
                    let arguments = native_part(slf).filter(|of| of.operands.len() > $place);
                    arguments.map(|known| known.operand(slf.py(), $place)).transpose()
                }
            )?

            $(
                #[doc = concat!(
                    "The operand ", stringify!($operand),
                    ": a DenseTensor, or the ScaledTensor that was passed."
                )]
                #[getter($operand)]
                fn $operand(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
                    let arguments = native_part(slf);
                    arguments.map(|known| known.operand(slf.py(), $position)).transpose()
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
                let epilogue = native_part(slf)?.epilogue.as_ref()?;
                Some(epilogue.clone_ref(slf.py()))
            }
        }
    };
}

/// The arguments of built-in kernels in an object of any class.
pub fn native_part<'a, T>(arguments: &'a Bound<'_, T>) -> Option<&'a NativeArguments> {
    arguments.cast::<RuntimeArguments>().ok().and_then(|base| base.get().native.as_deref())
}

/// An object as arguments of any class.
pub fn as_arguments<'a, 'py>(
    object: &'a Bound<'py, PyAny>,
) -> PyResult<&'a Bound<'py, RuntimeArguments>> {
    object.cast::<RuntimeArguments>().map_err(|_| {
        let name = class_name(object);
        PyTypeError::new_err(format!("args is a {name}; pass arguments such as GemmArguments"))
    })
}

/// The arguments of built-in kernels in an object; None for arguments of a class written in Python.
pub fn native<'a>(args: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a NativeArguments>> {
    Ok(as_arguments(args)?.get().native.as_deref())
}

arguments!(
    GemmArguments(A, B, out, accumulator_type),
    "out = A @ B.\n\nA has shape (M, K), B (K, N), out (M, N); or all three have a leading batch\n\
     dimension L. Any strides. B may be a list of 2 to 4 matrices (K, N_i) of one dtype, contiguous\n\
     along K: their products lie side by side in out. accumulator_type is the dtype of the\n\
     accumulator. prologue: PrologueArguments, computed of A in front of the product. Raises\n\
     ValueError if the shapes do not match, the operands are on different devices, or out is\n\
     read-only, and RuntimeError if an operand beside a prologue requires a gradient.",
    [A = 0, B = 1, out = 2],
    performance => Problem::Gemm(GemmProblem::unread(
        dtype::accumulator_type(accumulator_type)?,
        options(A.py(), performance)?
    )),
    prologue
);

#[pymethods]
impl GemmArguments {
    /// The prologue, or None.
    #[getter]
    fn prologue(slf: &Bound<'_, Self>) -> Option<Py<PrologueArguments>> {
        Some(native_part(slf)?.prologue.as_ref()?.clone_ref(slf.py()))
    }
}

/// `GemmArguments` whose attributes a subclass written in Python sets. Its constructor calls the
/// method `__cutlass_init__` with the parameters, if the core has no counterpart of an operand, an
/// object with `__cutlass_operand__` stands for an operand or the epilogue, the core does not know
/// the class of the epilogue, an operand has no memory, or `performance` is not None.
#[pyclass(module = "cutlass_api.arguments", extends = GemmArguments, subclass, frozen)]
pub struct OpenGemmArguments;

#[pymethods]
#[allow(non_snake_case)]
impl OpenGemmArguments {
    #[new]
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (
        A, B, out, accumulator_type, epilogue = None, performance = None, prologue = None
    ))]
    fn new(
        A: &Bound<'_, PyAny>,
        B: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        accumulator_type: &Bound<'_, PyAny>,
        epilogue: Option<Py<PyAny>>,
        performance: Option<Py<PyAny>>,
        prologue: Option<Py<PrologueArguments>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let py = A.py();
        GemmArguments::new(A, B, out, accumulator_type, epilogue, performance, prologue)
            .or_else(|error| unread_after(py, error))
            .map(|base| base.add_subclass(OpenGemmArguments))
    }

    // Any signature costs more: the constructor has read the parameters.
    #[pyo3(signature = (*args, **kwargs))]
    fn __init__(
        slf: &Bound<'_, Self>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let base: &RuntimeArguments = slf.as_super().as_super().get();
        if base.native.as_ref().is_some_and(|native| !native.has_stand_ins)
            && base.performance.is_none()
        {
            return Ok(());
        }
        slf.call_method(intern!(slf.py(), "__cutlass_init__"), args, kwargs)?;
        Ok(())
    }
}

/// Arguments that `__cutlass_init__` makes, if an operand has no memory: it replaces tensors of
/// torch's meta device, and raises for others. Returns other errors.
#[cold]
fn unread_after(py: Python<'_>, error: PyErr) -> PyResult<PyClassInitializer<GemmArguments>> {
    if !error.is_instance_of::<PyBufferError>(py) {
        return Err(error);
    }
    let base = RuntimeArguments { performance: None, native: None };
    Ok(PyClassInitializer::from(base).add_subclass(GemmArguments))
}

arguments!(
    GroupedGemmArguments(A, B, out, accumulator_type, offsets),
    "One GEMM per group. The groups divide the rows of A, or K, or are matrices of A.\n\n\
     Groups of rows: A has shape (TotalM, K) or (1, TotalM, K), B (G, K, N), out (TotalM, N) or\n\
     (1, TotalM, N). B may be a stack of weights of cutlass_api.weights. offsets is int32 of shape\n\
     (G,): the end row of each group. A group may be empty; rows after the last group are not\n\
     written. With index, int32 of shape (TotalM,), row i of out is of row index[i] of A, which\n\
     has any number of rows.\n\n\
     Masked, if A has a matrix for each of several groups: A has shape (G, M, K), B (G, K, N), out\n\
     (G, M, N). offsets is int32 of shape (G,): the count of rows of each group. The first\n\
     offsets[g] rows of out[g] are computed, and the others are not written.\n\n\
     Groups along K, if B has rank 2 and out rank 3: A has shape (M, TotalK) or (1, M, TotalK), B\n\
     (TotalK, N), out (G, M, N). offsets is int32 of shape (G,): the end of each group along K.\n\
     out[g] = A[:, start:end] @ B[start:end]: an epilogue of zeros for an empty group. What lies\n\
     after the last group is not used. Operands have no block scales.\n\n\
     Offsets rise from 0 to at most TotalM (TotalK). GPU kernels read the offsets on the device,\n\
     at each launch and each graph replay, so they cannot raise for invalid offsets: they clamp\n\
     each offset to the range from its predecessor to TotalM (TotalK), and a count to the range\n\
     from 0 to M. An index of no row of A stands for a row of zeros. The CPU raises ValueError.\n\n\
     No kernel serves B or offsets of another rank, or another number of offsets;\n\
     get_kernels then returns an empty list.\n\n\
     Raises as GemmArguments does.",
    [A = 0, B = 1, out = 2, offsets = 3],
    performance => Problem::GroupedGemm(GroupedGemmProblem {
        accumulator: dtype::accumulator_type(accumulator_type)?,
        options: ProblemOptions { free_multiprocessors: 0, ..options(A.py(), performance)? },
        ..GroupedGemmProblem::UNREAD
    });
    index = 4
);
arguments!(
    ElementwiseArguments(A, B, out),
    "out = A + B, element by element. All three have the same shape, of rank 1 to 3. out may be A\n\
     or B.",
    [A = 0, B = 1, out = 2],
    _performance => Problem::Elementwise(ElementwiseProblem::UNREAD)
);
