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
//
// sm90/config.cuh         the configuration and what follows from it
// sm90/shared_memory.cuh  the layout of shared memory
// sm90/registers.cuh      the register budget
// sm90/tile_order.cuh     which tiles a cluster takes, in which order
// sm90/pipeline.cuh       slots, barriers, release of stages
// sm90/boxes.cuh          the TMA boxes of an operand's tile
// sm90/producer.cuh       the producer warpgroup
// sm90/consumer.cuh       the consumers' main loop
// sm90/scales.cuh         block scales of float8 products
// sm90/weight_scales.cuh  block scales and zero points of mixed products
// sm90/factors.cuh        factors of the sums' rows and columns
// sm90/cluster_split.cuh  split-K in a cluster
// sm90/grid_split.cuh     split-K over the grid
// sm90/store.cuh          from accumulators through the epilogue to the output
#pragma once
#include "common/cluster.cuh"
#include "common/mbarrier.cuh"
#include "common/ptx.cuh"
#include "common/tma.cuh"
#include "sm90/cluster_split.cuh"
#include "sm90/config.cuh"
#include "sm90/consumer.cuh"
#include "sm90/factors.cuh"
#include "sm90/grid_split.cuh"
#include "sm90/params.cuh"
#include "sm90/pipeline.cuh"
#include "sm90/producer.cuh"
#include "sm90/registers.cuh"
#include "sm90/shared_memory.cuh"
#include "sm90/store.cuh"
#include "sm90/tile_order.cuh"
#include "sm90/weight_scales.cuh"

template <class Parameters, class Epilogue> struct Sm90Gemm {
  using Config = Sm90Config<Parameters, Epilogue>;
  using Memory = Sm90Memory<Config>;
  using Registers = Sm90Registers<Config>;
  using TileOrder = Sm90TileOrder<Config>;
  using Pipeline = Sm90Pipeline<Config>;
  using Producer = Sm90Producer<Config>;
  using Consumer = Sm90Consumer<Config>;
  using Scales = typename Consumer::Scales;
  using Factors = Sm90Factors<Config>;
  using ClusterSplit = Sm90ClusterSplit<Config>;
  using GridSplit = Sm90GridSplit<Config>;
  using Store = Sm90Store<Config>;
  using Totals = typename Registers::Totals;
  static constexpr bool PING_PONG = Config::PING_PONG, GROUPED = Config::GROUPED,
                        ALONG_M = Config::ALONG_M, ALONG_K = Config::ALONG_K,
                        OVER_GRID = Config::OVER_GRID, OUT_TRANSPOSED = Config::OUT_TRANSPOSED;
  static constexpr int CONSUMERS = Config::CONSUMERS, SPLIT = Config::SPLIT,
                       MATRICES = Config::MATRICES, CLUSTER = Config::CLUSTER;
  static constexpr int THREADS = Config::THREADS, SMEM_BYTES = Memory::BYTES;
  static constexpr int MIN_CTAS = Registers::MIN_CTAS;  // per multiprocessor
  using BoxesB = typename Producer::BoxesB;

  static __device__ __forceinline__ void run(const Sm90Params& params, Epilogue epilogue) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];  // 1024: the 128-byte swizzle
    const Pipeline pipeline(ptx::shared_address(shared_memory));
    // The shuffle makes the warp index uniform for the compiler.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), warpgroup = warp / 4;
    const unsigned rank = CLUSTER == 1 ? 0 : ptx::cluster_rank();
    // Which of the tile's splits of K this CTA computes.
    unsigned split = rank / Config::TILES_PER_CLUSTER, splits = SPLIT;

    const bool gathers = Producer::gathers(params);

    // Initialize barriers.
    if (threadIdx.x == 0) {
      if (!Config::A_BY_THREADS && !gathers) ptx::prefetch_tensor_map(&params.a);
      ptx::prefetch_tensor_map(&params.b);
      if (BoxesB::LONGER > 0) ptx::prefetch_tensor_map(&params.b_shorter);
      if constexpr (MATRICES > 1)
#pragma unroll
        for (int i = 0; i < MATRICES - 1; ++i)
          ptx::prefetch_tensor_map(static_cast<const JointSm90Params&>(params).panels + i);
      if (!OUT_TRANSPOSED) ptx::prefetch_tensor_map(&params.out);
      pipeline.init(gathers);
      if constexpr (Config::IN_CLUSTER) ClusterSplit::init(pipeline.split_word(), split);
      ptx::barrier_init_fence();
    }
    if constexpr (CLUSTER > 1)
      ptx::cluster_sync_relaxed();
    else
      __syncthreads();
    if constexpr (GROUPED) sm90_begin<Config>();  // the preceding grid may write the offsets

    // This CTA's tiles (cluster, cluster + clusters, ...) and its blocks of K.
    typename TileOrder::Order order(params);
    const unsigned clusters = gridDim.x / CLUSTER;
    unsigned cluster = blockIdx.x / CLUSTER;
    if constexpr (OVER_GRID) {
      splits = params.splits_or_stacked;
      split = cluster / order.count;
      cluster -= split * order.count;
    }
    const int all_blocks = params.k / Config::TILE_K + (params.k % Config::TILE_K != 0);
    int first_block = SPLIT == 1 ? 0 : static_cast<long long>(all_blocks) * split / splits;
    int blocks = SPLIT == 1
                     ? all_blocks
                     : static_cast<long long>(all_blocks) * (split + 1) / splits - first_block;
    // Without a block of K, multiply one beyond K, which TMA reads as zeros.
    if (blocks == 0) first_block = all_blocks + 1, blocks = 1;

    if (warpgroup == CONSUMERS) {
      if constexpr (Registers::REDISTRIBUTE) ptx::shrink_registers<Registers::PRODUCER>();
      if (Config::A_BY_THREADS || gathers || warp == CONSUMERS * 4)
        Producer::run(params, order, pipeline, cluster, clusters, first_block, blocks, rank,
                      warp == CONSUMERS * 4);
      // Matches the consumers' in ClusterSplit::add_up.
      if constexpr (Config::IN_CLUSTER) ptx::cluster_sync_relaxed();
      if constexpr (OVER_GRID)
        if (warp == CONSUMERS * 4 + 1)
          GridSplit(params, order.count * CLUSTER, cluster * CLUSTER + rank, split)
              .prepare(shared_memory + (pipeline.split_word() - pipeline.stages));
    } else {
      if constexpr (Registers::REDISTRIBUTE) ptx::grow_registers<Registers::CONSUMER>();
      if constexpr (!GROUPED) sm90_begin<Config>();
      ptx::declare_sums<Registers::SUMS>();
      if constexpr (Registers::TOTALS > 0) ptx::declare_totals<Registers::TOTALS>();
      unsigned char* slabs =
          shared_memory + Memory::SLABS_AT + warp * (Memory::SLABS * Memory::SLAB_BYTES);
      // First row in the tile: of the warpgroup, of the warp.
      const int warpgroup_m = PING_PONG ? 0 : warpgroup * Config::M_BLOCKS * 64,
                warp_m = warpgroup_m + warp % 4 * 16;
      int slab = 0;  // the slab to fill next
      typename Pipeline::Slot slot;
      if constexpr (PING_PONG) {
        if constexpr (ALONG_K) {
          if (warpgroup == 1) slot.skip(order.blocks(cluster));
        } else {
          slot.skip(warpgroup * blocks);
        }
        if (warpgroup == CONSUMERS - 1) Pipeline::pass_turn(warpgroup);
      }

#pragma unroll 1
      for (unsigned index = cluster + (PING_PONG ? warpgroup * clusters : 0); order.has(index);
           index += (PING_PONG ? CONSUMERS : 1) * clusters) {
        typename TileOrder::Tile tile = order[index];
        // Compute the tile's place while its first block is in flight.
        ptx::compute_here(tile.batch);
        ptx::compute_here(tile.m);
        ptx::compute_here(tile.n);
        const int end_m = tile.end_m(params), end_n = tile.end_n(params);
        const int end = OUT_TRANSPOSED ? end_n : end_m;  // of the output's rows
        const int m = tile.m + warp_m,
                  n = Config::output_column(tile.n + split * Config::EPILOGUE_N);
        typename Store::Early early;
        if constexpr (Registers::LOAD_EARLY)
          Store::Rows::load_early(early, params, epilogue, tile.batch, m, n, end_m);

        const int tile_blocks = ALONG_K ? tile.blocks() : blocks;
        // The K blocks that the other consumer of a ping-pong takes next.
        int others = blocks;
        if constexpr (PING_PONG && ALONG_K) others = order.blocks(index + clusters);

        // Multiply. In ping-pong, consumers take turns, and the others use the stages in between.
        if constexpr (PING_PONG) Pipeline::wait_for_turn(warpgroup);
        if (Config::RELEASES_STAGES && (tile.m + warpgroup_m >= end_m || tile.n >= end_n))
          Consumer::release_stages(slot, tile_blocks, rank, warpgroup, pipeline);
        else {
          Consumer::multiply(slot, tile_blocks, ALONG_K ? tile.depth : 0, ALONG_K ? tile.head : 0,
                             rank, warpgroup, pipeline,
                             Scales(params, epilogue, tile.batch, m, tile.n,
                                    ALONG_K ? tile.k : first_block * Config::TILE_K));
          // On this path only: where both paths meet, ptxas would complete each wgmma before the
          // next.
          if constexpr (Factors::PRESENT)
            Factors::apply(params, epilogue, tile.batch, m, tile.n, end_m);
        }
        if constexpr (PING_PONG) slot.skip((CONSUMERS - 1) * others);

        // Store.
        if constexpr (SPLIT == 1) {
          // `last`: the other consumer has no tile left to multiply. (Unknown if ALONG_M: asking
          // for a tile moves the group walk.)
          bool last = false;
          if constexpr (PING_PONG && !ALONG_M) last = !order.has(index + clusters);
          Store::template store<typename Registers::OfTile>(params, epilogue, early, slabs, slab,
                                                            tile.batch, m, n, end, last);
        } else if constexpr (OVER_GRID) {
          GridSplit reduction(params, order.count * CLUSTER, cluster * CLUSTER + rank, split);
#pragma unroll 1
          for (unsigned shares =
                   reduction.publish(shared_memory + (pipeline.split_word() - pipeline.stages));
               shares != 0; shares &= shares - 1) {
            const int share = __ffs(shares) - 1;
            reduction.add_up(share);
            Store::template store<Totals>(params, epilogue, early, slabs, slab, tile.batch, m,
                                          tile.n + share * Config::EPILOGUE_N, end, true);
          }
          // One tile per CTA. A path from the polling loop back to wgmma would make the compiler
          // lose track of the warps' convergence.
          break;
        } else {
          // CTAs of the next grid that find room prefetch its weights while this grid adds up.
          if constexpr (Config::MIXED) ptx::launch_dependent_grids();
          ClusterSplit::add_up(split, rank, shared_memory, pipeline.split_word());
          if constexpr (!Config::MIXED) ptx::launch_dependent_grids();
          if (split < Config::SHARES)
            Store::template store<Totals>(params, epilogue, early, slabs, slab, tile.batch, m, n,
                                          end, true);
          // One tile per CTA. A path back to wgmma, which reads the accumulators, would keep these
          // in registers beside the totals.
          break;
        }
      }
    }
    // TMA may still read the slabs.
    if constexpr (!OUT_TRANSPOSED) ptx::tma_store_wait_read<0>();
  }
};
