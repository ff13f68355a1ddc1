// Split-K in a cluster: SPLIT CTAs of the cluster share a tile, each with one split of K. They
// exchange partial sums through distributed shared memory. Each reducer CTA adds up the splits of
// one share of the columns, in the order of K, and stores it.
#pragma once
#include "common/choose.cuh"
#include "common/cluster.cuh"
#include "common/mbarrier.cuh"
#include "common/ptx.cuh"
#include "common/wgmma.cuh"
#include "sm90/config.cuh"
#include "sm90/registers.cuh"

template <class Config> struct Sm90ClusterSplit {
  using Sums = typename Sm90Registers<Config>::Sums;
  using Value = typename Config::Value;
  static constexpr int SHARE_SUMS = Sm90Registers<Config>::SHARE_SUMS;
  struct alignas(16) Vector { Value values[4]; };

  // By one thread, before the CTAs of the cluster synchronize. `arrived` completes when the partial
  // sums of all splits have arrived at this CTA, if it is a reducer.
  static __device__ __forceinline__ void init(unsigned arrived, unsigned rank) {
    const unsigned split = rank / Config::TILES_PER_CLUSTER;
    ptx::barrier_init(arrived, 1);
    ptx::barrier_arrive_expect_tx(arrived,
                                  split < Config::SHARES ? Config::SPLIT * Config::SHARE_BYTES : 0);
  }

  // By the consumers: sends partial sums to the reducer CTAs, then adds up this CTA's share, which
  // is in the totals afterwards. The stages are reused as the receive buffer.
  static __device__ __forceinline__ void add_up(unsigned split, unsigned rank,
                                                unsigned char* shared_memory, unsigned arrived) {
    const Vector* const received = reinterpret_cast<const Vector*>(shared_memory) + threadIdx.x;
    const unsigned place = ptx::shared_address(received) + split * Config::SHARE_BYTES,
                   peer = rank % Config::TILES_PER_CLUSTER;
    ptx::cluster_sync_relaxed();  // all CTAs have read their last stage

    // Send. Each CTA starts with a different reducer.
#pragma unroll 1
    for (int turn = 1; turn <= Config::SPLIT; ++turn) {
      const int reducer = (split + turn) % Config::SPLIT;
      const unsigned cta = peer + reducer * Config::TILES_PER_CLUSTER;
      const unsigned target = ptx::map_shared(place, cta), barrier = ptx::map_shared(arrived, cta);
      if (reducer >= Config::SHARES) continue;
      choose<0, Config::SHARES>(reducer,
                                [&](auto share) { send<share.value, 0>(target, barrier); });
    }
    ptx::barrier_wait_cluster(arrived, 0);
    if (split >= Config::SHARES) return;

    add_vectors<0>(received);
  }

 private:
  // One vector at a time: copies of all sums would be live beside them. A share's vectors from the
  // AT-th on.
  template <int SHARE, int AT>
  static __device__ __forceinline__ void send(unsigned target, unsigned barrier) {
    constexpr int BLOCK = AT / Config::SHARE_VECTORS, VECTOR = AT % Config::SHARE_VECTORS;
    Value sums[4];
    Sums::template read<BLOCK, (SHARE * Config::SHARE_VECTORS + VECTOR) * 4, 4>(sums);
    auto bits = [&](int e) { return __builtin_bit_cast(unsigned, sums[e]); };
    ptx::store_async(target + AT * (Config::CONSUMER_THREADS * 16),
                     {bits(0), bits(1), bits(2), bits(3)}, barrier);
    if constexpr (4 * AT + 4 < SHARE_SUMS) send<SHARE, AT + 1>(target, barrier);
  }
  template <int AT> static __device__ __forceinline__ void add_vectors(const Vector* received) {
    Value totals[4];
#pragma unroll
    for (int s = 0; s < Config::SPLIT; ++s) {
      const Vector v = received[s * (Config::SHARE_BYTES / 16) + AT * Config::CONSUMER_THREADS];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        totals[e] = s == 0 ? v.values[e] : add_sums(totals[e], v.values[e]);
    }
    ptx::write_totals<4 * AT, 4 * AT + 4>(totals);
    if constexpr (4 * AT + 4 < SHARE_SUMS) add_vectors<AT + 1>(received);
  }
};
