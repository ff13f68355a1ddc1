// Elements of quantization: magnitudes as bits, conversion to 8 bits, scales and their reciprocals.
#pragma once
#include "common/types.cuh"
#include "common/vector.cuh"

namespace quantize {

// The bits of |x|. Their order is that of the magnitudes, with infinity and NaN on top.
template <class In> __device__ __forceinline__ unsigned magnitude_bits(In x) {
  if constexpr (is_same<In, f32>)
    return __float_as_uint(x) & 0x7fffffffu;
  else
    return x.bits & 0x7fffu;
}
template <class In> __device__ __forceinline__ f32 from_magnitude_bits(unsigned bits) {
  if constexpr (is_same<In, f32>)
    return __uint_as_float(bits);
  else
    return decode(In{static_cast<unsigned short>(bits)});
}
// The bits of x, with the sign in the highest bit.
template <class In> __device__ __forceinline__ unsigned signed_bits(In x) {
  if constexpr (is_same<In, f32>)
    return __float_as_uint(x);
  else
    return unsigned(x.bits) << 16;
}
// The bits of a magnitude, from signed_bits() of a positive element.
template <class In> __device__ __forceinline__ unsigned from_signed_bits(unsigned bits) {
  return is_same<In, f32> ? bits : bits >> 16;
}

// LARGEST: the largest finite number. EXPONENT: of the largest power of two. pair(): two elements,
// `low` in the lower byte, saturated.
template <class Out> struct Narrow;

// PTX ISA, "Data Movement and Conversion Instructions: cvt".
#define RUTLASS_NARROW(ELEMENT, MAXIMUM, MAXIMUM_EXPONENT)               \
  template <> struct Narrow<ELEMENT> {                                   \
    static constexpr f32 LARGEST = MAXIMUM;                              \
    static constexpr int EXPONENT = MAXIMUM_EXPONENT;                    \
    static __device__ __forceinline__ unsigned pair(f32 low, f32 high) { \
      RUTLASS_NARROW_PAIR(ELEMENT)                                       \
    }                                                                    \
  };
#if __CUDA_ARCH__ >= 890
#define RUTLASS_NARROW_PAIR(ELEMENT)                                                         \
  unsigned short pair;                                                                       \
  asm("cvt.rn.satfinite." #ELEMENT "x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low)); \
  return pair;
#else
// Comparisons keep NaN.
#define RUTLASS_NARROW_PAIR(ELEMENT)                                                            \
  auto saturated = [](f32 x) { return x > LARGEST ? LARGEST : x < -LARGEST ? -LARGEST : x; };   \
  return encode<ELEMENT>(saturated(low)).bits | unsigned(encode<ELEMENT>(saturated(high)).bits) \
                                                    << 8;
#endif
RUTLASS_NARROW(e4m3, 448.0f, 8)
RUTLASS_NARROW(e5m2, 57344.0f, 15)
#undef RUTLASS_NARROW
#undef RUTLASS_NARROW_PAIR

template <> struct Narrow<s8> {
  static constexpr f32 LARGEST = 127.0f;
  // NaN becomes 0, as it has a NaN as its scale.
  static __device__ __forceinline__ unsigned pair(f32 low, f32 high) {
    return (__float2int_rn(low) & 0xff) | (__float2int_rn(high) & 0xff) << 8;
  }
};

template <> struct Narrow<u8> {
  // NaN becomes 0.
  static __device__ __forceinline__ unsigned byte(f32 x) {
    return min(max(__float2int_rn(x), 0), 255);
  }
  static __device__ __forceinline__ unsigned pair(f32 low, f32 high) {
    return byte(low) | byte(high) << 8;
  }
};

template <class Out> constexpr bool HAS_ZERO = is_same<Out, u8>;

__device__ __forceinline__ f32 at_least_normal(f32 scale) {
  constexpr f32 SMALLEST = 0x1p-126f;
  return scale < SMALLEST ? SMALLEST : scale;  // fmaxf would drop a NaN
}

// How the elements of a group become outputs.
template <class Out, class Scale> struct Factor {
  Scale scale;
  f32 inverse;
  f32 zero;  // only with HAS_ZERO

  // positive, negative: the largest magnitudes of elements of either sign, with HAS_ZERO. Otherwise
  // `positive` is that of all elements.
  static __device__ __forceinline__ Factor of(f32 positive, f32 negative = 0) {
    Factor factor;
    if constexpr (is_same<Scale, e8m0>) {
      const int exponent = __float_as_uint(positive) >> 23;
      const int bits = exponent == 255 ? 255 : max(exponent - Narrow<Out>::EXPONENT, 0);
      factor.scale = {static_cast<unsigned char>(bits)};
      // 2^(127 - bits), a normal float: bits is less than 254.
      factor.inverse = __uint_as_float(bits == 255 ? 0x7fffffffu : (254u - bits) << 23);
    } else if constexpr (HAS_ZERO<Out>) {
      // Half of the range over half of 255: the range itself can overflow.
      factor.scale = at_least_normal(__fdiv_rn(0.5f * positive + 0.5f * negative, 127.5f));
      factor.inverse = __frcp_rn(factor.scale);
      factor.zero = rintf(negative * factor.inverse);
    } else {
      factor.scale = at_least_normal(__fdiv_rn(positive, Narrow<Out>::LARGEST));
      factor.inverse = __frcp_rn(factor.scale);
    }
    return factor;
  }
  __device__ __forceinline__ f32 operator()(f32 x) const {
    if constexpr (HAS_ZERO<Out>)
      return rintf(x * inverse) + zero;
    else
      return x * inverse;
  }
};

}  // namespace quantize
