//! Epilogues: the computation between the accumulator and the stored output.
//!
//! An expression graph, the types of its operands, and the CUDA C++ generated from both. This
//! folder does not depend on Python, the compiler or the driver.

mod bound;
mod call;
mod cuda;
mod cuda_scales;
mod functions;
mod graph;
mod intern;
mod operand_type;
mod scale_blocks;
mod scaling;
mod source;
mod specialized;

pub use bound::{BoundEpilogue, Value};
pub use call::{Argument, Meaning};
pub use cuda::functor;
pub use functions::{
    Binary, BinaryRecord, Build, Comparison, Constant, Fold, Function, Id, Operation, Parameter,
    Unary,
};
pub use graph::{ACCUMULATOR, ExpressionGraph, Kind, MAIN_OUTPUT, Node, Number, Output};
pub use intern::{intern, intern_name};
pub use operand_type::{Input, Step, TensorType};
pub use scaling::{BlockScale, SWIZZLE, SWIZZLED_TILE, Scaling, TILE_SCALES};
pub use specialized::{Epilogue, Joint, Reduction, compute_type};
