//! XLA's foreign function interface: the calls that JAX's compiled programs make.

mod api;
mod call;

pub use api::{CallFrame, Error, Layout, layouts};
pub use call::{Buffer, Call, Refusal, Stage, serve};
