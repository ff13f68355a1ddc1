//! The element types that the reference computes with.

use crate::operand::{Class, DType};

/// Whether the reference computes a GEMM, grouped or not, of these types.
///
/// The accumulator's type restricts the inputs and does not change the arithmetic: rounding partial
/// sums as a GPU does, in an order that differs between kernels, would make a worse oracle.
pub fn multiplies(a: DType, b: DType, accumulator: DType, out: DType) -> bool {
    if !b.is_whole() {
        let is_weight = a.class() == Some(Class::Half) && b.is_widened();
        return is_weight && accumulator == DType::F32 && out.is_whole() && out.is_float();
    }
    let accumulates = match accumulator {
        DType::I32 => a.is_integer() && b.is_integer(),
        DType::F64 | DType::F32 => a.is_float() || b.is_float(),
        DType::F16 => a == DType::F16 && b == DType::F16,
        _ => false,
    };
    // A float sum is stored as int32 as C++ casts it: rounded towards zero.
    let truncates = a.is_float() && b.is_float() && out == DType::I32;
    accumulates && (truncates || adds(a, b, out))
}

/// Whether the reference computes an elementwise sum of these types. Integer sums are int32, then
/// narrowed with wrapping (as in torch's casts) or rounded to a float. Other sums are floats.
pub fn adds(a: DType, b: DType, out: DType) -> bool {
    let known = DType::is_whole;
    let integers = a.is_integer() && b.is_integer();
    let narrow_float = out.class() == Some(Class::Float8);
    known(a) && known(b) && if integers { known(out) && !narrow_float } else { out.is_float() }
}
