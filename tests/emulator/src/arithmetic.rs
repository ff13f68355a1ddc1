//! Instructions of one thread: arithmetic, comparison and conversion.

use crate::ptx::Type;

/// Binary16 to a number.
pub fn from_f16(bits: u16) -> f32 {
    let (sign, exponent, mantissa) = (bits >> 15, bits >> 10 & 0x1f, bits & 0x3ff);
    let magnitude = match exponent {
        0 => f32::from(mantissa) * 2f32.powi(-24),
        0x1f if mantissa == 0 => f32::INFINITY,
        0x1f => f32::NAN,
        _ => (1.0 + f32::from(mantissa) / 1024.0) * 2f32.powi(i32::from(exponent) - 15),
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
    let scaled = magnitude * 2f64.powi(mantissa_bits as i32 - exponent);
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
        code if code < 8 => f32::from(code) * 2f32.powi(-9),
        code => (1.0 + f32::from(code & 7) / 8.0) * 2f32.powi(i32::from(code >> 3) - 7),
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
pub fn binary(name: &str, kind: Type, a: u64, b: u64) -> Option<u64> {
    Some(match kind {
        Type::Pred => match name {
            "and" => a & b,
            "or" => a | b,
            "xor" => a ^ b,
            _ => return None,
        },
        Type::F32 => u64::from(float(name, f32_of(a), f32_of(b))?.to_bits()),
        Type::F64 => double(name, f64_of(a), f64_of(b))?.to_bits(),
        Type::F16 | Type::Bf16 => {
            let (decode, encode) = format_of(kind)?;
            let [x, y] = [a, b].map(|bits| f64::from(decode(bits as u16)));
            u64::from(encode(double(name, x, y)?))
        }
        Type::F16x2 | Type::Bf16x2 => {
            let half = |shift: u32| binary(name, element_of(kind), a >> shift, b >> shift);
            half(16)? << 16 | half(0)?
        }
        Type::Bits(bytes) | Type::Signed(bytes) => {
            let is_signed = matches!(kind, Type::Signed(_));
            let (x, y) = match is_signed {
                true => (i128::from(signed(a, bytes)), i128::from(signed(b, bytes))),
                false => (i128::from(unsigned(a, bytes)), i128::from(unsigned(b, bytes))),
            };
            let width = 8 * i128::from(bytes);
            let amount = i128::from(b & 0xffff_ffff);
            let z = match name {
                "add" => x + y,
                "sub" => x - y,
                "mul.lo" | "mul.wide" => x * y,
                "mul.hi" => (x * y) >> width,
                "div" if y == 0 => -1,
                "div" => x / y,
                "rem" if y == 0 => -1,
                "rem" => x % y,
                "min" => x.min(y),
                "max" => x.max(y),
                "and" => x & y,
                "or" => x | y,
                "xor" => x ^ y,
                "shl" if amount >= width => 0,
                "shl" => x << amount,
                "shr" => x >> amount.min(width),
                _ => return None,
            };
            let bytes = if name == "mul.wide" { 2 * bytes } else { bytes };
            unsigned(z as u64, bytes)
        }
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

fn double(name: &str, x: f64, y: f64) -> Option<f64> {
    Some(match name {
        "add" => x + y,
        "sub" => x - y,
        "mul" => x * y,
        "div" => x / y,
        "min" => x.min(y),
        "max" => x.max(y),
        "copysign" => y.copysign(x),
        _ => return None,
    })
}

fn float(name: &str, x: f32, y: f32) -> Option<f32> {
    Some(match name {
        "add" => x + y,
        "sub" => x - y,
        "mul" => x * y,
        "div" => x / y,
        "min" => x.min(y),
        "max" => x.max(y),
        "max.NaN" | "min.NaN" if x.is_nan() || y.is_nan() => f32::NAN,
        "max.NaN" => x.max(y),
        "min.NaN" => x.min(y),
        "copysign" => y.copysign(x),
        _ => return None,
    })
}

/// Instructions of one operand.
pub fn unary(name: &str, kind: Type, a: u64) -> Option<u64> {
    Some(match kind {
        Type::Pred if name == "not" => a ^ 1,
        Type::F32 => {
            let x = f32_of(a);
            let y = match name {
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
            };
            u64::from(y.to_bits())
        }
        Type::F64 => {
            let x = f64_of(a);
            let y = match name {
                "neg" => -x,
                "abs" => x.abs(),
                "rcp" => 1.0 / x,
                "sqrt" => x.sqrt(),
                "rsqrt" => 1.0 / x.sqrt(),
                _ => return None,
            };
            y.to_bits()
        }
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
pub fn compare(name: &str, kind: Type, a: u64, b: u64) -> Option<bool> {
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
    Some(match name {
        "eq" => order == Some(Equal),
        "ne" => ordered && order != Some(Equal),
        "lt" | "lo" => order == Some(Less),
        "le" | "ls" => matches!(order, Some(Less | Equal)),
        "gt" | "hi" => order == Some(Greater),
        "ge" | "hs" => matches!(order, Some(Greater | Equal)),
        "equ" => !ordered || order == Some(Equal),
        "neu" => order != Some(Equal),
        "ltu" => !ordered || order == Some(Less),
        "leu" => order != Some(Greater),
        "gtu" => !ordered || order == Some(Greater),
        "geu" => order != Some(Less),
        "num" => ordered,
        "nan" => !ordered,
        _ => return None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_decoded_and_encoded() {
        for code in 0..=u16::MAX {
            let (half, brain) = (from_f16(code), from_bf16(code));
            if !half.is_nan() {
                assert_eq!(to_f16(f64::from(half)), code);
            }
            if !brain.is_nan() {
                assert_eq!(to_bf16(f64::from(brain)), code);
            }
        }
        for code in 0..=u8::MAX {
            let (x, y) = (from_e4m3(code), from_e5m2(code));
            if !x.is_nan() {
                assert_eq!(to_e4m3(f64::from(x)), code);
            }
            if y.is_finite() {
                assert_eq!(to_e5m2(f64::from(y)), code);
            }
        }
    }

    #[test]
    fn conversions_round_to_integers_and_to_tf32() {
        let to_tf32 = |bits| convert(Type::Tf32, Type::F32, "", false, bits);
        assert_eq!(to_tf32(0x3f80_1000), Some(0x3f80_0000));
        assert_eq!(to_tf32(0x3f80_3000), Some(0x3f80_4000));
        assert_eq!(to_tf32(0xffff_ffff), Some(0x7fff_e000));
        let integral = convert(Type::F64, Type::F64, "rni", false, 2.5f64.to_bits());
        assert_eq!(integral, Some(2f64.to_bits()));
    }

    #[test]
    fn ties_round_to_even() {
        assert_eq!(to_f16(1.0 + 2f64.powi(-11)), 0x3c00);
        assert_eq!(to_f16(1.0 + 3.0 * 2f64.powi(-11)), 0x3c02);
        assert_eq!(to_f16(65520.0), 0x7c00);
        assert_eq!(to_bf16(1.0 + 2f64.powi(-8)), 0x3f80);
    }

    #[test]
    fn pairs_are_computed_by_element() {
        let (one, two, three) = (0x3c00, 0x4000, 0x4200);
        let pair = |high: u64, low: u64| high << 16 | low;
        let (a, b) = (pair(two, three), pair(one, two));
        assert_eq!(binary("sub", Type::F16x2, a, b), Some(pair(one, one)));
        // 2 * 1 + 1 and 3 * 2 - 4.
        assert_eq!(fma(Type::F16x2, a, b, pair(one, 0xc400)), Some(pair(three, two)));
    }

    #[test]
    fn bytes_are_permuted() {
        assert_eq!(permute(0x3322_1100, 0x7766_5544, 0x5410), 0x5544_1100);
        assert_eq!(permute(0x0000_0080, 0, 0x0008), 0x8080_80ff);
    }
}
