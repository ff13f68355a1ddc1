//! The `elementwise` family: out = A + B, bound by memory bandwidth.

mod config;
mod family;
mod frame;
mod launch;

#[cfg(test)]
mod tests;

pub use config::Elementwise;
pub use launch::ElementwiseParams;
