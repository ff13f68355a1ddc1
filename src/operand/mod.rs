//! Operands in: DLPack, element types, the operand view.

mod dlpack;
mod dtype;
mod reader;
mod view;

pub use dtype::DType;
pub use reader::{Operand, current_stream, has_current_stream, read, set_c_exchange, uses_c_exchange};
pub use view::{Device, View};
