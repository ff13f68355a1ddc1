// Step 8 of the ladder: clusters of two CTAs that share loads. Compute capability 9.0.
//
// Adds     The two CTAs of a cluster compute adjacent tiles of the same columns, so both need the
//          same rows of B. Each loads half of them, and TMA writes this half to the shared memory
//          of both (multicast). The rest is step 7.
// Relieves the L2 cache. A CTA reads 16 KiB of A and 16 KiB of B for 4.2 MFLOP instead of 48 KiB:
//          128 FLOP a byte instead of 85. At 800 TFLOP/s, an H100 reads 6.3 TB/s from L2 instead of
//          9.4.
// Limit    Stores and the last wave. The library's kernels (kernels/sm90.cuh) add: a consumer that
//          stores while the other one multiplies (ping-pong), outputs through shared memory and
//          TMA, an order of tiles that keeps more of the operands in L2, and tiles, clusters and
//          splits of K that fit the shape.
//
// The CTAs of a cluster depend on each other. A stage may be filled only after the consumers of
// both have released it, since both producers write to both; a CTA must not exit while the other
// one still arrives at its mbarriers.
#pragma once
#include "ladder/wgmma_tile.cuh"

constexpr int CONSUMERS = 2, THREADS = (CONSUMERS + 1) * WARPGROUP, CLUSTER = 2;
constexpr int HALF_N = TILE_N / CLUSTER, HALF_BYTES = B_BYTES / CLUSTER;

__global__ void __launch_bounds__(THREADS, 1)
    clusters(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, f16* d_data,
             int m, int n, int k) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned stages = ptx::shared_address(shared_memory), full = stages + STAGES * STAGE_BYTES,
                 empty = full + 8 * STAGES;
  const Output d{d_data, m, n};
  // Clusters take pairs of tiles. The second tile of a pair may lie below the output: TMA loads
  // zeros for it, and nothing is stored.
  const int pairs_m = ceil_div(m, CLUSTER * TILE_M), pairs = pairs_m * ceil_div(n, TILE_N);
  const int first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
  const int rank = ptx::cluster_rank(), blocks = ceil_div(k, TILE_K);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), warpgroup = warp / 4;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      ptx::barrier_init(full + 8 * stage, 1);
      ptx::barrier_init(empty + 8 * stage, CLUSTER * CONSUMERS);
    }
    ptx::barrier_init_fence();
  }
  ptx::cluster_sync_relaxed();  // the other CTA's mbarriers are initialized, too

  auto row_of = [&](int pair) { return (pair % pairs_m * CLUSTER + rank) * TILE_M; };
  auto column_of = [&](int pair) { return pair / pairs_m * TILE_N; };
  PipelineSlot<STAGES> slot;
  if (warpgroup == CONSUMERS) {
    ptx::shrink_registers<40>();
    if (warp != CONSUMERS * 4 || !ptx::elect_one()) return;
    for (int pair = first; pair < pairs; pair += stride)
      for (int block = 0; block < blocks; ++block, slot.advance()) {
        const unsigned stage = stages + slot.stage * STAGE_BYTES, barrier = full + 8 * slot.stage;
        ptx::barrier_wait(empty + 8 * slot.stage, slot.phase ^ 1);
        // Expect all of the stage's bytes: A, this CTA's half of B, and the other CTA's half.
        ptx::barrier_arrive_expect_tx(barrier, STAGE_BYTES);
        ptx::tma_load_2d(stage, &a, barrier, block * TILE_K, row_of(pair));
        ptx::tma_load_2d(stage + A_BYTES + rank * HALF_BYTES, &b, barrier, block * TILE_K,
                         column_of(pair) + rank * HALF_N, /* to CTAs 0 and 1 */ 3);
      }
    // Stay until both CTAs' consumers have released all stages.
    for (int stage = 0; stage < STAGES; ++stage, slot.advance())
      ptx::barrier_wait(empty + 8 * slot.stage, slot.phase ^ 1);
  } else {
    ptx::grow_registers<232>();
    ptx::declare_sums<SUMS>();
    // Thread i of the warpgroup releases the stage in CTA i.
    auto release = [&](unsigned stage) {
      const unsigned thread = threadIdx.x % WARPGROUP;
      if (thread < CLUSTER) ptx::barrier_arrive(empty + 8 * stage, thread);
    };
#pragma unroll 1
    for (int pair = first; pair < pairs; pair += stride) {
      unsigned previous = 0;
#pragma unroll 1
      for (int block = 0; block < blocks; ++block, slot.advance()) {
        const unsigned stage = stages + slot.stage * STAGE_BYTES;
        ptx::barrier_wait(full + 8 * slot.stage, slot.phase);
        multiply_block(stage + warpgroup * (A_BYTES / 2), stage + A_BYTES, block > 0);
        ptx::wgmma_wait<1>();
        if (block > 0) release(previous);
        previous = slot.stage;
      }
      ptx::wgmma_wait<0>();
      release(previous);
      store_sums(d, row_of(pair) + warpgroup * (TILE_M / 2), column_of(pair));
    }
  }
}
