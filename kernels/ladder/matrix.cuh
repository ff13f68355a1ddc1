// The operands and the output of the ladder's kernels:
//
//   D (m x n) = A (m x k) times the transpose of B (n x k), fp16, summed in fp32
//
// All three are row-major, so both operands are contiguous along K. n and k are multiples of 8: a
// row is a number of 16-byte vectors, and a vector lies inside of a matrix or outside, never across
// its edge. Vectors outside read as zeros, which add nothing to a sum.
#pragma once
#include "common/ptx.cuh"
#include "common/types.cuh"
#include "common/vector.cuh"

struct Matrix {
  const f16* data;
  int rows, columns;

  __device__ __forceinline__ bool contains(int row, int column) const {
    return row < rows && column < columns;
  }
  __device__ __forceinline__ const f16* at(int row, int column) const {
    return data + static_cast<long long>(row) * columns + column;
  }

  // The 8 elements from this one on.
  __device__ __forceinline__ VectorOf<f16> load(int row, int column) const {
    VectorOf<f16> vector = {};
    if (contains(row, column)) vector.load(at(row, column));
    return vector;
  }
  // The same as an asynchronous copy to shared memory.
  __device__ __forceinline__ void copy_async(unsigned shared, int row, int column) const {
    const bool inside = contains(row, column);
    ptx::copy_async<16>(shared, inside ? at(row, column) : data, inside ? 16 : 0);
  }
};

struct Output {
  f16* data;
  int rows, columns;

  // Stores two adjacent elements, the first in an even column.
  __device__ __forceinline__ void store_pair(int row, int column, f32 first, f32 second) const {
    if (row < rows && column < columns)
      *reinterpret_cast<unsigned*>(data + static_cast<long long>(row) * columns + column) =
          encode_pair<f16>(first, second);
  }
};

__device__ __forceinline__ constexpr int ceil_div(int x, int divisor) {
  return (x + divisor - 1) / divisor;
}
