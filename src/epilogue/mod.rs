//! Epilogues, the computation between the accumulator and the stored output, and prologues, the
//! computation of the activations in front of the product.
//!
//! An expression graph, the types of its operands, and the CUDA C++ generated from both. This
//! folder does not depend on Python, the compiler or the driver.

mod bound;
mod call;
mod cuda;
mod cuda_expression;
mod cuda_prologue;
mod cuda_scales;
mod functions;
mod graph;
mod intern;
mod operand_type;
mod prologue;
mod scale_blocks;
mod scaling;
mod source;
mod specialized;

pub use bound::{BoundEpilogue, BoundPrologue, Value};
pub use call::{Argument, Meaning};
pub use cuda::functor;
pub use cuda_prologue::prologue_functor;
pub use functions::{
    Binary, BinaryRecord, Build, Comparison, Constant, Fold, FoldRecord, Function, Id, Operation,
    Parameter, RowReduction, Unary,
};
pub use graph::{
    ACCUMULATOR, ACTIVATIONS, ExpressionGraph, Kind, MAIN_OUTPUT, Node, Number, Output, Stage,
};
pub use intern::{intern, intern_name};
pub use operand_type::{Input, Step, TensorType};
pub use prologue::{Plan, Prologue};
pub use scaling::{BlockScale, SWIZZLE, SWIZZLED_TILE, Scaling, TILE_SCALES};
pub use specialized::{Epilogue, Joint, Reduction, compute_type};
