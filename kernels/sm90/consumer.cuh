// The consumer warpgroups: multiply tiles, and store them through the epilogue.
#pragma once
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "common/wgmma.cuh"
#include "sm90/cluster_split.cuh"
#include "sm90/config.cuh"
#include "sm90/factors.cuh"
#include "sm90/grid_split.cuh"
#include "sm90/main_loop.cuh"
#include "sm90/params.cuh"
#include "sm90/pipeline.cuh"
#include "sm90/registers.cuh"
#include "sm90/shared_memory.cuh"
#include "sm90/store_rows.cuh"
#include "sm90/store_transposed.cuh"
#include "sm90/tile_order.cuh"

template <class Config> struct Sm90Consumer {
  using Epilogue = typename Config::Epilogue;
  using Memory = Sm90Memory<Config>;
  using Registers = Sm90Registers<Config>;
  using Pipeline = Sm90Pipeline<Config>;
  using MainLoop = Sm90MainLoop<Config>;
  using StoreRows = Sm90StoreRows<Config>;
  using StoreTransposed = Sm90StoreTransposed<Config>;
  using Tile = typename Sm90TileOrder<Config>::Tile;
  using Work = typename Sm90TileOrder<Config>::Work;
  using Early = typename StoreRows::Early;
  static constexpr bool PING_PONG = Config::PING_PONG, ALONG_K = Config::ALONG_K;

  const Sm90Params& params;
  const Epilogue& epilogue;
  Work& work;
  const Pipeline& pipeline;
  unsigned char* const shared_memory;
  const int warp, warpgroup;
  unsigned char* const slabs =
      shared_memory + Memory::SLABS_AT + warp * (Memory::SLABS * Memory::SLAB_BYTES);
  int slab = 0;  // the slab to fill next

  __device__ __forceinline__ void consume() {
    if constexpr (Registers::REDISTRIBUTE) ptx::grow_registers<Registers::CONSUMER>();
    if constexpr (!Config::GROUPED) sm90_begin<Config>();
    ptx::declare_sums<Registers::SUMS>();
    if constexpr (Registers::TOTALS > 0) ptx::declare_totals<Registers::TOTALS>();
    // First row in the tile: of the warpgroup, of the warp.
    const int warpgroup_m = PING_PONG ? 0 : warpgroup * Config::M_BLOCKS * 64,
              warp_m = warpgroup_m + warp % 4 * 16;
    MainLoop main_loop{pipeline, work.rank, warpgroup};
    if constexpr (PING_PONG) {
      if (!ALONG_K || warpgroup == 1) main_loop.slot.skip(warpgroup * work.blocks_at(work.cluster));
      if (warpgroup == Config::CONSUMERS - 1) Pipeline::pass_turn(warpgroup);
    }

#pragma unroll 1
    for (unsigned index = work.cluster + (PING_PONG ? warpgroup * work.clusters : 0);
         work.order.has(index); index += (PING_PONG ? Config::CONSUMERS : 1) * work.clusters) {
      Tile tile = work.order[index];
      // Compute the tile's place while its first block is in flight.
      ptx::compute_here(tile.batch);
      ptx::compute_here(tile.m);
      ptx::compute_here(tile.n);
      const int end_m = tile.end_m(params), end_n = tile.end_n(params);
      const int m = tile.m + warp_m,
                n = Config::output_column(tile.n + work.split * Config::EPILOGUE_N);
      Early early;
      if constexpr (Registers::LOAD_EARLY)
        StoreRows::load_early(early, params, epilogue, tile.batch, m, n, end_m);
      const int blocks = work.blocks_of(tile);
      // The K blocks that the other consumer of a ping-pong takes next.
      const int others = PING_PONG ? work.blocks_at(index + work.clusters) : 0;

      // Multiply. In ping-pong, consumers take turns, and the others use the stages in between.
      if constexpr (PING_PONG) Pipeline::wait_for_turn(warpgroup);
      if (Config::RELEASES_STAGES && (tile.m + warpgroup_m >= end_m || tile.n >= end_n)) {
        main_loop.release_stages(blocks);
      } else {
        main_loop.multiply(
            blocks, tile.depth, tile.head,
            typename MainLoop::Scales(params, epilogue, tile.batch, m, tile.n, work.k_of(tile, 0)));
        // Not where both paths meet: ptxas would then complete each wgmma before the next.
        if constexpr (Sm90Factors<Config>::PRESENT)
          Sm90Factors<Config>::apply(params, epilogue, tile.batch, m, tile.n, end_m);
      }
      if constexpr (PING_PONG) main_loop.slot.skip(others);

      const int end = Config::OUT_TRANSPOSED ? end_n : end_m;  // of the output's rows
      if constexpr (Config::SPLIT == 1) {
        // `last`: the other consumer has no tile left to multiply. (Unknown if ALONG_M: asking for
        // a tile moves the group walk.)
        bool last = false;
        if constexpr (PING_PONG && !Config::ALONG_M) last = !work.order.has(index + work.clusters);
        store<typename Registers::OfTile>(early, tile.batch, m, n, end, last);
      } else {
        store_split(early, tile, m, n, end);
        // One tile per CTA. A path back to wgmma, which reads the accumulators, would keep these in
        // registers beside the totals. From the polling loop of a grid split, it would make the
        // compiler lose track of the warps' convergence.
        break;
      }
    }
  }

 private:
  // Adds up the shares of a tile that this CTA reduces, and stores them.
  __device__ __forceinline__ void store_split(const Early& early, const Tile& tile, int m, int n,
                                              int end) {
    using Totals = typename Registers::Totals;
    if constexpr (Config::OVER_GRID) {
      Sm90GridSplit<Config> reduction(params, work.tiles(), work.tile(), work.split);
#pragma unroll 1
      for (unsigned shares = reduction.publish(shared_memory + Memory::SPLIT_WORD_AT); shares != 0;
           shares &= shares - 1) {
        const int share = __ffs(shares) - 1;
        reduction.add_up(share);
        store<Totals>(early, tile.batch, m, tile.n + share * Config::EPILOGUE_N, end, true);
      }
    } else {
      // CTAs of the next grid that find room prefetch its weights while this grid adds up.
      if constexpr (Config::MIXED) ptx::launch_dependent_grids();
      Sm90ClusterSplit<Config>::add_up(work.split, work.rank, shared_memory, pipeline.split_word());
      if constexpr (!Config::MIXED) ptx::launch_dependent_grids();
      if (work.split < Config::SHARES) store<Totals>(early, tile.batch, m, n, end, true);
    }
  }

  // Stores a warp's accumulators through the epilogue: M_BLOCKS strips of 16 rows, 64 rows apart,
  // of EPILOGUE_N columns. The first is at row m, column n. The output's rows from `end` on are not
  // stored. They pass through slabs of shared memory, because lanes hold fragments of wgmma, and
  // memory needs contiguous lines.
  //   Sums     ptx::Results: the accumulators, or the totals of a split tile
  //   early    the epilogue's operands, if they are loaded before the main loop
  //   last     no other warpgroup of this CTA multiplies meanwhile
  template <class Sums>
  __device__ __forceinline__ void store(const Early& early, int batch, int m, int n, int end,
                                        bool last) {
    if constexpr (Config::PAIRED_ROWS && Config::OUT_TRANSPOSED && is_same<Epilogue, Identity>)
      if (StoreTransposed::template store_pairs<Sums>(params, batch, m, n, end)) return;
    if constexpr (Config::OUT_TRANSPOSED && Memory::BY_LINES)
      StoreTransposed::template store_lines<Sums>(params, slabs, slab, batch, m, n, end);
    else if constexpr (Config::OUT_TRANSPOSED)
      StoreTransposed::template store_elements<Sums>(params, epilogue, slabs, batch, m, n, end);
    else
      StoreRows::template store<Sums>(params, epilogue, early, slabs, slab, batch, m, n, end, last);
  }
};
