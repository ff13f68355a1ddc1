//! The cost model: chip facts, the question that a family answers, and the model of tiles that
//! several families share. Each family estimates the times of its kernels (`cost.rs` of its
//! folder), and the ranking sorts kernels by the estimates.

pub mod chips;
pub mod factors;
pub mod query;
pub mod tiled;
