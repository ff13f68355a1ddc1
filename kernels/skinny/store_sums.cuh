// Stores a warp's sums of mma.sync m16n8k16, whose 16 rows are columns of the output, to a slab.
#pragma once
#include "common/types.cuh"

// The word of a row's sum in a slab. One store of a warp touches 8 words of each of four rows 2j,
// which must lie in different banks: by padding, or, if a row fills all banks, by a swizzle. Four
// neighbouring columns stay together.
template <int PITCH> __device__ __forceinline__ constexpr int sum_offset(int row, int column) {
  return row * PITCH + (PITCH % 32 == 0 ? column ^ row / 2 % 4 * 8 : column);
}

// `slab`: the warp's first column, in rows of PITCH words. `group`: which of eight rows the lane
// has. `factor`: of all sums.
template <class Mma, int PITCH, int COLUMNS, int ROWS>
__device__ __forceinline__ void store_sums(f32* slab,
                                           const typename Mma::Sums (&sums)[COLUMNS][ROWS],
                                           int group, f32 factor) {
  const int pair = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i)
#pragma unroll
    for (int j = 0; j < ROWS; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          slab[sum_offset<PITCH>(8 * j + pair + c, 16 * i + 8 * half + group)] =
              Mma::get(sums[i][j], half, c) * factor;
}
