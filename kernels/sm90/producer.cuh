// The producer warpgroup: fills the pipeline's stages with the tiles of A and B. One thread issues
// TMA. If A_BY_THREADS, or if A is gathered, all 128 threads load A with cp.async.
#pragma once
#include "common/cluster.cuh"
#include "common/mbarrier.cuh"
#include "common/ptx.cuh"
#include "common/tma.cuh"
#include "sm90/boxes.cuh"
#include "sm90/config.cuh"
#include "sm90/gather.cuh"
#include "sm90/params.cuh"
#include "sm90/pipeline.cuh"
#include "sm90/shared_memory.cuh"
#include "sm90/tile_order.cuh"

template <class Config> struct Sm90Producer {
  using A = typename Config::A;
  using Memory = Sm90Memory<Config>;
  using Pipeline = Sm90Pipeline<Config>;
  using TileOrder = Sm90TileOrder<Config>;

  // A grid split loads operands as EVICT_FIRST: those of a deep product would evict the partial
  // sums from L2.
  template <class Element, bool K_MAJOR, int TILE, int ROW_BYTES, int SHARED_BY, bool DUAL>
  using Boxes = Sm90Boxes<Element, Config::TILE_K, K_MAJOR, TILE, ROW_BYTES, SHARED_BY,
                          Config::OVER_GRID, DUAL>;
  using BoxesA = Boxes<A, Config::A_K_MAJOR, Config::TILE_M, Config::A_ROW_BYTES, Config::CLUSTER_N,
                       Config::DUAL_ROWS>;
  using BoxesB = Boxes<typename Config::B, Config::B_K_MAJOR, Config::TILE_N, Config::B_ROW_BYTES,
                       Config::CLUSTER_M, Config::DUAL_COLUMNS>;
  static_assert(BoxesA::LONGER == 0, "A has one tensor map");
  using GatheredRows = Sm90GatheredRows<Config>;

  // Whether the launch has an index of A's rows.
  static __device__ __forceinline__ bool gathers(const Sm90Params& params) {
    return Config::GATHERS && params.index != nullptr;
  }

  // `first_warp`: whether this is the warp that issues TMA.
  static __device__ __forceinline__ void run(const Sm90Params& params,
                                             typename TileOrder::Order& order,
                                             const Pipeline& pipeline, unsigned cluster,
                                             unsigned clusters, int first_block, int blocks,
                                             unsigned rank, bool first_warp) {
    constexpr int CLUSTER_M = Config::CLUSTER_M, CLUSTER_N = Config::CLUSTER_N,
                  TILES_PER_CLUSTER = Config::TILES_PER_CLUSTER;
    constexpr bool A_BY_THREADS = Config::A_BY_THREADS, ALONG_K = Config::ALONG_K;
    const int rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M % CLUSTER_N;
    // The first CTA of this split of K.
    const int base = rank / TILES_PER_CLUSTER * TILES_PER_CLUSTER;
    // Multicast masks: A goes to the CTAs of the same tile row, B to those of the same column.
    unsigned row = 0;
    for (int n = 0; n < CLUSTER_N; ++n) row |= 1u << (base + rank_m + n * CLUSTER_M);
    const unsigned column = ((1u << CLUSTER_M) - 1) << (base + rank_n * CLUSTER_M),
                   lane = threadIdx.x % 32;

    const bool by_index = gathers(params);
    GatheredRows rows;
    typename Pipeline::Slot slot;
#pragma unroll 1
    for (unsigned index = cluster; order.has(index); index += clusters) {
      const typename TileOrder::Tile tile = order[index];
      BoxesA boxes_a(tile.m, tile.end_m(params), params.a_box, params.a_batched ? tile.batch : 0,
                     rank_n);
      // Beside an A that threads load, tiles of B are loaded whole, including zeros beyond n: the
      // loop over boxes would delay the threads' loads.
      const int end_b = A_BY_THREADS ? tile.n + Config::TILE_N : tile.end_n(params),
                box_b = A_BY_THREADS ? BoxesB::SLICE : params.b_box;
      BoxesB boxes_b(tile.n, end_b, box_b, params.b_batched ? tile.batch : 0, rank_m);
      if (by_index) rows.find(params, tile.m, tile.end_m(params));
      const int expected = (A_BY_THREADS || by_index ? 0 : boxes_a.bytes) + boxes_b.bytes;
      const TensorMap *map_a = &params.a,
                      *map_b = boxes_b.map_of(rank_m, params.b, params.b_shorter);
      if constexpr (Config::MATRICES > 1 && Config::MATRICES_ARE_A)
        boxes_a.mn -= take_matrix(params, map_a, tile.m);
      else if constexpr (Config::MATRICES > 1)
        boxes_b.mn -= take_matrix(params, map_b, tile.n);
      const bool all_boxes = (A_BY_THREADS || by_index || boxes_a.has_all()) && boxes_b.has_all();
      // Report slices outside the operand: lane i reports to CTA i (see boxes.cuh). One thread
      // would take as long as a K block to report to all CTAs.
      const unsigned others = (boxes_a.count == 0 ? row : 0) | (boxes_b.count == 0 ? column : 0);
      const bool reports = TILES_PER_CLUSTER > 1 && lane != rank && (others >> lane & 1);
      if (!Config::GROUPED && index == cluster) {
        if constexpr (Config::MIXED) prefetch(params, boxes_a, first_block, blocks);
        sm90_begin<Config>();
      }
#pragma unroll 1
      for (int block = 0; block < (ALONG_K ? tile.blocks() : blocks); ++block) {
        const int k =
            ALONG_K ? tile.k + block * Config::TILE_K : (first_block + block) * Config::TILE_K;
        const unsigned a = pipeline.stage(slot), b = a + Memory::A_BYTES,
                       full = pipeline.full + 8 * slot.stage;
        // Wait until the consumers have released this stage.
        ptx::barrier_wait(pipeline.empty + 8 * slot.stage, slot.phase ^ 1);
        if (first_warp && all_boxes) {
          if (ptx::elect_one()) {
            ptx::barrier_arrive_expect_tx(full, expected);
            if (!A_BY_THREADS && !by_index) boxes_a.load_all(a, map_a, full, k, rank_n, row);
            boxes_b.load_all(b, map_b, full, k, rank_m, column);
          }
        } else if (first_warp) {
          if (reports) ptx::barrier_complete_tx<1>(full, lane);
          if (ptx::elect_one()) {
            ptx::barrier_arrive_expect_tx(full, expected);
            if (!A_BY_THREADS && !by_index) boxes_a.load(a, map_a, full, k, rank_n, row);
            boxes_b.load(b, map_b, full, k, rank_m, column);
          }
        }
        if constexpr (A_BY_THREADS) {
          load_by_threads(params, a, tile.m, k, params.a_batched ? tile.batch : 0);
          ptx::barrier_arrive_after_copies(full);
        }
        if (by_index) rows.load(params, a, k, pipeline);
        slot.advance();
      }
    }
    if (by_index) rows.finish(pipeline);
    // Other CTAs arrive at this CTA's barriers until all stages are released: stay until then.
    if (TILES_PER_CLUSTER > 1)
#pragma unroll 1
      for (int stage = 0; stage < Config::STAGES; ++stage, slot.advance())
        ptx::barrier_wait(pipeline.empty + 8 * slot.stage, slot.phase ^ 1);
  }

  // Finds the matrix B that has the tile from this column on: its tensor map and its first column.
  static __device__ __forceinline__ int take_matrix(const Sm90Params& params, const TensorMap*& map,
                                                    int column) {
    const auto& joint = static_cast<const JointSm90Params&>(params);
    int start = 0;
#pragma unroll
    for (int i = 0; i < Config::MATRICES - 1; ++i)
      if (column >= joint.starts[i]) map = &joint.panels[i], start = joint.starts[i];
    return start;
  }

  // Prefetches the CTA's first tiles of A into L2: A is the large operand of a mixed product of few
  // rows. As the CTA waits for the preceding grid, memory would idle otherwise.
  static __device__ __forceinline__ void prefetch(const Sm90Params& params, const BoxesA& boxes,
                                                  int first_block, int blocks) {
    if (ptx::elect_one())
#pragma unroll 1
      for (int block = 0; block < min(blocks, Config::STAGES); ++block)
        boxes.prefetch(&params.a, (first_block + block) * Config::TILE_K);
  }

  // Loads A's tile with all threads of the producer, in pieces of A_ALIGN bytes. Elements beyond K
  // become zero. Rows beyond the last keep stale data: their accumulators are not stored.
  static __device__ __forceinline__ void load_by_threads(const Sm90Params& params, unsigned shared,
                                                         int m, int k, int batch) {
    constexpr int ALIGN = Config::A_ALIGN, PIECES_PER_ROW = 128 / ALIGN,
                  ROW_STEP = Config::WARPGROUP / PIECES_PER_ROW;
    const int thread = threadIdx.x - Config::CONSUMER_THREADS, row = thread / PIECES_PER_ROW,
              byte = thread % PIECES_PER_ROW * ALIGN;
    const unsigned target = shared + row * 128 + (byte ^ row % 8 << 4);  // 128-byte swizzle
    const int column = k + byte / int(sizeof(A)), valid = column < params.k ? ALIGN : 0;
    const A* from = static_cast<const A*>(params.a_pointer) + params.a_stride[0] * batch +
                    params.a_stride[1] * (m + row) + (valid ? column : 0);
#pragma unroll 8
    for (int i = 0; i < Config::TILE_M / ROW_STEP; ++i, from += params.a_stride[1] * ROW_STEP)
      if (m + row + i * ROW_STEP < params.m)
        ptx::copy_async<ALIGN>((target + i * ROW_STEP * 128) ^ (i * ROW_STEP % 8 << 4), from,
                               valid);
  }
};
