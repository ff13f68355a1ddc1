//! The element types that the reference computes with.

use crate::operand::DType;

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
