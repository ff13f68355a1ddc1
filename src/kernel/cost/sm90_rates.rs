//! Rates and times that the models of `sm90` share, fitted on an H100.

/// How much longer tensor cores take that one consumer warpgroup has to itself.
pub const FITTED_ALONE: f64 = 1.03;
/// Bytes a second of device memory, and seconds until the first bytes arrive.
pub const FITTED_MEMORY_RATE: f64 = 3.35e12;
pub const FITTED_MEMORY_LATENCY: f64 = 0.2e-6;
/// Seconds of a launch.
pub const FITTED_LAUNCH: f64 = 0.05e-6;
