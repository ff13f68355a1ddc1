//! The CPU backend, and the oracle that kernels are tested against: plain arithmetic in float64, rounded once.
//!
//! Inputs are decoded to float64 tile by tile, multiplied by a dgemm, and each sum is rounded once to the output's type.
//! Where both inputs are integers the result is exact modulo 2^32, the wrapping int32 accumulator of a GPU. Memory stays
//! at a few MB a thread whatever the size, and the same inputs give the same bits however many threads share the work.

mod element;
mod elementwise;
mod epilogue;
mod error;
mod gemm;
mod pool;
mod run;
mod scratch;
mod support;
#[cfg(test)]
mod tests;

pub use error::ReferenceError;
pub use run::run;
pub use support::{adds, multiplies};
