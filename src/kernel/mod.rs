//! Kernels as values: problems served, requirements on operands, launches and estimated costs.
//! Independent of Python, compiler and driver, so every decision is tested without a GPU.
//!
//! Each family has a folder, implements [`family::Family`] and has an entry in `design.rs`.

mod cost;
mod cpu;
mod demand;
mod description;
mod design;
mod elementwise;
mod explain;
mod family;
mod fields;
mod frame;
mod fusion;
mod instance;
mod joint;
mod launch;
mod layout;
mod limits;
mod listing;
mod name;
mod operation;
mod pack;
mod params;
mod program;
mod ranking;
mod reduction;
mod rows;
mod sgemm;
mod simt;
mod skinny;
mod sm80;
mod sm90;
mod source;
mod space;
mod tensor_map;
mod tiles;
mod types;
mod unsupported;

#[cfg(test)]
mod tests;

pub use cost::chips::{DeviceFacts, Target};
#[cfg(feature = "fit")]
pub use cost::factors::fit;
pub use cost::query::Estimate;
pub use demand::Demand;
pub use description::{Description, Value};
pub use design::Design;
pub use elementwise::{Elementwise, ElementwiseParams};
pub use explain::{Candidate, Explanation, FamilyAnswer, NotOffered, explain};
pub use frame::Frame;
pub use fusion::Fusion;
pub use instance::Kernel;
pub use launch::{Addresses, Launch, Params};
pub use layout::{Layout, Major};
pub use listing::listed;
pub use operation::{Groups, Operation};
pub use pack::{Pack, PackOperand};
pub use params::{GemmParams, GroupOffsets, JointGemmParams};
pub use ranking::ranked;
pub use reduction::{Reduce, ReduceOperand};
pub use rows::{Rows, RowsParams};
pub use sgemm::Sgemm;
pub use simt::Simt;
pub use skinny::{Method, Skinny};
pub use sm80::Sm80;
pub use sm90::{Schedule, Sm90, Sm90Params, Sm90Scalars};
pub use source::{
    PACK_ENTRY, PROLOGUE_ENTRY, REDUCE_ENTRY, pack_source, prologue_source, reduce_source, source,
};
pub use space::{all, at, fused};
pub use tensor_map::TensorMap;
pub use types::{ProductClass, Types};
pub use unsupported::Unsupported;
