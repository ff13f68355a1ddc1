//! Why the reference refuses a problem.

use thiserror::Error;

use crate::operand::{DType, Device};

/// Why the reference does not compute a problem. Nothing has been written when one of these is returned.
#[derive(Debug, Error, PartialEq)]
pub enum ReferenceError {
    #[error("{name} is on {device}, but the CPU reference computes in CPU memory only")]
    Device { name: &'static str, device: Device },

    #[error("{name} has no memory behind it (a FakeTensor), so it can be described but not run on")]
    Fake { name: &'static str },

    #[error(
        "the CPU reference has no product of {a} and {b} with {accumulator} accumulation into {out}"
    )]
    ProductTypes { a: DType, b: DType, accumulator: DType, out: DType },

    #[error("the CPU reference has no sum of {a} and {b} into {out}")]
    SumTypes { a: DType, b: DType, out: DType },

    #[error(
        "offsets has {offsets} elements, but B has {groups} groups; each group needs one offset"
    )]
    OffsetsLength { offsets: i64, groups: i64 },

    #[error(
        "offsets must rise from 0 to at most the {rows} rows of A, but group {group} would reach from row {start} to row {end}"
    )]
    OffsetsOrder { group: i64, start: i64, end: i64, rows: i64 },
}
