//! Errors of timing kernels.

use thiserror::Error;

use crate::driver::DriverError;
use crate::launch::LaunchError;
use crate::reference::{Difference, ReferenceError};

/// Why a candidate is not timed.
#[derive(Debug, Error)]
pub enum TuneError {
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error(
        "{name} has {} at {:?} where the CPU reference has {}",
        of.actual, of.index, of.expected
    )]
    Differs { name: &'static str, of: Difference },
    #[error(
        "the host lacks {bytes} bytes of memory for a copy of an operand, which a comparison with \
         the CPU reference takes"
    )]
    Memory { bytes: u64 },
}

impl From<DriverError> for TuneError {
    fn from(error: DriverError) -> TuneError {
        LaunchError::from(error).into()
    }
}
