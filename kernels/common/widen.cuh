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
// e4m3: an instruction makes two float16 numbers, since compute capability 8.9.
//
// Codes of 4 bits: a word has eight, the first of each pair in its lower half, in the order of
// DType::packed_place. One or two shifts and masks move the bits of a pair to those of numbers of
// 16 bits (code_bits):
//
// Integers   The code becomes the low bits of 1024 or 128, as above. Subtracting that number, and 8
//            of s4, leaves the integer. In float16, the codes of odd pairs stay in bits 4 to 7, as
//            16 times the number.
// e2m1       Sign, exponent and mantissa become those of the 16-bit type, whose exponent bias is
//            larger by 14 (float16) or 126. A multiplication corrects it, subnormals too.
#pragma once
#include "common/ptx.cuh"
#include "common/types.cuh"

namespace ptx {

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

// PTX ISA, "Half Precision Floating-Point Instructions: sub".
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
  return multiply_add_pair<bf16>(low, 0x3f803f80u, high);
}

// The same of bytes in the low halves of 16 bits whose high halves are 0x43. No instruction has two
// constants, of which ptxas would move one to a register each time. The second summand is
// subtracted: 128 or 256.
template <class Narrow> __device__ __forceinline__ unsigned add_high_bits_of(unsigned pair) {
  const unsigned low = pair & 0xff7fff7fu;
  if constexpr (ElementType<Narrow>::IS_SIGNED)
    return multiply_add_pair<bf16>(pair & 0xff80ff80u, 0xbf80bf80u, low);
  else
    return multiply_add_pair<bf16>(low, 0x3f803f80u, (~pair & 0x00800080u) * 0x186u);
}

// Two e4m3 as float32 numbers, which are exact in either 16-bit type. PTX ISA, "Data Movement and
// Conversion Instructions: cvt".
struct Float8Pair {
  f32 low, high;
  __device__ __forceinline__ explicit Float8Pair(unsigned short bytes) {
#if __CUDA_ARCH__ >= 890
    unsigned pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(bytes));
    low = decode(f16{static_cast<unsigned short>(pair)});
    high = decode(f16{static_cast<unsigned short>(pair >> 16)});
#else
    low = decode(e4m3{static_cast<unsigned char>(bytes)});
    high = decode(e4m3{static_cast<unsigned char>(bytes >> 8)});
#endif
  }
};

// Two bytes in a pair.
template <class Wide, class Narrow>
__device__ __forceinline__ unsigned widen_pair(unsigned short bytes) {
  if constexpr (class_of<Narrow> == ElementClass::FLOAT8) {
    const Float8Pair pair(bytes);
    return encode_pair<Wide>(pair.low, pair.high);
  } else if constexpr (is_same<Wide, f16>) {
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
  if constexpr (class_of<Narrow> == ElementClass::FLOAT8) {
    const Float8Pair pair(bytes);
    return encode_pair<Wide>(pair.low * scale, pair.high * scale);
  }
  const unsigned both = ElementType<Narrow>::IS_SIGNED ? bytes ^ 0x4b008080u : bytes | 0x4b000000u;
  f32 low = __uint_as_float(permute_bytes<0x3220>(both, 0u)) - base,
      high = __uint_as_float(permute_bytes<0x3221>(both, 0u)) - base;
  if constexpr (FRACTIONS) low -= rest, high -= rest;
  return encode_pair<Wide>(low * scale, high * scale);
}

// The four bytes of a word in two pairs.
template <class Wide, class Narrow> struct WidenWord {
  // The compiler does not know that threadIdx.y is 0: prmt of a constant would need a move for its
  // selector each time.
  unsigned exponents = (is_same<Wide, f16> ? 0x64646464u : 0x43434343u) + threadIdx.y;

  __device__ __forceinline__ void operator()(unsigned (&pairs)[2], unsigned word) const {
    if constexpr (class_of<Narrow> == ElementClass::FLOAT8) {
      pairs[0] = widen_pair<Wide, Narrow>(static_cast<unsigned short>(word));
      pairs[1] = widen_pair<Wide, Narrow>(static_cast<unsigned short>(word >> 16));
    } else if constexpr (is_same<Wide, f16>) {
      const unsigned bytes = ElementType<Narrow>::IS_SIGNED ? word ^ 0x80808080u : word;
      pairs[0] = subtract_base<Narrow>(permute_bytes<0x4140>(bytes, exponents));
      pairs[1] = subtract_base<Narrow>(permute_bytes<0x4342>(bytes, exponents));
    } else {
      pairs[0] = add_high_bits_of<Narrow>(permute_bytes<0x4140>(word, exponents));
      pairs[1] = add_high_bits_of<Narrow>(permute_bytes<0x4342>(word, exponents));
    }
  }
};

// Adding -0 keeps the sign of a product that is 0.
template <class Wide> __device__ __forceinline__ unsigned multiply_pair(unsigned a, unsigned b) {
  return multiply_add_pair<Wide>(a, b, 0x80008000u);
}

// The bits of the integers of a pair. The compiler does not know that threadIdx.y is 0: for a
// constant, the instruction that masks the bits and adds the exponent would need a move each time.
struct CodeMasks {
  unsigned even = 0x000f000fu + threadIdx.y;
  unsigned odd = 0x00f000f0u + threadIdx.y;  // of pairs of float16
};

// The bits of pair PAIR of a word of eight codes. A left shift is a multiplication in machine code,
// whose pipe is idle otherwise.
template <class Wide, class Narrow, int PAIR>
__device__ __forceinline__ unsigned code_bits(unsigned word, const CodeMasks& masks) {
  constexpr bool HALF = is_same<Wide, f16>;
  if constexpr (class_of<Narrow> == ElementClass::FLOAT4) {
    // Left shifts of the sign and of the other three bits. The latter may be negative.
    constexpr int OF_SIGN = 15 - e2m1_sign(PAIR), OF_REST = (HALF ? 9 : 6) - e2m1_rest(PAIR);
    constexpr unsigned MASK = HALF ? 0x0e000e00u : 0x01c001c0u;
    if constexpr (OF_SIGN == OF_REST) return word << OF_SIGN & (0x80008000u | MASK);
    constexpr int LEFT = OF_REST < 0 ? 0 : OF_REST, RIGHT = LEFT - OF_REST;
    return (word << OF_SIGN & 0x80008000u) | (word << LEFT >> RIGHT & MASK);
  } else if constexpr (HALF) {
    return (word >> PAIR / 2 * 8 & (PAIR % 2 ? masks.odd : masks.even)) | 0x64006400u;
  } else {
    return (word >> 4 * PAIR & masks.even) | 0x43004300u;
  }
}

// Codes of 4 bits as numbers, less a zero point: an integer from -112 to 112, for exact results.
template <class Wide, class Narrow> struct CodeNumbers {
  static constexpr bool HALF = is_same<Wide, f16>,
                        FLOATS = class_of<Narrow> == ElementClass::FLOAT4;
  static constexpr f32 CORRECTION = HALF ? 0x1p14f : 0x1p126f;
  // What is subtracted from even pairs and from odd ones, as a pair of equal numbers.
  static constexpr unsigned OFFSET = ElementType<Narrow>::IS_SIGNED ? 0x00080008u : 0u;
  static constexpr unsigned OF_EVEN = OFFSET + (HALF ? 0xe400e400u : 0xc300c300u),
                            OF_ODD = HALF ? 0xd400d400u + 16 * OFFSET : OF_EVEN;
  unsigned even = OF_EVEN, odd = OF_ODD;

  template <class Zero> __device__ __forceinline__ void subtract(Zero zero) {
    if constexpr (is_same<Zero, u8>) {
      // The zero point adds to the mantissas.
      even = OF_EVEN + zero * 0x00010001u;
      odd = OF_ODD + zero * (HALF ? 0x00100010u : 0x00010001u);
    } else {
      const f32 number = f32(decode(zero)) + (OFFSET != 0 ? 8.0f : 0.0f);
      if constexpr (HALF) {
        even = encode_pair<f16>(-1024.0f - number, -1024.0f - number);
        odd = encode_pair<f16>(-64.0f - number, -64.0f - number);
      } else {
        even = odd = encode_pair<bf16>(-128.0f - number, -128.0f - number);
      }
    }
  }
  template <int PAIR>
  __device__ __forceinline__ unsigned pair(unsigned word, const CodeMasks& masks) const {
    const unsigned bits = code_bits<Wide, Narrow, PAIR>(word, masks);
    if constexpr (FLOATS) return multiply_pair<Wide>(bits, HALF ? 0x74007400u : 0x7e807e80u);
    constexpr unsigned FACTOR = !HALF ? 0x3f803f80u : PAIR % 2 ? 0x2c002c00u : 0x3c003c00u;
    return multiply_add_pair<Wide>(bits, FACTOR, PAIR % 2 ? odd : even);
  }
};

// The scale and the zero point of a row of codes of 4 bits: an element is (number - zero) * scale,
// rounded once. PAIRED: both are exact in the wide type, as is their difference. Else float32
// numbers: a zero point may have a fraction.
//
// MERGED: one multiplication corrects the exponents of e2m1 and applies the scale. The largest
// e4m3, 448, times the correction would overflow: products with scales in e4m3 are too small by the
// factor REST, by which the caller multiplies the sums. POWERS: the scales are powers of two, of
// which those from 2 on (`is_large`) would overflow. No factor of the sums has the range of e8m0:
// callers branch, and multiply a second time by what `pair` leaves (`rest`).
template <class Wide, class Narrow, class Scale, class Zero, bool HAS_ZERO> struct CodeFactor {
  static constexpr bool PAIRED = (is_same<Scale, Wide> || is_same<Scale, e4m3> ||
                                  (is_same<Scale, e8m0> && is_same<Wide, bf16>)) &&
                                 (!HAS_ZERO || is_same<Zero, u8> || is_same<Zero, s8>);
  using Numbers = CodeNumbers<Wide, Narrow>;
  static constexpr bool POWERS =
      Numbers::FLOATS && is_same<Scale, e8m0> && is_same<Wide, bf16> && !HAS_ZERO;
  static constexpr bool MERGED = POWERS || (Numbers::FLOATS && is_same<Scale, e4m3> && !HAS_ZERO);
  static constexpr f32 REST = !MERGED || POWERS ? 1.0f : Numbers::HALF ? 0x1p8f : 0x1p10f;
  using Number = typename Conditional<PAIRED, unsigned, f32>::Type;
  Number scale;
  f32 zero;         // unless PAIRED
  Numbers numbers;  // PAIRED: less the zero point

  __device__ __forceinline__ void set(Scale new_scale, Zero new_zero) {
    if constexpr (POWERS) {
      // 2^(bits - 127 + 126), at most 2^127, in both halves.
      scale = (min(unsigned(new_scale.bits), 128u) + 126u) * 0x00800080u;
    } else {
      const f32 x = f32(decode(new_scale)) * (MERGED ? Numbers::CORRECTION / REST : 1.0f);
      if constexpr (PAIRED)
        scale = encode_pair<Wide>(x, x);
      else
        scale = x;
    }
    if constexpr (HAS_ZERO) {
      if constexpr (PAIRED)
        numbers.subtract(new_zero);
      else
        zero = f32(decode(new_zero));
    }
  }
  // POWERS: whether one of up to four scales may be large, and what `pair` leaves of one, as a pair
  // of equal numbers. NaN is large.
  static __device__ __forceinline__ bool is_large(unsigned scales) {
    return (scales & 0x80808080u) != 0;
  }
  static __device__ __forceinline__ unsigned rest(Scale large) {
    const unsigned bits = large.bits;
    return bits == 255 ? 0x7fc07fc0u : (max(bits, 128u) - 1) * 0x00800080u;
  }
  // Pair PAIR of a word of eight codes.
  template <int PAIR>
  __device__ __forceinline__ unsigned pair(unsigned word, const CodeMasks& masks) const {
    if constexpr (MERGED) {
      return multiply_pair<Wide>(code_bits<Wide, Narrow, PAIR>(word, masks), scale);
    } else {
      const unsigned number = numbers.template pair<PAIR>(word, masks);
      if constexpr (PAIRED) return multiply_pair<Wide>(number, scale);
      f32 low, high;
      if constexpr (is_same<Wide, f16>) {
        low = decode(f16{static_cast<unsigned short>(number)});
        high = decode(f16{static_cast<unsigned short>(number >> 16)});
      } else {
        low = __uint_as_float(number << 16), high = __uint_as_float(number & 0xffff0000u);
      }
      if constexpr (HAS_ZERO) low -= zero, high -= zero;
      return encode_pair<Wide>(low * scale, high * scale);
    }
  }
};

// The same of large scales, for which a branch has been taken.
template <class Factor> struct LargeFactor {
  Factor factor;
  unsigned rest;
  template <class Scale, class Zero> __device__ __forceinline__ void set(Scale scale, Zero zero) {
    factor.set(scale, zero);
    rest = Factor::rest(scale);
  }
  template <int PAIR>
  __device__ __forceinline__ unsigned pair(unsigned word, const CodeMasks& masks) const {
    return multiply_pair<bf16>(factor.template pair<PAIR>(word, masks), rest);
  }
};

}  // namespace ptx
