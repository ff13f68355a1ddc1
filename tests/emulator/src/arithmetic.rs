//! Instructions of one thread: arithmetic, comparison and conversion.

use crate::decode::{Binary, Comparison};
use crate::program::Type;

/// A power of two that is a normal number.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// Binary16 to a number.
pub fn from_f16(bits: u16) -> f32 {
    let (sign, exponent, mantissa) = (bits >> 15, bits >> 10 & 0x1f, bits & 0x3ff);
    let magnitude = match exponent {
        0 => f32::from(mantissa) * power_of_two(-24) as f32,
        0x1f if mantissa == 0 => f32::INFINITY,
        0x1f => f32::NAN,
        // The exponent's bias is 15 in binary16 and 127 in float32.
        _ => f32::from_bits((u32::from(exponent) + 112) << 23 | u32::from(mantissa) << 13),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

/// Rounds to nearest even, in a format of so many exponent and mantissa bits with IEEE bias.
/// Overflow becomes infinity.
fn encode(x: f64, exponent_bits: u32, mantissa_bits: u32) -> u32 {
    let sign = u32::from(x.is_sign_negative()) << (exponent_bits + mantissa_bits);
    let infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
    if x.is_nan() {
        return sign | infinity | 1 << (mantissa_bits - 1);
    }
    let bias = (1i32 << (exponent_bits - 1)) - 1;
    let magnitude = x.abs();
    if magnitude.is_infinite() {
        return sign | infinity;
    }
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    // In units of the last place.
    let scaled = magnitude * power_of_two(mantissa_bits as i32 - exponent);
    let rounded = scaled.round_ties_even() as u32;
    // A carry out of the mantissa increments the exponent.
    let normal = rounded >= 1 << mantissa_bits;
    let code = if normal {
        (((exponent + bias) as u32) << mantissa_bits) + rounded - (1 << mantissa_bits)
    } else {
        rounded
    };
    sign | code.min(infinity)
}

pub fn to_f16(x: f64) -> u16 {
    encode(x, 5, 10) as u16
}

pub fn to_bf16(x: f64) -> u16 {
    encode(x, 8, 7) as u16
}

pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

pub fn from_e4m3(bits: u8) -> f32 {
    let magnitude = match bits & 0x7f {
        0x7f => f32::NAN,
        code if code < 8 => f32::from(code) * power_of_two(-9) as f32,
        code => (1.0 + f32::from(code & 7) / 8.0) * power_of_two(i32::from(code >> 3) - 7) as f32,
    };
    if bits >> 7 == 1 { -magnitude } else { magnitude }
}

pub fn from_e5m2(bits: u8) -> f32 {
    from_f16(u16::from(bits) << 8)
}

/// Saturates, as the PTX conversions to these types do.
fn to_e4m3(x: f64) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    // The codes of a format with infinity and 4 exponent bits end at 240; this one ends at 448.
    let magnitude = x.abs().min(448.0);
    let code = if magnitude >= 240.0 {
        let scaled =
            (magnitude / 2f64.powi(if magnitude >= 256.0 { 5 } else { 4 })).round_ties_even();
        if magnitude >= 256.0 { 0x78 + scaled as u32 - 8 } else { 0x70 + scaled as u32 - 8 }
    } else {
        encode(magnitude, 4, 3)
    };
    (code as u8).min(0x7e) | u8::from(x.is_sign_negative()) << 7
}

fn to_e5m2(x: f64) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let code = encode(x.abs(), 5, 2) as u8;
    code.min(0x7b) | u8::from(x.is_sign_negative()) << 7
}

pub fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

pub fn f64_of(bits: u64) -> f64 {
    f64::from_bits(bits)
}

pub fn signed(value: u64, bytes: u8) -> i64 {
    let shift = 64 - 8 * u32::from(bytes);
    (value << shift) as i64 >> shift
}

pub fn unsigned(value: u64, bytes: u8) -> u64 {
    let shift = 64 - 8 * u32::from(bytes);
    value << shift >> shift
}

/// Instructions of two operands.
#[inline]
pub fn binary(operation: Binary, kind: Type, a: u64, b: u64) -> Option<u64> {
    Some(match kind {
        Type::Pred => match operation {
            Binary::And => a & b,
            Binary::Or => a | b,
            Binary::Xor => a ^ b,
            _ => return None,
        },
        Type::F32 => u64::from(binary_f32(operation, f32_of(a), f32_of(b))?.to_bits()),
        Type::F64 => binary_f64(operation, f64_of(a), f64_of(b))?.to_bits(),
        Type::F16 | Type::Bf16 => {
            let (decode, encode) = format_of(kind)?;
            let [x, y] = [a, b].map(|bits| f64::from(decode(bits as u16)));
            u64::from(encode(binary_f64(operation, x, y)?))
        }
        Type::F16x2 | Type::Bf16x2 => {
            let half = |shift: u32| binary(operation, element_of(kind), a >> shift, b >> shift);
            half(16)? << 16 | half(0)?
        }
        Type::Bits(bytes) => {
            let (x, y) = (unsigned(a, bytes), unsigned(b, bytes));
            let z = match operation {
                Binary::Div => x.checked_div(y).unwrap_or(u64::MAX),
                Binary::Rem => x.checked_rem(y).unwrap_or(u64::MAX),
                Binary::Min => x.min(y),
                Binary::Max => x.max(y),
                Binary::MulHi => ((u128::from(x) * u128::from(y)) >> (8 * bytes)) as u64,
                Binary::Shr => x.checked_shr(b as u32).unwrap_or(0),
                _ => wrapping(operation, bytes, x, y, b)?,
            };
            unsigned(z, if operation == Binary::MulWide { 2 * bytes } else { bytes })
        }
        Type::Signed(bytes) => {
            let (x, y) = (signed(a, bytes), signed(b, bytes));
            let z = match operation {
                Binary::Div | Binary::Rem if y == 0 => -1,
                Binary::Div => x.wrapping_div(y),
                Binary::Rem => x.wrapping_rem(y),
                Binary::Min => x.min(y),
                Binary::Max => x.max(y),
                Binary::MulHi => ((i128::from(x) * i128::from(y)) >> (8 * bytes)) as i64,
                Binary::Shr => x >> (b as u32).min(63),
                _ => wrapping(operation, bytes, x as u64, y as u64, b)? as i64,
            };
            unsigned(z as u64, if operation == Binary::MulWide { 2 * bytes } else { bytes })
        }
        _ => return None,
    })
}

/// Operations whose lower bits are the same for integers with and without a sign.
fn wrapping(operation: Binary, bytes: u8, x: u64, y: u64, amount: u64) -> Option<u64> {
    Some(match operation {
        Binary::Add => x.wrapping_add(y),
        Binary::Sub => x.wrapping_sub(y),
        Binary::MulLo | Binary::MulWide => x.wrapping_mul(y),
        Binary::And => x & y,
        Binary::Or => x | y,
        Binary::Xor => x ^ y,
        Binary::Shl if amount as u32 >= 8 * u32::from(bytes) => 0,
        Binary::Shl => x << (amount as u32),
        _ => return None,
    })
}

/// `fma` of scalars and of pairs.
pub fn fma(kind: Type, a: u64, b: u64, c: u64) -> Option<u64> {
    Some(match kind {
        Type::F32 => {
            let [a, b, c] = [a, b, c].map(f32_of);
            u64::from(a.mul_add(b, c).to_bits())
        }
        Type::F64 => {
            let [a, b, c] = [a, b, c].map(f64_of);
            a.mul_add(b, c).to_bits()
        }
        Type::F16 | Type::Bf16 => {
            let (decode, encode) = format_of(kind)?;
            let [a, b, c] = [a, b, c].map(|bits| f64::from(decode(bits as u16)));
            u64::from(encode(a.mul_add(b, c)))
        }
        Type::F16x2 | Type::Bf16x2 => {
            let half = |shift: u32| fma(element_of(kind), a >> shift, b >> shift, c >> shift);
            half(16)? << 16 | half(0)?
        }
        _ => return None,
    })
}

/// How elements of a 16-bit format are decoded and encoded.
type Format = (fn(u16) -> f32, fn(f64) -> u16);

fn format_of(kind: Type) -> Option<Format> {
    match kind {
        Type::F16 => Some((from_f16, to_f16)),
        Type::Bf16 => Some((from_bf16, to_bf16)),
        _ => None,
    }
}

/// The elements of a pair.
fn element_of(pair: Type) -> Type {
    match pair {
        Type::F16x2 => Type::F16,
        Type::Bf16x2 => Type::Bf16,
        other => other,
    }
}

/// Instructions of two and of one operand, in float32 and float64.
macro_rules! float_operations {
    ($binary:ident, $unary:ident, $float:ident) => {
        fn $binary(operation: Binary, x: $float, y: $float) -> Option<$float> {
            Some(match operation {
                Binary::Add => x + y,
                Binary::Sub => x - y,
                Binary::Mul => x * y,
                Binary::Div => x / y,
                Binary::MaxNan | Binary::MinNan if x.is_nan() || y.is_nan() => $float::NAN,
                Binary::Min | Binary::MinNan => x.min(y),
                Binary::Max | Binary::MaxNan => x.max(y),
                Binary::CopySign => y.copysign(x),
                _ => return None,
            })
        }

        fn $unary(name: &str, x: $float) -> Option<$float> {
            Some(match name {
                "neg" => -x,
                "abs" => x.abs(),
                "rcp" => 1.0 / x,
                "sqrt" => x.sqrt(),
                "rsqrt" => 1.0 / x.sqrt(),
                "ex2" => x.exp2(),
                "lg2" => x.log2(),
                "sin" => x.sin(),
                "cos" => x.cos(),
                "tanh" => x.tanh(),
                _ => return None,
            })
        }
    };
}

float_operations!(binary_f32, unary_f32, f32);
float_operations!(binary_f64, unary_f64, f64);

/// Instructions of one operand.
pub fn unary(name: &str, kind: Type, a: u64) -> Option<u64> {
    Some(match kind {
        Type::Pred if name == "not" => a ^ 1,
        Type::F32 => u64::from(unary_f32(name, f32_of(a))?.to_bits()),
        Type::F64 => unary_f64(name, f64_of(a))?.to_bits(),
        Type::Bits(bytes) | Type::Signed(bytes) => {
            let z = match name {
                "not" => !a,
                "neg" => a.wrapping_neg(),
                "abs" => signed(a, bytes).unsigned_abs(),
                "brev" => unsigned(a, bytes).reverse_bits() >> (64 - 8 * u32::from(bytes)),
                "popc" => u64::from(unsigned(a, bytes).count_ones()),
                "clz" => u64::from(unsigned(a, bytes).leading_zeros()) - 64 + 8 * u64::from(bytes),
                "bfind" | "bfind.shiftamt" => {
                    let mut x = unsigned(a, bytes);
                    if matches!(kind, Type::Signed(_)) && signed(a, bytes) < 0 {
                        x = unsigned(!a, bytes);
                    }
                    match x {
                        0 => 0xffff_ffff,
                        _ if name == "bfind" => u64::from(63 - x.leading_zeros()),
                        _ => 8 * u64::from(bytes) - 1 - u64::from(63 - x.leading_zeros()),
                    }
                }
                _ => return None,
            };
            unsigned(z, bytes)
        }
        _ => return None,
    })
}

/// Whether a comparison holds.
pub fn compare(comparison: Comparison, kind: Type, a: u64, b: u64) -> Option<bool> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match kind {
        Type::F32 => f32_of(a).partial_cmp(&f32_of(b)),
        Type::F64 => f64_of(a).partial_cmp(&f64_of(b)),
        Type::F16 => from_f16(a as u16).partial_cmp(&from_f16(b as u16)),
        Type::Signed(bytes) => Some(signed(a, bytes).cmp(&signed(b, bytes))),
        Type::Bits(bytes) => Some(unsigned(a, bytes).cmp(&unsigned(b, bytes))),
        _ => return None,
    };
    let ordered = order.is_some();
    Some(match comparison {
        Comparison::Eq => order == Some(Equal),
        Comparison::Ne => ordered && order != Some(Equal),
        Comparison::Lt => order == Some(Less),
        Comparison::Le => matches!(order, Some(Less | Equal)),
        Comparison::Gt => order == Some(Greater),
        Comparison::Ge => matches!(order, Some(Greater | Equal)),
        Comparison::Equ => !ordered || order == Some(Equal),
        Comparison::Neu => order != Some(Equal),
        Comparison::Ltu => !ordered || order == Some(Less),
        Comparison::Leu => order != Some(Greater),
        Comparison::Gtu => !ordered || order == Some(Greater),
        Comparison::Geu => order != Some(Less),
        Comparison::Num => ordered,
        Comparison::Nan => !ordered,
    })
}

/// `cvt` of one value; `rounding` is "rn", "rz", "rzi" and so on.
pub fn convert(to: Type, from: Type, rounding: &str, saturate: bool, a: u64) -> Option<u64> {
    let integer = match from {
        Type::Signed(bytes) => Some(i128::from(signed(a, bytes))),
        Type::Bits(bytes) => Some(i128::from(unsigned(a, bytes))),
        _ => None,
    };
    if let (Some(value), Type::Signed(bytes) | Type::Bits(bytes)) = (integer, to) {
        let value = if saturate { clamp(value, to) } else { value };
        return Some(unsigned(value as u64, bytes));
    }
    // Exact in f64, but for 64-bit integers.
    let value = match from {
        Type::F16 => f64::from(from_f16(a as u16)),
        Type::Bf16 => f64::from(from_bf16(a as u16)),
        Type::F32 => f64::from(f32_of(a)),
        Type::F64 => f64_of(a),
        _ => integer? as f64,
    };
    let integral = |x: f64| match rounding {
        "rni" => x.round_ties_even(),
        "rmi" => x.floor(),
        "rpi" => x.ceil(),
        _ => x.trunc(),
    };
    let value = if rounding.ends_with('i') { integral(value) } else { value };
    Some(match to {
        Type::Signed(bytes) | Type::Bits(bytes) => {
            let value = if value.is_nan() { 0 } else { integral(value) as i128 };
            unsigned(clamp(value, to) as u64, bytes)
        }
        Type::F32 => {
            let mut near = value as f32;
            if rounding == "rz" && f64::from(near).abs() > value.abs() {
                near = f32::from_bits(near.to_bits() - 1);
            }
            u64::from(if saturate { near.clamp(0.0, 1.0) } else { near }.to_bits())
        }
        Type::F64 => value.to_bits(),
        Type::F16 => u64::from(to_f16(value)),
        Type::Bf16 => u64::from(to_bf16(value)),
        Type::Tf32 if value.is_nan() => 0x7fff_e000,
        Type::Tf32 => {
            let bits = (value as f32).to_bits();
            let odd = bits >> 13 & 1;
            u64::from((bits + 0xfff + odd) & !0x1fff)
        }
        _ => return None,
    })
}

fn clamp(value: i128, to: Type) -> i128 {
    match to {
        Type::Signed(bytes) => {
            let limit = 1i128 << (8 * u32::from(bytes) - 1);
            value.clamp(-limit, limit - 1)
        }
        Type::Bits(bytes) => value.clamp(0, (1i128 << (8 * u32::from(bytes))) - 1),
        _ => value,
    }
}

/// `cvt` of two numbers into a pair of elements.
pub fn convert_pair(to: Type, high: f64, low: f64) -> Option<u64> {
    let pair = |encode: fn(f64) -> u16| u64::from(encode(high)) << 16 | u64::from(encode(low));
    Some(match to {
        Type::F16x2 => pair(to_f16),
        Type::Bf16x2 => pair(to_bf16),
        Type::E4m3x2 => u64::from(to_e4m3(high)) << 8 | u64::from(to_e4m3(low)),
        Type::E5m2x2 => u64::from(to_e5m2(high)) << 8 | u64::from(to_e5m2(low)),
        _ => return None,
    })
}

/// `lop3`: the table holds the result for each combination of three bits.
pub fn logic(a: u64, b: u64, c: u64, table: u64) -> u64 {
    let select = |word: u64, is_set: bool| if is_set { word } else { !word };
    let row = |at: u32| select(a, at & 4 != 0) & select(b, at & 2 != 0) & select(c, at & 1 != 0);
    let chosen = |at: u32| (table >> at & 1).wrapping_neg();
    let word = (0..8).fold(0, |word, at| word | row(at) & chosen(at));
    unsigned(word, 4)
}

/// `prmt` in its default mode.
pub fn permute(low: u32, high: u32, selector: u32) -> u32 {
    let bytes = u64::from(high) << 32 | u64::from(low);
    (0..4).fold(0, |result, at| {
        let nibble = selector >> (4 * at) & 0xf;
        let byte = (bytes >> (8 * (nibble & 7))) as u8;
        let byte = match nibble >> 3 {
            0 => byte,
            _ => ((byte as i8) >> 7) as u8,
        };
        result | u32::from(byte) << (8 * at)
    })
}
