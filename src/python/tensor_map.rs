//! Tensor maps as arguments of users' CUDA C++ functions.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use super::tensors::DenseTensor;
use super::utils::shown;
use crate::driver::{Device, EncodedTensorMap, ParameterValue};
use crate::kernel::TensorMap;
use crate::operand::{DType, Memory, Operand, View};

/// The most elements of a box along a dimension, and of a tensor (CUDA driver API,
/// "cuTensorMapEncodeTiled").
const LONGEST_BOX: i64 = 256;
const LONGEST_EXTENT: i64 = 1 << 32;

/// A tensor as the Tensor Memory Accelerator of Hopper and later sees it: the argument for a
/// parameter `const __grid_constant__ TensorMap` ("common/tma.cuh") or `CUtensorMap` of a
/// `cuda_kernel`.
///
/// tensor: of rank 1 to 3, or an operand of `cutlass_api.arguments`. Its last dimension is
/// contiguous; its address and the strides of its other dimensions are multiples of 16 bytes. A
/// launch reads its address, so that the map follows a tensor whose memory moves.
///
/// box: the extents of the boxes that the kernel copies, in the order of the tensor's dimensions,
/// each from 1 to 256. A row of a box is a multiple of 16 bytes. Coordinates in the kernel have the
/// opposite order: the contiguous dimension is first. Elements outside the tensor read as zero and
/// are not written.
///
/// swizzle: the bytes of the swizzle in shared memory: 0 (none), 32, 64 or 128. A row of a box then
/// has at most that many bytes.
///
/// Raises TypeError for something other than a tensor and ValueError for a tensor or a box that TMA
/// cannot address.
#[pyclass(name = "TensorMap", module = "cutlass_api", frozen)]
pub struct PyTensorMap {
    operand: Operand,
    view: View,
    /// Like the extents, in the order of the tensor's dimensions.
    box_extents: Vec<u32>,
    /// In bytes.
    swizzle: u32,
}

#[pymethods]
impl PyTensorMap {
    #[new]
    #[pyo3(signature = (tensor, r#box, *, swizzle = 0))]
    fn new(
        tensor: &Bound<'_, PyAny>,
        r#box: &Bound<'_, PyAny>,
        swizzle: u32,
    ) -> PyResult<PyTensorMap> {
        let wrapped = tensor.cast::<DenseTensor>();
        let tensor = wrapped.map_or(tensor.clone(), |dense| dense.get().object(tensor.py()));
        let (operand, view) = Operand::new("tensor", &tensor)?;
        let box_extents: Vec<i64> = r#box.extract().map_err(|_| {
            PyTypeError::new_err(format!("box is {}; pass a tuple of ints", shown(r#box)))
        })?;
        check(&view, &box_extents, swizzle).map_err(PyValueError::new_err)?;
        let box_extents = box_extents.iter().map(|extent| *extent as u32).collect();
        Ok(PyTensorMap { operand, view, box_extents, swizzle })
    }

    /// For the garbage collector: the tensor may refer to its map.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.operand.object)
    }

    fn __repr__(&self) -> String {
        let PyTensorMap { view, box_extents, swizzle, .. } = self;
        format!("<TensorMap {view}, box={box_extents:?}, swizzle={swizzle}, {}>", view.place())
    }
}

impl PyTensorMap {
    pub fn tensor<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.operand.object.bind(py).clone()
    }

    /// What results of the autotuner depend on.
    pub fn describe(&self) -> String {
        let PyTensorMap { view, box_extents, swizzle, .. } = self;
        let (dtype, shape) = (view.dtype, view.user_shape());
        format!("TensorMap({dtype}, shape={shape:?}, box={box_extents:?}, swizzle={swizzle})")
    }

    /// The map at this address, in the driver's encoding. `memory`: of the tensor now.
    pub fn encode(
        &self,
        py: Python<'_>,
        name: impl Fn() -> String,
        memory: &Memory,
        device: &Device,
        address: u64,
    ) -> PyResult<ParameterValue> {
        if memory.fake {
            return Err(crate::operand::without_memory(&name()));
        }
        let now = self.operand.reread(py, None)?;
        if !now.differs_only_in_address(&self.view) {
            return Err(PyValueError::new_err(format!(
                "the tensor of {} has another shape, dtype, device or alignment than when its map \
                 was made; make a new TensorMap",
                name()
            )));
        }
        // The contiguous dimension first.
        let extents: Vec<u64> = self.view.user_shape().iter().rev().map(|e| *e as u64).collect();
        let box_extents: Vec<u32> = self.box_extents.iter().rev().copied().collect();
        let mut strides = byte_strides(&self.view);
        strides.reverse();
        let _current = device.make_current()?;
        let map = EncodedTensorMap::encode(
            TensorMap::data_type(self.view.dtype, false),
            address,
            &extents,
            &strides,
            &box_extents,
            TensorMap::swizzle(self.swizzle.max(16)), // 16 bytes: none
            TensorMap::l2_promotion(128),
        )?;
        Ok(ParameterValue::TensorMap(Box::new(map)))
    }
}

/// The strides of all dimensions but the last, in bytes. A dimension of extent 1 has the stride of
/// a dense one, rounded up: the driver refuses 0, and no element is at the stride.
fn byte_strides(view: &View) -> Vec<u64> {
    let (shape, strides) = (view.user_shape(), view.user_stride());
    let bytes = |elements: i64| view.dtype.bytes_of(elements) as u64;
    let mut dense = shape.last().map_or(0, |extent| bytes(*extent)).next_multiple_of(16);
    let outer = shape.len().saturating_sub(1);
    let mut found = vec![0; outer];
    for at in (0..outer).rev() {
        found[at] = if shape[at] == 1 { dense } else { bytes(strides[at]) };
        dense = found[at] * shape[at] as u64;
    }
    found
}

/// Why TMA cannot address these boxes of the tensor.
fn check(view: &View, box_extents: &[i64], swizzle: u32) -> Result<(), String> {
    let (shape, strides, rank) = (view.user_shape(), view.user_stride(), view.rank);
    if rank == 0 || rank != box_extents.len() {
        return Err(format!(
            "box {box_extents:?} has {} extents, and the tensor has rank {rank}; pass one extent \
             a dimension",
            box_extents.len()
        ));
    }
    if matches!(view.dtype, DType::Other { .. }) {
        return Err(format!("the tensor has dtype {}, which TMA does not copy", view.dtype));
    }
    if shape.iter().any(|extent| !(1..=LONGEST_EXTENT).contains(extent)) {
        return Err(format!("the tensor has shape {shape:?}; extents are 1 to 2^32"));
    }
    if box_extents.iter().any(|extent| !(1..=LONGEST_BOX).contains(extent)) {
        return Err(format!("box is {box_extents:?}; its extents are 1 to {LONGEST_BOX}"));
    }
    let row = view.dtype.bytes_of(box_extents[rank - 1]);
    if row % 16 != 0 {
        return Err(format!("a row of the box has {row} bytes; pass a multiple of 16"));
    }
    if !matches!(swizzle, 0 | 32 | 64 | 128) || (swizzle > 0 && row > i64::from(swizzle)) {
        return Err(format!(
            "swizzle is {swizzle}, and a row of the box has {row} bytes; pass 0, or 32, 64 or 128 \
             and a row of at most that many bytes"
        ));
    }
    if shape[rank - 1] > 1 && strides[rank - 1] != 1 {
        return Err(format!(
            "the tensor's last dimension has stride {}, and TMA needs 1; pass a tensor whose last \
             dimension is contiguous",
            strides[rank - 1]
        ));
    }
    let outer = shape.iter().zip(strides).take(rank - 1).filter(|(extent, _)| **extent > 1);
    for (_, stride) in outer {
        let stride = view.dtype.bytes_of(*stride);
        if stride <= 0 || stride % 16 != 0 || stride as u64 > TensorMap::LONGEST_STRIDE {
            return Err(format!(
                "the tensor has a stride of {stride} bytes; TMA needs positive multiples of 16 \
                 below 2^40"
            ));
        }
    }
    if !view.data.is_multiple_of(16) {
        return Err(format!(
            "the tensor begins at {:#x}, and TMA needs a multiple of 16 bytes; pass a copy",
            view.data
        ));
    }
    Ok(())
}
