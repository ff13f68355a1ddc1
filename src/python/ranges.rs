//! A range on the CPU for each call, while a profiler records: torch's profilers, and NVTX with
//! `CUTLASS_API_NVTX=1`. python/cutlass_api/_ranges.py enters and leaves the ranges.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::operand::OnceValue;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};

const VARIABLE: &str = "CUTLASS_API_NVTX";

/// The globals of `torch.autograd.profiler`, whose `_is_profiler_enabled` is True while a profiler
/// of torch records: a variable that torch keeps for fast checks.
static TORCH: OnceValue<Py<PyDict>> = OnceValue::new();
static NVTX: AtomicBool = AtomicBool::new(false);

/// Reads the environment variable. Call once, when the module is imported.
pub fn read_environment() {
    let is_on = std::env::var_os(VARIABLE).is_some_and(|value| value == "1");
    NVTX.store(is_on, Ordering::Relaxed);
}

/// Makes calls check whether a profiler of torch records. profiler: the globals of
/// `torch.autograd.profiler`.
#[pyfunction]
pub fn watch_torch_profiler(py: Python<'_>, profiler: Py<PyDict>) {
    // torch is imported once.
    let _ = TORCH.set(py, profiler);
}

/// Whether NVTX records calls.
pub fn nvtx_records() -> bool {
    NVTX.load(Ordering::Relaxed)
}

/// Whether a profiler records calls.
pub fn is_recording(py: Python<'_>) -> bool {
    nvtx_records() || TORCH.get(py).is_some_and(|globals| torch_records(globals.bind(py)))
}

fn torch_records(globals: &Bound<'_, PyDict>) -> bool {
    let flag = globals.get_item(intern!(globals.py(), "_is_profiler_enabled"));
    flag.ok().flatten().is_some_and(|flag| flag.is(PyBool::new(globals.py(), true)))
}

/// A range that ends when the value is dropped.
pub struct Range<'py>(Bound<'py, PyAny>);

impl<'py> Range<'py> {
    /// Begins a range if a profiler records. `describe` returns the operands, whose shapes the
    /// range shows, and the kernel's name if it is known.
    #[inline]
    pub fn of_call(
        py: Python<'py>,
        name: &str,
        describe: impl FnOnce() -> PyResult<(Bound<'py, PyTuple>, Option<String>)>,
    ) -> Option<Range<'py>> {
        is_recording(py).then(|| Range::begin(py, name, describe)).flatten()
    }

    /// Begins a range. A profiler must not break the call that it records: errors are reported as
    /// unraisable.
    #[cold]
    #[inline(never)]
    pub fn begin(
        py: Python<'py>,
        name: &str,
        describe: impl FnOnce() -> PyResult<(Bound<'py, PyTuple>, Option<String>)>,
    ) -> Option<Range<'py>> {
        let begin = || {
            let (inputs, kernel) = describe()?;
            let enter = py.import("cutlass_api._ranges")?.getattr("enter")?;
            Ok(Range(enter.call1((name, inputs, kernel, nvtx_records()))?))
        };
        begin().map_err(|error: PyErr| error.write_unraisable(py, None)).ok()
    }
}

impl Drop for Range<'_> {
    fn drop(&mut self) {
        let py = self.0.py();
        // The exception of the recorded call, if it raised.
        let raised = PyErr::take(py);
        if let Err(error) = self.0.call0() {
            error.write_unraisable(py, None);
        }
        if let Some(raised) = raised {
            raised.restore(py);
        }
    }
}
