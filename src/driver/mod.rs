//! The CUDA driver: devices, contexts, libraries, launches, tensor maps, graphs. The only folder
//! that calls it.

mod device;
mod error;
mod graph;
mod library;
mod tensor_map;

pub use device::{ContextGuard, Device};
pub use error::DriverError;
pub use graph::Graph;
pub use library::{EncodedConfig, Function, KernelCall, LaunchConfig, Library};
pub use tensor_map::EncodedTensorMap;
