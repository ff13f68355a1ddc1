//! What launches need of Python.

/// What a launch needs of the language that calls it.
pub trait Host {
    /// Runs work that may block in the driver, without the lock of the interpreter.
    fn unlocked<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T;

    /// Makes frameworks return the device memory that they cache to the driver. Whether one did.
    fn release_cached_memory(&self) -> bool;
}
