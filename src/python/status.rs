//! `Status`: whether a kernel supports some arguments, and why not.

use pyo3::exceptions::{PyBaseException, PyValueError};
use pyo3::prelude::*;

/// Success or failure. A success is truthy; the `.error` of a failure is an exception with the
/// reason.
#[pyclass(module = "cutlass_api.status", frozen)]
pub struct Status {
    failure: Option<Failure>,
}

enum Failure {
    /// Becomes a ValueError in `Status::error`.
    Message(String),
    Exception(Py<PyBaseException>),
}

impl Status {
    pub fn ok() -> Status {
        Status { failure: None }
    }

    pub fn because(message: impl ToString) -> Status {
        Status { failure: Some(Failure::Message(message.to_string())) }
    }
}

#[pymethods]
impl Status {
    /// A success without an error, else a failure as from `fail`.
    #[new]
    #[pyo3(signature = (error = None))]
    fn new(error: Option<&Bound<'_, PyAny>>) -> PyResult<Status> {
        error.map_or_else(|| Ok(Status::ok()), Status::fail)
    }

    /// A successful status.
    #[staticmethod]
    fn success() -> Status {
        Status::ok()
    }

    /// A failed status. `error` is an exception, or a message, which becomes a ValueError.
    #[staticmethod]
    fn fail(error: &Bound<'_, PyAny>) -> PyResult<Status> {
        let failure = match error.cast::<PyBaseException>() {
            Ok(exception) => Failure::Exception(exception.clone().unbind()),
            Err(_) => Failure::Message(error.extract()?),
        };
        Ok(Status { failure: Some(failure) })
    }

    /// None for a success, else the exception with the reason.
    #[getter]
    fn error<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBaseException>> {
        match &self.failure {
            None => None,
            Some(Failure::Exception(exception)) => Some(exception.bind(py).clone()),
            Some(Failure::Message(message)) => {
                Some(PyValueError::new_err(message.clone()).into_value(py).into_bound(py))
            }
        }
    }

    /// Raises `.error` if it is not None.
    fn raise_on_error(&self, py: Python<'_>) -> PyResult<()> {
        match self.error(py) {
            None => Ok(()),
            Some(exception) => Err(PyErr::from_value(exception.into_any())),
        }
    }

    fn __bool__(&self) -> bool {
        self.failure.is_none()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.error(py) {
            None => "Status.success()".to_owned(),
            Some(exception) => {
                format!(
                    "Status.fail({})",
                    exception.repr().map_or_else(|_| "...".into(), |r| r.to_string())
                )
            }
        }
    }
}
