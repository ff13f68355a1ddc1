//! The interface to the calling language.

/// Operations that a launch requires of the calling language.
pub trait Host {
    /// Runs `work`, which may block in the driver, without the interpreter's lock.
    fn unlocked<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T;

    /// Makes frameworks return their cached device memory to the driver. Returns whether one did.
    fn release_cached_memory(&self) -> bool;
}
