//! The kernels of the `simt` family for float32 operands whose rows or columns are contiguous:
//! multiply-adds with a `cp.async` pipeline. No rounding to tf32.

mod config;
mod cost;
mod family;

pub use config::Sgemm;
