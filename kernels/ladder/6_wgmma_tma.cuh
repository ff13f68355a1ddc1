// Step 6 of the ladder: wgmma, fed by TMA. Compute capability 9.0.
//
// Adds     wgmma: a warpgroup of 4 warps multiplies 64 x 256 outputs by 16 elements of K with one
//          asynchronous instruction, 0.5 MFLOP, that reads both operands from shared memory. TMA:
//          one thread copies a box of 64 elements of K by 128 or 256 rows with one instruction; an
//          mbarrier counts the bytes that arrive.
// Relieves instruction issue and registers. 4.2 MFLOP take 8 wgmma instead of 1024 mma.sync and 384
//          ldmatrix, and 2 instructions for the copies instead of 12 for each thread. Tensor cores
//          run at their full rate, twice that of mma.sync. Shared memory: 64 x 256 outputs read 2
//          KiB of A and 8 KiB of B in 128 clocks, 80 bytes a clock of 128.
// Limit    Waiting. In each block of K, both warpgroups wait for their products and for each other
//          before a stage is refilled, and the tensor cores drain. So they do while a CTA stores
//          its outputs: there is one CTA on a multiprocessor, as its stages take 192 KiB.
#pragma once
#include "ladder/wgmma_tile.cuh"

__global__ void __launch_bounds__(2 * WARPGROUP, 1)
    wgmma_tma(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, f16* d_data,
              int m, int n, int k) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];  // 1024: the 128-byte swizzle
  const unsigned stages = ptx::shared_address(shared_memory), full = stages + STAGES * STAGE_BYTES;
  const Output d{d_data, m, n};
  const int row = blockIdx.y * TILE_M, column = blockIdx.x * TILE_N;
  const int blocks = ceil_div(k, TILE_K);
  // The shuffle makes the warp's index uniform for the compiler.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), warpgroup = warp / 4;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) ptx::barrier_init(full + 8 * stage, 1);
    ptx::barrier_init_fence();
  }
  __syncthreads();

  // Fills a stage with a block of K. TMA fills with zeros what lies outside of a matrix.
  auto load = [&](int block) {
    if (warp == 0 && block < blocks && ptx::elect_one()) {
      const unsigned stage = stages + block % STAGES * STAGE_BYTES,
                     barrier = full + 8 * (block % STAGES);
      ptx::barrier_arrive_expect_tx(barrier, STAGE_BYTES);
      ptx::tma_load_2d(stage, &a, barrier, block * TILE_K, row);
      ptx::tma_load_2d(stage + A_BYTES, &b, barrier, block * TILE_K, column);
    }
    __syncwarp();  // wgmma takes converged warps
  };

  ptx::declare_sums<SUMS>();
  for (int block = 0; block < STAGES; ++block) load(block);
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    const unsigned stage = stages + block % STAGES * STAGE_BYTES;
    // Wait until the stage's bytes have arrived. The phase bit flips each time the stage is filled.
    ptx::barrier_wait(full + 8 * (block % STAGES), block / STAGES % 2);
    multiply_block(stage + warpgroup * (A_BYTES / 2), stage + A_BYTES, block > 0);
    ptx::wgmma_wait<0>();
    __syncthreads();  // both warpgroups have read the stage
    load(block + STAGES);
  }
  store_sums(d, row + warpgroup * (TILE_M / 2), column);
}
