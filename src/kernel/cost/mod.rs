//! The cost model: chip facts, and for each family an estimate of a kernel's time. The ranking
//! sorts kernels by the estimates.

pub mod chips;
pub mod query;
pub mod sgemm;
pub mod simt;
pub mod skinny;
pub mod sm80;
pub mod sm90;
pub mod sm90_grid_split;
pub mod sm90_grouped;
pub mod sm90_rates;
mod tiled;
