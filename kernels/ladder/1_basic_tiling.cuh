// Step 1 of the ladder: tiles in registers, operands from global memory.
//
// Adds     A thread computes 4 x 4 outputs instead of one. For 8 elements of K it loads 4 vectors
//          of A and 4 of B, and uses each element 4 times.
// Relieves the load path. One output a thread: 32 bytes for 16 FLOP, 0.5 FLOP a byte. 4 x 4
//          outputs: 128 bytes for 256 FLOP, 2 FLOP a byte.
// Limit    Loads, still. The threads of a CTA load the same 64 rows of A and of B through L1, each
//          row 16 times, and the lanes that load B touch 16 cache lines at once. The FP32 units of
//          an H100 do 256 FLOP a clock and multiprocessor. At 2 FLOP a byte, they would consume
//          128 bytes a clock, which L1 delivers to coalesced loads only.
//
// A CTA of 16 x 16 threads computes 64 x 64 outputs. Thread (x, y) has rows y, y + 16, y + 32 and
// y + 48, and columns x, x + 16, x + 32 and x + 48: stores of a warp are adjacent.
#pragma once
#include "ladder/matrix.cuh"

constexpr int TILE = 64, SIDE = 16, THREADS = SIDE * SIDE, PER_THREAD = TILE / SIDE;

__global__ void __launch_bounds__(THREADS)
    basic_tiling(const f16* a_data, const f16* b_data, f16* d, int m, int n, int k) {
  const Matrix a{a_data, m, k}, b{b_data, n, k};
  const int row = blockIdx.y * TILE + threadIdx.x / SIDE,
            column = blockIdx.x * TILE + threadIdx.x % SIDE;

  f32 sums[PER_THREAD][PER_THREAD] = {};
  for (int at = 0; at < k; at += 8) {
    VectorOf<f16> rows[PER_THREAD], columns[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
      rows[i] = a.load(row + SIDE * i, at);
      columns[i] = b.load(column + SIDE * i, at);
    }
#pragma unroll
    for (int e = 0; e < 8; ++e)
#pragma unroll
      for (int i = 0; i < PER_THREAD; ++i)
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j)
          sums[i][j] = fmaf(decode(rows[i].get(e)), decode(columns[j].get(e)), sums[i][j]);
  }

#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i)
#pragma unroll
    for (int j = 0; j < PER_THREAD; ++j) {
      const int to_row = row + SIDE * i, to_column = column + SIDE * j;
      if (to_row < m && to_column < n)
        d[static_cast<long long>(to_row) * n + to_column] = encode<f16>(sums[i][j]);
    }
}
