//! The Python classes of kernels (a base class and one class per family), and the built-in kernels'
//! objects.

use std::sync::{LazyLock, Mutex, OnceLock};

use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rustc_hash::FxHashMap;

use super::metadata;
use super::utils::class_name;
use crate::epilogue::{Epilogue, intern};
use crate::kernel;

/// A kernel. `metadata` describes it; `supports`, `compile` and `run` check, compile and launch it.
///
/// Built-in kernels come from `cutlass_api.get_kernels`. A subclass defines `__init__(metadata)`,
/// `compile`, `_run(args, compiled_artifact, stream, workspace=None)`, optionally
/// `_supports(args)`, and a static `generate_kernels(metadata_filter, epilogue_args=None,
/// cc=None)`. The `register` method of a provider adds the subclass to `get_kernels`.
// No `dict`: Python 3.11 and 3.12 would make one for each of thousands of kernels. Subclasses
// written in Python have one. No `__traverse__`: the metadata of a subclass must not refer to its
// kernel.
#[pyclass(name = "Kernel", module = "cutlass_api", subclass, frozen)]
pub struct PyKernel {
    /// The position of a built-in kernel, as `kernel::at` counts; None for a kernel written in
    /// Python.
    pub position: Option<usize>,
    metadata: OnceLock<Py<PyAny>>,
}

/// CUDA cores: any dtypes, any strides. Compute capability 8.0 and later.
#[pyclass(module = "cutlass_api._core", extends = PyKernel, frozen)]
pub struct SimtGemmKernel;

/// Few rows or few columns, bound by the memory bandwidth of the other operand. Compute capability
/// 8.0 and later.
#[pyclass(module = "cutlass_api._core", extends = PyKernel, frozen)]
pub struct SkinnyGemmKernel;

/// Tensor cores through `mma.sync` and `cp.async`. Compute capability 8.0 and later.
#[pyclass(module = "cutlass_api._core", extends = PyKernel, frozen)]
pub struct Sm80GemmKernel;

/// Hopper tensor cores through `wgmma` and TMA. Compute capability 9.0 only.
#[pyclass(module = "cutlass_api._core", extends = PyKernel, frozen)]
pub struct Sm90GemmKernel;

/// A + B, element by element, bound by memory bandwidth. Compute capability 8.0 and later.
#[pyclass(module = "cutlass_api._core", extends = PyKernel, frozen)]
pub struct ElementwiseKernel;

/// The CPU: sums in float64 (integers exactly), rounded once. The oracle of the tests.
#[pyclass(module = "cutlass_api._core", extends = PyKernel, frozen)]
pub struct ReferenceKernel;

/// The Python object of the built-in kernel at a position: one object per kernel and process.
pub fn object<'py>(py: Python<'py>, position: usize) -> PyResult<Bound<'py, PyKernel>> {
    static OBJECTS: LazyLock<Vec<OnceLock<Py<PyKernel>>>> =
        LazyLock::new(|| kernel::all().iter().map(|_| OnceLock::new()).collect());
    // Kernels with an epilogue are created at run time.
    static FUSED: Mutex<Option<FxHashMap<usize, Py<PyKernel>>>> = Mutex::new(None);
    if let Some(object) = OBJECTS.get(position) {
        let object = match object.get() {
            Some(object) => object,
            None => {
                let new = new_object(py, position)?;
                object.get_or_init(|| new)
            }
        };
        return Ok(object.bind(py).clone());
    }
    let lock = || FUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = lock().get_or_insert_default().get(&position) {
        return Ok(known.bind(py).clone());
    }
    // Create the object without the lock: Python may switch threads meanwhile.
    let new = new_object(py, position)?;
    Ok(lock().get_or_insert_default().entry(position).or_insert(new).bind(py).clone())
}

fn new_object(py: Python<'_>, position: usize) -> PyResult<Py<PyKernel>> {
    let base = PyKernel { position: Some(position), metadata: OnceLock::new() };
    let base = PyClassInitializer::from(base);
    let object = metadata::lasting(|| {
        Ok(match kernel::at(position).facts.family {
            "simt" => Bound::new(py, base.add_subclass(SimtGemmKernel))?.into_super(),
            "skinny" => Bound::new(py, base.add_subclass(SkinnyGemmKernel))?.into_super(),
            "sm80" => Bound::new(py, base.add_subclass(Sm80GemmKernel))?.into_super(),
            "sm90" => Bound::new(py, base.add_subclass(Sm90GemmKernel))?.into_super(),
            "elementwise" => Bound::new(py, base.add_subclass(ElementwiseKernel))?.into_super(),
            _ => Bound::new(py, base.add_subclass(ReferenceKernel))?.into_super(),
        })
    });
    object.map(Bound::unbind)
}

/// The built-in kernel with this name and this epilogue.
pub fn by_name(
    py: Python<'_>,
    name: &str,
    epilogue: Option<&Epilogue>,
) -> PyResult<Option<Py<PyKernel>>> {
    let Some(plain) = kernel::all().iter().position(|kernel| kernel.name() == name) else {
        return Ok(None);
    };
    let position =
        epilogue.map_or(plain, |epilogue| kernel::fused(plain, intern(epilogue.clone())));
    object(py, position).map(|object| Some(object.unbind()))
}

/// The built-in kernel of a name, which fuses no epilogue. Raises ValueError if this version has
/// none.
#[pyfunction]
pub fn kernel_by_name(py: Python<'_>, name: &str) -> PyResult<Py<PyKernel>> {
    by_name(py, name, None)?.ok_or_else(|| {
        PyValueError::new_err(format!("this version of cutlass_api has no kernel named {name}"))
    })
}

/// The position of a Python object's built-in kernel.
pub fn position_of(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    let position = object.cast::<PyKernel>()?.get().position;
    position.ok_or_else(|| PyValueError::new_err("this is no built-in kernel"))
}

/// The name of a Python object's kernel; None if it is no kernel or has no name.
pub fn name_of(object: &Bound<'_, PyAny>) -> Option<String> {
    match object.cast::<PyKernel>().ok()?.get().position {
        Some(position) => Some(kernel::at(position).name()),
        None => object.getattr("metadata").ok()?.getattr("kernel_name").ok()?.extract().ok(),
    }
}

/// The built-in kernel of a Python object.
pub fn kernel_of(object: &Bound<'_, PyAny>) -> PyResult<&'static kernel::Kernel> {
    position_of(object).map(kernel::at)
}

/// Whether the built-in kernel at a position rounds float32 operands to tf32.
pub fn rounds_to_tf32(position: usize) -> bool {
    kernel::at(position).facts.rounds_float32
}

/// The error of a method that a subclass must define.
pub fn must_define(kernel: &Bound<'_, PyKernel>, method: &str) -> PyErr {
    PyNotImplementedError::new_err(format!("{} must define {method}", class_name(kernel.as_any())))
}

#[pymethods]
impl PyKernel {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    #[allow(unused_variables)]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        PyKernel { position: None, metadata: OnceLock::new() }
    }

    fn __init__(&self, metadata: Py<PyAny>) -> PyResult<()> {
        let set = match self.position {
            Some(_) => Err(metadata), // `PyKernel::metadata` creates it
            None => self.metadata.set(metadata),
        };
        set.map_err(|_| PyValueError::new_err("a kernel's metadata is set once, by its __init__"))
    }

    /// The CUDA C++ text of the program; of a `CudaKernel`, its class's text or file. None for a
    /// kernel that needs no compilation. The package holds the headers that the text includes.
    #[getter]
    fn source(&self) -> Option<String> {
        self.position.and_then(|at| kernel::source(kernel::at(at))).map(|(_, text)| text)
    }

    /// The `KernelMetadata`: operands, design and epilogue.
    #[getter]
    pub fn metadata<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let metadata = match (this.metadata.get(), this.position) {
            (Some(known), _) => known,
            (None, Some(position)) => {
                // Python may switch threads meanwhile; the first result stays.
                let new =
                    metadata::describe(py, kernel::at(position), slf.get_type().as_any())?.unbind();
                this.metadata.get_or_init(|| new)
            }
            (None, None) => {
                return Err(PyValueError::new_err(
                    "this kernel has no metadata: call super().__init__(metadata) in its __init__",
                ));
            }
        };
        Ok(metadata.bind(py).clone())
    }

    /// The kernels of this class. Subclasses define it. `get_kernels` passes a callable
    /// `metadata_filter` in any case, `epilogue_args` and `cc` as its caller passed them.
    #[staticmethod]
    #[pyo3(signature = (metadata_filter = None, epilogue_args = None, cc = None))]
    #[allow(unused_variables)]
    fn generate_kernels(
        metadata_filter: Option<&Bound<'_, PyAny>>,
        epilogue_args: Option<&Bound<'_, PyAny>>,
        cc: Option<u32>,
    ) -> Vec<Py<PyAny>> {
        Vec::new()
    }

    /// A kernel does not change: a copy is the kernel.
    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[allow(unused_variables)]
    fn __deepcopy__<'py>(slf: Bound<'py, Self>, memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }

    /// By name. Raises TypeError for a kernel that fuses an epilogue or is written in Python.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let py = slf.py();
        match slf.get().position.map(kernel::at) {
            Some(kernel) if kernel.epilogue.is_none() => {
                let restore = py.import("cutlass_api._core")?.getattr("kernel_by_name")?;
                Ok((restore, (kernel.name(),)))
            }
            Some(kernel) => Err(PyTypeError::new_err(format!(
                "cannot pickle {}, which fuses an epilogue; pickle its arguments, of which \
                 get_kernels finds it, or the artifact of compile",
                kernel.name()
            ))),
            None => Err(PyTypeError::new_err(format!(
                "cannot pickle {}, a kernel written in Python; define __reduce__ in its class",
                Self::__repr__(slf)
            ))),
        }
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let class = class_name(slf.as_any());
        let name = match (slf.get().position, slf.get().metadata.get()) {
            (Some(position), _) => kernel::at(position).name(),
            (None, Some(metadata)) => metadata
                .bind(slf.py())
                .getattr("kernel_name")
                .map_or_else(|_| "without a name".to_owned(), |name| name.to_string()),
            (None, None) => "without metadata".to_owned(),
        };
        format!("<{class} {name}>")
    }
}
