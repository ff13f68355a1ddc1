//! The `elementwise` family: out = A + B, bound by memory bandwidth.

mod config;
mod dimensions;
mod family;
mod launch;

#[cfg(test)]
mod tests;

pub use config::Elementwise;
pub use launch::ElementwiseParams;
