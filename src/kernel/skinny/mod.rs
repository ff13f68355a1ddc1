//! The `skinny` family: products with few rows or few columns, bound by the memory bandwidth of the
//! other operand.

mod config;
mod cost;
mod family;
mod space;

pub use config::{Method, Skinny};
