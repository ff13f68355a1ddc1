// Conversions between element types. Every conversion is exact or rounds once, to nearest even.
#pragma once
#include "common/elements.cuh"

template <class T, class U> inline constexpr bool is_same = false;
template <class T> inline constexpr bool is_same<T, T> = true;
template <bool, class T, class U> struct Conditional { using Type = T; };
template <class T, class U> struct Conditional<false, T, U> { using Type = U; };

__host__ __device__ constexpr int greatest_common_divisor(int a, int b) {
  return b == 0 ? a : greatest_common_divisor(b, a % b);
}

// ---- decode: an element as the C++ number that represents it exactly -------------------------

__device__ __forceinline__ f64 decode(f64 x) { return x; }
__device__ __forceinline__ f32 decode(f32 x) { return x; }
__device__ __forceinline__ s32 decode(s32 x) { return x; }
__device__ __forceinline__ s32 decode(s8 x) { return x; }
__device__ __forceinline__ s32 decode(u8 x) { return x; }

// PTX ISA, "Data Movement and Conversion Instructions: cvt".
__device__ __forceinline__ f32 decode(f16 x) {
  f32 y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

__device__ __forceinline__ f32 decode(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }

// The exponent field of a binary32; 2^-127 is a subnormal.
__device__ __forceinline__ f32 decode(e8m0 x) {
  if (x.bits == 0xff) return __uint_as_float(0x7fc00000u);
  return __uint_as_float(x.bits == 0 ? 0x400000u : unsigned(x.bits) << 23);
}

__device__ __forceinline__ f32 decode(e5m2 x) {
  return decode(f16{static_cast<unsigned short>(x.bits << 8)});
}

__device__ __forceinline__ f32 decode(e4m3 x) {
#if __CUDA_ARCH__ >= 890
  // The instruction decodes a pair; the upper element is zero.
  unsigned pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<unsigned short>(x.bits)));
  return decode(f16{static_cast<unsigned short>(pair)});
#else
  // Shifted into the exponent and mantissa fields of binary16, the number reads 2^8 too small: the
  // exponent biases are 7 and 15.
  unsigned magnitude = x.bits & 0x7fu;
  unsigned sign = (x.bits & 0x80u) << 8;
  if (magnitude == 0x7f) return __uint_as_float(0x7fc00000u | sign << 16);
  return decode(f16{static_cast<unsigned short>(sign | magnitude << 7)}) * 256.0f;
#endif
}

__device__ __forceinline__ s32 decode(u4 x) { return x.bits; }
__device__ __forceinline__ s32 decode(s4 x) { return x.bits - 8; }
// As the exponent and mantissa of a binary32, the bits are a number 2^126 too small.
__device__ __forceinline__ f32 decode(e2m1 x) {
  return __uint_as_float((x.bits & 8u) << 28 | (x.bits & 7u) << 22) * 0x1p126f;
}

// Where a half of a word has the sign and the other three bits of the e2m1 of a pair (`code_at`):
// those of pairs 0 and 1 have the same distance as in a bf16.
constexpr int e2m1_sign(int pair) { return pair == 0 ? 15 : 11 + pair; }
constexpr int e2m1_rest(int pair) { return pair < 2 ? 6 - 3 * pair : 27 - 9 * pair; }

// Element k of a row of codes of 4 bits, in the order of DType::packed_place.
template <class Code> __device__ __forceinline__ f32 code_at(const Code* row, int k) {
  const int pair = k % 32 / 8, byte = k / 32 * 16 + k % 8 / 2 * 4 + k % 2 * 2;
  const unsigned half = row[byte].bits | row[byte + 1].bits << 8;
  const unsigned code = class_of<Code> == ElementClass::FLOAT4
                            ? half >> e2m1_sign(pair) << 3 & 8 | half >> e2m1_rest(pair) & 7
                            : half >> 4 * pair & 15;
  return f32(decode(Code{static_cast<unsigned char>(code)}));
}

// ---- encode: a decoded number as an element --------------------------------------------------

// Rounds to float toward zero and sets the last bit if the result is inexact. Rounding again, to
// nearest even in a type with at least two mantissa bits fewer, equals rounding the original once.
__device__ __forceinline__ f32 round_to_odd(f64 x) {
  f32 y = __double2float_rz(x);
  return f64(y) == x ? y : __uint_as_float(__float_as_uint(y) | 1u);
}
__device__ __forceinline__ f32 round_to_odd(s32 x) {
  f32 y = __int2float_rz(x);
  return s32(y) == x ? y : __uint_as_float(__float_as_uint(y) | 1u);
}

// The magnitude of a float as an 8-bit float with EXPONENT and MANTISSA bits and IEEE bias.
// Overflow yields a code above that of the largest number, which the caller clamps. The PTX
// conversion to these types saturates; these conversions must not (docs/design/accuracy.md).
template <int EXPONENT, int MANTISSA>
__device__ __forceinline__ unsigned encode_magnitude(unsigned magnitude) {
  constexpr unsigned BIAS = (1u << (EXPONENT - 1)) - 1;
  constexpr unsigned DROPPED = 23 - MANTISSA;                // mantissa bits that are rounded away
  constexpr unsigned REBIAS = (127 - BIAS) << 23;            // difference of the exponent biases
  constexpr unsigned SMALLEST_NORMAL = REBIAS + (1u << 23);  // as the bits of a float
  if (magnitude < SMALLEST_NORMAL) {
    // Subnormal: the sum with a power of two whose ulp is the smallest subnormal rounds to a
    // multiple of that subnormal.
    constexpr unsigned POWER = (127 + (1 - BIAS) - MANTISSA + 23) << 23;
    return __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(POWER)) - POWER;
  }
  unsigned is_odd = magnitude >> DROPPED & 1;
  return (magnitude - REBIAS + (1u << (DROPPED - 1)) - 1 + is_odd) >> DROPPED;
}

// From float to an 8-bit or 16-bit floating-point type.
template <class To> struct Encode;

template <> struct Encode<f16> {
  static __device__ __forceinline__ f16 from(f32 x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
  static __device__ __forceinline__ unsigned pair(f32 low, f32 high) {
    unsigned y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
  }
};

template <> struct Encode<bf16> {
  static __device__ __forceinline__ bf16 from(f32 x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
  static __device__ __forceinline__ unsigned pair(f32 low, f32 high) {
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
  }
};

template <> struct Encode<e4m3> {
  // NaN if the rounded magnitude exceeds 448.
  static __device__ __forceinline__ e4m3 from(f32 x) {
    unsigned bits = __float_as_uint(x), code = encode_magnitude<4, 3>(bits & 0x7fffffffu);
    return {static_cast<unsigned char>((bits >> 24 & 0x80u) | (code < 0x7f ? code : 0x7f))};
  }
};

template <> struct Encode<e5m2> {
  // Infinity if the rounded magnitude exceeds 57344.
  static __device__ __forceinline__ e5m2 from(f32 x) {
    unsigned bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu,
             code = encode_magnitude<5, 2>(magnitude);
    if (code > 0x7c) code = magnitude > 0x7f800000u ? 0x7f : 0x7c;
    return {static_cast<unsigned char>((bits >> 24 & 0x80u) | code)};
  }
};

// From f32, f64 or s32, the types of decoded numbers, to any element type. Narrowed integers wrap
// around, as in torch.
template <class To, class From> __device__ __forceinline__ To encode(From x) {
  if constexpr (is_same<To, f64> || is_same<To, f32> || is_same<To, s32>)
    return static_cast<To>(x);
  else if constexpr (is_same<To, s8> || is_same<To, u8>)
    return static_cast<To>(static_cast<s32>(x));
  else if constexpr (is_same<From, f32>)
    return Encode<To>::from(x);
  else
    return Encode<To>::from(round_to_odd(x));
}

// Two elements of a 16-bit type in a word, `low` in the lower half.
template <class To, class From>
__device__ __forceinline__ unsigned encode_pair(From low, From high) {
  if constexpr (is_same<From, f32>)
    return Encode<To>::pair(low, high);
  else
    return encode<To>(low).bits | unsigned(encode<To>(high).bits) << 16;
}

template <class To, class From> __device__ __forceinline__ To convert(From x) {
  if constexpr (is_same<To, From>)
    return x;
  else
    return encode<To>(decode(x));
}

// ---- accumulators ----------------------------------------------------------------------------

// The sum of two partial sums. Integers wrap around, as below.
__device__ __forceinline__ f32 add_sums(f32 a, f32 b) { return a + b; }
__device__ __forceinline__ s32 add_sums(s32 a, s32 b) { return s32(unsigned(a) + unsigned(b)); }

// accumulator + a * b in the accumulator's type, rounded once. Integers wrap around: unsigned
// arithmetic, for which C++ defines overflow.
__device__ __forceinline__ f64 multiply_add(f64 a, f64 b, f64 accumulator) {
  return fma(a, b, accumulator);
}
__device__ __forceinline__ f32 multiply_add(f32 a, f32 b, f32 accumulator) {
  return fmaf(a, b, accumulator);
}
__device__ __forceinline__ s32 multiply_add(s32 a, s32 b, s32 accumulator) {
  return s32(unsigned(a) * unsigned(b) + unsigned(accumulator));
}
// PTX ISA, "Half Precision Floating-Point Instructions: fma".
__device__ __forceinline__ f16 multiply_add(f16 a, f16 b, f16 accumulator) {
  f16 sum;
  asm("fma.rn.f16 %0, %1, %2, %3;"
      : "=h"(sum.bits)
      : "h"(a.bits), "h"(b.bits), "h"(accumulator.bits));
  return sum;
}
