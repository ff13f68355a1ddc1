// Step 5 of the ladder: a pipeline of asynchronous copies.
//
// Adds     cp.async copies from global to shared memory while the warps multiply. Shared memory
//          holds 3 stages, a tile of A and one of B each: one is multiplied, two are in flight.
// Relieves the wait for global memory. A CTA has 64 KiB in flight; the products of a block of K
//          take 1024 clocks, longer than the latency of about 600. Data bypass the registers, which
//          saves 32 of them, 8 stores of each thread for each block of K, and one of two barriers.
// Limit    Instructions. A warp issues 6 ldmatrix for 16 mma.sync, and each thread computes the
//          addresses of its copies. On Hopper, mma.sync reaches about half of the tensor cores'
//          rate: fragments go through registers, 16 x 8 outputs at a time.
#pragma once
#include "ladder/4_swizzle.cuh"

constexpr int STAGES = 3, STAGE_BYTES = 2 * TILE_BYTES;

__global__ void __launch_bounds__(THREADS, 2)
    async_copies(const f16* a_data, const f16* b_data, f16* d_data, int m, int n, int k) {
  extern __shared__ __align__(128) unsigned char stages[];
  const Matrix a{a_data, m, k}, b{b_data, n, k};
  const Output d{d_data, m, n};
  const int tile_row = blockIdx.y * TILE, tile_column = blockIdx.x * TILE;
  const int blocks = ceil_div(k, TILE_K);
  auto stage_of = [&](int block) {
    return ptx::shared_address(stages) + block % STAGES * STAGE_BYTES;
  };

  // Starts the copies of a block of K. Beyond the last block the group is empty: each iteration
  // waits for the same number of groups.
  auto copy = [&](int block) {
    if (block < blocks) {
      const unsigned stage = stage_of(block);
      const int at = block * TILE_K + 8 * own_chunk();
#pragma unroll 2  // the addresses of all copies would take too many registers
      for (int i = 0; i < VECTORS; ++i) {
        const unsigned target = stage + Swizzled::offset(own_row(i), own_chunk());
        a.copy_async(target, tile_row + own_row(i), at);
        b.copy_async(target + TILE_BYTES, tile_column + own_row(i), at);
      }
    }
    ptx::copy_async_commit();
  };

  WarpTile<Swizzled> outputs;
  for (int block = 0; block < STAGES - 1; ++block) copy(block);
  for (int block = 0; block < blocks; ++block) {
    // Wait until this thread's copies of this block are complete, then until all threads' are.
    // The barrier also means that all warps have read the previous block, whose stage is next.
    ptx::copy_async_wait<STAGES - 2>();
    __syncthreads();
    copy(block + STAGES - 1);
    outputs.multiply(stage_of(block), stage_of(block) + TILE_BYTES);
  }
  outputs.store(d, tile_row, tile_column);
}
