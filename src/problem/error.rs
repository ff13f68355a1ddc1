//! Why operands do not make a problem. Each message names the operand, the value, and what would fit.

use thiserror::Error;

use crate::operand::{DType, Device};

#[derive(Debug, Error, PartialEq)]
pub enum ProblemError {
    #[error("{name} must have rank {expected}, but has rank {rank} (shape {shape:?})")]
    Rank { name: &'static str, expected: &'static str, rank: usize, shape: Vec<i64> },

    #[error(
        "A, B and out must have one rank, but {name} has shape {shape:?} where A has shape {a_shape:?}"
    )]
    MixedRanks { name: &'static str, shape: Vec<i64>, a_shape: Vec<i64> },

    #[error(
        "dimension {dimension} differs: it is {left} in {left_name} with shape {left_shape:?}, \
         but {right} in {right_name} with shape {right_shape:?}"
    )]
    Mismatch {
        dimension: &'static str,
        left_name: &'static str,
        left: i64,
        left_shape: Vec<i64>,
        right_name: &'static str,
        right: i64,
        right_shape: Vec<i64>,
    },

    #[error(
        "{name} is on {device}, but out is on {out_device}; all operands must be on one device"
    )]
    MixedDevices { name: &'static str, device: Device, out_device: Device },

    #[error("{name} is read-only, so the result cannot be written to it; pass a writable tensor")]
    ReadOnly { name: &'static str },

    #[error(
        "{name} with shape {shape:?} and strides {stride:?} has several indices on one element, \
         so the result cannot be written to it; pass a tensor of its own memory"
    )]
    SelfOverlap { name: &'static str, shape: Vec<i64>, stride: Vec<i64> },

    #[error(
        "out shares memory with {name}, which would be overwritten while it is read; pass a tensor of its own memory"
    )]
    Aliased { name: &'static str },

    #[error(
        "{name} with shape {shape:?} does not broadcast to the shape of the output, {out_shape:?}; an epilogue's inputs have \
         that shape, or extent 1 where they repeat"
    )]
    NotBroadcast { name: &'static str, shape: Vec<i64>, out_shape: Vec<i64> },

    #[error(
        "{name} has shape {shape:?}, but an output of an epilogue has the shape of the product, {out_shape:?}"
    )]
    OutputShape { name: &'static str, shape: Vec<i64>, out_shape: Vec<i64> },

    #[error(
        "{name} is a reduction along dimension {dim}, which an output of shape {out_shape:?} does not have; count from its first \
         dimension, 0, or from its last, -1"
    )]
    ReducedDimension { name: &'static str, dim: i32, out_shape: Vec<i64> },

    #[error(
        "{name} is reduced along the batch alone (the output's shape is {out_shape:?}); reductions are along rows (dim=-1) or \
         columns (dim=-2), with or without the batch"
    )]
    ReducedBatch { name: &'static str, out_shape: Vec<i64> },

    #[error(
        "{name} has shape {shape:?}, but the reduction has shape {squeezed:?}, or {kept:?} with the reduced dimensions kept"
    )]
    ReductionShape { name: &'static str, shape: Vec<i64>, kept: Vec<i64>, squeezed: Vec<i64> },

    #[error(
        "{name} is a maximum along a dimension without elements (the output's shape is {out_shape:?}), which has no value"
    )]
    EmptyMaximum { name: &'static str, out_shape: Vec<i64> },

    #[error(
        "{name} is one too many: the epilogue has {count} operands, and a launch has room for {limit}"
    )]
    ManyOperands { name: &'static str, count: usize, limit: usize },

    #[error(
        "{name} is a reduction, and those are fused behind a GEMM alone; reduce the stored output instead"
    )]
    NotReduced { name: &'static str },

    #[error("{name} has dtype {dtype}, which epilogues do not compute with; these are: {known}")]
    EpilogueType { name: &'static str, dtype: DType, known: String },

    #[error(
        "{name} is an output of the epilogue, and so has to be a tensor to write to, not a number"
    )]
    NotTensor { name: &'static str },

    #[error(
        "{name} is {value}, which an int32 does not hold, and with an integer accumulator integers stay integers"
    )]
    LargeInteger { name: &'static str, value: i64 },

    #[error(
        "the outputs {name} and {other} of the epilogue share memory, so that one would overwrite the other; pass tensors of \
         their own memory"
    )]
    SharedOutputs { name: &'static str, other: &'static str },

    #[error(
        "the output {name} shares memory with {other}, which would be overwritten while it is read; pass a tensor of its own \
         memory, or the very same one with the same shape and strides"
    )]
    OverwrittenInput { name: &'static str, other: &'static str },

    #[error("offsets must have dtype int32, but has {dtype}")]
    OffsetsType { dtype: DType },
}
