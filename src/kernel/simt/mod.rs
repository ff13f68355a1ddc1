//! The `simt` family: plain multiply-adds. Serves any types, strides and alignment.

mod config;
mod cost;
mod family;

pub use config::Simt;
