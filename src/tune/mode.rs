//! The environment variable `CUTLASS_API_TUNE`, and what replaces it for a while.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use thiserror::Error;

/// What happens to results of the tuner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The store is not read.
    Off,
    /// Measured kernels rank first.
    Use,
    /// As `Use`, and products whose kernel the core chooses are tuned when they are first called.
    Record,
}

#[derive(Clone, Debug, Error)]
#[error("CUTLASS_API_TUNE is {0:?}; set it to off, use or record, or unset it, which means use")]
pub struct ModeError(String);

/// The mode that replaces the variable's: its place in [`Mode::ALL`], from 1. 0: none.
static REPLACED: AtomicU8 = AtomicU8::new(0);

impl Mode {
    const ALL: [Mode; 3] = [Mode::Off, Mode::Use, Mode::Record];

    /// Replaces the variable's mode in this process; `None` restores it.
    pub fn replace(mode: Option<Mode>) {
        let place = mode.and_then(|mode| Mode::ALL.iter().position(|each| *each == mode));
        REPLACED.store(place.map_or(0, |place| place as u8 + 1), Ordering::Relaxed);
    }

    /// The mode of this process. The variable is read once.
    ///
    /// # Errors
    /// If the variable has another value.
    pub fn current() -> Result<Mode, ModeError> {
        if let Some(place) = usize::from(REPLACED.load(Ordering::Relaxed)).checked_sub(1) {
            return Ok(Mode::ALL[place]);
        }
        static MODE: OnceLock<Result<Mode, ModeError>> = OnceLock::new();
        MODE.get_or_init(|| Mode::parse(std::env::var("CUTLASS_API_TUNE").ok().as_deref())).clone()
    }

    /// The mode of a value of the variable.
    ///
    /// # Errors
    /// If no mode has this value.
    pub fn parse(value: Option<&str>) -> Result<Mode, ModeError> {
        match value {
            None | Some("" | "use") => Ok(Mode::Use),
            Some("off") => Ok(Mode::Off),
            Some("record") => Ok(Mode::Record),
            Some(other) => Err(ModeError(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert_eq!(Mode::parse(None).ok(), Some(Mode::Use));
        assert_eq!(Mode::parse(Some("")).ok(), Some(Mode::Use));
        assert_eq!(Mode::parse(Some("off")).ok(), Some(Mode::Off));
        assert_eq!(Mode::parse(Some("record")).ok(), Some(Mode::Record));
        let error = Mode::parse(Some("on")).expect_err("no value").to_string();
        assert!(error.contains("\"on\"") && error.contains("off, use or record"), "{error}");
    }
}
