//! Small questions that `cutlass_api.utils` answers.

use std::path::PathBuf;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::compile::{self, Nvrtc};
use crate::driver::Device;

/// Tells the search for NVRTC where packages are installed.
pub fn tell_package_directories(py: Python<'_>) -> PyResult<()> {
    // Python passes over what is no path, too.
    let path = py
        .import("sys")?
        .getattr("path")?
        .try_iter()?
        .filter_map(|entry| entry.ok()?.extract::<PathBuf>().ok());
    compile::set_package_directories(path.collect());
    Ok(())
}

/// A compute capability that the user names: ten times major plus minor.
#[derive(Clone, Copy)]
pub struct ComputeCapability(pub u32);

impl<'py> FromPyObject<'_, 'py> for ComputeCapability {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<ComputeCapability> {
        let refused = |of_range: bool| {
            let shown =
                object.repr().map_or_else(|_| "an object".to_owned(), |text| text.to_string());
            let message =
                format!("cc is {shown}; give ten times major plus minor, such as 90 for an H100");
            if of_range { PyValueError::new_err(message) } else { PyTypeError::new_err(message) }
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

/// The compute capability of a CUDA device, ten times major plus minor: 90 for an H100. RuntimeError where there is none.
#[pyfunction]
#[pyo3(signature = (device = 0))]
pub fn device_cc(device: i32) -> PyResult<u32> {
    Ok(Device::get(device)?.cc)
}

/// The path and version of the NVRTC that compiles here. RuntimeError where none is found.
#[pyfunction]
pub fn nvrtc_info(py: Python<'_>) -> PyResult<(PathBuf, (i32, i32))> {
    tell_package_directories(py)?;
    let nvrtc = Nvrtc::get()?;
    Ok((nvrtc.path().to_owned(), nvrtc.version()))
}

/// Where compiled programs are kept, or None where they are not.
#[pyfunction]
pub fn cache_directory() -> Option<PathBuf> {
    compile::directory()
}

/// The dimensions from the one of the smallest stride to the one of the largest. Of equal strides, and of extent-1
/// dimensions, the later dimension counts as the smaller.
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

/// The place of each dimension in `stride_order`: 0 for the contiguous one.
#[pyfunction]
pub fn stride_rank(shape: Vec<i64>, stride: Vec<i64>) -> PyResult<Vec<usize>> {
    let mut rank = vec![0; stride.len()];
    for (place, dim) in stride_order(shape, stride)?.into_iter().enumerate() {
        rank[dim] = place;
    }
    Ok(rank)
}

/// The contiguous dimension: that of stride 1 with an extent above 1, else the last. None if no dimension is contiguous.
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

/// One letter an operand, "t" for row-major and "n" for column-major, from strides whose last two are row and column.
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
