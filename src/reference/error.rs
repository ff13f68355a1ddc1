//! Errors of the reference.

use thiserror::Error;

use crate::operand::{DType, DeviceId};
use crate::problem::GroupsError;

/// Why the reference refuses a problem. Returned before any output is written, except that other
/// groups of a grouped GEMM may have been when memory lacks.
#[derive(Debug, Error, PartialEq)]
pub enum ReferenceError {
    #[error("{name} is on {device}, but the CPU reference needs CPU tensors; copy it to the CPU")]
    Device { name: &'static str, device: DeviceId },

    #[error("{name} is a FakeTensor without memory; pass a real tensor to run a kernel")]
    Fake { name: &'static str },

    #[error(
        "the CPU reference does not support A {a}, B {b}, accumulator {accumulator} and out {out}"
    )]
    ProductTypes { a: DType, b: DType, accumulator: DType, out: DType },

    #[error("the CPU reference does not support A {a}, B {b} and out {out} in a sum")]
    SumTypes { a: DType, b: DType, out: DType },

    #[error("{name} has rank {rank}, but a grouped GEMM takes rank {expected}")]
    Rank { name: &'static str, rank: usize, expected: usize },

    #[error("offsets has {offsets} elements for {groups} groups; pass one offset per group")]
    OffsetsLength { offsets: i64, groups: i64 },

    #[error(transparent)]
    Groups(#[from] GroupsError),

    #[error("the host lacks {bytes} bytes of memory for a reduced output of the CPU reference")]
    Memory { bytes: usize },
}
