//! `Kernel.estimate` and `cutlass_api.explain`: the cost model's estimates, and why kernels refuse
//! arguments.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::arguments::{as_arguments, native};
use super::discovery::problem_and_target;
use super::kernel::PyKernel;
use super::support::policy;
use super::utils::ComputeCapability;
use crate::kernel::{self, Estimate, NotOffered, Unsupported};

/// The terms of the cost model for one kernel and one problem. Terms overlap in time, so they do
/// not add up to `total_seconds`.
#[pyclass(name = "Estimate", module = "cutlass_api", frozen, get_all)]
pub struct PyEstimate {
    /// Rounds of CTAs (clusters, for sm90) over the chip.
    waves: f64,
    /// Bytes that move between device memory and the chip.
    bytes: f64,
    /// Seconds of arithmetic.
    arithmetic_seconds: f64,
    /// Seconds of device memory traffic.
    memory_seconds: f64,
    /// Seconds of loads from the L2 cache.
    cache_seconds: f64,
    /// Seconds of the launch, of packing, of tile stores, and of the exchange of partial sums.
    launch_seconds: f64,
    /// Seconds of the kernel: `get_kernels` ranks by this number.
    total_seconds: f64,
}

#[pymethods]
impl PyEstimate {
    fn __repr__(&self) -> String {
        format!(
            "Estimate(total_seconds={:.3e}, arithmetic_seconds={:.3e}, memory_seconds={:.3e}, \
             cache_seconds={:.3e}, launch_seconds={:.3e}, waves={:.2}, bytes={:.0})",
            self.total_seconds,
            self.arithmetic_seconds,
            self.memory_seconds,
            self.cache_seconds,
            self.launch_seconds,
            self.waves,
            self.bytes
        )
    }

    /// The terms as a table in HTML, for notebooks.
    fn _repr_html_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let terms = [
            ("total", self.total_seconds),
            ("arithmetic", self.arithmetic_seconds),
            ("memory", self.memory_seconds),
            ("cache", self.cache_seconds),
            ("launch", self.launch_seconds),
        ];
        let row = |(name, seconds): (&str, f64)| (name.to_owned(), format!("{:.2}", 1e6 * seconds));
        let rows: Vec<_> = terms.into_iter().map(row).collect();
        let (titles, total) = (("term", "us, estimated"), rows.len());
        let caption = format!("{:.2} waves, {:.0} bytes", self.waves, self.bytes);
        let table = py.import("cutlass_api._tables")?.getattr("html_table")?;
        table.call1((titles, rows, total, caption))
    }
}

impl From<Estimate> for PyEstimate {
    fn from(estimate: Estimate) -> PyEstimate {
        let Estimate { waves, bytes, arithmetic_seconds, memory_seconds, .. } = estimate;
        let Estimate { cache_seconds, launch_seconds, total_seconds, .. } = estimate;
        PyEstimate {
            waves,
            bytes,
            arithmetic_seconds,
            memory_seconds,
            cache_seconds,
            launch_seconds,
            total_seconds,
        }
    }
}

#[pymethods]
impl PyKernel {
    /// The cost model's estimate for the kernel on these arguments.
    ///
    /// cc: the compute capability of a chip to estimate for (90: an H100); None: the operands'
    /// device. Raises ValueError if the kernel does not support the arguments, if the operands are
    /// on the CPU and cc is None, and for kernels without a cost model (written in Python,
    /// elementwise, reference).
    #[pyo3(signature = (args, cc = None))]
    fn estimate(
        slf: &Bound<'_, Self>,
        args: &Bound<'_, PyAny>,
        cc: Option<ComputeCapability>,
    ) -> PyResult<PyEstimate> {
        let (Some(position), Some(native)) = (slf.get().position, native(args)?) else {
            return Err(PyValueError::new_err(
                "the cost model covers built-in kernels and cutlass_api's own arguments only",
            ));
        };
        let (problem, target) = problem_and_target(&native.product(), cc.map(|cc| cc.0))?;
        let Some(target) = target else {
            return Err(PyValueError::new_err(
                "the operands are on the CPU; pass the compute capability of a chip to estimate \
                 for: estimate(args, cc=90)",
            ));
        };
        let kernel = kernel::at(position);
        let refused = match kernel.supports(&problem) {
            Err(Unsupported::Device { .. }) if cc.is_some() => Some(on_other_than(cc)),
            Err(reason) => Some(reason.to_string()),
            Ok(()) => kernel
                .fuses(&native.problem, native.bound_epilogue())
                .err()
                .map(|reason| reason.to_string()),
        };
        if let Some(reason) = refused {
            return Err(PyValueError::new_err(format!(
                "Kernel does not support the provided arguments: {reason}"
            )));
        }
        let estimate = kernel.estimate(&problem, target);
        match estimate.is_known() {
            true => Ok(estimate.into()),
            false => Err(PyValueError::new_err(format!(
                "no cost model covers {} on these arguments",
                kernel.name()
            ))),
        }
    }
}

/// A text that explains for each family why it serves the arguments or not, and lists the first
/// kernels with their estimates. cc: as for `get_kernels`.
#[pyfunction]
#[pyo3(signature = (args, cc = None))]
pub fn explanation(
    py: Python<'_>,
    args: &Bound<'_, PyAny>,
    cc: Option<ComputeCapability>,
) -> PyResult<String> {
    const CANDIDATES: usize = 5;
    as_arguments(args)?;
    let Some(native) = native(args)? else {
        return Ok("built-in kernels take cutlass_api's own arguments".to_owned());
    };
    let (problem, target) = problem_and_target(&native.product(), cc.map(|cc| cc.0))?;
    let (mut tf32, mut failed) = (None, None);
    let epilogue = native.bound_epilogue().map(|bound| bound.epilogue);
    let mut explanation = kernel::explain(&problem, target, epilogue, CANDIDATES, |position| {
        policy(py, position, native, &mut tf32).unwrap_or_else(|error| {
            failed = Some(error);
            None
        })
    });
    if let Some(error) = failed {
        return Err(error);
    }
    for family in explanation.families.iter_mut().filter(|_| cc.is_some()) {
        if let Some(NotOffered::Unsupported(Unsupported::Device { .. })) = family.refusal {
            family.refusal = Some(NotOffered::Policy(on_other_than(cc)));
        }
    }
    Ok(explanation.to_string())
}

/// Why a kernel for the CPU does not serve a question about a compute capability.
fn on_other_than(cc: Option<ComputeCapability>) -> String {
    let cc = cc.map_or(0, |cc| cc.0);
    format!("cc = {cc} is the compute capability of a GPU, the kernel runs on the CPU")
}
