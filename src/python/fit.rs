//! For `scripts/fit.py`: the factors of the cost models, in a build with the feature `fit`.

use std::collections::HashMap;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;

use crate::kernel::{Target, fit};

/// The factors that estimates of this process have read, and their values.
#[pyfunction]
fn factors() -> HashMap<&'static str, f64> {
    fit::values().iter().map(|(name, value)| (*name, *value)).collect()
}

/// Changes a factor. Raises KeyError if no estimate has read it.
#[pyfunction]
fn set_factor(name: &str, value: f64) -> PyResult<()> {
    let mut values = fit::values();
    let factor = values.get_mut(name).ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
    *factor = value;
    Ok(())
}

/// The chip for which `cc=90` estimates: an H100, or an H200.
#[pyfunction]
fn set_chip(is_h200: bool) {
    *fit::chip() = if is_h200 { Target::H200 } else { Target::H100 };
}

pub fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_chip, module)?)?;
    module.add_function(wrap_pyfunction!(factors, module)?)?;
    module.add_function(wrap_pyfunction!(set_factor, module)?)
}
