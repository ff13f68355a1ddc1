//! `Status`: whether a kernel supports some arguments, and why not.

use pyo3::exceptions::{PyBaseException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::utils::shown;

/// Success or failure. A success is truthy; the `.error` of a failure is an exception with the
/// reason. Statuses with equal errors are equal; an exception equals itself only.
#[pyclass(module = "cutlass_api.status", frozen)]
pub struct Status {
    failure: Option<PyErr>,
}

impl Status {
    pub fn ok() -> Status {
        Status { failure: None }
    }

    /// A failure with a ValueError.
    pub fn because(message: impl ToString) -> Status {
        Status { failure: Some(PyValueError::new_err(message.to_string())) }
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

    /// A failed status. `error` is an exception, or a message, which becomes a ValueError. Raises
    /// TypeError for other objects.
    #[staticmethod]
    fn fail(error: &Bound<'_, PyAny>) -> PyResult<Status> {
        match error.cast::<PyBaseException>() {
            Ok(exception) => {
                Ok(Status { failure: Some(PyErr::from_value(exception.clone().into_any())) })
            }
            Err(_) => match error.extract::<String>() {
                Ok(message) => Ok(Status::because(message)),
                Err(_) => Err(PyTypeError::new_err(format!(
                    "error is {}; pass an exception or a message",
                    shown(error)
                ))),
            },
        }
    }

    /// None for a success, else the exception with the reason.
    #[getter]
    fn error<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBaseException>> {
        self.failure.as_ref().map(|failure| failure.value(py).clone())
    }

    /// Raises `.error` if it is not None.
    fn raise_on_error(&self, py: Python<'_>) -> PyResult<()> {
        self.failure.as_ref().map_or(Ok(()), |failure| Err(failure.clone_ref(py)))
    }

    fn __bool__(&self) -> bool {
        self.failure.is_none()
    }

    fn __eq__(&self, other: &Status, py: Python<'_>) -> PyResult<bool> {
        match (self.error(py), other.error(py)) {
            (None, None) => Ok(true),
            (Some(mine), Some(theirs)) => mine.eq(theirs),
            _ => Ok(false),
        }
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> (Bound<'py, PyType>, (Option<Bound<'py, PyBaseException>>,)) {
        (py.get_type::<Status>(), (self.error(py),))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.error(py) {
            None => "Status.success()".to_owned(),
            Some(exception) => format!("Status.fail({})", shown(exception.as_any())),
        }
    }
}
