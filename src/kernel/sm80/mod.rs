//! The `sm80` family: `mma.sync` fed by `ldmatrix` from a `cp.async` pipeline. Runs on Ampere and
//! every later chip.

mod config;
mod cost;
mod family;
mod space;

pub use config::Sm80;
