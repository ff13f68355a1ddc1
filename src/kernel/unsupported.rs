//! Reasons why a kernel does not serve a problem.

use thiserror::Error;

use crate::operand::{DType, DeviceId};

#[derive(Clone, Debug, Error, PartialEq)]
pub enum Unsupported {
    #[error("it computes {computes}, not {requested}")]
    Operation { computes: &'static str, requested: &'static str },
    #[error("{name} has dtype {actual}, the kernel works on {expected}")]
    DType { name: &'static str, actual: DType, expected: DType },
    #[error("{name} is on {device}, the kernel runs on {expected}")]
    Device { name: &'static str, device: DeviceId, expected: &'static str },
    #[error("{name} with shape {shape:?} and strides {stride:?} is not {expected}")]
    Layout { name: &'static str, shape: Vec<i64>, stride: Vec<i64>, expected: &'static str },
    #[error(
        "{name} is aligned to {actual} bytes (address {address:#x}, strides {stride:?}), the \
         kernel reads {expected} at a time"
    )]
    Alignment { name: &'static str, address: u64, stride: Vec<i64>, actual: i64, expected: i64 },
    #[error("{name} has strides {stride:?}; TMA takes steps of less than 2^40 bytes")]
    LongStride { name: &'static str, stride: Vec<i64> },
    #[error("dimension {dimension} is {extent}; kernels index up to {limit}")]
    Extent { dimension: &'static str, extent: i64, limit: i64 },
    #[error("{dimension} is {extent}, and the kernel serves at most {limit}")]
    TooMany { dimension: &'static str, extent: i64, limit: i64 },
    #[error("K is {k}, and the kernel serves at least {least}")]
    Shallow { k: i64, least: i64 },
    #[error(
        "N is {n}; with 16-bit operands and float32 output, the kernel requires multiples of {of}"
    )]
    Uneven { n: i64, of: i64 },
    #[error("N is {n}; a kernel of two matrices B takes them in blocks of {of} columns")]
    UnevenDual { n: i64, of: i64 },
    #[error("{name} begins {bytes} bytes from B; a kernel of both reaches {limit} bytes")]
    MatricesFarApart { name: &'static str, bytes: u64, limit: u64 },
    #[error("the arguments carry the epilogue {requested}, and it fuses none")]
    FusesNone { requested: String },
    #[error("it fuses the epilogue {fused}, and the arguments carry {requested}")]
    Epilogue { fused: String, requested: String },
    #[error("its accumulators leave no registers for an epilogue")]
    NoEpilogues,
    #[error(
        "it sums float8 products with 14 bits, which the arguments do not permit; pass \
         performance=PerformanceControls(fast_sums=True)"
    )]
    FastSums,
    #[error("it multiplies A by one matrix, and product(...) in the epilogue asks for two")]
    NoProducts,
    #[error("it multiplies A by one matrix, and the arguments carry a list of them")]
    NoPanels,
    #[error(
        "its tiles have {tile} columns, and a tile lies in one of the matrices of the list B: \
         the columns of all but the last must be multiples of {tile}, and are of {unit}"
    )]
    UnevenPanels { unit: u32, tile: u32 },
    #[error(
        "the matrices of the list B are aligned to {align} bytes, and the kernel reads {expected} \
         at a time"
    )]
    UnalignedPanels { align: u32, expected: u32 },
    #[error("it reads the rows of A in order; pass A[index]")]
    NoIndex,
    #[error("it applies no scales of such blocks along K")]
    NoScales,
    #[error("{name} has rank {rank} (shape {shape:?}), and a grouped GEMM takes rank {expected}")]
    Rank { name: &'static str, rank: usize, shape: Vec<i64>, expected: usize },
    #[error("offsets has {offsets} entries for {groups} groups; pass the end row of each group")]
    Offsets { offsets: i64, groups: i64 },
}
