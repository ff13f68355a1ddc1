//! The CPU reference: the CPU backend, and the oracle of the tests.
//!
//! Inputs are decoded to float64 region by region, multiplied by a dgemm, and each sum is rounded
//! once to the output's type. Integer products are exact modulo 2^32, like a GPU's wrapping int32
//! accumulator. Memory per thread is bounded, and results do not depend on the number of threads.

mod compare;
mod element;
mod elementwise;
mod epilogue;
mod error;
mod gemm;
mod pool;
mod prologue;
mod run;
mod scales;
mod scratch;
mod support;

pub use compare::{Difference, Tolerance, first_difference};
pub use error::ReferenceError;
pub use run::run;
pub use support::{adds, multiplies};
