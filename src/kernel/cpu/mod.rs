//! Kernels of the reference backend, which run on the CPU.

mod config;
mod family;

pub use config::Reference;
