//! Operands: DLPack, torch's C functions, element types, the operand view.

mod dlpack;
mod dtype;
mod memory;
mod object_cache;
mod once;
mod reader;
mod refusals;
mod torch;
mod view;

pub use dtype::{Class, DType, Element, Storage};
pub use memory::Memory;
pub use object_cache::ObjectCache;
pub use once::OnceValue;
pub use reader::{
    Operand, current_stream, has_current_stream, is_of_jax, is_plain_torch, read, read_into,
    read_memory, set_c_exchange, uses_c_exchange, without_memory,
};
pub use view::{DeviceId, View};
