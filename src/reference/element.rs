//! Element types. Each decodes to float64 exactly, and rounds from float64 once, to nearest even.

use half::{bf16, f16};

use crate::operand::DType;

/// One element as an operand stores it.
pub trait Element: Copy + 'static {
    fn decode(self) -> f64;

    /// The nearest element. Integer types take the nearest int32 towards zero (0 for NaN), as a
    /// GPU converts floats, and its low bits.
    fn encode(value: f64) -> Self;
}

/// Evaluates an expression with a type name bound to the [`Element`] of a computed
/// [`DType`](crate::operand::DType) of whole bytes.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        with_element!(@match $dtype, $T, $body,
            F64: f64, F32: f32, F16: half::f16, Bf16: half::bf16, I8: i8, U8: u8, I32: i32,
            E4m3: $crate::reference::element::E4m3, E5m2: $crate::reference::element::E5m2)
    };
    (@match $dtype:expr, $T:ident, $body:expr, $($name:ident: $element:ty),*) => {
        match $dtype {
            $($crate::operand::DType::$name => {
                type $T = $element;
                $body
            })*
            dtype => unreachable!("{dtype} is refused before the computation"),
        }
    };
}
pub(super) use with_element;

impl Element for f64 {
    fn decode(self) -> f64 {
        self
    }

    fn encode(value: f64) -> f64 {
        value
    }
}

impl Element for f32 {
    fn decode(self) -> f64 {
        f64::from(self)
    }

    fn encode(value: f64) -> f32 {
        value as f32
    }
}

impl Element for f16 {
    // Not `f16::to_f64`, which tests the CPU's features for every element.
    fn decode(self) -> f64 {
        let (sign, magnitude) =
            (u64::from(self.to_bits() >> 15), u64::from(self.to_bits() & 0x7fff));
        let value = match magnitude < 0x7c00 {
            true => finite_value(magnitude, 10, 15),
            false => f64::from_bits(0x7ff << 52 | magnitude << 42),
        };
        f64::from_bits(value.to_bits() | sign << 63)
    }

    // Not `f16::from_f64`, which with F16C rounds to float32 first, nor `bf16::from_f64`, which
    // drops the low 32 bits before rounding: both can be off by one unit in the last place.
    fn encode(value: f64) -> f16 {
        f16::from_f32(round_to_odd(value))
    }
}

impl Element for bf16 {
    fn decode(self) -> f64 {
        f64::from(f32::from_bits(u32::from(self.to_bits()) << 16))
    }

    fn encode(value: f64) -> bf16 {
        bf16::from_f32(round_to_odd(value))
    }
}

macro_rules! integer_element {
    ($($T:ty),*) => {$(
        impl Element for $T {
            fn decode(self) -> f64 {
                f64::from(self)
            }

            fn encode(value: f64) -> $T {
                value as i32 as $T
            }
        }
    )*};
}
integer_element!(i8, u8, i32);

/// Rounds to float32 towards zero and sets the last bit if the result is inexact. Rounding the
/// result to a type at least two bits shorter equals rounding `value` itself: the set bit breaks
/// false ties and cannot create one.
fn round_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || value.is_nan() {
        return nearest;
    }
    let towards_zero = nearest.to_bits() - u32::from(back.abs() > value.abs());
    f32::from_bits(towards_zero | 1)
}

/// The finite value of a short float: exponent, then `mantissa` bits, without the sign.
const fn finite_value(magnitude: u64, mantissa: u32, bias: u64) -> f64 {
    let bits = (magnitude << (52 - mantissa)) + ((1023 - bias) << 52);
    if magnitude >> mantissa != 0 {
        return f64::from_bits(bits);
    }
    // Subnormal: no implicit one, and the smallest normal exponent.
    f64::from_bits(bits + (1 << 52)) - f64::from_bits((1024 - bias) << 52)
}

/// An 8-bit float: sign, 7 - M exponent bits, M mantissa bits.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
pub struct F8<const M: u32>(pub u8);

/// `float8_e4m3fn`: no infinities; only the all-ones patterns are NaN.
pub type E4m3 = F8<3>;
/// `float8_e5m2`: infinities and NaNs as in IEEE 754.
pub type E5m2 = F8<2>;

impl<const M: u32> F8<M> {
    const BIAS: u64 = (1 << (6 - M)) - 1;

    /// The first magnitude that is not finite: NaN in e4m3fn, infinity in e5m2.
    const LIMIT: u8 = if M == 3 { 0x7f } else { 0x7c };

    const DECODED: &'static [f64; 256] = &{
        let mut decoded = [f64::NAN; 256];
        let mut magnitude = 0;
        while magnitude <= Self::LIMIT {
            let value = match magnitude == Self::LIMIT {
                true => [f64::INFINITY, f64::NAN][(M == 3) as usize],
                false => finite_value(magnitude as u64, M, Self::BIAS),
            };
            decoded[magnitude as usize] = value;
            decoded[magnitude as usize + 128] = -value;
            magnitude += 1;
        }
        decoded
    };
}

impl<const M: u32> Element for F8<M> {
    fn decode(self) -> f64 {
        Self::DECODED[usize::from(self.0)]
    }

    /// The non-saturating conversion of the OCP 8-bit Floating Point Specification: values that
    /// round beyond the largest number become infinity in e5m2 and NaN in e4m3fn.
    fn encode(value: f64) -> F8<M> {
        let sign = u8::from(value.is_sign_negative()) << 7;
        if value.is_nan() {
            return F8(sign | 0x7f);
        }
        // With the exponent bias of an F8, a float64 starts with the bits of the F8, subnormals
        // too.
        let rebiased = f64::from(round_to_odd(value.abs())) * f64::from_bits(Self::BIAS << 52);
        let (bits, cut) = (rebiased.to_bits(), 52 - M);
        let even = bits >> cut & 1;
        let rounded = (bits + (1 << (cut - 1)) - 1 + even) >> cut;
        F8(sign | rounded.min(u64::from(Self::LIMIT)) as u8)
    }
}

/// The code of an element of 4 bits, by its index from the start of a weight's row, or from a
/// multiple of 32 elements.
///
/// # Safety
/// The element is readable.
pub unsafe fn code_at(dtype: DType, row: *const u8, index: usize) -> usize {
    let (byte, place) = DType::packed_place(index);
    // SAFETY: guaranteed by the caller.
    let half = usize::from(unsafe { row.add(byte).cast::<u16>().read_unaligned() });
    let [highest, rest] = dtype.packed_bits(place);
    (half >> highest & 1) << 3 | half >> rest & 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_agrees_with_half() {
        for bits in 0..=u16::MAX {
            let same = |ours: f64, theirs: f64| {
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan())
            };
            assert!(
                same(f16::from_bits(bits).decode(), f16::from_bits(bits).to_f64()),
                "f16 {bits:#x}"
            );
            assert!(
                same(bf16::from_bits(bits).decode(), bf16::from_bits(bits).to_f64()),
                "bf16 {bits:#x}"
            );
        }
    }

    #[test]
    fn f8_landmarks() {
        let (e4m3, e5m2) = (|code| E4m3::decode(F8(code)), |code| E5m2::decode(F8(code)));
        assert_eq!(
            [0, 1, 7, 8, 0x38, 0xb9, 0x7e].map(e4m3),
            [0., 0.001953125, 0.013671875, 0.015625, 1., -1.125, 448.]
        );
        assert_eq!(
            [0, 1, 3, 4, 0x3c, 0xbd].map(e5m2),
            [0., 2f64.powi(-16), 3. * 2f64.powi(-16), 2f64.powi(-14), 1., -1.25]
        );
        assert_eq!([0x7b, 0x7c, 0xfc].map(e5m2), [57344., f64::INFINITY, f64::NEG_INFINITY]);
        assert!(
            [0x7f, 0xff]
                .map(e4m3)
                .iter()
                .chain(&[0x7d, 0x7e, 0x7f, 0xfd].map(e5m2))
                .all(|value| value.is_nan())
        );
    }

    /// For each pair of neighbors, including the largest number and its successor: the midpoint
    /// rounds to even, and the float64 on either side of the midpoint rounds to the closer
    /// neighbor.
    fn rounds_to_nearest_even<T: Element>(
        limit: u16,
        limit_value: f64,
        bits: fn(T) -> u16,
        element: fn(u16) -> T,
    ) {
        let sign = (size_of::<T>() as u32 * 8) - 1;
        for code in 0..limit {
            let (low, high) = (
                element(code).decode(),
                if code + 1 == limit { limit_value } else { element(code + 1).decode() },
            );
            let middle = (low + high) / 2.0;
            for (value, nearest) in [
                (low, code),
                (low.next_up(), code),
                (middle.next_down(), code),
                (middle, code + code % 2),
                (middle.next_up(), code + 1),
                (high.next_down(), code + 1),
            ] {
                assert_eq!(bits(T::encode(value)), nearest, "{value:e}");
                assert_eq!(bits(T::encode(-value)), nearest | 1 << sign, "{:e}", -value);
            }
        }
        for beyond in [limit_value, f64::from(f32::MAX), 3.5e38, f64::MAX, f64::INFINITY] {
            assert_eq!(bits(T::encode(beyond)), limit, "{beyond:e}");
        }
        assert!(T::encode(f64::NAN).decode().is_nan());
        assert_eq!(bits(T::encode(f64::MIN_POSITIVE)), 0);
    }

    #[test]
    fn encode_rounds_once_to_nearest_even() {
        rounds_to_nearest_even::<f16>(0x7c00, 65536.0, f16::to_bits, f16::from_bits);
        rounds_to_nearest_even::<bf16>(0x7f80, 2f64.powi(128), bf16::to_bits, bf16::from_bits);
        rounds_to_nearest_even::<E4m3>(0x7f, 480.0, |x| x.0.into(), |code| F8(code as u8));
        rounds_to_nearest_even::<E5m2>(0x7c, 65536.0, |x| x.0.into(), |code| F8(code as u8));
    }

    #[test]
    fn floats_become_int32_and_wrap() {
        assert_eq!([-129.0, 128.0, 511.0, 0.9, -0.9].map(i8::encode), [127, -128, -1, 0, 0]);
        assert_eq!([-1.0, 256.0, 300.0].map(u8::encode), [255, 0, 44]);
        assert_eq!([-1.9, 1.9, 3e9, -3e9].map(i32::encode), [-1, 1, i32::MAX, i32::MIN]);
        assert_eq!(i32::encode(f64::NAN), 0);
    }
}
