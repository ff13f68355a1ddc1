//! Element types at the Python boundary.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyString, PyTuple};

use super::utils::shown;
use crate::operand::{DType, Element, ObjectCache, Storage};

/// An element type. It equals every object that names the same type: dtypes of torch and NumPy,
/// classes of NVIDIA's `cutlass`, and strings such as `"float16"`.
#[pyclass(name = "DType", module = "cutlass_api", frozen)]
#[derive(Clone, Copy)]
pub struct PyDType(pub DType);

#[pymethods]
impl PyDType {
    /// The type that `dtype` names. Raises TypeError if `dtype` does not name a supported type.
    #[new]
    fn new(dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        parse(dtype).map(PyDType)
    }

    /// The canonical name: `"float16"`, `"float8_e4m3fn"`, `"int8"`.
    #[getter]
    fn name(&self) -> String {
        self.0.to_string()
    }

    /// Bits in one element.
    #[getter]
    fn width(&self) -> u32 {
        self.0.bits()
    }

    fn __repr__(&self) -> String {
        format!("DType('{}')", self.0)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        parse(other).is_ok_and(|dtype| dtype == self.0)
    }

    /// The hash of the name, because a DType equals its name.
    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        PyString::new(py, &self.0.to_string()).hash()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let named = py.import("cutlass_api._core")?.getattr("described_dtype")?;
        Ok((named, (self.0.to_string(),)))
    }
}

/// The type of a name, also one that no kernel computes with, such as `"float4_e2m1fn_x2"`.
#[pyfunction]
pub fn described_dtype(name: &str) -> PyDType {
    PyDType(DType::packed(name).unwrap_or_else(|| DType::describe(name)))
}

/// The descriptor of an element type.
#[pyclass(name = "ElementType", module = "cutlass_api._core", frozen)]
pub struct PyElement(&'static Element);

#[pymethods]
impl PyElement {
    /// The canonical name, which torch, NumPy, `ml_dtypes` and JAX share.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name
    }

    /// The type, which operands of it have, also if no kernel computes with it.
    #[getter]
    fn dtype(&self) -> PyDType {
        PyDType(self.0.dtype)
    }

    /// What an element is: `"half"`, `"float8"`, `"integer8"`.
    #[getter]
    fn element_class(&self) -> String {
        format!("{:?}", self.0.class).to_lowercase()
    }

    /// Bits in one element.
    #[getter]
    fn bits(&self) -> u8 {
        self.0.bits
    }

    /// Whether a byte holds two elements.
    #[getter]
    fn is_packed(&self) -> bool {
        self.0.storage == Storage::Pairs
    }

    /// The name in CUDA code; empty if kernels have no such type.
    #[getter]
    fn cuda_name(&self) -> &'static str {
        self.0.cuda
    }

    /// The code in XLA's FFI; 0 if XLA has no such type.
    #[getter]
    fn xla_code(&self) -> u32 {
        self.0.xla
    }

    /// The class in NVIDIA's `cutlass`; empty if it has none.
    #[getter]
    fn cutlass_name(&self) -> &'static str {
        self.0.cutlass
    }

    /// The types in which products are summed, the default first. Empty: no kernel computes with
    /// this type.
    #[getter]
    fn accumulators(&self) -> Vec<PyDType> {
        self.0.accumulators.iter().copied().map(PyDType).collect()
    }

    /// The numbers of the codes of 4 bits, from 0 up; empty if an element has more bits.
    #[getter]
    fn codes(&self) -> Vec<f32> {
        self.0.codes.to_vec()
    }

    fn __repr__(&self) -> String {
        format!("ElementType({}, {} bits)", self.0.name, self.0.bits)
    }
}

/// The table of element types.
pub fn element_types(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, Element::TABLE.iter().map(PyElement).collect::<Vec<_>>())
}

/// A cache of objects that name a type. `torch.float32` and `cutlass.Float32` are singletons.
static KNOWN: ObjectCache<DType> = ObjectCache::empty();

/// The type that an object names. The object is a `DType`, a torch or NumPy dtype, a scalar class
/// of NumPy or `ml_dtypes`, a class of NVIDIA's `cutlass` (recognised by its name), or a string.
pub fn parse(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    match known(object) {
        Some(dtype) => Ok(*dtype),
        None => parse_slowly(object).inspect(|dtype| KNOWN.insert(object, *dtype)),
    }
}

/// The type of an object that `parse` has seen before.
#[inline(always)] // Every `GemmArguments` calls this function.
pub fn known(object: &Bound<'_, PyAny>) -> Option<&'static DType> {
    KNOWN.get(object)
}

/// The dtype of the argument `accumulator_type`. Errors name the argument.
#[inline(always)] // in every `GemmArguments`
pub fn accumulator_type(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    if let Some(dtype) = known(object) {
        return Ok(*dtype);
    }
    parse_as("accumulator_type", object)
}

/// The dtype of an argument. Errors name the argument.
pub fn parse_as(name: &str, object: &Bound<'_, PyAny>) -> PyResult<DType> {
    parse(object)
        .map_err(|error| PyTypeError::new_err(format!("{name}: {}", error.value(object.py()))))
}

fn parse_slowly(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    if let Ok(dtype) = object.cast::<PyDType>() {
        return Ok(dtype.get().0);
    }
    // Python's `float` means float64, as in NumPy and torch. Other classes have `__name__`, NumPy's
    // dtypes have `.name`, torch's dtypes convert with `str()`. A path's `.name` is not a dtype.
    let name = if object.is(object.py().get_type::<PyFloat>()) {
        Some("float64".to_owned())
    } else if object.is_instance_of::<PyString>() {
        Some(object.str()?.to_string())
    } else if let Some(name) = object.getattr_opt("__name__")? {
        // `cutlass.Float` is the base of classes, no type of its own.
        Some(name.str()?.to_string()).filter(|name| name != "Float")
    } else if object.hasattr("__fspath__")? {
        None
    } else {
        Some(object.getattr_opt("name")?.unwrap_or_else(|| object.clone()).str()?.to_string())
    };
    name.as_deref().and_then(DType::from_name).ok_or_else(|| {
        let supported: Vec<String> = DType::whole().map(|dtype| dtype.to_string()).collect();
        PyTypeError::new_err(format!(
            "{} does not name a supported element type; supported: {}",
            shown(object),
            supported.join(", ")
        ))
    })
}

/// The dtype of A @ B and the accumulator type, unless the caller names them.
///
/// Raises TypeError for an object that names no element type.
#[pyfunction]
pub fn product_dtypes(a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> PyResult<(PyDType, PyDType)> {
    let (a, b) = (parse(a)?, parse(b)?);
    Ok((PyDType(natural_output(a, b)), PyDType(natural_accumulator(a, b))))
}

/// The dtype of A @ B unless the caller names one.
pub fn natural_output(a: DType, b: DType) -> DType {
    match (a.is_integer(), b.is_integer()) {
        (true, true) => DType::I32,
        (true, false) => b,
        _ if a.is_float8() && b.is_float8() => DType::Bf16,
        _ if a.is_widened() => b,
        _ => a,
    }
}

/// The accumulator type unless the caller names one.
pub fn natural_accumulator(a: DType, b: DType) -> DType {
    if a.is_integer() && b.is_integer() {
        DType::I32
    } else if a == DType::F64 || b == DType::F64 {
        DType::F64
    } else {
        DType::F32
    }
}
