//! The `skinny` family: products with few rows or few columns, which are bound by how fast the
//! other operand is read.

mod config;
mod family;
mod source;
mod space;

pub use config::{Method, Narrow, Skinny};
