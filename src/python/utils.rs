//! The functions of `cutlass_api.utils`, and helpers of the PyO3 classes.

use std::path::PathBuf;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::compile::{self, Nvrtc};
use crate::driver::Device;

/// The `repr` of an object, for error messages.
pub fn shown(object: &Bound<'_, PyAny>) -> String {
    object.repr().map_or_else(|_| "an object".to_owned(), |text| text.to_string())
}

/// Makes the search for NVRTC cover the directories of `sys.path`.
pub fn set_package_directories(py: Python<'_>) -> PyResult<()> {
    // Like Python's import system, ignore entries that are not paths.
    let path = py
        .import("sys")?
        .getattr("path")?
        .try_iter()?
        .filter_map(|entry| entry.ok()?.extract::<PathBuf>().ok());
    compile::set_package_directories(path.collect());
    Ok(())
}

/// A compute capability argument: ten times major plus minor.
#[derive(Clone, Copy)]
pub struct ComputeCapability(pub u32);

impl<'py> FromPyObject<'_, 'py> for ComputeCapability {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<ComputeCapability> {
        let refused = |out_of_range: bool| {
            let message = format!(
                "cc is {}; pass ten times major plus minor, such as 90 for an H100",
                shown(&object)
            );
            if out_of_range {
                PyValueError::new_err(message)
            } else {
                PyTypeError::new_err(message)
            }
        };
        if object.is_instance_of::<PyBool>() {
            return Err(refused(false));
        }
        object
            .extract()
            .map(ComputeCapability)
            .map_err(|error: PyErr| refused(error.is_instance_of::<PyOverflowError>(object.py())))
    }
}

/// The compute capability of a CUDA device, ten times major plus minor: 90 for an H100. Raises
/// RuntimeError if there is no such device.
#[pyfunction]
#[pyo3(signature = (device = 0))]
pub fn device_cc(device: i32) -> PyResult<u32> {
    Ok(Device::get(device)?.cc)
}

/// The path and version of the NVRTC library in use. Raises RuntimeError if none is found.
#[pyfunction]
pub fn nvrtc_info(py: Python<'_>) -> PyResult<(PathBuf, (i32, i32))> {
    set_package_directories(py)?;
    let nvrtc = Nvrtc::get()?;
    Ok((nvrtc.path().to_owned(), nvrtc.version()))
}

/// The directory of compiled programs; None if the disk cache is off.
#[pyfunction]
pub fn cache_directory() -> Option<PathBuf> {
    compile::directory()
}

/// The dimensions in the order of their strides, smallest first. Of dimensions with equal strides,
/// the last comes first.
#[pyfunction]
pub fn stride_order(shape: Vec<i64>, stride: Vec<i64>) -> PyResult<Vec<usize>> {
    if shape.len() != stride.len() {
        return Err(PyValueError::new_err(format!(
            "shape {shape:?} and stride {stride:?} differ in length"
        )));
    }
    let mut dims: Vec<usize> = (0..stride.len()).collect();
    dims.sort_by_key(|dim| (stride[*dim], std::cmp::Reverse(*dim)));
    Ok(dims)
}

/// The position of each dimension in `stride_order`.
#[pyfunction]
pub fn stride_rank(shape: Vec<i64>, stride: Vec<i64>) -> PyResult<Vec<usize>> {
    let mut rank = vec![0; stride.len()];
    for (position, dim) in stride_order(shape, stride)?.into_iter().enumerate() {
        rank[dim] = position;
    }
    Ok(rank)
}

/// The contiguous dimension: the last one with stride 1 and an extent above 1. If there is none,
/// the last dimension if its stride is 1 or all extents are 1, else None.
#[pyfunction]
pub fn leading_dim(shape: Vec<i64>, stride: Vec<i64>) -> PyResult<Option<usize>> {
    if shape.len() != stride.len() || shape.is_empty() {
        return Err(PyValueError::new_err(format!(
            "shape {shape:?} and stride {stride:?} describe no tensor"
        )));
    }
    let unit = |dim: &usize| stride[*dim] == 1 && shape[*dim] > 1;
    if let Some(dim) = (0..shape.len()).rev().find(unit) {
        return Ok(Some(dim));
    }
    let trivial = shape.iter().all(|extent| *extent <= 1);
    Ok((trivial || stride[shape.len() - 1] == 1).then_some(shape.len() - 1))
}

/// One letter per operand: "t" for row-major, "n" for column-major. The last two strides belong to
/// rows and columns.
#[pyfunction]
pub fn strides_to_layout_string(strides: Vec<Vec<i64>>) -> PyResult<String> {
    strides
        .iter()
        .map(|stride| match stride.as_slice() {
            [.., _, 1] => Ok('t'),
            [.., 1, _] => Ok('n'),
            _ => Err(PyValueError::new_err(format!(
                "strides {stride:?} are neither row-major nor column-major"
            ))),
        })
        .collect()
}
