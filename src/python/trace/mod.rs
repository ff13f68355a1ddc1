//! Translation of an epilogue function, or of its source text, into an expression graph. The
//! function's syntax tree is walked node by node; an error shows the line of the user's source.

mod expressions;
mod functions;
mod names;
mod number;
mod scope;
mod source;
mod statements;
mod traced;
mod tracer;

pub use functions::{EpilogueFunction, epilogue_functions};
pub use number::number;
pub use traced::{TracedEpilogue, trace_epilogue, trace_function};
