// GEMM on Hopper: wgmma fed by the copy engine (TMA).
//
//   global memory --TMA--> shared memory (ring of STAGES tiles) --wgmma--> sums --epilogue--> shared memory (slabs) --TMA--> global
//                                                                         (from here on: sm90/store.cuh)
//
// A CTA has one producer warpgroup, of which one thread starts the copies, and CONSUMERS warpgroups that multiply. They meet at two
// barriers a stage: `full` (its bytes have arrived) and `empty` (it has been read). The grid is persistent: each CTA takes one tile
// after the other, and the producer runs ahead into the next tile while the sums of the last one are stored.
//
//   Schedule  COOPERATIVE: the consumers share a tile, each has TILE_M / CONSUMERS of its rows.
//             PING_PONG: each consumer has a tile of its own; while one stores its sums, the other keeps the tensor cores busy.
//   Cluster   CLUSTER_M x CLUSTER_N neighbouring tiles at a time, by CTAs that load each operand once for all of them (multicast).
//   Split     SPLIT CTAs of a cluster share one tile, each has a part of K. They send each other their sums through distributed
//             shared memory; each CTA adds those of some columns, in the order of K, and stores them. One tile a cluster then, no
//             persistence.
//   Over grid The parts of K are spread over the grid, and the sums meet in memory, where SPLIT of a tile's CTAs add and store those of
//             some columns each (sm90/parts.cuh).
//   Align     The copy engine addresses multiples of 16 bytes. Where those of A are multiples of 8 or 4, the producer's threads load it.
//   Grouped   A and the output are stacks of groups of rows, as high as the device finds on arrival, and B is a matrix for each.
//             A tile lies in one group. What it reads of the next group's rows is multiplied, but not stored.
//
// Elements: f16, bf16, or f32 (as tf32), the same for A and B. Sums: f32, f16 too for f16. Of f32, B is K-major, since wgmma reads it only
// so; A may lie either way, for wgmma takes it from registers too, into which consumers load it.
// Frame: A has `m` rows and B `n` columns. The output has rows along m, or, if OUT_TRANSPOSED, along n: that serves few rows, which
// then lie on wgmma's N, of which it takes 8 where it takes 64 of M. The epilogue and `out_stride` count in the output's own rows and
// columns.
#pragma once
#include "common/choose.cuh"
#include "common/cluster.cuh"
#include "common/epilogue.cuh"
#include "common/groups.cuh"
#include "common/mbarrier.cuh"
#include "common/ptx.cuh"
#include "common/tma.cuh"
#include "common/types.cuh"
#include "common/wgmma.cuh"
#include "sm90/boxes.cuh"
#include "sm90/params.cuh"
#include "sm90/parts.cuh"
#include "sm90/store.cuh"

enum class Schedule { COOPERATIVE, PING_PONG };

// Of a split tile, each CTA stores an equal part of the columns: as many CTAs as can share them evenly in groups of 8.
__host__ __device__ constexpr int stored_columns(int tile_n, int split) {
  int columns = 8;
  while (columns * split < tile_n || tile_n % columns != 0) columns += 8;
  return columns;
}

// Of a row with an odd number of 16-byte pieces, a third, or a third of that, until it is no longer than 128 bytes, if it can be.
__host__ __device__ constexpr int odd_box(int row_bytes) {
  while (row_bytes > 128 && row_bytes % 48 == 0) row_bytes /= 3;
  return row_bytes;
}

template <class A, class B, class Accumulator, class Out, bool A_K_MAJOR, bool B_K_MAJOR,
          int TILE_M, int TILE_N, int B_ROW_BYTES, int STAGES, int CONSUMERS, Schedule SCHEDULE,
          int CLUSTER_M, int CLUSTER_N, int SPLIT, bool OVER_GRID, bool OUT_TRANSPOSED,
          bool GROUPED, int A_ALIGN, class Epilogue>
struct Sm90Gemm {
  static_assert(is_same<A, B>, "wgmma multiplies operands of one type");
  // wgmma reads only 16-bit elements MN-major from shared memory; A it also takes from registers, in any order.
  static constexpr bool A_FROM_REGISTERS = sizeof(A) == 4 && !A_K_MAJOR;
  static_assert(sizeof(B) == 2 || B_K_MAJOR, "wgmma reads B from shared memory");

  static constexpr int TILE_K = 128 / sizeof(A);  // a row of the swizzle
  static constexpr int WARPGROUP = 128;
  static constexpr int MAX_SMEM_BYTES = 227 * 1024;  // of a CTA
  static constexpr int CONSUMER_THREADS = CONSUMERS * WARPGROUP;
  static constexpr int THREADS = CONSUMER_THREADS + WARPGROUP;
  static constexpr bool PING_PONG = SCHEDULE == Schedule::PING_PONG;
  static constexpr int SHARERS = PING_PONG ? 1 : CONSUMERS;  // consumers of one tile
  static constexpr int M_BLOCKS = TILE_M / SHARERS / 64;     // of wgmma, for one consumer
  static_assert(TILE_M == SHARERS * M_BLOCKS * 64 && M_BLOCKS <= 2 && TILE_N % 8 == 0 &&
                TILE_N <= 256);
  static constexpr bool IN_CLUSTER = SPLIT > 1 && !OVER_GRID;  // the CTAs of a cluster share a tile
  static constexpr int CLUSTER = CLUSTER_M * CLUSTER_N * (IN_CLUSTER ? SPLIT : 1);
  // Whether a warpgroup that has no row or column of the output hands its stages back. A tile begins inside, unless a cluster overhangs. Over
  // the grid, tiles are few and their time is short; and racecheck takes the parts' barriers for none where warpgroups have met at
  // unequal numbers of barriers before.
  static constexpr bool HANDS_BACK = (CLUSTER_M * CLUSTER_N > 1 || SHARERS > 1) && !OVER_GRID;
  static_assert(SPLIT == 1 || !PING_PONG, "a split tile has the CTA for itself");
  static_assert(!A_FROM_REGISTERS || !PING_PONG, "alone, a consumer waits for its registers");
  static_assert(!GROUPED || (SPLIT == 1 && !OUT_TRANSPOSED),
                "groups are of rows, as they are taken in turn");

  static constexpr bool A_BY_THREADS = A_ALIGN < 16;
  static_assert(!A_BY_THREADS || (A_K_MAJOR && sizeof(A) == 2 && CLUSTER_N == 1 &&
                                  !GROUPED));  // f32 would have to be rounded

  using Multiply = ptx::Wgmma<A, Accumulator, TILE_N, A_K_MAJOR, B_K_MAJOR, B_ROW_BYTES>;
  using Value = EpilogueValue<Accumulator>;
  using Store = Sm90Store<Sm90Gemm, Out, Epilogue, CONSUMERS, OUT_TRANSPOSED, GROUPED>;
  using Parts = Sm90Parts<Sm90Gemm>;

  // ---- shared memory: the ring, the consumers' slabs, the barriers ----

  // Of a K-major tile a CTA's slice is a box of TILE_K by the slice's rows, or some with an equal part of them each, or all rows of an operand
  // that has fewer, as the host says. An MN-major tile is several boxes along M (N) by TILE_K, the last of which may be partly wasted: their
  // rows have 128 bytes of A, B_ROW_BYTES of B. Either way 64 rows of A lie 8192 bytes from the next, and a box takes 128 bytes for each of
  // its rows (columns).
  static_assert(!B_K_MAJOR || B_ROW_BYTES == 128);
  static constexpr int BLOCK_BYTES = 8192;  // 64 rows of 128 bytes
  static constexpr int A_BYTES = TILE_M * 128;
  static constexpr int B_BOX = B_ROW_BYTES / sizeof(B);  // columns, unless K-major
  static constexpr int B_BYTES = (B_K_MAJOR ? TILE_N : (TILE_N + B_BOX - 1) / B_BOX * B_BOX) * 128;
  static constexpr int STAGE_BYTES = A_BYTES + B_BYTES;

  // A warp stores 16 rows at a time, EPILOGUE_N columns wide, in boxes. Rows of a slab must spread over the banks: either the copy
  // engine's swizzle sees to that, or an odd number of 16-byte pieces a row.
  static constexpr int EPILOGUE_N = stored_columns(TILE_N, SPLIT);
  static constexpr int ROW_BYTES = EPILOGUE_N * sizeof(Out);
  static constexpr int POWER_OF_TWO =
      (ROW_BYTES & -ROW_BYTES) < 128 ? (ROW_BYTES & -ROW_BYTES) : 128;
  static constexpr int BOX_BYTES =
      POWER_OF_TWO < 16 ? ROW_BYTES
      : POWER_OF_TWO >= 64 || POWER_OF_TWO == ROW_BYTES || sizeof(Out) >= 4
          ? POWER_OF_TWO
          : odd_box(ROW_BYTES / (POWER_OF_TWO / 16));
  static constexpr int SWIZZLE =
      BOX_BYTES == POWER_OF_TWO ? BOX_BYTES / 16 - 1 : 0;  // which of a piece's bits change
  static constexpr int BOX_N = BOX_BYTES / sizeof(Out), BOXES = ROW_BYTES / BOX_BYTES;
  static constexpr bool CONVERT_ONLY =
      is_same<Epilogue, Identity> && sizeof(Out) == 2;  // then stmatrix takes the sums as they lie
  static constexpr int GROUPS = BOX_N / 8,
                       ROUND_GROUPS =
                           GROUPS < 4 ? GROUPS
                                      : 4;  // of 8 columns: in a box, and in a round of its storing
  static constexpr int ROUNDS = CONVERT_ONLY ? 1 : (GROUPS + 3) / 4;
  // An output whose rows are the sums' columns: a warpgroup stores 32 rows of its 64 m's (128 bytes) at a time, from two slabs in turn.
  // Where there is more to do than to convert, or there are fewer rows, a warp stores 16 by 16 elements at a time. So it does where A came
  // from registers, at the output's edges: a lane's rows are neighbours then, which it stores in pairs elsewhere.
  static constexpr bool BY_LINES = CONVERT_ONLY && EPILOGUE_N >= 32 && !A_FROM_REGISTERS;
  static constexpr int LINES = 32, LINE_BYTES = 128;
  static constexpr int TRANSPOSED_N = 16,
                       TRANSPOSED_PITCH = 16 + 4;  // 4 words of padding keep the banks apart
  static constexpr int TRANSPOSED_BYTES =
      EPILOGUE_N >= 32 ? 2 * LINES * LINE_BYTES / 4
                       : TRANSPOSED_N * TRANSPOSED_PITCH * int(sizeof(Value));
  static constexpr int SLAB_BYTES = OUT_TRANSPOSED ? TRANSPOSED_BYTES : 16 * BOX_BYTES;

  static constexpr int SLABS_AT = STAGES * STAGE_BYTES;
  // Two for a warp, so that one is filled while the other is read; one where a further stage has taken the room, which is worth more.
  static constexpr int BARRIER_BYTES =
      (2 * STAGES + (SPLIT > 1)) *
      8;  // of a split tile, one for the sums that arrive, or a word to share
  static constexpr int TWO_SLABS_BYTES =
      SLABS_AT + CONSUMER_THREADS / 32 * 2 * SLAB_BYTES + BARRIER_BYTES;
  static constexpr int SLABS =
      OUT_TRANSPOSED || BOX_BYTES > 128 || TWO_SLABS_BYTES > MAX_SMEM_BYTES ? 1 : 2;
  static constexpr int BARRIERS_AT = SLABS_AT + CONSUMER_THREADS / 32 * SLABS * SLAB_BYTES;
  static constexpr int SMEM_BYTES = BARRIERS_AT + BARRIER_BYTES;

  // ---- the sums of a split tile ----

  // They travel as the threads hold them, in pieces of 16 bytes: 8 columns, 2 rows, a thread's share.
  static constexpr int PIECES = TILE_N / 8,
                       OWN_PIECES =
                           EPILOGUE_N / 8;  // of 64 rows: all, and those that this CTA stores
  static constexpr int OWNERS = PIECES / OWN_PIECES;  // the CTAs that store any
  static constexpr int PART_BYTES =
      M_BLOCKS * OWN_PIECES * CONSUMER_THREADS * 16;  // of a CTA's sums, what one owner gets
  static constexpr int PARTS_AT_ONCE =
      8;  // over the grid, those that are fetched before they are added up
  static_assert(!IN_CLUSTER || SPLIT * PART_BYTES <= SLABS_AT,
                "the ring's memory takes the sums of all");

  // The grid split's constants that the host uses, too (src/kernel/sm90/split.rs).
  static constexpr int MAX_SPLITS = 16, SPLITS_AT_ONCE = PARTS_AT_ONCE, WORD_STRIDE = 32;

  // ---- registers ----

  static constexpr int SUMS = M_BLOCKS * Multiply::SUMS;  // registers of a thread's
  static constexpr int OWN_SUMS =
      M_BLOCKS * OWN_PIECES * 4;  // of those that it stores, of a split tile
  using Sums = ptx::Results<Accumulator, TILE_N / 2, false>;
  using Totals = ptx::Results<f32, OWN_PIECES * 4, true>;  // of a split tile
  // Where the output shows how exact the sums are, so many K blocks are a chain, and chains are added up apart. cuBLAS, which splits K where
  // there are few tiles, has chains of 1400 and more elements then (docs/notes/accuracy.md). Large tiles, which have no registers for it, are
  // for where there are many.
  static constexpr bool CHAINED =
      sizeof(A) == 2 && is_same<Accumulator, f32> && sizeof(Out) == 4 && SUMS <= 80;
  static constexpr int CHAIN = 16;
  // A's elements for half a K block, and for the half that is multiplied meanwhile.
  static constexpr int FRAGMENTS = A_FROM_REGISTERS ? 2 * M_BLOCKS * 8 : 0;
  // Besides the sums, 48 registers do. Where the even share of a SM's 65536 does not suffice, the producer passes its own on.
  static constexpr int ADDING =
      SPLIT > 1 ? OWN_SUMS * (OVER_GRID ? 1 + PARTS_AT_ONCE : 1) : 0;  // a split tile's sums
  static constexpr int CHAINS = CHAINED ? SUMS : 0;  // given back before those are added
  static constexpr int TOTALS = CHAINED ? SUMS : SPLIT > 1 ? OWN_SUMS : 0;
  static constexpr int CTAS_BY_REGISTERS =
      65536 / (THREADS * (SUMS + FRAGMENTS + (ADDING > CHAINS ? ADDING : CHAINS) + 48));
  static constexpr int MIN_CTAS = CTAS_BY_REGISTERS > 1 ? CTAS_BY_REGISTERS : 1;
  static constexpr bool REDISTRIBUTE = CTAS_BY_REGISTERS == 0;
  static constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32;
  static constexpr int CONSUMER_REGISTERS =
      CONSUMERS == 2 ? 232 : 160;  // 40 + 2 * 232 and 32 + 3 * 160 are 65536 / 128, or less

  // What the epilogue reads for a round of its stores is loaded a round ahead, where registers are to spare.
  using Operands = typename Epilogue::template Operands<2 * ROUND_GROUPS, 2>;
  static constexpr bool LOAD_AHEAD =
      REDISTRIBUTE &&
      SUMS + sizeof(Operands) + 64 <= CONSUMER_REGISTERS;  // 4 times 1/4 of its bytes

  // While one consumer multiplies, instructions of the other that follow each other without a pause keep the tensor cores from the
  // registers: four chains of multiply-adds do, each instruction a cycle; two chains cost nothing (docs/notes/epilogue.md).
  static constexpr int AT_A_TIME = PING_PONG ? 2 : 2 * ROUND_GROUPS;

  // ---- the order of tiles ----

  // First row and column; if GROUPED, `batch` is the group and `end` the row after its last.
  struct Tile { int batch, m, n, end; };

  // Clusters that run at the same time should share what they read. Tiles are walked in bands, down each column of a band before the
  // next column. How high a band is, the host chooses for each problem (`Sm90::band`); less than twice as many tiles as there are, or 16.
  static __device__ __forceinline__ unsigned across(int extent, int tile) {
    return (extent + tile - 1) / tile;
  }
  static __device__ __forceinline__ Tile in_bands(unsigned index, unsigned tiles_m,
                                                  unsigned tiles_n, unsigned band) {
    const unsigned first = index / (band * tiles_n) * band, height = min(band, tiles_m - first);
    index -= first * tiles_n;
    const unsigned column = index / height, row = first + index - column * height;
    const unsigned rank = CLUSTER == 1 ? 0 : ptx::cluster_rank();
    return {0, int(row * CLUSTER_M + rank % CLUSTER_M) * TILE_M,
            int(column * CLUSTER_N + rank / CLUSTER_M % CLUSTER_N) * TILE_N, 0};
  }

  struct BatchOrder {
    unsigned tiles_m, tiles_n, count, band;
    __device__ __forceinline__ BatchOrder(const Sm90Params& params) {
      tiles_m = across(params.m, TILE_M * CLUSTER_M);
      tiles_n = across(params.n, TILE_N * CLUSTER_N);
      count = tiles_m * tiles_n * params.batch;
      band = params.band;
    }
    __device__ __forceinline__ bool has(unsigned index) const { return index < count; }
    __device__ __forceinline__ Tile operator[](unsigned index) const {
      const unsigned tiles = tiles_m * tiles_n, batch = index / tiles;
      Tile tile = in_bands(index - batch * tiles, tiles_m, tiles_n, band);
      tile.batch = batch;
      return tile;
    }
  };

  // For all threads of a warp together.
  struct GroupOrder {
    static constexpr int STRIP = TILE_M * CLUSTER_M;
    unsigned tiles_n, band;
    GroupWalk<STRIP> walk;
    __device__ __forceinline__ GroupOrder(const Sm90Params& params)
        : tiles_n(across(params.n, TILE_N * CLUSTER_N)),
          band(params.band),
          walk(params.offsets, params.batch, params.m, tiles_n) {}
    __device__ __forceinline__ bool has(unsigned index) { return walk.has(index); }
    __device__ __forceinline__ Tile operator[](unsigned index) const {
      const auto place = walk[index];
      Tile tile = in_bands(place.tile, across(place.end - place.start, STRIP), tiles_n, band);
      tile.batch = place.group;
      tile.m += place.start;
      tile.end = place.end;
      return tile;
    }
  };
  using Order = typename Conditional<GROUPED, GroupOrder, BatchOrder>::Type;

  // A position in the ring. Each time round, the barriers' parity changes.
  struct Ring {
    unsigned stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    __device__ __forceinline__ void skip(unsigned count) {
      stage += count;
      parity ^= stage / STAGES & 1;
      stage %= STAGES;
    }
  };

  static __device__ __forceinline__ void run(const Sm90Params& params, Epilogue epilogue) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const unsigned ring = ptx::shared_address(shared_memory), full = ring + BARRIERS_AT,
                   empty = full + 8 * STAGES, arrived = empty + 8 * STAGES;
    // The shuffle tells the compiler that all lanes have the same value.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), warpgroup = warp / 4;
    const unsigned rank = CLUSTER == 1 ? 0 : ptx::cluster_rank();
    const unsigned split =
        rank / (CLUSTER_M * CLUSTER_N);  // which of the cluster's CTAs for a tile this is

    if (threadIdx.x == 0) {
      if (!A_BY_THREADS) ptx::prefetch_tensor_map(&params.a);
      ptx::prefetch_tensor_map(&params.b);
      if (BoxesB::LONGER > 0) ptx::prefetch_tensor_map(&params.b_shorter);
      if (!OUT_TRANSPOSED) ptx::prefetch_tensor_map(&params.out);
      for (int stage = 0; stage < STAGES; ++stage) {
        ptx::barrier_init(full + 8 * stage, A_BY_THREADS ? 1 + WARPGROUP : 1);
        ptx::barrier_init(empty + 8 * stage, SHARERS * (CLUSTER_M + CLUSTER_N - 1));
      }
      if constexpr (IN_CLUSTER) {
        ptx::barrier_init(arrived, 1);
        ptx::barrier_arrive_expecting(arrived, split < OWNERS ? SPLIT * PART_BYTES : 0);
      }
      ptx::barrier_init_fence();
    }
    if constexpr (CLUSTER > 1)
      ptx::cluster_meet();
    else
      __syncthreads();
    if constexpr (GROUPED) begin();  // another grid may write the offsets

    Order order(params);
    const unsigned clusters = gridDim.x / CLUSTER;
    unsigned cluster = blockIdx.x / CLUSTER, part = split, parts = SPLIT;
    if constexpr (OVER_GRID) {
      parts = params.parts;
      part = cluster / order.count;
      cluster -= part * order.count;
    }
    const int all_blocks = params.k / TILE_K + (params.k % TILE_K != 0);
    int first_block = SPLIT == 1 ? 0 : static_cast<long long>(all_blocks) * part / parts;
    int blocks = SPLIT == 1 ? all_blocks
                            : static_cast<long long>(all_blocks) * (part + 1) / parts - first_block;
    if (blocks == 0)
      first_block = all_blocks + 1, blocks = 1;  // one that lies beyond K, and reads as zeros

    if (warpgroup == CONSUMERS) {
      if constexpr (REDISTRIBUTE) ptx::shrink_registers<PRODUCER_REGISTERS>();
      if (A_BY_THREADS || warp == CONSUMERS * 4)
        produce(params, order, cluster, clusters, first_block, blocks, rank, warp == CONSUMERS * 4,
                ring, full, empty);
      if constexpr (IN_CLUSTER) ptx::cluster_meet();  // as the consumers, in `add_up`
      if constexpr (OVER_GRID)
        if (warp == CONSUMERS * 4 + 1)
          Parts(params, order.count * CLUSTER, cluster * CLUSTER + rank, part)
              .prepare(shared_memory + (arrived - ring));
    } else {
      if constexpr (REDISTRIBUTE) ptx::grow_registers<CONSUMER_REGISTERS>();
      if constexpr (!GROUPED) begin();
      ptx::declare_sums<SUMS>();
      if constexpr (TOTALS > 0) ptx::declare_totals<TOTALS>();
      unsigned char* slabs = shared_memory + SLABS_AT + warp * (SLABS * SLAB_BYTES);
      const int warpgroup_m = PING_PONG ? 0 : warpgroup * M_BLOCKS * 64,
                warp_m = warpgroup_m + warp % 4 * 16;
      int slab = 0;
      Ring position;
      if constexpr (PING_PONG) {
        position.skip(warpgroup * blocks);
        if (warpgroup == CONSUMERS - 1) pass_turn(warpgroup);
      }

#pragma unroll 1
      for (unsigned index = cluster + (PING_PONG ? warpgroup * clusters : 0); order.has(index);
           index += (PING_PONG ? CONSUMERS : 1) * clusters) {
        Tile tile = order[index];
        // While the first block is on its way.
        ptx::compute_here(tile.batch);
        ptx::compute_here(tile.m);
        ptx::compute_here(tile.n);
        const int end = GROUPED ? tile.end : params.m;
        if constexpr (PING_PONG)
          ptx::numbered_barrier_sync<2 * WARPGROUP>(
              1 + warpgroup);  // until the consumer before passes the turn
        if (HANDS_BACK && (tile.m + warpgroup_m >= end || tile.n >= params.n))
          hand_back(position, blocks, rank, warpgroup, full, empty);
        else
          multiply(position, blocks, rank, warpgroup, ring, full, empty);
        if constexpr (PING_PONG) position.skip((CONSUMERS - 1) * blocks);  // of the others
        const int m = tile.m + warp_m, n = tile.n + split * EPILOGUE_N;
        if constexpr (SPLIT == 1) {
          // In the last tile of a CTA nobody multiplies any more. (To ask for a group's is to go there.)
          bool last = false;
          if constexpr (PING_PONG && !GROUPED) last = !order.has(index + clusters);
          Store::template store<Sums>(params, epilogue, slabs, slab, GROUPED ? 0 : tile.batch, m, n,
                                      end, last);
        } else if constexpr (OVER_GRID) {
          Parts tile_parts(params, order.count * CLUSTER, cluster * CLUSTER + rank, part);
#pragma unroll 1
          for (unsigned slices = tile_parts.publish(shared_memory + (arrived - ring)); slices != 0;
               slices &= slices - 1) {
            const int slice = __ffs(slices) - 1;
            tile_parts.add_up(slice);
            Store::template store<Totals>(params, epilogue, slabs, slab, tile.batch, m,
                                          tile.n + slice * EPILOGUE_N, params.m, true);
          }
          break;  // were there a way back from the waiting, the compiler would not know any more that warps multiply together
        } else {
          add_up(split, rank, shared_memory, arrived);
          ptx::let_next_grid_start();
          if (split < OWNERS)
            Store::template store<Totals>(params, epilogue, slabs, slab, tile.batch, m, n, params.m,
                                          true);
        }
      }
    }
    if constexpr (!OUT_TRANSPOSED)
      ptx::store_wait_read<0>();  // the copy engine may still read the slabs
  }

  // Waits for the grids before this one. What does not need their memory is done ahead of that: it then takes no time, as long as
  // others of their CTAs still run.
  static __device__ __forceinline__ void begin() {
    ptx::wait_for_grids_before();
    // The clusters of a split tile spread over the chip best where no others run. (8 of 8 CTAs have a GPC each, which is as fast as it
    // gets; with another grid's still there, two of them share one.)
    if constexpr (!IN_CLUSTER) ptx::let_next_grid_start();
  }

  // ---- the producer ----

  static __device__ __forceinline__ void produce(const Sm90Params& params, Order& order,
                                                 unsigned cluster, unsigned clusters,
                                                 int first_block, int blocks, unsigned rank,
                                                 bool first_warp, unsigned ring, unsigned full,
                                                 unsigned empty) {
    const int rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M % CLUSTER_N;
    const int base = rank / (CLUSTER_M * CLUSTER_N) *
                     (CLUSTER_M * CLUSTER_N);  // the first CTA of this part of K
    // A goes to all tiles of the same row, B to all of the same column.
    unsigned row = 0;
    for (int n = 0; n < CLUSTER_N; ++n) row |= 1u << (base + rank_m + n * CLUSTER_M);
    const unsigned column = ((1u << CLUSTER_M) - 1) << (base + rank_n * CLUSTER_M),
                   lane = threadIdx.x % 32;

    Ring position;
#pragma unroll 1
    for (unsigned index = cluster; order.has(index); index += clusters) {
      const Tile tile = order[index];
      static_assert(BoxesA::LONGER == 0, "A has one tensor map");
      const BoxesA boxes_a(tile.m, GROUPED ? tile.end : params.m, params.a_box,
                           params.a_batched ? tile.batch : 0, rank_n);
      // Beside an A that threads load, B's tiles come whole, zeros beyond n included: the loop over boxes that this folds away holds those
      // threads up, by 15 to 20 % where they load 4 bytes at a time.
      const int end_b = A_BY_THREADS ? tile.n + TILE_N : params.n,
                box_b = A_BY_THREADS ? BoxesB::SLICE : params.b_box;
      const BoxesB boxes_b(tile.n, end_b, box_b, params.b_batched ? tile.batch : 0, rank_m);
      const int expected = (A_BY_THREADS ? 0 : boxes_a.bytes) + boxes_b.bytes;
      const TensorMap* const map_b = boxes_b.map_of(rank_m, params.b, params.b_shorter);
      const bool usual = (A_BY_THREADS || boxes_a.usual()) && boxes_b.usual();
      // Each lane has a CTA to tell, if any: one after the other they would take as long as a block.
      const unsigned others = (boxes_a.count == 0 ? row : 0) | (boxes_b.count == 0 ? column : 0);
      const bool tells = CLUSTER_M * CLUSTER_N > 1 && lane != rank && (others >> lane & 1);
      if (!GROUPED && index == cluster) begin();
#pragma unroll 1
      for (int block = 0; block < blocks; ++block) {
        const int k = (first_block + block) * TILE_K;
        const unsigned a = ring + position.stage * STAGE_BYTES, b = a + A_BYTES,
                       ready = full + 8 * position.stage;
        ptx::barrier_wait(empty + 8 * position.stage, position.parity ^ 1);
        if (first_warp && usual) {
          if (ptx::elect_one()) {
            ptx::barrier_arrive_expecting(ready, expected);
            if (!A_BY_THREADS) boxes_a.load_usual(a, &params.a, ready, k, rank_n, row);
            boxes_b.load_usual(b, map_b, ready, k, rank_m, column);
          }
        } else if (first_warp) {
          if (tells) ptx::barrier_count_bytes<1>(ready, lane);
          if (ptx::elect_one()) {
            ptx::barrier_arrive_expecting(ready, expected);
            if (!A_BY_THREADS) boxes_a.load(a, &params.a, ready, k, rank_n, row);
            boxes_b.load(b, map_b, ready, k, rank_m, column);
          }
        }
        if constexpr (A_BY_THREADS) {
          load_by_threads(params, a, tile.m, k, params.a_batched ? tile.batch : 0);
          ptx::barrier_arrive_behind_copies(ready);
        }
        position.advance();
      }
    }
    // Other CTAs still arrive at these barriers, and this one must not be gone before.
    if (CLUSTER_M * CLUSTER_N > 1)
#pragma unroll 1
      for (int stage = 0; stage < STAGES; ++stage, position.advance())
        ptx::barrier_wait(empty + 8 * position.stage, position.parity ^ 1);
  }

  // Of a deep product, operands would drive the parts' sums out of the cache, between one launch with this workspace and the next.
  template <bool K_MAJOR, int TILE, int ROW_BYTES, int SHARED_BY> using Boxes =
      Sm90Boxes<A, K_MAJOR, TILE, ROW_BYTES, SHARED_BY, OVER_GRID>;
  using BoxesA = Boxes<A_K_MAJOR, TILE_M, 128, CLUSTER_N>;
  using BoxesB = Boxes<B_K_MAJOR, TILE_N, B_ROW_BYTES, CLUSTER_M>;

  // A's tile, by all threads of the producer, in pieces of A_ALIGN bytes. Rows beyond the last are left as they are: what comes of them
  // is not stored.
  static __device__ __forceinline__ void load_by_threads(const Sm90Params& params, unsigned shared,
                                                         int m, int k, int batch) {
    constexpr int PIECES_A_ROW = 128 / A_ALIGN, STEP = WARPGROUP / PIECES_A_ROW;  // rows
    const int thread = threadIdx.x - CONSUMER_THREADS, row = thread / PIECES_A_ROW,
              byte = thread % PIECES_A_ROW * A_ALIGN;
    const unsigned target = shared + row * 128 + (byte ^ row % 8 << 4);  // with the swizzle
    const int column = k + byte / int(sizeof(A)),
              valid = column < params.k ? A_ALIGN : 0;  // beyond K, zeros
    const A* from = static_cast<const A*>(params.a_pointer) + params.a_stride[0] * batch +
                    params.a_stride[1] * (m + row) + (valid ? column : 0);
#pragma unroll 8
    for (int i = 0; i < TILE_M / STEP; ++i, from += params.a_stride[1] * STEP)
      if (m + row + i * STEP < params.m)
        ptx::copy_async<A_ALIGN>((target + i * STEP * 128) ^ (i * STEP % 8 << 4), from, valid);
  }

  // ---- the consumers ----

  // One tile's sums. While a K block is multiplied, the next one is already issued; a stage is released once the block after it is
  // under way and its own has been read. In ping-pong, a consumer that has its turn passes it on at the end.
  static __device__ __forceinline__ void multiply(Ring& position, int blocks, unsigned rank,
                                                  int warpgroup, unsigned ring, unsigned full,
                                                  unsigned empty) {
    unsigned previous = 0;
    if constexpr (CHAINED) ptx::clear_totals<0, SUMS>();
    if constexpr (A_FROM_REGISTERS)
      previous = multiply_from_registers(position, blocks, rank, warpgroup, ring, full, empty);
    else
#pragma unroll 1
      for (int block = 0; block < blocks; ++block) {
        const unsigned stage = ring + position.stage * STAGE_BYTES;
        const auto a = ptx::matrix_descriptor(
            stage + (PING_PONG ? 0 : warpgroup) * (M_BLOCKS * BLOCK_BYTES), BLOCK_BYTES);
        const auto b = ptx::matrix_descriptor<B_ROW_BYTES>(stage + A_BYTES, 64 * B_ROW_BYTES);
        ptx::barrier_wait(full + 8 * position.stage, position.parity);
        if constexpr (A_BY_THREADS)
          ptx::
              fence_for_copy_engine();  // wgmma reads as that does, threads do not write as that does
        const bool adds = CHAINED ? block % CHAIN > 0 : block > 0;
        if constexpr (CHAINED)
          if (!adds && block > 0) {
            ptx::wgmma_wait<0>();
            ptx::add_to_totals<0, SUMS>();
          }
        ptx::wgmma_fence();
        Multiply::template issue<0>(a, b, adds);
        if constexpr (M_BLOCKS > 1) Multiply::template issue<1>(a + BLOCK_BYTES / 16, b, adds);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        if (block > 0) release(empty + 8 * previous, rank);
        previous = position.stage;
        position.advance();
      }
    if constexpr (PING_PONG) pass_turn(warpgroup);
    ptx::wgmma_wait<0>();
    if constexpr (CHAINED) ptx::add_totals<0, SUMS>();
    release(empty + 8 * previous, rank);
  }

  // The same with A from registers, up to the last block, whose stage it gives. Half a block's elements of A are loaded while the half
  // before is multiplied.
  static __device__ __forceinline__ unsigned multiply_from_registers(Ring& position, int blocks,
                                                                     unsigned rank, int warpgroup,
                                                                     unsigned ring, unsigned full,
                                                                     unsigned empty) {
    const ptx::WgmmaFragments<M_BLOCKS> at(ring + warpgroup * (M_BLOCKS * BLOCK_BYTES));
    unsigned fragments[2][M_BLOCKS][8];
    auto load = [&](int half) {
      at.load(fragments[half], position.stage * STAGE_BYTES + half * 2048);
    };
    ptx::barrier_wait(full + 8 * position.stage, position.parity);
    load(0);
    unsigned previous = 0;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const auto b =
          ptx::matrix_descriptor(ring + position.stage * STAGE_BYTES + A_BYTES, BLOCK_BYTES);
      auto issue = [&](int half) {  // and wait for the half before, whose registers are loaded next
        ptx::wgmma_fence();
        Multiply::template issue_half<0>(fragments[half][0], b + half * 4, block + half > 0);
        if constexpr (M_BLOCKS > 1)
          Multiply::template issue_half<1>(fragments[half][1], b + half * 4, block + half > 0);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
      };
      issue(0);
      if (block > 0) release(empty + 8 * previous, rank);
      load(1);
      issue(1);
      previous = position.stage;
      position.advance();
      if (block + 1 < blocks) {
        ptx::barrier_wait(full + 8 * position.stage, position.parity);
        load(0);
      }
    }
    return previous;
  }

  // A tile of which this warpgroup stores nothing: its stages are released as they fill, for others fill and read them. (At the limit of
  // its power a chip clocks higher for what is not multiplied.) The barrier keeps the warpgroup's threads together, as `wgmma` does
  // elsewhere: one that is late, from its last stores, would otherwise find a stage filled once more, and wait for the round after.
  static __device__ __forceinline__ void hand_back(Ring& position, int blocks, unsigned rank,
                                                   int warpgroup, unsigned full, unsigned empty) {
#pragma unroll 1
    for (int block = 0; block < blocks; ++block, position.advance()) {
      ptx::barrier_wait(full + 8 * position.stage, position.parity);
      Store::meet_warpgroup();
      release(empty + 8 * position.stage, rank);
    }
    if constexpr (PING_PONG) pass_turn(warpgroup);
  }

  // Ping-pong: lets the next consumer start. Were it to start by itself, it would take the parity of an earlier round for its own.
  static __device__ __forceinline__ void pass_turn(int warpgroup) {
    ptx::numbered_barrier_arrive<2 * WARPGROUP>(1 + (warpgroup + 1) % CONSUMERS);
  }

  // Tells every CTA that fills this stage that it has been read here.
  static __device__ __forceinline__ void release(unsigned barrier, unsigned rank) {
    const unsigned thread = threadIdx.x % WARPGROUP;
    if constexpr (CLUSTER_M * CLUSTER_N == 1) {
      if (thread == 0) ptx::barrier_arrive(barrier);
    } else {
      constexpr unsigned SHARING = CLUSTER_M * CLUSTER_N;
      const unsigned own = rank % SHARING;
      if (thread < SHARING &&
          (thread % CLUSTER_M == own % CLUSTER_M || thread / CLUSTER_M == own / CLUSTER_M))
        ptx::barrier_arrive(barrier, rank - own + thread);
    }
  }

  // Adds up what the CTAs of a split tile have, of the columns that this one stores: each sends the others' shares to where they are
  // added, and waits for its own.
  static __device__ __forceinline__ void add_up(unsigned split, unsigned rank,
                                                unsigned char* shared_memory, unsigned arrived) {
    constexpr int OWN = OWN_SUMS / 4;
    const float4* const parts = reinterpret_cast<const float4*>(shared_memory) + threadIdx.x;
    const unsigned part = ptx::shared_address(parts) + split * PART_BYTES,
                   peer = rank % (CLUSTER_M * CLUSTER_N);
    ptx::cluster_meet();  // nobody reads a ring any more
#pragma unroll 1
    for (int turn = 1; turn <= SPLIT; ++turn) {  // each CTA begins with another owner
      const int owner = (split + turn) % SPLIT;
      const unsigned cta = peer + owner * (CLUSTER_M * CLUSTER_N);
      const unsigned target = ptx::map_shared(part, cta), barrier = ptx::map_shared(arrived, cta);
      if (owner >= OWNERS) continue;
      choose<0, OWNERS>(owner, [&](auto at) {
        constexpr int FIRST = at.value * OWN_PIECES * 4, COUNT = OWN_PIECES * 4;
        f32 sums[OWN_SUMS];
        Sums::template read<0, FIRST, COUNT>(sums);
        if constexpr (M_BLOCKS > 1) Sums::template read<1, FIRST, COUNT>(sums + COUNT);
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
          const f32* const piece = sums + i * 4;
          ptx::store_async(target + i * (CONSUMER_THREADS * 16),
                           {piece[0], piece[1], piece[2], piece[3]}, barrier);
        }
      });
    }
    ptx::barrier_wait_cluster(arrived, 0);
    if (split >= OWNERS) return;
    f32 totals[OWN_SUMS];
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      f32* const total = totals + i * 4;
#pragma unroll
      for (int s = 0; s < SPLIT; ++s) {
        const float4 v = parts[s * (PART_BYTES / 16) + i * CONSUMER_THREADS];
        total[0] = s == 0 ? v.x : total[0] + v.x;
        total[1] = s == 0 ? v.y : total[1] + v.y;
        total[2] = s == 0 ? v.z : total[2] + v.z;
        total[3] = s == 0 ? v.w : total[3] + v.w;
      }
    }
    ptx::write_totals<0, OWN_SUMS>(totals);
  }
};
