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
#include "sm90/grid_split.cuh"
#include "sm90/params.cuh"
#include "sm90/pipeline.cuh"
#include "sm90/registers.cuh"
#include "sm90/shared_memory.cuh"
#include "sm90/tile_order.cuh"

template <class Config> struct Sm90Producer {
  using A = typename Config::A;
  using Memory = Sm90Memory<Config>;
  using Pipeline = Sm90Pipeline<Config>;
  using Registers = Sm90Registers<Config>;
  using Tile = typename Sm90TileOrder<Config>::Tile;
  using Work = typename Sm90TileOrder<Config>::Work;
  static constexpr int CLUSTER_M = Config::CLUSTER_M, CLUSTER_N = Config::CLUSTER_N;

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

  // Whether the launch has an index of A's rows.
  static __device__ __forceinline__ bool is_gathered(const Sm90Params& params) {
    return Config::GATHERS && params.index != nullptr;
  }
  static __device__ __forceinline__ void prefetch_maps(const Sm90Params& params, bool gathers) {
    if (!Config::A_BY_THREADS && !gathers) ptx::prefetch_tensor_map(&params.a);
    ptx::prefetch_tensor_map(&params.b);
    if (BoxesB::LONGER > 0) ptx::prefetch_tensor_map(&params.b_shorter);
    if constexpr (Config::MATRICES > 1)
#pragma unroll
      for (int i = 0; i < Config::MATRICES - 1; ++i)
        ptx::prefetch_tensor_map(static_cast<const JointSm90Params&>(params).panels + i);
    if (!Config::OUT_TRANSPOSED) ptx::prefetch_tensor_map(&params.out);
  }

  const Sm90Params& params;
  Work& work;
  const Pipeline& pipeline;
  const int warp;
  const bool gathers = is_gathered(params), a_by_threads = Config::A_BY_THREADS || gathers;
  const int rank_m = work.rank % CLUSTER_M, rank_n = work.rank / CLUSTER_M % CLUSTER_N;
  // Multicast masks: A goes to the CTAs of the same tile row, B to those of the same column.
  unsigned row = 0, column = 0;

  __device__ __forceinline__ void produce(unsigned char* shared_memory) {
    constexpr int FIRST_WARP = Config::CONSUMERS * 4;  // issues TMA
    if constexpr (Registers::REDISTRIBUTE) ptx::shrink_registers<Registers::PRODUCER>();
    if (a_by_threads || warp == FIRST_WARP) load_tiles(warp == FIRST_WARP);
    // Matches the consumers' in ClusterSplit::add_up.
    if constexpr (Config::IN_CLUSTER) ptx::cluster_sync_relaxed();
    if constexpr (Config::OVER_GRID)
      if (warp == FIRST_WARP + 1)
        Sm90GridSplit<Config>(params, work.tiles(), work.tile(), work.split)
            .prepare(shared_memory + Memory::SPLIT_WORD_AT);
  }

 private:
  // The TMA loads of a tile.
  struct TileLoads {
    const Sm90Producer& cta;
    BoxesA boxes_a;
    BoxesB boxes_b;
    const int expected;  // bytes of a stage
    const TensorMap *map_a, *map_b;

    // Beside an A that threads load, tiles of B are loaded whole, including zeros beyond n: the
    // loop over boxes would delay the threads' loads.
    __device__ __forceinline__ TileLoads(const Sm90Producer& cta, const Tile& tile)
        : cta(cta),
          boxes_a(tile.m, tile.end_m(cta.params), cta.params.a_box,
                  cta.params.a_batched ? tile.batch : 0, cta.rank_n),
          boxes_b(tile.n, Config::A_BY_THREADS ? tile.n + Config::TILE_N : tile.end_n(cta.params),
                  Config::A_BY_THREADS ? BoxesB::SLICE : cta.params.b_box,
                  cta.params.b_batched ? tile.batch : 0, cta.rank_m),
          expected((cta.a_by_threads ? 0 : boxes_a.bytes) + boxes_b.bytes),
          map_a(&cta.params.a),
          map_b(boxes_b.map_of(cta.rank_m, cta.params.b, cta.params.b_shorter)) {
      if constexpr (Config::MATRICES > 1 && Config::MATRICES_ARE_A)
        boxes_a.mn -= take_matrix(cta.params, map_a, tile.m);
      else if constexpr (Config::MATRICES > 1)
        boxes_b.mn -= take_matrix(cta.params, map_b, tile.n);
    }
    __device__ __forceinline__ bool has_all() const {
      return (cta.a_by_threads || boxes_a.has_all()) && boxes_b.has_all();
    }
    // The CTAs that wait for a slice of this CTA which lies outside the operand, one bit each.
    __device__ __forceinline__ unsigned waiting() const {
      return (boxes_a.count == 0 ? cta.row : 0) | (boxes_b.count == 0 ? cta.column : 0);
    }
    // By a whole warp: loads a stage. `full`: its barrier.
    template <bool HAS_ALL>
    __device__ __forceinline__ void issue(unsigned a, unsigned b, unsigned full, int k) const {
      if (!ptx::elect_one()) return;
      ptx::barrier_arrive_expect_tx(full, expected);
      if (!cta.a_by_threads) boxes_a.template load<HAS_ALL>(a, map_a, full, k, cta.rank_n, cta.row);
      boxes_b.template load<HAS_ALL>(b, map_b, full, k, cta.rank_m, cta.column);
    }
  };

  // `issues`: whether this warp issues TMA.
  __device__ __forceinline__ void load_tiles(bool issues) {
    // The first CTA of this split of K.
    const int base = work.rank / Config::TILES_PER_CLUSTER * Config::TILES_PER_CLUSTER;
    for (int n = 0; n < CLUSTER_N; ++n) row |= 1u << (base + rank_m + n * CLUSTER_M);
    column = ((1u << CLUSTER_M) - 1) << (base + rank_n * CLUSTER_M);
    const unsigned lane = threadIdx.x % 32;
    Sm90GatheredRows<Config> rows;
    typename Pipeline::Slot slot;
#pragma unroll 1
    for (unsigned index = work.cluster; work.order.has(index); index += work.clusters) {
      const Tile tile = work.order[index];
      const TileLoads loads(*this, tile);
      if (gathers) rows.find(params, tile.m, tile.end_m(params));
      const bool has_all = loads.has_all();
      // Lane i reports slices outside the operand to CTA i (see boxes.cuh). One thread would take
      // as long as a K block to report to all CTAs.
      const bool reports =
          Config::TILES_PER_CLUSTER > 1 && lane != work.rank && (loads.waiting() >> lane & 1);
      if (!Config::GROUPED && index == work.cluster) {
        if constexpr (Config::MIXED) prefetch(loads.boxes_a);
        sm90_begin<Config>();
      }
#pragma unroll 1
      for (int block = 0; block < work.blocks_of(tile); ++block) {
        const int k = work.k_of(tile, block);
        const unsigned a = pipeline.stage(slot), b = a + Memory::A_BYTES,
                       full = pipeline.full + 8 * slot.stage;
        // Wait until the consumers have released this stage.
        ptx::barrier_wait(pipeline.empty + 8 * slot.stage, slot.phase ^ 1);
        if (issues && has_all) {
          loads.template issue<true>(a, b, full, k);
        } else if (issues) {
          if (reports) ptx::barrier_complete_tx<1>(full, lane);
          loads.template issue<false>(a, b, full, k);
        }
        if constexpr (Config::A_BY_THREADS) {
          load_by_threads(a, tile.m, k, params.a_batched ? tile.batch : 0);
          ptx::barrier_arrive_after_copies(full);
        }
        if (gathers) rows.load(params, a, k, pipeline);
        slot.advance();
      }
    }
    if (gathers) rows.finish(pipeline);
    // Other CTAs arrive at this CTA's barriers until all stages are released: stay until then.
    if (Config::TILES_PER_CLUSTER > 1)
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
  __device__ __forceinline__ void prefetch(const BoxesA& boxes) const {
    if (ptx::elect_one())
#pragma unroll 1
      for (int block = 0; block < min(work.blocks, Config::STAGES); ++block)
        boxes.prefetch(&params.a, (work.first_block + block) * Config::TILE_K);
  }

  // Loads A's tile with all threads of the producer, in pieces of A_ALIGN bytes. Elements beyond K
  // become zero. Rows beyond the last keep stale data: their accumulators are not stored.
  __device__ __forceinline__ void load_by_threads(unsigned shared, int m, int k, int batch) const {
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
