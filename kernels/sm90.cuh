// GEMM on Hopper: wgmma fed by TMA, warp-specialized and persistent.
//
//   global memory --TMA--> pipeline of STAGES tiles --wgmma--> accumulators
//     --epilogue--> slabs of shared memory --TMA--> global memory
//
// A CTA has one producer warpgroup, of which one thread issues TMA, and CONSUMERS consumer
// warpgroups. They synchronize with two mbarriers per stage: `full` (the stage's bytes have
// arrived) and `empty` (it has been read). A CTA takes one tile after the other; the producer runs
// ahead into the next tile while the consumers store the current one.
//
// Schedule   COOPERATIVE: the consumers share a tile; each has TILE_M / CONSUMERS of its rows.
//            PING_PONG: each consumer has a tile of its own; one stores while the other multiplies.
// Cluster    CLUSTER_M x CLUSTER_N adjacent tiles. The CTAs that need an operand's tile load a
//            slice of it each and multicast it.
// Split-K    In a cluster: SPLIT CTAs share a tile and exchange partial sums through distributed
//            shared memory. Over the grid: the splits are spread over the grid and meet in
//            workspace, where SPLIT reducer CTAs add them up. Either way a CTA computes one tile.
// Alignment  TMA addresses multiples of 16 bytes. If A is aligned to 8 or 4 bytes (A_ALIGN), the
//            producer's threads load it with cp.async.
// Groups     Their ends are read on the device. ALONG_M: A and the output are stacks of row groups,
//            with a matrix B each. A tile lies in one group; rows of the next group may be loaded
//            and multiplied, but are not stored. Gathered: an index names the row of A for each row
//            of the output (sm90/gather.cuh). Of a mixed product, whose weights are A, a group
//            has a matrix A instead, and the rows lie along n. Masked: the operand of rows and the
//            output have a matrix for each group, of which the first rows exist. ALONG_K: the
//            groups divide K of A and B, with a matrix of the output each. The last K block of a
//            group, and the first of 8-bit elements, may hold K of other groups, which consumers
//            overwrite by zeros.
// Elements   A and B have the same type: f16, bf16, f32 as tf32, s8, u8; or each is e4m3 or e5m2;
//            or MIXED: A is s8, u8, e4m3 or codes of 4 bits, and B f16 or bf16. Accumulators are
//            f32, for f16 also f16, for s8 and u8 s32. wgmma reads operands of other than 16 bits
//            K-major only, so an f32 A of other order comes from registers. An A of a mixed product
//            does so to be converted.
// Dual       The epilogue takes the sums of two products of one operand. The tile of the other
//            operand holds rows of both matrices (Sm90Config::DUAL). If ALONG_M, each group has
//            two matrices B.
// Joint      The user's B consists of several matrices, whose columns lie side by side in the
//            output (Sm90Config::MATRICES).
// Frame      A has `m` rows, B `n` columns. Rows of the output lie along m, or along n if
//            OUT_TRANSPOSED. That serves outputs with few rows: they lie on wgmma's N, of which an
//            instruction takes as few as 8, while it takes 64 of M. The epilogue and `out_stride`
//            use the output's own rows and columns.
#pragma once
#include "common/cluster.cuh"
#include "common/mbarrier.cuh"
#include "common/ptx.cuh"
#include "common/tma.cuh"
#include "sm90/cluster_split.cuh"
#include "sm90/config.cuh"
#include "sm90/consumer.cuh"
#include "sm90/params.cuh"
#include "sm90/pipeline.cuh"
#include "sm90/producer.cuh"
#include "sm90/registers.cuh"
#include "sm90/shared_memory.cuh"
#include "sm90/tile_order.cuh"

template <class Parameters, class Epilogue> struct Sm90Gemm {
  using Config = Sm90Config<Parameters, Epilogue>;
  using Memory = Sm90Memory<Config>;
  using Registers = Sm90Registers<Config>;
  using Producer = Sm90Producer<Config>;
  using Consumer = Sm90Consumer<Config>;

  static constexpr int THREADS = Config::THREADS, SMEM_BYTES = Memory::BYTES;
  static constexpr int MIN_CTAS = Registers::MIN_CTAS;  // per multiprocessor

  static __device__ __forceinline__ void run(const Sm90Params& params, Epilogue epilogue) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];  // 1024: the 128-byte swizzle
    const Sm90Pipeline<Config> pipeline(ptx::shared_address(shared_memory));
    // The shuffle makes the warp index uniform for the compiler.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), warpgroup = warp / 4;
    const unsigned rank = Config::CLUSTER == 1 ? 0 : ptx::cluster_rank();
    const bool gathers = Producer::is_gathered(params);
    if (threadIdx.x == 0) {
      Producer::prefetch_maps(params, gathers);
      pipeline.init(gathers);
      if constexpr (Config::IN_CLUSTER) Sm90ClusterSplit<Config>::init(pipeline.split_word(), rank);
      ptx::barrier_init_fence();
    }
    if constexpr (Config::CLUSTER > 1)
      ptx::cluster_sync_relaxed();
    else
      __syncthreads();
    // The preceding grid may write the offsets.
    if constexpr (Config::GROUPED) sm90_begin<Config>();

    typename Sm90TileOrder<Config>::Work work(params, rank);
    if (warpgroup == Config::CONSUMERS)
      Producer{params, work, pipeline, warp}.produce(shared_memory);
    else
      Consumer{params, epilogue, work, pipeline, shared_memory, warp, warpgroup}.consume();
    // TMA may still read the slabs.
    if constexpr (!Config::OUT_TRANSPOSED) ptx::tma_store_wait_read<0>();
  }
};
