// Weights of 4 bits: from the order of storage to that of kernels (Weight.repack), and back. Bound
// by memory bandwidth: a thread reads and writes 16 bytes, which are 32 elements of a row.
#pragma once
#include "common/ptx.cuh"

namespace repack {

// The bytes of four words as a matrix, transposed.
__device__ __forceinline__ void transpose(unsigned (&words)[4]) {
  const unsigned low[2] = {ptx::permute_bytes<0x5140>(words[0], words[1]),
                           ptx::permute_bytes<0x5140>(words[2], words[3])};
  const unsigned high[2] = {ptx::permute_bytes<0x7362>(words[0], words[1]),
                            ptx::permute_bytes<0x7362>(words[2], words[3])};
  words[0] = ptx::permute_bytes<0x5410>(low[0], low[1]);
  words[1] = ptx::permute_bytes<0x7632>(low[0], low[1]);
  words[2] = ptx::permute_bytes<0x5410>(high[0], high[1]);
  words[3] = ptx::permute_bytes<0x7632>(high[0], high[1]);
}

// Exchanges the nibbles 1 and 2 of each half of a word: a step of sorting its even nibbles into the
// lower half.
__device__ __forceinline__ unsigned exchange(unsigned word) {
  const unsigned difference = (word ^ word >> 4) & 0x00f000f0u;
  return word ^ difference ^ difference << 4;
}
// The other step: the bytes 1 and 2.
__device__ __forceinline__ unsigned exchange_bytes(unsigned word) {
  return ptx::permute_bytes<0x3120>(word, word);
}

// Where the sign and the other three bits of the four elements of a half word begin.
struct Bits { int sign[4], rest[4]; };
constexpr Bits STORED{{3, 7, 11, 15}, {0, 4, 8, 12}};

__device__ __forceinline__ unsigned move(unsigned word, const Bits& from, const Bits& to) {
  unsigned result = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    result |= (word >> from.sign[i] & 0x00010001u) << to.sign[i];
    result |= (word >> from.rest[i] & 0x00070007u) << to.rest[i];
  }
  return result;
}

// BITS: `sign` and `rest` of each of four elements in the order of kernels; none if they are those
// of storage.
template <bool TO_KERNELS, int... BITS>
__global__ void __launch_bounds__(256) reorder(const void* from, void* to, long long vectors) {
  const long long at = (long long)blockIdx.x * 256 + threadIdx.x;
  if (at >= vectors) return;
  const uint4 read = static_cast<const uint4*>(from)[at];
  unsigned words[4] = {read.x, read.y, read.z, read.w};
  constexpr int FLAT[8] = {BITS...};
  constexpr Bits MOVED{{FLAT[0], FLAT[2], FLAT[4], FLAT[6]}, {FLAT[1], FLAT[3], FLAT[5], FLAT[7]}};
  if constexpr (TO_KERNELS) transpose(words);
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    unsigned& word = words[q];
    if constexpr (TO_KERNELS) {
      word = exchange_bytes(exchange(word));
      if constexpr (sizeof...(BITS)) word = move(word, STORED, MOVED);
    } else {
      if constexpr (sizeof...(BITS)) word = move(word, MOVED, STORED);
      word = exchange(exchange_bytes(word));
    }
  }
  if constexpr (!TO_KERNELS) transpose(words);
  static_cast<uint4*>(to)[at] = {words[0], words[1], words[2], words[3]};
}

}  // namespace repack
