//! The CUDA driver: devices, contexts, libraries, launches, tensor maps, graphs. No other
//! folder calls the driver.

mod device;
mod error;
mod graph;
mod library;
mod tensor_map;
mod timing;

pub use device::{ContextGuard, Device, PoolMemory};
pub use error::DriverError;
pub use graph::{Graph, PER_THREAD_STREAM, is_captured, is_green_context_stream};
pub use library::{EncodedConfig, Function, KernelCall, LaunchConfig, Library, ParameterValue};
pub use tensor_map::EncodedTensorMap;
pub use timing::{DeviceMemory, Recording, Stream};
