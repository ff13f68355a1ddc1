//! `Kernel.estimate` and `cutlass_api.explain`: the cost model's estimates, and why kernels refuse
//! arguments.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::arguments::{as_arguments, native};
use super::discovery::problem_and_target;
use super::kernel::PyKernel;
use super::support::policy;
use super::utils::ComputeCapability;
use crate::kernel::{self, Estimate};

/// The terms of the cost model for one kernel and one problem. Terms overlap in time, so they do
/// not add up to `total_seconds`.
#[pyclass(name = "Estimate", module = "cutlass_api", frozen)]
pub struct PyEstimate(Estimate);

#[pymethods]
impl PyEstimate {
    /// Rounds of CTAs (clusters, for sm90) over the chip.
    #[getter]
    fn waves(&self) -> f64 {
        self.0.waves
    }

    /// Bytes that move between device memory and the chip.
    #[getter]
    fn bytes(&self) -> f64 {
        self.0.bytes
    }

    /// Seconds of arithmetic.
    #[getter]
    fn arithmetic_seconds(&self) -> f64 {
        self.0.arithmetic_seconds
    }

    /// Seconds of device memory traffic.
    #[getter]
    fn memory_seconds(&self) -> f64 {
        self.0.memory_seconds
    }

    /// Seconds of loads from the L2 cache.
    #[getter]
    fn cache_seconds(&self) -> f64 {
        self.0.cache_seconds
    }

    /// Seconds of the launch, of packing, of tile stores, and of the exchange of partial sums.
    #[getter]
    fn launch_seconds(&self) -> f64 {
        self.0.launch_seconds
    }

    /// Seconds of the kernel: `get_kernels` ranks by this number.
    #[getter]
    fn total_seconds(&self) -> f64 {
        self.0.total_seconds
    }

    fn __repr__(&self) -> String {
        let Estimate { waves, bytes, total_seconds, .. } = self.0;
        let [arithmetic, memory, cache, launch] = [
            self.0.arithmetic_seconds,
            self.0.memory_seconds,
            self.0.cache_seconds,
            self.0.launch_seconds,
        ];
        format!(
            "Estimate(total_seconds={total_seconds:.3e}, arithmetic_seconds={arithmetic:.3e}, \
             memory_seconds={memory:.3e}, cache_seconds={cache:.3e}, \
             launch_seconds={launch:.3e}, waves={waves:.2}, bytes={bytes:.0})"
        )
    }

    /// The terms as a table in HTML, for notebooks.
    fn _repr_html_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let terms = [
            ("total", self.0.total_seconds),
            ("arithmetic", self.0.arithmetic_seconds),
            ("memory", self.0.memory_seconds),
            ("cache", self.0.cache_seconds),
            ("launch", self.0.launch_seconds),
        ];
        let row = |(name, seconds): (&str, f64)| (name.to_owned(), format!("{:.2}", 1e6 * seconds));
        let rows: Vec<_> = terms.into_iter().map(row).collect();
        let (titles, total) = (("term", "us, estimated"), rows.len());
        let caption = format!("{:.2} waves, {:.0} bytes", self.0.waves, self.0.bytes);
        let table = py.import("cutlass_api._tables")?.getattr("html_table")?;
        table.call1((titles, rows, total, caption))
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
        let (problem, target) = problem_and_target(&native.problem, cc.map(|cc| cc.0))?;
        let Some(target) = target else {
            return Err(PyValueError::new_err(
                "the operands are on the CPU; pass the compute capability of a chip to estimate \
                 for: estimate(args, cc=90)",
            ));
        };
        let kernel = kernel::at(position);
        let refused = match kernel.supports(&problem) {
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
            true => Ok(PyEstimate(estimate)),
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
    let (problem, target) = problem_and_target(&native.problem, cc.map(|cc| cc.0))?;
    let (mut tf32, mut failed) = (None, None);
    let epilogue = native.bound_epilogue().map(|bound| bound.epilogue);
    let explanation = kernel::explain(&problem, target, epilogue, CANDIDATES, |position| {
        policy(py, position, native, &mut tf32).unwrap_or_else(|error| {
            failed = Some(error);
            None
        })
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(explanation.to_string()),
    }
}
