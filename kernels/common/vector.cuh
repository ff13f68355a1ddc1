// Vectors of 16 bytes: loads and stores, aligned or not, and their elements.
#pragma once
#include "common/ptx.cuh"

namespace ptx {

// PTX ISA, "Data Movement and Conversion Instructions: ld, st".
__device__ __forceinline__ void load_shared(unsigned (&words)[4], unsigned shared) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ Vector load_global(const char* global) {
  Vector vector;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(vector.words[0]), "=r"(vector.words[1]), "=r"(vector.words[2]),
                 "=r"(vector.words[3])
               : "l"(global)
               : "memory");
  return vector;
}
__device__ __forceinline__ void store_shared(unsigned shared, const Vector& vector) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(vector.words[0]),
               "r"(vector.words[1]), "r"(vector.words[2]), "r"(vector.words[3])
               : "memory");
}

}  // namespace ptx

// 16 bytes of global memory at any address: load() reads the one or two aligned vectors that
// contain them, get() shifts them into place. Both vectors must lie inside the operand [begin,
// end): fits().
struct LooseVector {
  ptx::Vector low, high;

  static __device__ __forceinline__ bool fits(const char* address, const char* begin,
                                              const char* end) {
    const int shift = reinterpret_cast<unsigned long long>(address) & 15;
    return address - shift >= begin && address - shift + (shift ? 32 : 16) <= end;
  }
  __device__ __forceinline__ void load(const char* address) {
    const int shift = reinterpret_cast<unsigned long long>(address) & 15;
    low = ptx::load_global(address - shift);
    // The adjacent lane's `low`, so mostly a hit in L1.
    if (shift) high = ptx::load_global(address - shift + 16);
  }
  __device__ __forceinline__ ptx::Vector get(const char* address) const {
    const unsigned shift = reinterpret_cast<unsigned long long>(address) & 15;
    unsigned words[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = low.words[i], words[i + 4] = high.words[i];
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = shift & 8 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = shift & 4 ? words[i + 1] : words[i];
    ptx::Vector result;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      result.words[i] = __funnelshift_r(words[i], words[i + 1], shift % 4 * 8);
    return result;
  }
};

// The unsigned integer of SIZE bytes.
template <int SIZE> struct BitsOf;
template <> struct BitsOf<1> { using Type = unsigned char; };
template <> struct BitsOf<2> { using Type = unsigned short; };
template <> struct BitsOf<4> { using Type = unsigned; };
template <> struct BitsOf<8> { using Type = unsigned long long; };

// The elements of 16 bytes in registers, as words: the compiler would put an array of bytes into
// local memory.
template <class Element> struct VectorOf {
  static constexpr int SIZE = sizeof(Element);
  ptx::Vector vector;

  __device__ __forceinline__ Element get(int e) const {
    if constexpr (bits_of<Element> == 64)
      return __hiloint2double(vector.words[2 * e + 1], vector.words[2 * e]);
    else {
      using Bits = typename BitsOf<SIZE>::Type;
      return __builtin_bit_cast(Element, Bits(vector.words[e * SIZE / 4] >> e * SIZE % 4 * 8));
    }
  }
  // Sets an element that was zero.
  __device__ __forceinline__ void put(int e, Element element) {
    if constexpr (bits_of<Element> == 64) {
      vector.words[2 * e] = __double2loint(element);
      vector.words[2 * e + 1] = __double2hiint(element);
    } else {
      using Bits = typename BitsOf<SIZE>::Type;
      vector.words[e * SIZE / 4] |= unsigned(__builtin_bit_cast(Bits, element)) << e * SIZE % 4 * 8;
    }
  }
  __device__ __forceinline__ void load(const Element* first) {
    vector = ptx::load_global(reinterpret_cast<const char*>(first));
  }
  __device__ __forceinline__ void store(Element* first) const { ptx::store_global(first, vector); }
};
