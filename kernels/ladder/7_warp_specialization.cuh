// Step 7 of the ladder: warps of different tasks, and CTAs that stay. Compute capability 9.0.
//
// Adds     A producer warpgroup, of which one thread issues TMA, and two consumer warpgroups that
//          multiply. Two mbarriers for each stage connect them: `full` (its bytes have arrived) and
//          `empty` (both consumers have read it). The grid has one CTA for each multiprocessor,
//          which computes one tile after the other.
// Relieves the waits of step 6. Consumers wait for data only: block i + 1 is issued before block i
//          is complete, so that the tensor cores never drain within a tile, and neither consumer
//          waits for the other. The producer fills stages of the next tile, up to 192 KiB, while
//          the consumers store. It shrinks to 40 registers a thread, so that consumers have 232 for
//          their 128 sums: 128 x 40 + 256 x 232 = 64512 of 65536 registers.
// Limit    The L2 cache. A stage takes 48 KiB for 4.2 MFLOP, 85 FLOP a byte: at 800 TFLOP/s, the
//          multiprocessors of an H100 read 9.4 TB/s. And stores: both consumers store at the same
//          time, 4 bytes a thread, and nothing multiplies meanwhile.
#pragma once
#include "ladder/wgmma_tile.cuh"

constexpr int CONSUMERS = 2, THREADS = (CONSUMERS + 1) * WARPGROUP;

__global__ void __launch_bounds__(THREADS, 1)
    warp_specialization(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                        f16* d_data, int m, int n, int k) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned stages = ptx::shared_address(shared_memory), full = stages + STAGES * STAGE_BYTES,
                 empty = full + 8 * STAGES;
  const Output d{d_data, m, n};
  const int tiles_m = ceil_div(m, TILE_M), tiles = tiles_m * ceil_div(n, TILE_N);
  const int blocks = ceil_div(k, TILE_K);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), warpgroup = warp / 4;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      ptx::barrier_init(full + 8 * stage, 1);
      ptx::barrier_init(empty + 8 * stage, CONSUMERS);
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();

  PipelineSlot<STAGES> slot;  // the producer's next stage, or the consumer's, with its phase bit
  if (warpgroup == CONSUMERS) {
    ptx::shrink_registers<40>();
    if (warp != CONSUMERS * 4 || !ptx::elect_one()) return;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const int row = tile % tiles_m * TILE_M, column = tile / tiles_m * TILE_N;
      for (int block = 0; block < blocks; ++block, slot.advance()) {
        const unsigned stage = stages + slot.stage * STAGE_BYTES, barrier = full + 8 * slot.stage;
        // Wait until the consumers have released the stage. A fresh mbarrier counts as having
        // completed the phase before its first.
        ptx::barrier_wait(empty + 8 * slot.stage, slot.phase ^ 1);
        ptx::barrier_arrive_expect_tx(barrier, STAGE_BYTES);
        ptx::tma_load_2d(stage, &a, barrier, block * TILE_K, row);
        ptx::tma_load_2d(stage + A_BYTES, &b, barrier, block * TILE_K, column);
      }
    }
  } else {
    ptx::grow_registers<232>();
    ptx::declare_sums<SUMS>();
    // One thread of the warpgroup releases a stage: wgmma is an instruction of all 4 warps.
    auto release = [&](unsigned stage) {
      if (threadIdx.x % WARPGROUP == 0) ptx::barrier_arrive(empty + 8 * stage);
    };
#pragma unroll 1
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      unsigned previous = 0;  // stage of the previous block
#pragma unroll 1
      for (int block = 0; block < blocks; ++block, slot.advance()) {
        const unsigned stage = stages + slot.stage * STAGE_BYTES;
        ptx::barrier_wait(full + 8 * slot.stage, slot.phase);
        multiply_block(stage + warpgroup * (A_BYTES / 2), stage + A_BYTES, block > 0);
        ptx::wgmma_wait<1>();  // the previous block is complete
        if (block > 0) release(previous);
        previous = slot.stage;
      }
      ptx::wgmma_wait<0>();
      release(previous);
      store_sums(d, tile % tiles_m * TILE_M + warpgroup * (TILE_M / 2), tile / tiles_m * TILE_N);
    }
  }
}
