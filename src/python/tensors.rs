//! The operand classes of `cutlass_api.arguments`.

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{PyTraverseError, PyVisit};

use super::dtype::PyDType;
use super::utils::class_name;
use crate::epilogue::{SWIZZLE, Scaling};
use crate::operand::{self, DType, DeviceId, Memory, Operand, View};

/// The base class of operands.
#[pyclass(module = "cutlass_api.arguments", subclass, frozen)]
pub struct KernelOperand;

/// A tensor without scales.
#[pyclass(module = "cutlass_api.arguments", extends = KernelOperand, frozen)]
pub struct DenseTensor {
    operand: Operand,
    view: View,
}

impl DenseTensor {
    pub fn over(py: Python<'_>, operand: Operand, view: View) -> PyResult<Py<DenseTensor>> {
        Py::new(
            py,
            PyClassInitializer::from(KernelOperand).add_subclass(DenseTensor { operand, view }),
        )
    }

    fn named(name: &'static str, tensor: &Bound<'_, PyAny>) -> PyResult<Py<DenseTensor>> {
        let (operand, view) = Operand::new(name, tensor)?;
        DenseTensor::over(tensor.py(), operand, view)
    }

    pub fn object<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.operand.object.bind(py).clone()
    }

    /// The operand under another name, with what it is now.
    pub fn operand(&self, py: Python<'_>, name: &'static str) -> PyResult<(Operand, View)> {
        let mut operand = self.operand.clone_ref(py);
        operand.name = name;
        let mut view = View::UNREAD;
        operand.read(py, &mut view)?;
        Ok((operand, view))
    }

    pub fn view(&self) -> &View {
        &self.view
    }
}

#[pymethods]
impl DenseTensor {
    /// Wraps a tensor of rank 3 or less: an object with `__dlpack__`, or a torch FakeTensor.
    #[new]
    fn new(tensor: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        let (operand, view) = Operand::new("tensor", tensor)?;
        Ok(PyClassInitializer::from(KernelOperand).add_subclass(DenseTensor { operand, view }))
    }

    /// For the garbage collector: the tensor may refer to its wrapper.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.operand.object)
    }

    fn __repr__(&self) -> String {
        format!("<DenseTensor {} {}>", self.view, self.view.place())
    }
}

/// The properties that all operand classes have. A `ScaledTensor` returns those of its base.
macro_rules! operand_properties {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            /// The extents of the user's tensor.
            #[getter]
            fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
                PyTuple::new(py, self.dense(py).view().user_shape())
            }

            /// The strides in elements; 0 for dimensions of extent 1.
            #[getter]
            fn stride<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
                PyTuple::new(py, self.dense(py).view().user_stride())
            }

            /// The element type.
            #[getter]
            fn element_type(&self, py: Python<'_>) -> PyDType {
                PyDType(self.dense(py).view().dtype)
            }

            /// The address of the first element; 0 for a FakeTensor or a tensor without elements.
            #[getter]
            fn data_ptr(&self, py: Python<'_>) -> u64 {
                self.dense(py).view().data
            }

            /// The number of elements.
            fn numel(&self, py: Python<'_>) -> i64 {
                self.dense(py).view().numel()
            }

            /// The tensor at run time and compile time.
            #[getter]
            fn tensor(&self, py: Python<'_>) -> TensorWrapper {
                let DenseTensor { operand, view } = self.dense(py);
                TensorWrapper {
                    name: operand.name,
                    tensor: operand.object.clone_ref(py),
                    dtype: view.dtype,
                    device: view.device,
                    numel: view.numel(),
                    fake: view.fake,
                    alignment_bytes: view.dtype.bytes() as u64,
                }
            }
        }
    };
}

operand_properties!(DenseTensor);
operand_properties!(ScaledTensor);

impl DenseTensor {
    fn dense<'a>(&'a self, _py: Python<'a>) -> &'a DenseTensor {
        self
    }
}

impl ScaledTensor {
    /// The user's tensors of scales, zero points and factors of the sums.
    pub fn scales<'py>(&self, py: Python<'py>) -> [Option<Bound<'py, PyAny>>; 3] {
        [Some(&self.scale), self.zero.as_ref(), self.factor.as_ref()]
            .map(|tensor| Some(tensor?.get().object(py)))
    }

    /// The block, as rows of A (columns of B) and elements along K, and whether the scales are
    /// swizzled. The error describes another mode or swizzle.
    pub fn layout(&self, py: Python<'_>) -> PyResult<Result<([u32; 2], bool), String>> {
        let (mode, swizzle) = (self.mode.bind(py), self.swizzle.bind(py));
        let extents = mode.try_iter().and_then(|extents| {
            extents.map(|extent| extent?.extract::<i64>()).collect::<PyResult<Vec<_>>>()
        });
        let block = extents.ok().and_then(|extents| {
            let [leading @ .., along, deep] = extents.as_slice() else { return None };
            let fits = |extent: &i64| (1..=Scaling::MAX_BLOCK).contains(extent);
            let is_block = leading.iter().all(|extent| *extent == 1) && fits(along) && fits(deep);
            is_block.then_some([*along as u32, *deep as u32])
        });
        let Some(block) = block else {
            let message = format!("its mode is {}, which kernels do not read", mode.repr()?);
            return Ok(Err(message));
        };
        let name = swizzle.getattr_opt("name")?.unwrap_or_else(|| swizzle.clone()).to_string();
        Ok(match name.as_str() {
            "SwizzleNone" | "none" | "None" => Ok((block, false)),
            "Swizzle32x4x4" | SWIZZLE => Ok((block, true)),
            _ => Err(format!("its swizzle is {}, which kernels do not read", swizzle.repr()?)),
        })
    }

    /// Whether another tensor has the same kinds of scales, for the same blocks of values.
    pub fn has_scales_like(&self, py: Python<'_>, other: &ScaledTensor) -> PyResult<bool> {
        let kinds = |tensor: &ScaledTensor| tensor.scales(py).map(|each| each.is_some());
        Ok(kinds(self) == kinds(other) && self.layout(py)? == other.layout(py)?)
    }

    /// The tensor of scales, the mode and the swizzle, for a `repr`.
    pub fn facts_of_scales(&self, py: Python<'_>) -> String {
        let (scale, mode) = (self.scale.get().view(), text_of(self.mode.bind(py)));
        format!("{scale}, mode={mode}, swizzle={}", text_of(self.swizzle.bind(py)))
    }

    fn dense<'a>(&'a self, py: Python<'a>) -> &'a DenseTensor {
        self.base.bind(py).get()
    }
}

/// A tensor with a tensor of scales, each shared by a block of values.
///
/// Built-in GEMM kernels read the scales of A and of B, in float32, float16, bfloat16 or
/// float8_e8m0fnu, for blocks of any extents. A mode is (rows of A or columns of B, elements along
/// K), with optional leading ones. The scales have the order of the operand's dimensions:
/// (ceil(M / rows), ceil(K / elements)) for A, (ceil(K / elements), ceil(N / columns)) for B, with
/// an optional batch. `Swizzle32x4x4`: contiguous, in tiles of 128 x 4 and padded; those of B as of
/// its transpose.
#[pyclass(module = "cutlass_api.arguments", extends = KernelOperand, frozen, get_all)]
pub struct ScaledTensor {
    /// The values.
    pub base: Py<DenseTensor>,
    /// Their scales.
    scale: Py<DenseTensor>,
    /// The `ScaleMode`: the block of values that shares a scale.
    mode: Py<PyAny>,
    /// The `ScaleSwizzleMode`: the memory layout of the scales.
    swizzle: Py<PyAny>,
    /// Of a weight: zero points in the layout of the scales.
    zero: Option<Py<DenseTensor>>,
    /// Of a weight: a float32 factor of the sums, (1, 1) or of each column of B, (1, N).
    factor: Option<Py<DenseTensor>>,
}

#[pymethods]
impl ScaledTensor {
    /// `base`: the values. `scale`: their scales. `mode`: the `ScaleMode`, the block that shares a
    /// scale. `swizzle`: the `ScaleSwizzleMode`, the memory layout of the scales.
    #[new]
    fn new(
        base: &Bound<'_, PyAny>,
        scale: &Bound<'_, PyAny>,
        mode: Py<PyAny>,
        swizzle: Py<PyAny>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let (base, scale) =
            (DenseTensor::named("base", base)?, DenseTensor::named("scale", scale)?);
        let (zero, factor) = (None, None);
        let scaled = ScaledTensor { base, scale, mode, swizzle, zero, factor };
        Ok(PyClassInitializer::from(KernelOperand).add_subclass(scaled))
    }

    /// A weight as B (K, N). `values`: (N, K) of 8 bits, or the int32 words (N, K / 32, 4) of
    /// elements of 4 bits whose type `element` names. `scale`, `zero`: (N, K / group). `factor`: of
    /// the sums, (N, 1) or (1, 1). A stack of weights as B (G, K, N) has a leading G everywhere,
    /// and words (G, N, K / 8).
    #[staticmethod]
    #[pyo3(signature = (values, element, scale, group, zero = None, factor = None))]
    fn of_weight(
        values: &Bound<'_, PyAny>,
        element: &str,
        scale: &Bound<'_, PyAny>,
        group: i64,
        zero: Option<&Bound<'_, PyAny>>,
        factor: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<ScaledTensor>> {
        let py = values.py();
        let transposed = |name, tensor: &Bound<'_, PyAny>| {
            DenseTensor::named(name, &tensor.call_method1(intern!(py, "transpose"), (-2, -1))?)
        };
        let scale = transposed("scales", scale)?;
        let base = match DType::packed(element) {
            Some(dtype) => {
                let is_stack = scale.get().view().rank == 3;
                let (operand, view) = Operand::packed("values", values, dtype, is_stack)?;
                DenseTensor::over(py, operand, view)?
            }
            None => transposed("values", values)?,
        };
        let scaled = ScaledTensor {
            base,
            scale,
            mode: (1, group).into_pyobject(py)?.into_any().unbind(),
            swizzle: "none".into_pyobject(py)?.into_any().unbind(),
            zero: zero.map(|zero| transposed("zeros", zero)).transpose()?,
            factor: factor.map(|factor| transposed("factor", factor)).transpose()?,
        };
        Py::new(py, PyClassInitializer::from(KernelOperand).add_subclass(scaled))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.base)?;
        visit.call(&self.scale)?;
        visit.call(&self.mode)?;
        visit.call(&self.swizzle)?;
        visit.call(&self.zero)?;
        visit.call(&self.factor)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let view = self.base.get().view();
        let (scales, place) = (self.facts_of_scales(py), view.place());
        format!("<ScaledTensor {view}, scales {scales}, {place}>")
    }
}

/// A mode or a swizzle: a member of an enumeration, a tuple or a string.
fn text_of(object: &Bound<'_, PyAny>) -> String {
    object.str().map_or_else(|_| class_name(object), |text| text.to_string())
}

/// A tensor that stands for itself at run time and at compile time.
///
/// tensor: an object with `__dlpack__`, a torch FakeTensor, or an operand of arguments.
/// alignment_bytes: the address of the first element is a multiple of this; None: the size of an
/// element, unchecked.
///
/// Raises ValueError if the address is not a multiple of `alignment_bytes`, TypeError if `tensor`
/// is no tensor.
#[pyclass(module = "cutlass_api.utils", frozen)]
pub struct TensorWrapper {
    /// The operand's name in error messages.
    name: &'static str,
    tensor: Py<PyAny>,
    dtype: DType,
    device: DeviceId,
    numel: i64,
    /// Whether the tensor is a FakeTensor.
    fake: bool,
    alignment_bytes: u64,
}

impl TensorWrapper {
    /// Wraps a tensor or the tensor of an operand.
    pub fn of(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<TensorWrapper> {
        let tensor = unwrapped(object);
        let Memory { dtype, device, numel, fake, .. } = operand::read_memory(name, &tensor)?;
        let (tensor, alignment_bytes) = (tensor.unbind(), dtype.bytes() as u64);
        Ok(TensorWrapper { name, tensor, dtype, device, numel, fake, alignment_bytes })
    }

    fn view(&self, py: Python<'_>) -> PyResult<View> {
        operand::read(self.name, self.tensor.bind(py))
    }
}

/// The tensor of an operand or a wrapper; any other object unchanged.
fn unwrapped<'py>(object: &Bound<'py, PyAny>) -> Bound<'py, PyAny> {
    let py = object.py();
    if let Ok(wrapper) = object.cast::<TensorWrapper>() {
        return wrapper.get().tensor.bind(py).clone();
    }
    if let Ok(scaled) = object.cast::<ScaledTensor>() {
        return scaled.get().dense(py).object(py);
    }
    object.cast::<DenseTensor>().map_or_else(|_| object.clone(), |dense| dense.get().object(py))
}

#[pymethods]
impl TensorWrapper {
    #[new]
    #[pyo3(signature = (tensor, alignment_bytes = None))]
    fn new(tensor: &Bound<'_, PyAny>, alignment_bytes: Option<u64>) -> PyResult<Self> {
        let wrapper = TensorWrapper::of("tensor", tensor)?;
        let Some(alignment_bytes) = alignment_bytes else { return Ok(wrapper) };
        let memory = operand::read_memory("tensor", wrapper.tensor.bind(tensor.py()))?;
        if alignment_bytes == 0 {
            return Err(PyValueError::new_err("alignment_bytes is 0; pass 1 or more, or None"));
        }
        if memory.data % alignment_bytes != 0 {
            return Err(PyValueError::new_err(format!(
                "tensor begins at address {:#x}, which is not aligned to alignment_bytes = \
                 {alignment_bytes}; pass an aligned tensor or a smaller alignment",
                memory.data
            )));
        }
        Ok(TensorWrapper { alignment_bytes, ..wrapper })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.tensor)
    }

    /// The tensor that kernels run on. Raises ValueError for a FakeTensor, which has no memory.
    #[getter]
    fn runtime_tensor<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.fake {
            true => Err(operand::without_memory(self.name)),
            false => Ok(self.tensor.bind(py).clone()),
        }
    }

    /// The tensor that kernels are compiled for. It may be a FakeTensor.
    #[getter]
    fn compile_time_tensor<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.tensor.bind(py).clone()
    }

    /// The extents. Raises ValueError for more than three dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.view(py)?.user_shape())
    }

    /// The strides in elements; 0 for dimensions of extent 1. Raises as `shape` does.
    #[getter]
    fn stride<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.view(py)?.user_stride())
    }

    /// The element type. Raises as `shape` does.
    #[getter]
    fn element_type(&self, py: Python<'_>) -> PyResult<PyDType> {
        Ok(PyDType(self.view(py)?.dtype))
    }

    /// The address of the first element; 0 for a FakeTensor or a tensor without elements.
    #[getter]
    fn data_ptr(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(operand::read_memory(self.name, self.tensor.bind(py))?.data)
    }

    /// The address of the first element is a multiple of this many bytes.
    #[getter]
    fn alignment_bytes(&self) -> u64 {
        self.alignment_bytes
    }

    /// The number of elements.
    fn numel(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(operand::read_memory(self.name, self.tensor.bind(py))?.numel)
    }

    /// The tensor as it was at construction: a foreign array may wait for the GPU when it is read.
    fn __repr__(&self) -> String {
        let TensorWrapper { dtype, device, numel, fake, alignment_bytes, .. } = self;
        let fake = if *fake { " (FakeTensor)" } else { "" };
        format!(
            "<TensorWrapper of {numel} elements {dtype} on {device}{fake}, aligned to \
             {alignment_bytes} bytes>"
        )
    }
}
