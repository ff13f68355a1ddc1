// What a generated epilogue is written in: its operands, and its operations.
#pragma once
#include "common/types.cuh"

// A tensor at the shape of the program's output. It has stride 0 along what it repeats.
struct EpilogueTensor {
  void* data;
  long long stride[3];  // along batch, m, n; in elements
};

// A few neighbouring elements, as wide as one load or store makes them.
template <int BYTES> struct Word;
template <> struct Word<2> { using Type = unsigned short; };
template <> struct Word<4> { using Type = unsigned; };
template <> struct Word<8> { using Type = uint2; };
template <> struct Word<16> { using Type = uint4; };

template <class Element, int WIDTH> struct Pack {
  static constexpr int BYTES = WIDTH * int(sizeof(Element));
  using Type = typename Word<(BYTES < 16 ? BYTES : 16)>::Type;
  static constexpr int WORDS = BYTES / int(sizeof(Type));
  union { Type words[WORDS]; Element elements[WIDTH]; };
};

// Whether all of a pack is there, side by side, and aligned as its words want it.
template <class Element, int WIDTH>
__device__ __forceinline__ bool is_whole(const void* first, long long step, int valid) {
  constexpr unsigned MASK = unsigned(sizeof(typename Pack<Element, WIDTH>::Type)) - 1;
  return step == 1 && valid == WIDTH && (unsigned(reinterpret_cast<unsigned long long>(first)) & MASK) == 0;
}

// Elements n to n + WIDTH - 1 of row m. Those from `valid` on are not read, and come out as zeros.
template <class Element, class Value, int WIDTH>
__device__ __forceinline__ void load_operand(Value (&values)[WIDTH], const EpilogueTensor& tensor, int batch, int m, int n,
                                             int valid) {
  const long long step = tensor.stride[2];
  const Element* first =
      static_cast<const Element*>(tensor.data) + tensor.stride[0] * batch + tensor.stride[1] * m + step * n;
  if (step == 0) {
    const Value value = static_cast<Value>(decode(*first));
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) values[e] = value;
    return;
  }
  if constexpr (WIDTH > 1) {
    if (is_whole<Element, WIDTH>(first, step, valid)) {
      using Packed = Pack<Element, WIDTH>;
      Packed packed;
#pragma unroll
      for (int w = 0; w < Packed::WORDS; ++w) packed.words[w] = reinterpret_cast<const typename Packed::Type*>(first)[w];
#pragma unroll
      for (int e = 0; e < WIDTH; ++e) values[e] = static_cast<Value>(decode(packed.elements[e]));
      return;
    }
  }
#pragma unroll
  for (int e = 0; e < WIDTH; ++e) values[e] = e < valid ? static_cast<Value>(decode(first[step * e])) : Value{};
}

// Writes the first `valid` of the elements n to n + WIDTH - 1 of row m.
template <class Element, class Value, int WIDTH>
__device__ __forceinline__ void store_operand(const Value (&values)[WIDTH], const EpilogueTensor& tensor, int batch, int m,
                                              int n, int valid) {
  const long long step = tensor.stride[2];
  Element* first = static_cast<Element*>(tensor.data) + tensor.stride[0] * batch + tensor.stride[1] * m + step * n;
  if constexpr (WIDTH > 1) {
    if (is_whole<Element, WIDTH>(first, step, valid)) {
      using Packed = Pack<Element, WIDTH>;
      Packed packed;
#pragma unroll
      for (int e = 0; e < WIDTH; ++e) packed.elements[e] = encode<Element>(values[e]);
#pragma unroll
      for (int w = 0; w < Packed::WORDS; ++w) reinterpret_cast<typename Packed::Type*>(first)[w] = packed.words[w];
      return;
    }
  }
#pragma unroll
  for (int e = 0; e < WIDTH; ++e)
    if (e < valid) first[step * e] = encode<Element>(values[e]);
}

// Operations on f32, f64, and s32, which wraps around.
namespace fused {

__device__ __forceinline__ f32 add(f32 x, f32 y) { return x + y; }
__device__ __forceinline__ f64 add(f64 x, f64 y) { return x + y; }
__device__ __forceinline__ s32 add(s32 x, s32 y) { return s32(unsigned(x) + unsigned(y)); }
__device__ __forceinline__ f32 subtract(f32 x, f32 y) { return x - y; }
__device__ __forceinline__ f64 subtract(f64 x, f64 y) { return x - y; }
__device__ __forceinline__ s32 subtract(s32 x, s32 y) { return s32(unsigned(x) - unsigned(y)); }
__device__ __forceinline__ f32 multiply(f32 x, f32 y) { return x * y; }
__device__ __forceinline__ f64 multiply(f64 x, f64 y) { return x * y; }
__device__ __forceinline__ s32 multiply(s32 x, s32 y) { return s32(unsigned(x) * unsigned(y)); }
__device__ __forceinline__ f32 divide(f32 x, f32 y) { return x / y; }
__device__ __forceinline__ f64 divide(f64 x, f64 y) { return x / y; }

// NaN where either is: PTX ISA, "Floating Point Instructions: max" and "min".
__device__ __forceinline__ f32 maximum(f32 x, f32 y) {
  f32 z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ __forceinline__ f32 minimum(f32 x, f32 y) {
  f32 z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ __forceinline__ f64 maximum(f64 x, f64 y) { return x > y || x != x ? x : y; }
__device__ __forceinline__ f64 minimum(f64 x, f64 y) { return x < y || x != x ? x : y; }
__device__ __forceinline__ s32 maximum(s32 x, s32 y) { return x > y ? x : y; }
__device__ __forceinline__ s32 minimum(s32 x, s32 y) { return x < y ? x : y; }

__device__ __forceinline__ f32 negate(f32 x) { return -x; }
__device__ __forceinline__ f64 negate(f64 x) { return -x; }
__device__ __forceinline__ s32 negate(s32 x) { return s32(0u - unsigned(x)); }
__device__ __forceinline__ f32 absolute(f32 x) { return fabsf(x); }
__device__ __forceinline__ f64 absolute(f64 x) { return fabs(x); }
__device__ __forceinline__ s32 absolute(s32 x) { return x < 0 ? negate(x) : x; }

__device__ __forceinline__ f32 exp(f32 x) { return ::expf(x); }
__device__ __forceinline__ f64 exp(f64 x) { return ::exp(x); }
__device__ __forceinline__ f32 log(f32 x) { return ::logf(x); }
__device__ __forceinline__ f64 log(f64 x) { return ::log(x); }
__device__ __forceinline__ f32 sqrt(f32 x) { return ::sqrtf(x); }
__device__ __forceinline__ f64 sqrt(f64 x) { return ::sqrt(x); }
__device__ __forceinline__ f32 rsqrt(f32 x) { return ::rsqrtf(x); }
__device__ __forceinline__ f64 rsqrt(f64 x) { return ::rsqrt(x); }
__device__ __forceinline__ f32 tanh(f32 x) { return ::tanhf(x); }
__device__ __forceinline__ f64 tanh(f64 x) { return ::tanh(x); }
__device__ __forceinline__ f32 erf(f32 x) { return ::erff(x); }
__device__ __forceinline__ f64 erf(f64 x) { return ::erf(x); }

// x / y, for y at least 1: in f32 to within 2 units in the last place up to y = 2^126 and 0 beyond, at a third of an exact division.
__device__ __forceinline__ f32 quotient(f32 x, f32 y) { return __fdividef(x, y); }
__device__ __forceinline__ f64 quotient(f64 x, f64 y) { return x / y; }

// x sigmoid(y)
template <class T> __device__ __forceinline__ T silu_of(T x, T y) { return quotient(x, T(1) + fused::exp(-y)); }
template <class T> __device__ __forceinline__ T sigmoid(T x) { return silu_of(T(1), x); }
template <class T> __device__ __forceinline__ T silu(T x) { return silu_of(x, x); }
template <class T> __device__ __forceinline__ T gelu(T x) {
  return T(0.5) * x * (T(1) + fused::erf(x * T(0.70710678118654752)));
}
// x / 2 (1 + tanh(u)) is x sigmoid(2 u), which takes fewer steps and cancels nothing.
template <class T> __device__ __forceinline__ T gelu_tanh(T x) {
  return silu_of(x, T(1.5957691216057308) * (x + T(0.044715) * x * x * x));
}
template <class T> __device__ __forceinline__ T hardswish(T x) {
  return x * minimum(maximum(x + T(3), T(0)), T(6)) * T(1.0 / 6.0);
}

}  // namespace fused
