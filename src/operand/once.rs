//! A value that is made once, under the interpreter's lock.

use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::type_object::PyTypeCheck;

/// Unlike PyO3's `PyOnceLock`, no thread waits for another one that makes the value: a child forked
/// meanwhile would wait forever. Making a value may switch threads, so that two threads make one;
/// the first stays.
pub struct OnceValue<T>(OnceLock<T>);

impl<T> OnceValue<T> {
    #[expect(
        clippy::new_without_default,
        reason = "for statics alone, which need a const function"
    )]
    pub const fn new() -> OnceValue<T> {
        OnceValue(OnceLock::new())
    }

    #[inline]
    pub fn get(&self, _py: Python<'_>) -> Option<&T> {
        self.0.get()
    }

    /// The value, unless there is one.
    pub fn set(&self, _py: Python<'_>, value: T) -> Result<(), T> {
        self.0.set(value)
    }

    #[inline]
    pub fn get_or_init(&self, _py: Python<'_>, make: impl FnOnce() -> T) -> &T {
        match self.0.get() {
            Some(value) => value,
            None => {
                let value = make();
                self.0.get_or_init(|| value)
            }
        }
    }

    /// # Errors
    /// Those of `make`, which are not kept.
    #[inline]
    pub fn get_or_try_init<E>(
        &self,
        _py: Python<'_>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&T, E> {
        match self.0.get() {
            Some(value) => Ok(value),
            None => {
                let value = make()?;
                Ok(self.0.get_or_init(|| value))
            }
        }
    }
}

impl<T: PyTypeCheck> OnceValue<Py<T>> {
    /// The attribute of a module.
    ///
    /// # Errors
    /// If the import fails, or the attribute is missing or of another type.
    pub fn import<'py>(
        &self,
        py: Python<'py>,
        module: &str,
        attribute: &str,
    ) -> PyResult<&Bound<'py, T>> {
        let make = || Ok(py.import(module)?.getattr(attribute)?.cast_into()?.unbind());
        self.get_or_try_init::<PyErr>(py, make).map(|value| value.bind(py))
    }
}
