//! Epilogues: what a kernel computes from the accumulator before it stores the output.
//!
//! An expression graph, the types of its operands, and the CUDA C++ generated from both. This
//! folder knows neither Python, nor the compiler, nor the driver.

mod bound;
mod cuda;
mod functions;
mod graph;
mod intern;
mod operand_type;
mod specialized;

pub use bound::{BoundEpilogue, Value};
pub use cuda::functor;
pub use functions::{Argument, Meaning};
pub use graph::{
    ACCUMULATOR, Binary, Comparison, Fold, Graph, Id, Kind, MAIN_OUTPUT, Node, Number, Output,
    Unary,
};
pub use intern::{intern, intern_name};
pub use operand_type::{Input, Step, TensorType};
pub use specialized::{Epilogue, Reduction, compute_type};
