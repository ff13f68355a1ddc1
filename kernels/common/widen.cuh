// Exact conversions of 8-bit integers to 16-bit floating-point numbers, two at a time.
//
// float16    A byte becomes the low bits of the mantissa of a number whose ulp is 1; subtracting
//            that number leaves the integer. 1024, the binary16 number whose ulp is 1, is 0x6400. A
//            signed byte is first increased by 128; 1152 is 0x6480.
// bfloat16   The mantissa is one bit short. The low seven bits become the mantissa of 128 (0x4300),
//            whose ulp is 1. The eighth bit of a signed byte, worth -128, becomes the last exponent
//            bit of the second summand: -128 (0xc300) or -256 (0xc380). That of an unsigned byte,
//            worth 128, selects the second summand from -128 and 0.
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

}  // namespace ptx
