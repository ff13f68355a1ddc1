// Element types. Generated from the table in src/operand/dtype.rs by
// RUTLASS_WRITE_ELEMENTS=1 cargo test elements
//
// Types that C++ lacks are structs around their bits, so that no conversion happens implicitly.
// clang-format off
#pragma once

using f64 = double;
using f32 = float;
struct f16 { unsigned short bits; };  // IEEE binary16
struct bf16 { unsigned short bits; };  // the upper half of an IEEE binary32
struct e4m3 { unsigned char bits; };  // bias 7, no infinity, one NaN
struct e5m2 { unsigned char bits; };  // the upper half of a binary16
using s8 = signed char;
using u8 = unsigned char;
using s32 = int;
struct u4 { unsigned char bits; };  // a code of 4 bits
struct s4 { unsigned char bits; };  // a code of 4 bits, less 8
struct e2m1 { unsigned char bits; };  // a code of 4 bits: bias 1, finite
struct e8m0 { unsigned char bits; };  // 2^(bits - 127), 255 is NaN: scales
#define RUTLASS_HAS_TYPES true  // these names are not a user's (src/compile/signature.rs)

enum class ElementClass {
  DOUBLE, SINGLE, HALF, FLOAT8, INTEGER8, INTEGER32, INTEGER4, FLOAT4, SCALE
};

template <int BITS_, ElementClass CLASS_, bool IS_SIGNED_> struct ElementTraits {
  static constexpr int BITS = BITS_;
  static constexpr ElementClass CLASS = CLASS_;
  static constexpr bool IS_SIGNED = IS_SIGNED_;
};

template <class T> struct ElementType;
template <> struct ElementType<f64> : ElementTraits<64, ElementClass::DOUBLE, true> {};
template <> struct ElementType<f32> : ElementTraits<32, ElementClass::SINGLE, true> {};
template <> struct ElementType<f16> : ElementTraits<16, ElementClass::HALF, true> {};
template <> struct ElementType<bf16> : ElementTraits<16, ElementClass::HALF, true> {};
template <> struct ElementType<e4m3> : ElementTraits<8, ElementClass::FLOAT8, true> {};
template <> struct ElementType<e5m2> : ElementTraits<8, ElementClass::FLOAT8, true> {};
template <> struct ElementType<s8> : ElementTraits<8, ElementClass::INTEGER8, true> {};
template <> struct ElementType<u8> : ElementTraits<8, ElementClass::INTEGER8, false> {};
template <> struct ElementType<s32> : ElementTraits<32, ElementClass::INTEGER32, true> {};
template <> struct ElementType<u4> : ElementTraits<4, ElementClass::INTEGER4, false> {};
template <> struct ElementType<s4> : ElementTraits<4, ElementClass::INTEGER4, true> {};
template <> struct ElementType<e2m1> : ElementTraits<4, ElementClass::FLOAT4, true> {};
template <> struct ElementType<e8m0> : ElementTraits<8, ElementClass::SCALE, false> {};

template <class T> inline constexpr int bits_of = ElementType<T>::BITS;
template <class T> inline constexpr ElementClass class_of = ElementType<T>::CLASS;
// Whether kernels convert elements to those of another factor, of 16 bits.
template <class T> inline constexpr bool is_widened =
    class_of<T> == ElementClass::FLOAT8 ||
    class_of<T> == ElementClass::INTEGER8 ||
    class_of<T> == ElementClass::INTEGER4 ||
    class_of<T> == ElementClass::FLOAT4;
// How many elements a byte holds: 1 also for wider ones.
template <class T> inline constexpr int packing_of = bits_of<T> < 8 ? 8 / bits_of<T> : 1;
// Bytes of adjacent elements, or of a stride.
template <class T, class Count> __host__ __device__ constexpr Count bytes_of(Count elements) {
  if constexpr (bits_of<T> < 8)
    return elements / packing_of<T>;
  else
    return elements * (bits_of<T> / 8);
}
