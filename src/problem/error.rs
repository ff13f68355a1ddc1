//! Errors of operands that do not form a valid problem. Each message names the operand, the value
//! and the remedy.

use thiserror::Error;

use crate::operand::{DType, DeviceId, View};

#[derive(Debug, Error, PartialEq)]
pub enum ProblemError {
    #[error("{name} must have rank {expected}, but has rank {rank} (shape {shape:?})")]
    Rank { name: &'static str, expected: &'static str, rank: usize, shape: Vec<i64> },

    #[error(
        "A, B and out must have the same rank, but {name} has shape {shape:?} and A has shape \
         {a_shape:?}"
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

    #[error("{name} is on {device}, but out is on {out_device}; move all operands to one device")]
    MixedDevices { name: &'static str, device: DeviceId, out_device: DeviceId },

    #[error("{name} is read-only, so the result cannot be written to it; pass a writable tensor")]
    ReadOnly { name: &'static str },

    #[error(
        "{name} with shape {shape:?} and strides {stride:?} overlaps itself, so the \
         result cannot be written to it; pass a tensor without repeated elements"
    )]
    SelfOverlap { name: &'static str, shape: Vec<i64>, stride: Vec<i64> },

    #[error(
        "out shares memory with {name}, which a kernel would overwrite while reading it; pass a \
         tensor with its own memory"
    )]
    Aliased { name: &'static str },

    #[error(
        "{name} with shape {shape:?} does not broadcast to the output's shape {out_shape:?}; each \
         dimension must match the output or have extent 1"
    )]
    NotBroadcast { name: &'static str, shape: Vec<i64>, out_shape: Vec<i64> },

    #[error(
        "{name} with shape {shape:?} does not broadcast to the output's shape {out_shape:?}; each \
         dimension must match the output or have extent 1; pass a row for each group with shape \
         {rows:?}"
    )]
    NotBroadcastToGroups {
        name: &'static str,
        shape: Vec<i64>,
        out_shape: Vec<i64>,
        rows: [i64; 3],
    },

    #[error(
        "{name} has shape {shape:?}, but an epilogue's outputs must have the shape of out, \
         {out_shape:?}"
    )]
    OutputShape { name: &'static str, shape: Vec<i64>, out_shape: Vec<i64> },

    #[error(
        "{name} is reduced along dimension {dim}, which an output of shape {out_shape:?} does not \
         have; count from 0 for its first dimension or from -1 for its last"
    )]
    ReducedDimension { name: &'static str, dim: i32, out_shape: Vec<i64> },

    #[error(
        "{name} is reduced along the batch dimension alone (the output's shape is {out_shape:?}); \
         reduce along rows (dim=-1) or columns (dim=-2), with or without the batch dimension"
    )]
    ReducedBatch { name: &'static str, out_shape: Vec<i64> },

    #[error(
        "{name} has shape {shape:?}, but the reduction has shape {squeezed:?}, or {kept:?} if the \
         reduced dimensions are kept"
    )]
    ReductionShape { name: &'static str, shape: Vec<i64>, kept: Vec<i64>, squeezed: Vec<i64> },

    #[error(
        "{name} is a maximum along a dimension of extent 0 (the output's shape is {out_shape:?}), \
         which is undefined"
    )]
    EmptyMaximum { name: &'static str, out_shape: Vec<i64> },

    #[error(
        "{name} exceeds the limit of {limit} epilogue operands per launch: the epilogue has {count}"
    )]
    ManyOperands { name: &'static str, count: usize, limit: usize },

    #[error(
        "{name} is a reduction, which only the epilogue of a GEMM can fuse; reduce the stored \
         output instead"
    )]
    NotReduced { name: &'static str },

    #[error(
        "product({name}) multiplies A by a second matrix, which only the epilogue of a GEMM, also \
         with groups along M, can do; compute the product by a launch of its own"
    )]
    NoProduct { name: &'static str },

    #[error(
        "{name} is the argument of product(...) in an epilogue with scale_blocks(...); use one of \
         them"
    )]
    ScaledFactor { name: &'static str },
    #[error(
        "product({name}) multiplies A by {name}, but a number was passed; pass a matrix like B"
    )]
    FactorNotTensor { name: &'static str },

    #[error(
        "A is multiplied by {name}, so the epilogue cannot read its elements, too; pass the tensor \
         a second time, as another parameter"
    )]
    FactorRead { name: &'static str },

    #[error(
        "{name} is {dtype} with shape {shape:?} and strides {stride:?}, but product({name}) \
         requires B's: {b_dtype} with shape {b_shape:?} and strides {b_stride:?}"
    )]
    UnlikeB {
        name: &'static str,
        dtype: DType,
        shape: Vec<i64>,
        stride: Vec<i64>,
        b_dtype: DType,
        b_shape: Vec<i64>,
        b_stride: Vec<i64>,
    },

    #[error("B is a list of {count} matrices; kernels take from 2 to {limit}")]
    JointCount { count: usize, limit: usize },

    #[error(
        "B is a list of matrices, which only a GEMM without groups takes; compute the products by \
         launches of their own"
    )]
    JointOperation,

    #[error(
        "B is a list of matrices, and A has shape {shape:?}; pass operands of rank 2, without a \
         batch"
    )]
    JointBatch { shape: Vec<i64> },

    #[error(
        "out has shape {out_shape:?}, but the matrices in the list B have {columns} columns \
         together"
    )]
    JointColumns { columns: i64, out_shape: Vec<i64> },

    #[error("B is a list of matrices, which no epilogue with {what} takes; pass one matrix B")]
    JointEpilogue { what: &'static str },

    #[error("{name} is a matrix of the list B, but a number was passed; pass a tensor")]
    JointNumber { name: &'static str },

    #[error(
        "{name} is {dtype} with shape {shape:?} and strides {stride:?}, but each matrix in the \
         list B must be {b_dtype} of rank 2, with {k} rows (K) and stride 1 along K"
    )]
    UnlikeOthers {
        name: &'static str,
        dtype: DType,
        shape: Vec<i64>,
        stride: Vec<i64>,
        b_dtype: DType,
        k: i64,
    },

    #[error(
        "{name} is a list of {count} vectors, but B is a list of {matrices} matrices; pass a \
         vector for each matrix"
    )]
    ListCount { name: &'static str, count: usize, matrices: usize },

    #[error("{name} is a list of vectors, but B is one matrix; pass one tensor, or a list as B")]
    ListOfOne { name: &'static str },

    #[error("{name} is a vector of a list, but a number was passed; pass a tensor")]
    SegmentNumber { name: &'static str },

    #[error(
        "{name} is {dtype} with shape {shape:?} and strides {stride:?}, but the vector for its \
         matrix B must be {expected} with shape [{columns}], and contiguous"
    )]
    UnlikeColumns {
        name: &'static str,
        dtype: DType,
        shape: Vec<i64>,
        stride: Vec<i64>,
        expected: DType,
        columns: i64,
    },

    #[error("{name} is B itself; write accum in place of product({name})")]
    FactorIsB { name: &'static str },

    #[error(
        "{name} is a reduction, which an epilogue with product(...) cannot return; reduce the \
         stored output instead"
    )]
    ReducedProduct { name: &'static str },

    #[error("{name} has dtype {dtype}, which epilogues do not support; use one of: {known}")]
    EpilogueType { name: &'static str, dtype: DType, known: String },

    #[error(
        "{name} is an output of the epilogue, but a number was passed; pass a tensor to write to"
    )]
    NotTensor { name: &'static str },

    #[error(
        "{name} is {value}, which exceeds int32; with an integer accumulator, write it as a float"
    )]
    LargeInteger { name: &'static str, value: i64 },

    #[error(
        "the outputs {name} and {other} of the epilogue share memory, so one would overwrite the \
         other; pass tensors that do not overlap"
    )]
    SharedOutputs { name: &'static str, other: &'static str },

    #[error(
        "the output {name} shares memory with {other}, which a kernel would overwrite while \
         reading it; pass a tensor with its own memory, or the same tensor with the same shape and \
         strides"
    )]
    OverwrittenInput { name: &'static str, other: &'static str },

    #[error(
        "the epilogue scales blocks of A or B along K, but the operation is no matrix product; \
         pass the epilogue to a GEMM"
    )]
    ScaledSum,

    #[error(
        "the epilogue scales blocks of A or B along K, which requires accumulator_type float32, \
         but it is {accumulator}"
    )]
    ScaleAccumulator { accumulator: DType },

    #[error(
        "the epilogue has zero points of {name}, which has dtype {dtype}; only int8, uint8, int4 \
         and uint4 operands have zero points"
    )]
    ZeroPoints { name: &'static str, dtype: DType },

    #[error("{name} holds {what} and has dtype {dtype}; use one of: {known}")]
    ScaleType { name: &'static str, what: &'static str, dtype: DType, known: String },

    #[error(
        "{name} has dtype {dtype}, whose powers of two exceed the range of the other factor's \
         float16; pass the other factor in bfloat16"
    )]
    ScaleRange { name: &'static str, dtype: DType },

    #[error("{name} holds scales or zero points of blocks, but a number was passed; pass a tensor")]
    ScaleNumber { name: &'static str },

    #[error(
        "{name} has shape {shape:?}, but {factor} with shape {factor_shape:?} takes scales of \
         shape {expected}"
    )]
    ScaleShape {
        name: &'static str,
        shape: Vec<i64>,
        factor: &'static str,
        factor_shape: Vec<i64>,
        expected: String,
    },

    #[error("a prologue computes A of a product, and the operation is none; pass it to a GEMM")]
    NoPrologue,

    #[error(
        "A has shape {shape:?}, with K = 0: a prologue needs at least one column of A; leave it \
         out, the product is 0"
    )]
    EmptyPrologue { shape: Vec<i64> },

    #[error(
        "A has scales, and the prologue computes A; apply the scales in the prologue function and \
         pass A without them"
    )]
    ScaledActivations,

    #[error(
        "{name} with shape {shape:?} does not broadcast to the shape of A, {a_shape:?}; each \
         dimension must match A or have extent 1"
    )]
    NotBroadcastToA { name: &'static str, shape: Vec<i64>, a_shape: Vec<i64> },

    #[error(
        "{name} has shape {shape:?}, but an output of a prologue must have the shape of A, \
         {a_shape:?}, or extent 1 along K for one number of each row"
    )]
    PrologueOutputShape { name: &'static str, shape: Vec<i64>, a_shape: Vec<i64> },

    #[error(
        "{name} has extent 1 along K, and its value in the prologue is not one number of each row: \
         such a value depends on reductions over K and on numbers only; pass a tensor of the shape \
         of A"
    )]
    PrologueNumber { name: &'static str },

    #[error(
        "B has shape {shape:?}, with N = 0: no kernel runs that would store the prologue's output \
         {name}; compute {name} without a product"
    )]
    UnstoredPrologue { name: &'static str, shape: Vec<i64> },

    #[error(
        "the prologue has {count} reductions or numbers of a row at a time, and kernels compute \
         {limit}; reduce before the product"
    )]
    ManyReductions { count: usize, limit: usize },

    #[error(
        "the output {name} shares memory with {other}, which other parts of the kernel read while \
         {name} is written; pass a tensor with its own memory"
    )]
    OverwrittenPrologue { name: &'static str, other: &'static str },

    #[error(
        "the output {name} of the prologue shares memory with the output {other}, so one would \
         overwrite the other; pass tensors that do not overlap"
    )]
    SharedPrologueOutputs { name: &'static str, other: &'static str },

    #[error("offsets must have dtype int32, but has dtype {dtype}")]
    OffsetsType { dtype: DType },

    #[error("index is {dtype}; pass int32")]
    IndexType { dtype: DType },

    #[error(
        "index names rows of A for groups of rows, and the groups are masked or divide K; pass A \
         with its rows in order"
    )]
    IndexOfGroups,
}

/// Why the values of a grouped GEMM's offsets name no groups.
#[derive(Debug, Error, PartialEq)]
pub enum GroupsError {
    #[error(
        "offsets must not decrease and must lie in 0 to {extent}, the {divided} of A, but group \
         {group} spans {divided} {start} to {end}"
    )]
    Order { group: usize, start: i64, end: i64, extent: i64, divided: &'static str },

    #[error(
        "counts of rows must lie in 0 to {rows}, the rows of each matrix of A, but group {group} \
         has {count}"
    )]
    Count { group: usize, count: i64, rows: i64 },

    #[error(
        "index must lie in 0 to {last}, the last row of A, but row {row} of group {group} has \
         {index}"
    )]
    Index { row: i64, group: usize, index: i64, last: i64 },
}

impl ProblemError {
    #[cold]
    pub(super) fn rank(name: &'static str, expected: &'static str, view: &View) -> ProblemError {
        let (rank, shape) = (view.rank, view.user_shape().to_vec());
        ProblemError::Rank { name, expected, rank, shape }
    }
}
