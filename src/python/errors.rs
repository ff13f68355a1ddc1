//! Converts Rust errors to Python exceptions: ValueError for errors that other arguments avoid,
//! MemoryError if the host lacks memory, RuntimeError for other failures of the machine, such as a
//! missing library or a CUDA error.

use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};

use crate::compile::CompileError;
use crate::driver::DriverError;
use crate::launch::LaunchError;
use crate::problem::ProblemError;
use crate::reference::ReferenceError;
use crate::tune::TuneError;

impl From<ProblemError> for PyErr {
    fn from(error: ProblemError) -> PyErr {
        PyValueError::new_err(error.to_string())
    }
}

impl From<DriverError> for PyErr {
    #[cold]
    fn from(error: DriverError) -> PyErr {
        PyRuntimeError::new_err(error.to_string())
    }
}

impl From<CompileError> for PyErr {
    fn from(error: CompileError) -> PyErr {
        match error {
            CompileError::TooOld(_)
            | CompileError::UnknownArchitecture { .. }
            | CompileError::WrongChip { .. }
            | CompileError::NotCompiled(_)
            | CompileError::NoFunction { .. }
            | CompileError::Signature { .. }
            | CompileError::NotAnArtifact(_) => PyValueError::new_err(error.to_string()),
            CompileError::NvrtcNotFound(_)
            | CompileError::Failed { .. }
            | CompileError::Nvrtc { .. }
            | CompileError::Driver(_) => PyRuntimeError::new_err(error.to_string()),
        }
    }
}

impl From<LaunchError> for PyErr {
    #[cold]
    fn from(error: LaunchError) -> PyErr {
        match error {
            LaunchError::Driver(error) => error.into(),
            refusal => PyValueError::new_err(refusal.to_string()),
        }
    }
}

impl From<ReferenceError> for PyErr {
    #[cold]
    fn from(error: ReferenceError) -> PyErr {
        match error {
            ReferenceError::Memory { .. } => PyMemoryError::new_err(error.to_string()),
            refusal => PyValueError::new_err(refusal.to_string()),
        }
    }
}

impl From<TuneError> for PyErr {
    fn from(error: TuneError) -> PyErr {
        match error {
            TuneError::Launch(error) => error.into(),
            TuneError::Reference(error) => error.into(),
            TuneError::Memory { .. } => PyMemoryError::new_err(error.to_string()),
            TuneError::Differs { .. } => PyRuntimeError::new_err(error.to_string()),
        }
    }
}
