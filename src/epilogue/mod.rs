//! Epilogues: the computation between the accumulator and the stored output.
//!
//! An expression graph, the types of its operands, and the CUDA C++ generated from both. This
//! folder does not depend on Python, the compiler or the driver.

mod bound;
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
pub use cuda::functor;
pub use functions::{Argument, Meaning};
pub use graph::{
    ACCUMULATOR, Binary, Comparison, ExpressionGraph, Fold, Id, Kind, MAIN_OUTPUT, Node, Number,
    Output, Unary,
};
pub use intern::{intern, intern_name};
pub use operand_type::{Input, Step, TensorType};
pub use scaling::{BlockScale, SWIZZLE, SWIZZLED_TILE, Scaling, TILE_SCALES};
pub use specialized::{Epilogue, Reduction, compute_type};
