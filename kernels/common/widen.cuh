// Exact conversions of weights to 16-bit floating-point numbers, two at a time.
//
// 8-bit integers:
//
// float16    A byte becomes the low bits of the mantissa of a number whose ulp is 1; subtracting
//            that number leaves the integer. 1024, the binary16 number whose ulp is 1, is 0x6400. A
//            signed byte is first increased by 128; 1152 is 0x6480.
// bfloat16   The mantissa is one bit short. The low seven bits become the mantissa of 128 (0x4300),
//            whose ulp is 1. The eighth bit of a signed byte, worth -128, becomes the last exponent
//            bit of the second summand: -128 (0xc300) or -256 (0xc380). That of an unsigned byte,
//            worth 128, selects the second summand from -128 and 0.
//
// Codes of 4 bits: a word has those of pair p in bits 4 p and 16 + 4 p on (DType::packed_place).
//
// Integers   The code becomes the low bits of 1024 or 128, as above; what is subtracted includes
//            the 8 of s4. In float16, the codes of odd pairs stay in bits 4 to 7, as 16 times the
//            number.
// e2m1       Sign, exponent and mantissa are moved to those of the 16-bit type. Its exponent bias
//            is larger by 14 (float16) or 126, which a multiplication corrects, subnormals too.
#pragma once
#include "common/ptx.cuh"
#include "common/types.cuh"

namespace ptx {

// PTX ISA, "Half Precision Floating-Point Instructions: sub, fma".
template <class Narrow> __device__ __forceinline__ unsigned subtract_base(unsigned pair) {
  constexpr unsigned BASE = ElementType<Narrow>::IS_SIGNED ? 0x64806480u : 0x64006400u;
  unsigned difference;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(pair), "r"(BASE));
  return difference;
}

// `bytes`: in the low halves of 16 bits each.
template <class Narrow> __device__ __forceinline__ unsigned add_high_bits(unsigned bytes) {
  const unsigned low = (bytes & 0x007f007fu) | 0x43004300u;
  // 0x80 * 0x186 is 0xc300.
  const unsigned high = ElementType<Narrow>::IS_SIGNED ? (bytes & 0x00800080u) | 0xc300c300u
                                                       : (~bytes & 0x00800080u) * 0x186u;
  unsigned sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(low), "r"(0x3f803f80u), "r"(high));
  return sum;
}

// Two bytes in a pair.
template <class Wide, class Narrow>
__device__ __forceinline__ unsigned widen_pair(unsigned short bytes) {
  if constexpr (is_same<Wide, f16>) {
    // One instruction for the sign and the exponent byte, which prmt then uses twice.
    const unsigned both =
        ElementType<Narrow>::IS_SIGNED ? bytes ^ 0x64648080u : bytes | 0x64640000u;
    return subtract_base<Narrow>(permute_bytes<0x2120>(both, 0u));
  } else {
    return add_high_bits<Narrow>(permute_bytes<0x4140>(bytes, 0u));
  }
}

// Two bytes in a pair, each less a zero point and times a scale, rounded once. A byte becomes the
// low bits of the mantissa of 2^23 (0x4b000000), a binary32 number whose ulp is 1; a signed byte is
// first increased by 128. `base`: that number plus the zero point. `rest`: what is left of the zero
// point.
template <class Narrow>
inline constexpr f32 FLOAT_BASE = ElementType<Narrow>::IS_SIGNED ? 8388736.0f : 8388608.0f;

template <class Wide, class Narrow, bool FRACTIONS>
__device__ __forceinline__ unsigned widen_pair_scaled(unsigned short bytes, f32 base, f32 rest,
                                                      f32 scale) {
  const unsigned both = ElementType<Narrow>::IS_SIGNED ? bytes ^ 0x4b008080u : bytes | 0x4b000000u;
  f32 low = __uint_as_float(permute_bytes<0x3220>(both, 0u)) - base,
      high = __uint_as_float(permute_bytes<0x3221>(both, 0u)) - base;
  if constexpr (FRACTIONS) low -= rest, high -= rest;
  return encode_pair<Wide>(low * scale, high * scale);
}

// The four bytes of a word in two pairs.
template <class Wide, class Narrow> struct WidenWord {
  // Hidden from the compiler: as a constant, prmt would need a move for its selector each time.
  unsigned exponents = is_same<Wide, f16> ? opaque(0x64646464u) : 0u;

  __device__ __forceinline__ void operator()(unsigned (&pairs)[2], unsigned word) const {
    if constexpr (is_same<Wide, f16>) {
      const unsigned bytes = ElementType<Narrow>::IS_SIGNED ? word ^ 0x80808080u : word;
      pairs[0] = subtract_base<Narrow>(permute_bytes<0x4140>(bytes, exponents));
      pairs[1] = subtract_base<Narrow>(permute_bytes<0x4342>(bytes, exponents));
    } else {
      pairs[0] = add_high_bits<Narrow>(permute_bytes<0x4140>(word, 0u));
      pairs[1] = add_high_bits<Narrow>(permute_bytes<0x4342>(word, 0u));
    }
  }
};

// a * b + c of pairs. PTX ISA, "Half Precision Floating-Point Instructions: fma".
template <class Wide>
__device__ __forceinline__ unsigned multiply_add_pair(unsigned a, unsigned b, unsigned c) {
  unsigned sum;
  if constexpr (is_same<Wide, f16>)
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}
// Adding -0 keeps the sign of a product that is 0.
template <class Wide> __device__ __forceinline__ unsigned multiply_pair(unsigned a, unsigned b) {
  return multiply_add_pair<Wide>(a, b, 0x80008000u);
}
template <class Wide> __device__ __forceinline__ unsigned subtract_pair(unsigned a, unsigned b) {
  return multiply_add_pair<Wide>(b, is_same<Wide, f16> ? 0xbc00bc00u : 0xbf80bf80u, a);
}

// Pair PAIR of a word of eight codes.
template <class Wide, class Narrow, int PAIR>
__device__ __forceinline__ unsigned widen_codes(unsigned word) {
  constexpr bool HALF = is_same<Wide, f16>;
  if constexpr (class_of<Narrow> == ElementClass::FLOAT4) {
    constexpr int SHIFT = HALF ? 3 : 6;  // from the highest bits of a half
    constexpr unsigned CORRECTION = HALF ? 0x74007400u : 0x7e807e80u;  // 2^14, 2^126
    const unsigned high = word << (12 - 4 * PAIR);
    const unsigned bits = (high & 0x80008000u) | (high >> SHIFT & 0x70007000u >> SHIFT);
    return multiply_pair<Wide>(bits, CORRECTION);
  } else if constexpr (HALF) {
    // -1024 or -1032, and -64 or -72.
    constexpr unsigned BASE = ElementType<Narrow>::IS_SIGNED ? 0xe408e408u : 0xe400e400u,
                       SIXTEENTH = ElementType<Narrow>::IS_SIGNED ? 0xd480d480u : 0xd400d400u;
    const unsigned codes = word >> PAIR / 2 * 8;
    if constexpr (PAIR % 2 == 0)
      return multiply_add_pair<f16>((codes & 0x000f000fu) | 0x64006400u, 0x3c003c00u, BASE);
    else
      return multiply_add_pair<f16>((codes & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, SIXTEENTH);
  } else {
    // -128 or -136.
    constexpr unsigned BASE = ElementType<Narrow>::IS_SIGNED ? 0xc308c308u : 0xc300c300u;
    return multiply_add_pair<bf16>((word >> 4 * PAIR & 0x000f000fu) | 0x43004300u, 0x3f803f80u,
                                   BASE);
  }
}

// The scale and the zero point of a row of codes of 4 bits: an element is (number - zero) * scale,
// rounded once. PAIRED: both are exact in the wide type, as is a difference of integers of 8 bits.
// Else float32 numbers: a zero point may have a fraction.
template <class Wide, class Scale, class Zero, bool HAS_ZERO> struct CodeFactor {
  static constexpr bool PAIRED = (is_same<Scale, Wide> || is_same<Scale, e4m3> ||
                                  (is_same<Scale, e8m0> && is_same<Wide, bf16>)) &&
                                 (!HAS_ZERO || is_same<Zero, u8> || is_same<Zero, s8>);
  using Number = typename Conditional<PAIRED, unsigned, f32>::Type;
  Number scale, zero;

  static __device__ __forceinline__ Number number(f32 x) {
    if constexpr (PAIRED)
      return encode_pair<Wide>(x, x);
    else
      return x;
  }
  __device__ __forceinline__ void set(Scale new_scale, Zero new_zero) {
    scale = number(f32(decode(new_scale)));
    if constexpr (HAS_ZERO) zero = number(f32(decode(new_zero)));
  }
  __device__ __forceinline__ unsigned apply(unsigned pair) const {
    if constexpr (PAIRED) {
      return multiply_pair<Wide>(HAS_ZERO ? subtract_pair<Wide>(pair, zero) : pair, scale);
    } else {
      f32 low, high;
      if constexpr (is_same<Wide, f16>) {
        low = decode(f16{static_cast<unsigned short>(pair)});
        high = decode(f16{static_cast<unsigned short>(pair >> 16)});
      } else {
        low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
      }
      if constexpr (HAS_ZERO) low -= zero, high -= zero;
      return encode_pair<Wide>(low * scale, high * scale);
    }
  }
};

}  // namespace ptx
