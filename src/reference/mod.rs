//! The CPU backend, and the oracle that kernels are tested against: plain arithmetic in float64, rounded once.
//!
//! Inputs are decoded to float64 tile by tile, multiplied by a dgemm, and each sum is rounded once to the output's type.
//! Where both inputs are integers the result is exact modulo 2^32, the wrapping int32 accumulator of a GPU. Memory stays
//! at a few MB a thread whatever the size, and the same inputs give the same bits however many threads share the work.

mod block;
mod element;
mod elementwise;
mod epilogue;
mod gemm;
mod pool;
#[cfg(test)]
mod tests;

use thiserror::Error;

use crate::epilogue::{BoundEpilogue, Value};
use crate::operand::{DType, Device};
use crate::problem::Problem;

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

/// Whether a GEMM, grouped or not, is computed for these types.
///
/// The accumulator's type says what a caller may ask for, and leaves the arithmetic as it is: rounding sums on the way
/// as a GPU would, in an order that no two kernels share, would make a worse oracle and no better result.
pub fn multiplies(a: DType, b: DType, accumulator: DType, out: DType) -> bool {
    let accumulates = match accumulator {
        DType::I32 => a.is_integer() && b.is_integer(),
        DType::F64 | DType::F32 => a.is_float() || b.is_float(),
        DType::F16 => a == DType::F16 && b == DType::F16,
        _ => false,
    };
    accumulates && adds(a, b, out)
}

/// Whether the elementwise sum is computed for these types. Integers come out as int32, narrowed (wrapping, as in
/// torch's casts) or rounded to a float; floats, or a float and an integer, come out as floats only.
pub fn adds(a: DType, b: DType, out: DType) -> bool {
    let known = |dtype: DType| dtype.is_float() || dtype.is_integer();
    let integers = a.is_integer() && b.is_integer();
    let narrow_float = matches!(out, DType::E4m3 | DType::E5m2);
    known(a) && known(b) && if integers { known(out) && !narrow_float } else { out.is_float() }
}

/// Computes `problem`, and the epilogue behind it if there is one, on all cores, and returns when all outputs are written.
///
/// # Safety
/// For as long as the call lasts, every element that the views of a problem and its epilogue on [`Device::Cpu`] reach, unless they are
/// marked fake, lies in live memory of this process that nobody else writes, nor reads where `out` points.
pub unsafe fn run(
    problem: &Problem,
    epilogue: Option<&BoundEpilogue>,
) -> Result<(), ReferenceError> {
    // SAFETY: the caller's, passed on.
    let compute = || unsafe { compute(problem, epilogue) };
    match pool::current() {
        Some(threads) => threads.install(compute),
        None => compute(),
    }
}

/// # Safety
/// As for [`run`].
unsafe fn compute(
    problem: &Problem,
    epilogue: Option<&BoundEpilogue>,
) -> Result<(), ReferenceError> {
    for (name, view) in problem.operands() {
        if view.device != Device::Cpu {
            return Err(ReferenceError::Device { name, device: view.device });
        }
        if view.fake {
            return Err(ReferenceError::Fake { name });
        }
    }
    let inputs =
        epilogue.into_iter().flat_map(|bound| &bound.inputs).filter_map(|value| match value {
            Value::Tensor(view) => Some(view),
            Value::Scalar(_) => None,
        });
    let outputs = epilogue.into_iter().flat_map(|bound| bound.outputs.iter().flatten());
    for view in inputs.chain(outputs) {
        if view.device != Device::Cpu {
            return Err(ReferenceError::Device {
                name: "an operand of the epilogue",
                device: view.device,
            });
        }
        if view.fake {
            return Err(ReferenceError::Fake { name: "an operand of the epilogue" });
        }
    }
    let product = |a: DType, b: DType, accumulator: DType, out: DType| {
        if multiplies(a, b, accumulator, out) {
            return Ok(());
        }
        Err(ReferenceError::ProductTypes { a, b, accumulator, out })
    };
    // SAFETY, for the three calls: the views are on the CPU and not fake, so the caller vouches for their memory; their
    // types were found to be known ones.
    match problem {
        Problem::Gemm(p) => {
            product(p.a.dtype, p.b.dtype, p.accumulator, p.out.dtype)?;
            unsafe { gemm::multiply(p, epilogue) };
        }
        Problem::GroupedGemm(p) => {
            product(p.a.dtype, p.b.dtype, p.accumulator, p.out.dtype)?;
            unsafe { gemm::multiply_groups(p, epilogue) }?;
        }
        Problem::Elementwise(p) => {
            let (a, b, out) = (p.a.dtype, p.b.dtype, p.out.dtype);
            if !adds(a, b, out) {
                return Err(ReferenceError::SumTypes { a, b, out });
            }
            unsafe { elementwise::add(p, epilogue) };
        }
    }
    Ok(())
}
