//! The CUDA driver: devices and their primary contexts, loaded programs, launches. The only folder that calls it.

mod device;
mod error;
mod graph;
mod library;
mod tensor_map;

pub use device::{Current, Device};
pub use error::DriverError;
pub use graph::Graph;
pub use library::{EncodedConfig, Function, KernelCall, LaunchConfig, Library};
pub use tensor_map::EncodedTensorMap;
