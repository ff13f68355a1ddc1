// Joint GEMM: the matrix B that has a tile's columns.
#pragma once
#include "common/params.cuh"

// The copier of a tile of B, from this column on, of blocks from this K on.
template <class Copier, int MATRICES>
__device__ __forceinline__ Copier skinny_copier_of_b(const GemmParams& params, int batch,
                                                     int start_n, long long start_k) {
  const long long offset = params.b_stride[0] * batch + params.b_stride[1] * start_k;
  GemmPanel matrix{params.b, params.b_stride[2], 0};
  if constexpr (MATRICES > 1) {
    const GemmPanel* panels = static_cast<const JointGemmParams&>(params).panels;
#pragma unroll
    for (int i = 0; i < MATRICES - 1; ++i)
      if (start_n >= panels[i].start) matrix = panels[i];
  }
  const int start = static_cast<int>(matrix.start);
  return Copier(matrix.b, offset, matrix.stride, params.b_stride[1], start_n - start,
                params.n - start);
}
