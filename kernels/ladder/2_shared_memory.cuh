// Step 2 of the ladder: tiles in shared memory.
//
// Adds     The CTA loads its rows of A and of B once, 16 elements of K at a time, into shared
//          memory, converted to fp32. All threads read them there.
// Relieves L1 and the conversions. A block of K is 2 x 128 x 16 elements, 8 KiB of global memory,
//          for 128 x 128 x 16 x 2 FLOP = 0.5 MFLOP: 64 FLOP a byte instead of 2. An element is
//          converted once a CTA, not once a thread.
// Limit    The FP32 units. For one element of K a thread reads 64 bytes of shared memory, of which
//          most are broadcast to the warp, and executes 64 FMA: the FMA take longer. An H100's FP32
//          units do 256 FLOP a clock and multiprocessor, its tensor cores 4096.
//
// A CTA of 16 x 16 threads computes 128 x 128 outputs, a thread 8 x 8. The tiles are stored with K
// outside, so that a thread reads 4 adjacent rows (columns) as one 16-byte vector. Its other 4 are
// 64 further: the 16 vectors of a warp are then adjacent, in different banks.
#pragma once
#include "ladder/matrix.cuh"

constexpr int TILE = 128, TILE_K = 16, SIDE = 16, THREADS = SIDE * SIDE;

// Row (column) i of a thread's 8.
__device__ __forceinline__ constexpr int place(int thread, int i) {
  return thread * 4 + i % 4 + i / 4 * (TILE / 2);
}

__device__ __forceinline__ void read_eight(f32 (&to)[8], const f32 (&from)[TILE], int thread) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(&from[place(thread, i)]);
    to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
  }
}

__global__ void __launch_bounds__(THREADS)
    shared_memory(const f16* a_data, const f16* b_data, f16* d_data, int m, int n, int k) {
  __shared__ __align__(16) f32 a_tile[TILE_K][TILE], b_tile[TILE_K][TILE];
  const Matrix a{a_data, m, k}, b{b_data, n, k};
  const Output d{d_data, m, n};
  const int tile_row = blockIdx.y * TILE, tile_column = blockIdx.x * TILE;
  const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
  // The vector that this thread loads: its row of the tile, and its first element of K.
  const int row = threadIdx.x % TILE, first = threadIdx.x / TILE * 8;

  f32 sums[8][8] = {};
  for (int at = 0; at < k; at += TILE_K) {
    const VectorOf<f16> of_a = a.load(tile_row + row, at + first),
                        of_b = b.load(tile_column + row, at + first);
    __syncthreads();  // the previous block has been read
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      a_tile[first + e][row] = decode(of_a.get(e));
      b_tile[first + e][row] = decode(of_b.get(e));
    }
    __syncthreads();  // this block is complete
#pragma unroll
    for (int e = 0; e < TILE_K; ++e) {
      f32 rows[8], columns[8];
      read_eight(rows, a_tile[e], y);
      read_eight(columns, b_tile[e], x);
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] = fmaf(rows[i], columns[j], sums[i][j]);
    }
  }

#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; j += 2)
      d.store_pair(tile_row + place(y, i), tile_column + place(x, j), sums[i][j], sums[i][j + 1]);
}
