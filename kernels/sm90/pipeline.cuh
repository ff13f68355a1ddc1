// The pipeline between the producer and the consumers of a CTA: STAGES stages in shared memory,
// each with two mbarriers. `full` completes when the stage's bytes have arrived, `empty` when all
// consumers that read the stage, in every CTA that shares a slice of it, have released it.
#pragma once
#include "common/cluster.cuh"
#include "common/mbarrier.cuh"
#include "sm90/config.cuh"
#include "sm90/shared_memory.cuh"

template <class Config> struct Sm90Pipeline {
  using Memory = Sm90Memory<Config>;
  using Slot = PipelineSlot<Config::STAGES>;

  // Shared addresses. The barriers of stage i lie at full + 8 * i and empty + 8 * i. (Uses repeat
  // the expression: with a function, the compiler computes the addresses later, between wgmma and
  // release.)
  const unsigned stages, full, empty;

  __device__ __forceinline__ explicit Sm90Pipeline(unsigned shared)
      : stages(shared), full(shared + Memory::BARRIERS_AT), empty(full + 8 * Config::STAGES) {}

  __device__ __forceinline__ unsigned stage(const Slot& slot) const {
    return stages + slot.stage * Memory::STAGE_BYTES;
  }
  __device__ __forceinline__ unsigned split_word() const { return stages + Memory::SPLIT_WORD_AT; }

  // By one thread, before the CTAs of the cluster synchronize. `gathers`: whether A is gathered.
  __device__ __forceinline__ void init(bool gathers) const {
    // The CTAs of the same row and the same column of the cluster read slices that this CTA loads.
    constexpr int RELEASES =
        Config::CONSUMERS_PER_TILE * (Config::CLUSTER_M + Config::CLUSTER_N - 1);
    for (int stage = 0; stage < Config::STAGES; ++stage) {
      // Arrivals: the thread that issues TMA, and the threads (of gathered rows, the warps) that
      // load A.
      constexpr int LOADING = Config::A_BY_THREADS ? Config::WARPGROUP : 0;
      ptx::barrier_init(full + 8 * stage, 1 + (gathers ? Config::WARPGROUP / 32 : LOADING));
      ptx::barrier_init(empty + 8 * stage, RELEASES);
    }
  }

  // ---- consumers ----

  // Named barriers: 1 to CONSUMERS for turns, then one for each consumer warpgroup. A grid split
  // uses 14 and 15.
  static __device__ __forceinline__ void sync_warpgroup() {
    ptx::named_barrier_sync<Config::WARPGROUP>(1 + Config::CONSUMERS +
                                               threadIdx.x / Config::WARPGROUP);
  }
  // Ping-pong: consumers take turns in multiplying. A consumer that started out of turn could take
  // the phase bit of an earlier round for its own.
  static __device__ __forceinline__ void wait_for_turn(int warpgroup) {
    ptx::named_barrier_sync<2 * Config::WARPGROUP>(1 + warpgroup);
  }
  static __device__ __forceinline__ void pass_turn(int warpgroup) {
    ptx::named_barrier_arrive<2 * Config::WARPGROUP>(1 + (warpgroup + 1) % Config::CONSUMERS);
  }

  // By a consumer warpgroup: releases a stage, whose `empty` barrier is `barrier`, to every CTA
  // that loads a slice of it.
  static __device__ __forceinline__ void release(unsigned barrier, unsigned rank) {
    const unsigned thread = threadIdx.x % Config::WARPGROUP;
    if constexpr (Config::TILES_PER_CLUSTER == 1) {
      if (thread == 0) ptx::barrier_arrive(barrier);
    } else {
      constexpr unsigned SHARING = Config::TILES_PER_CLUSTER, CLUSTER_M = Config::CLUSTER_M;
      const unsigned own = rank % SHARING;
      if (thread < SHARING &&
          (thread % CLUSTER_M == own % CLUSTER_M || thread / CLUSTER_M == own / CLUSTER_M))
        ptx::barrier_arrive(barrier, rank - own + thread);
    }
  }
};

// Waits for the preceding grids. Work that does not touch their memory precedes this call and
// overlaps with them.
template <class Config> __device__ __forceinline__ void sm90_begin() {
  ptx::wait_for_prior_grids();
  // The clusters of a cluster split spread over the chip best if no other grid is resident, so that
  // kernel lets dependent grids start only after its main loop.
  if constexpr (!Config::IN_CLUSTER) ptx::launch_dependent_grids();
}
