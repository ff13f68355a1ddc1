//! The functions of `cutlass_api.utils`, and helpers of the PyO3 classes.

use std::path::PathBuf;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

use crate::compile::{self, Nvrtc};
use crate::driver::Device;
use crate::kernel::Target;

/// The `repr` of an object, for error messages. A tensor's would print its elements, and wait for
/// the GPU: its class stands for it, and so it does for a long `repr`, as of a list of tensors.
pub fn shown(object: &Bound<'_, PyAny>) -> String {
    const LONGEST: usize = 200;
    let class = || format!("<{}>", class_name(object));
    if object.hasattr("__dlpack__").unwrap_or(true) {
        return class();
    }
    match object.repr().map(|text| text.to_string()) {
        Ok(text) if text.len() <= LONGEST => text,
        _ => class(),
    }
}

/// The name of an object's class.
pub fn class_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string())
}

/// An object in the `repr` of another one: its `repr` if its class is of this package, else its
/// class. A foreign `repr` may print the elements of a tensor, which waits for the GPU.
pub fn brief(object: &Bound<'_, PyAny>) -> String {
    let module = object.get_type().module();
    let is_own = module.is_ok_and(|name| name.to_string().starts_with("cutlass_api"));
    match object.repr() {
        Ok(text) if is_own => text.to_string(),
        _ => format!("<{}>", class_name(object)),
    }
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
/// RuntimeError if there is no such device. Makes no CUDA context.
#[pyfunction]
#[pyo3(signature = (device = 0))]
pub fn device_cc(device: i32) -> PyResult<u32> {
    Ok(Device::capability(device)?)
}

/// The name, compute capability and number of multiprocessors of a CUDA device, and the version of
/// the driver's interface, 1000 times major plus 10 times minor: 13000 for CUDA 13.0. Raises
/// RuntimeError if there is no such device.
#[pyfunction]
pub fn device_facts(device: i32) -> PyResult<(&'static str, u32, u32, i32)> {
    let device = Device::get(device)?;
    Ok((&device.name, device.cc, device.multiprocessors, device.driver_version))
}

/// The peak rates of a CUDA device, by name: multiprocessors, their highest clock in Hz, the dense
/// FLOP per clock of one of them (16-bit products by tensor cores, the same through `mma.sync`,
/// float32, and float64 by the faster unit), bytes of the L2 cache, and bytes per second of memory.
/// They come from the driver and the compute capability. cc: of a typical chip of this compute
/// capability instead. Raises RuntimeError without such a device.
#[pyfunction]
#[pyo3(signature = (device = 0, cc = None))]
pub fn chip_rates(
    py: Python<'_>,
    device: i32,
    cc: Option<ComputeCapability>,
) -> PyResult<Bound<'_, PyDict>> {
    let chip = match cc {
        Some(cc) => Target::typical(cc.0),
        None => Target::from(Device::get(device)?),
    };
    let float64 = chip.float64_fma_flop_per_clock.max(chip.float64_mma_flop_per_clock);
    let rates = PyDict::new(py);
    rates.set_item("multiprocessors", chip.multiprocessors)?;
    rates.set_item("clock_hz", chip.clock_hz)?;
    rates.set_item("tensor_flop_per_clock", chip.tensor_flop_per_clock)?;
    rates.set_item("mma_sync_flop_per_clock", chip.mma_sync_flop_per_clock)?;
    rates.set_item("fma_flop_per_clock", chip.fma_flop_per_clock)?;
    rates.set_item("float64_flop_per_clock", float64)?;
    rates.set_item("l2_bytes", chip.l2_bytes)?;
    rates.set_item("memory_bytes_per_second", chip.memory_bytes_per_second)?;
    Ok(rates)
}

/// The text of one of this package's CUDA headers, by its name in `#include` directives. Raises
/// ValueError if there is no such header.
#[pyfunction]
pub fn header(name: &str) -> PyResult<&'static str> {
    let missing = || PyValueError::new_err(format!("the package has no header {name:?}"));
    compile::header(name).ok_or_else(missing)
}

/// How many CUDA devices the machine has. Raises RuntimeError without a driver.
#[pyfunction]
pub fn device_count() -> PyResult<i32> {
    Ok(Device::count()?)
}

/// The path and version of the NVRTC library in use. Raises RuntimeError if none is found.
#[pyfunction]
pub fn nvrtc_info(py: Python<'_>) -> PyResult<(PathBuf, (i32, i32))> {
    set_package_directories(py)?;
    let nvrtc = Nvrtc::get()?;
    Ok((nvrtc.path().to_owned(), nvrtc.version()))
}

/// How many files the cache of compiled programs has, and their bytes.
#[pyfunction]
pub fn cache_usage(py: Python<'_>) -> (u64, u64) {
    let usage = py.detach(compile::usage);
    (usage.files, usage.bytes)
}

/// The most bytes of the cache of compiled programs (CUTLASS_API_CACHE_LIMIT, in MiB). Raises
/// ValueError if the variable is no number.
#[pyfunction]
pub fn cache_limit() -> PyResult<u64> {
    compile::limit().map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Removes the programs that were used longest ago, until the others take at most `limit` bytes.
/// Returns how many files were removed, and their bytes.
#[pyfunction]
pub fn trim_cache(py: Python<'_>, limit: u64) -> (u64, u64) {
    let removed = py.detach(|| compile::trim(limit));
    (removed.files, removed.bytes)
}

/// The directory of compiled programs; None if the disk cache is off.
#[pyfunction]
pub fn cache_directory() -> Option<PathBuf> {
    compile::directory()
}

/// Why the directory of compiled programs is not used: other users may have written to it. None if
/// it is used.
#[pyfunction]
pub fn cache_refusal() -> Option<String> {
    compile::trusted_directory().err().map(|refusal| refusal.to_string())
}
