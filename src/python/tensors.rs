//! The operand classes of `cutlass_api.arguments`.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{PyTraverseError, PyVisit};

use super::dtype::PyDType;
use crate::operand::{Operand, View};

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

    pub fn object<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.operand.object.bind(py).clone()
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
        let view = self.view();
        format!(
            "DenseTensor({}, shape={:?}, stride={:?}, {})",
            view.dtype,
            view.user_shape(),
            view.user_stride(),
            view.device
        )
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
                TensorWrapper { tensor: self.dense(py).operand.object.clone_ref(py) }
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
    fn dense<'a>(&'a self, py: Python<'a>) -> &'a DenseTensor {
        self.base.bind(py).get()
    }
}

/// A tensor with a tensor of scales, each shared by a block of values.
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
}

#[pymethods]
impl ScaledTensor {
    /// `base`: the values. `scale`: their scales. `mode`: the `ScaleMode`, the block that shares a
    /// scale. `swizzle`: the `ScaleSwizzleMode`, the memory layout of the scales.
    #[new]
    fn new(
        py: Python<'_>,
        base: &Bound<'_, PyAny>,
        scale: &Bound<'_, PyAny>,
        mode: Py<PyAny>,
        swizzle: Py<PyAny>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let dense = |name, tensor| {
            Operand::new(name, tensor)
                .and_then(|(operand, view)| DenseTensor::over(py, operand, view))
        };
        let (base, scale) = (dense("base", base)?, dense("scale", scale)?);
        Ok(PyClassInitializer::from(KernelOperand).add_subclass(ScaledTensor {
            base,
            scale,
            mode,
            swizzle,
        }))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.base)?;
        visit.call(&self.scale)?;
        visit.call(&self.mode)?;
        visit.call(&self.swizzle)
    }
}

/// The tensors of run time and compile time, which are the same object in Rutlass.
#[pyclass(module = "cutlass_api.utils", frozen)]
pub struct TensorWrapper {
    tensor: Py<PyAny>,
}

#[pymethods]
impl TensorWrapper {
    #[new]
    fn new(tensor: Py<PyAny>) -> Self {
        TensorWrapper { tensor }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.tensor)
    }

    /// The tensor that kernels run on.
    #[getter]
    fn runtime_tensor<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.tensor.bind(py).clone()
    }

    /// The tensor that kernels are compiled for.
    #[getter]
    fn compile_time_tensor<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.tensor.bind(py).clone()
    }
}
