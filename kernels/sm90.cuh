// GEMM on Hopper: wgmma fed by the copy engine (TMA).
//
//   global memory --TMA--> shared memory (ring of STAGES tiles) --wgmma--> sums --epilogue--> shared memory (slabs) --TMA--> global
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
#include "common/cluster.cuh"
#include "common/epilogue.cuh"
#include "common/groups.cuh"
#include "common/mbarrier.cuh"
#include "common/ptx.cuh"
#include "common/stmatrix.cuh"
#include "common/tma.cuh"
#include "common/types.cuh"
#include "common/wgmma.cuh"

enum class Schedule { COOPERATIVE, PING_PONG };

// Mirrored field by field in the Rust core. Tensor maps have three dimensions, the fastest first, the batch last;
// where k is 0, they still need a valid address.
struct alignas(64) Sm90Params {
  TensorMap a, b, out;
  void* out_pointer;        // used where out_by_tma is 0, and if OUT_TRANSPOSED
  long long out_stride[3];  // in elements: along batch, rows, columns
  int m, n, k, batch;        // if GROUPED, the batch is the groups, and m all rows
  int a_batched, b_batched;  // 0: all batches read the same matrix, and the tensor map has one
  int out_by_tma;            // 0: the copy engine cannot address the output: strides, or rows, of no multiple of 16 bytes
  GroupOffsets offsets;      // if GROUPED
  const void* a_pointer;     // if A_ALIGN is not 16, in place of `a`
  long long a_stride[2];     // in elements: along batch, rows
};
static_assert(sizeof(Sm90Params) == 512);

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

template <class A, class B, class Accumulator, class Out, bool A_K_MAJOR, bool B_K_MAJOR, int TILE_M, int TILE_N, int STAGES,
          int CONSUMERS, Schedule SCHEDULE, int CLUSTER_M, int CLUSTER_N, int SPLIT, bool OUT_TRANSPOSED, bool GROUPED,
          int A_ALIGN, class Epilogue>
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
  static_assert(TILE_M == SHARERS * M_BLOCKS * 64 && TILE_N % 8 == 0 && TILE_N <= 256);
  static constexpr int CLUSTER = CLUSTER_M * CLUSTER_N * SPLIT;
  static_assert(SPLIT == 1 || !PING_PONG, "a split tile has the CTA for itself");
  static_assert(!A_FROM_REGISTERS || !PING_PONG, "alone, a consumer waits for its registers");
  static_assert(!GROUPED || (SPLIT == 1 && !OUT_TRANSPOSED), "groups are of rows, as they are taken in turn");

  static constexpr bool A_BY_THREADS = A_ALIGN < 16;
  static_assert(!A_BY_THREADS || (A_K_MAJOR && sizeof(A) == 2 && CLUSTER_N == 1 && !GROUPED));  // f32 would have to be rounded

  using Multiply = ptx::Wgmma<A, Accumulator, TILE_N, A_K_MAJOR, B_K_MAJOR>;
  using Value = EpilogueValue<Accumulator>;

  // ---- shared memory: the ring, the consumers' slabs, the barriers ----

  // A K-major tile is one box of TILE_K by TILE_M (TILE_N). An MN-major tile is several of 128 bytes along M (N) by TILE_K, the last of
  // which may be partly wasted. Either way 64 rows of A lie 8192 bytes from the next.
  static constexpr int BOX_MN = 128 / sizeof(A), MN_BOX_BYTES = 128 * TILE_K;
  static constexpr int BOXES_A = A_K_MAJOR ? 1 : (TILE_M + BOX_MN - 1) / BOX_MN, BOXES_B = B_K_MAJOR ? 1 : (TILE_N + BOX_MN - 1) / BOX_MN;
  static constexpr int BLOCK_BYTES = 8192;  // 64 rows of 128 bytes
  static constexpr int A_BYTES = TILE_M * 128;
  static constexpr int B_BYTES = B_K_MAJOR ? TILE_N * 128 : BOXES_B * MN_BOX_BYTES;
  static constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
  // The CTAs that share an operand each load one part of every box, of so many rows.
  static constexpr int SLICE_A = (A_K_MAJOR ? TILE_M : TILE_K) / CLUSTER_N, SLICE_B = (B_K_MAJOR ? TILE_N : TILE_K) / CLUSTER_M;
  static_assert(SLICE_A % 8 == 0 && SLICE_B % 8 == 0, "swizzle atoms have 8 rows");

  // A warp stores 16 rows at a time, EPILOGUE_N columns wide, in boxes. Rows of a slab must spread over the banks: either the copy
  // engine's swizzle sees to that, or an odd number of 16-byte pieces a row.
  static constexpr int EPILOGUE_N = stored_columns(TILE_N, SPLIT);
  static constexpr int ROW_BYTES = EPILOGUE_N * sizeof(Out);
  static constexpr int POWER_OF_TWO = (ROW_BYTES & -ROW_BYTES) < 128 ? (ROW_BYTES & -ROW_BYTES) : 128;
  static constexpr int BOX_BYTES = POWER_OF_TWO < 16 ? ROW_BYTES
                                   : POWER_OF_TWO >= 64 || POWER_OF_TWO == ROW_BYTES || sizeof(Out) >= 4
                                       ? POWER_OF_TWO
                                       : odd_box(ROW_BYTES / (POWER_OF_TWO / 16));
  static constexpr int SWIZZLE = BOX_BYTES == POWER_OF_TWO ? BOX_BYTES / 16 - 1 : 0;  // which of a piece's bits change
  static constexpr int BOX_N = BOX_BYTES / sizeof(Out), BOXES = ROW_BYTES / BOX_BYTES;
  static constexpr bool CONVERT_ONLY = is_same<Epilogue, Identity> && sizeof(Out) == 2;  // then stmatrix takes the sums as they lie
  static constexpr int GROUPS = BOX_N / 8, ROUND_GROUPS = GROUPS < 4 ? GROUPS : 4;  // of 8 columns: in a box, and in a round of its storing
  static constexpr int ROUNDS = CONVERT_ONLY ? 1 : (GROUPS + 3) / 4;
  // An output whose rows are the sums' columns: a warpgroup stores 32 rows of its 64 m's (128 bytes) at a time, from two slabs in turn.
  // Where there is more to do than to convert, or there are fewer rows, a warp stores 16 by 16 elements at a time. So it does where A came
  // from registers, at the output's edges: a lane's rows are neighbours then, which it stores in pairs elsewhere.
  static constexpr bool BY_LINES = CONVERT_ONLY && EPILOGUE_N >= 32 && !A_FROM_REGISTERS;
  static constexpr int LINES = 32, LINE_BYTES = 128;
  static constexpr int TRANSPOSED_N = 16, TRANSPOSED_PITCH = 16 + 4;  // 4 words of padding keep the banks apart
  static constexpr int TRANSPOSED_BYTES =
      EPILOGUE_N >= 32 ? 2 * LINES * LINE_BYTES / 4 : TRANSPOSED_N * TRANSPOSED_PITCH * int(sizeof(Value));
  static constexpr int SLAB_BYTES = OUT_TRANSPOSED ? TRANSPOSED_BYTES : 16 * BOX_BYTES;

  static constexpr int SLABS_AT = STAGES * STAGE_BYTES;
  // Two for a warp, so that one is filled while the other is read; one where a further stage has taken the room, which is worth more.
  static constexpr int BARRIER_BYTES = (2 * STAGES + (SPLIT > 1)) * 8;  // of a split tile, one for the sums that arrive
  static constexpr int TWO_SLABS_BYTES = SLABS_AT + CONSUMER_THREADS / 32 * 2 * SLAB_BYTES + BARRIER_BYTES;
  static constexpr int SLABS = OUT_TRANSPOSED || BOX_BYTES > 128 || TWO_SLABS_BYTES > MAX_SMEM_BYTES ? 1 : 2;
  static constexpr int BARRIERS_AT = SLABS_AT + CONSUMER_THREADS / 32 * SLABS * SLAB_BYTES;
  static constexpr int SMEM_BYTES = BARRIERS_AT + BARRIER_BYTES;

  // ---- the sums of a split tile ----

  // They travel as the threads hold them, in pieces of 16 bytes: 8 columns, 2 rows, a thread's share.
  static constexpr int PIECES = TILE_N / 8, OWN_PIECES = EPILOGUE_N / 8;  // of 64 rows: all, and those that this CTA stores
  static constexpr int OWNERS = PIECES / OWN_PIECES;                      // the CTAs that store any
  static constexpr int PART_BYTES = M_BLOCKS * OWN_PIECES * CONSUMER_THREADS * 16;  // of a CTA's sums, what one owner gets
  static_assert(SPLIT == 1 || SPLIT * PART_BYTES <= SLABS_AT, "the ring's memory takes the sums of all");

  // ---- registers ----

  static constexpr int SUMS = M_BLOCKS * Multiply::SUMS;
  // A's elements for half a K block, and for the half that is multiplied meanwhile.
  static constexpr int FRAGMENTS = A_FROM_REGISTERS ? 2 * M_BLOCKS * 8 : 0;
  // Besides the sums, 48 registers do. Where the even share of a SM's 65536 does not suffice, the producer passes its own on.
  static constexpr int TOTALS = SPLIT > 1 ? M_BLOCKS * OWN_PIECES * 4 : 0;
  static constexpr int CTAS_BY_REGISTERS = 65536 / (THREADS * (SUMS + FRAGMENTS + TOTALS + 48));
  static constexpr int MIN_CTAS = CTAS_BY_REGISTERS > 1 ? CTAS_BY_REGISTERS : 1;
  static constexpr bool REDISTRIBUTE = CTAS_BY_REGISTERS == 0;
  static constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32;
  static constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : 160;  // 40 + 2 * 232 and 32 + 3 * 160 are 65536 / 128, or less

  // What the epilogue reads for a round of its stores is loaded a round ahead, where registers are to spare.
  using Operands = typename Epilogue::template Operands<2 * ROUND_GROUPS, 2>;
  static constexpr bool LOAD_AHEAD = REDISTRIBUTE && SUMS + sizeof(Operands) + 64 <= CONSUMER_REGISTERS;  // 4 times 1/4 of its bytes

  // While one consumer multiplies, instructions of the other that follow each other without a pause keep the tensor cores from the
  // registers: four chains of multiply-adds do, each instruction a cycle; two chains cost nothing (docs/notes/epilogue.md).
  static constexpr int AT_A_TIME = PING_PONG ? 2 : 2 * ROUND_GROUPS;

  // ---- the order of tiles ----

  // First row and column; if GROUPED, `batch` is the group and `end` the row after its last.
  struct Tile { int batch, m, n, end; };

  // Clusters that run at the same time should share what they read. Tiles are walked in bands, down each column of a band before the
  // next column. With T tiles at a time, what they cover is square if the band is sqrt(T * TILE_N / TILE_M) tiles high; T is 132, or
  // 264 where a CTA has two tiles in hand.
  static constexpr unsigned BAND = (TILE_N >= 2 * TILE_M || PING_PONG ? 16 : 8) / CLUSTER_M;
  static __device__ __forceinline__ unsigned across(int extent, int tile) { return (extent + tile - 1) / tile; }
  static __device__ __forceinline__ Tile in_bands(unsigned index, unsigned tiles_m, unsigned tiles_n) {
    const unsigned first = index / (BAND * tiles_n) * BAND, height = min(BAND, tiles_m - first);
    index -= first * tiles_n;
    const unsigned column = index / height, row = first + index - column * height;
    const unsigned rank = CLUSTER == 1 ? 0 : ptx::cluster_rank();
    return {0, int(row * CLUSTER_M + rank % CLUSTER_M) * TILE_M, int(column * CLUSTER_N + rank / CLUSTER_M % CLUSTER_N) * TILE_N, 0};
  }

  struct BatchOrder {
    unsigned tiles_m, tiles_n, count;
    __device__ __forceinline__ BatchOrder(const Sm90Params& params) {
      tiles_m = across(params.m, TILE_M * CLUSTER_M);
      tiles_n = across(params.n, TILE_N * CLUSTER_N);
      count = tiles_m * tiles_n * params.batch;
    }
    __device__ __forceinline__ bool has(unsigned index) const { return index < count; }
    __device__ __forceinline__ Tile operator[](unsigned index) const {
      const unsigned tiles = tiles_m * tiles_n, batch = index / tiles;
      Tile tile = in_bands(index - batch * tiles, tiles_m, tiles_n);
      tile.batch = batch;
      return tile;
    }
  };

  // For all threads of a warp together.
  struct GroupOrder {
    static constexpr int STRIP = TILE_M * CLUSTER_M;
    unsigned tiles_n;
    GroupWalk<STRIP> walk;
    __device__ __forceinline__ GroupOrder(const Sm90Params& params)
        : tiles_n(across(params.n, TILE_N * CLUSTER_N)), walk(params.offsets, params.batch, params.m, tiles_n) {}
    __device__ __forceinline__ bool has(unsigned index) { return walk.has(index); }
    __device__ __forceinline__ Tile operator[](unsigned index) const {
      const auto place = walk[index];
      Tile tile = in_bands(place.tile, across(place.end - place.start, STRIP), tiles_n);
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
    const unsigned ring = ptx::shared_address(shared_memory), full = ring + BARRIERS_AT, empty = full + 8 * STAGES,
                   arrived = empty + 8 * STAGES;
    // The shuffle tells the compiler that all lanes have the same value.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), warpgroup = warp / 4;
    const unsigned rank = CLUSTER == 1 ? 0 : ptx::cluster_rank();
    const unsigned split = rank / (CLUSTER_M * CLUSTER_N);

    if (threadIdx.x == 0) {
      if (!A_BY_THREADS) ptx::prefetch_tensor_map(&params.a);
      ptx::prefetch_tensor_map(&params.b);
      if (!OUT_TRANSPOSED) ptx::prefetch_tensor_map(&params.out);
      for (int stage = 0; stage < STAGES; ++stage) {
        ptx::barrier_init(full + 8 * stage, A_BY_THREADS ? 1 + WARPGROUP : 1);
        ptx::barrier_init(empty + 8 * stage, SHARERS * (CLUSTER_M + CLUSTER_N - 1));
      }
      if constexpr (SPLIT > 1) {
        ptx::barrier_init(arrived, 1);
        ptx::barrier_arrive_expecting(arrived, split < OWNERS ? SPLIT * PART_BYTES : 0);
      }
      ptx::barrier_init_fence();
    }
    if constexpr (CLUSTER > 1) ptx::cluster_meet();
    else __syncthreads();
    ptx::wait_for_grids_before();
    // The clusters of a split tile spread over the chip best where no others run. (8 of 8 CTAs have a GPC each, which is as fast as it
    // gets; with another grid's still there, two of them share one.)
    if constexpr (SPLIT == 1) ptx::let_next_grid_start();

    Order order(params);
    const unsigned clusters = gridDim.x / CLUSTER, cluster = blockIdx.x / CLUSTER;
    const int all_blocks = params.k / TILE_K + (params.k % TILE_K != 0);
    int first_block = SPLIT == 1 ? 0 : static_cast<long long>(all_blocks) * split / SPLIT;
    int blocks = SPLIT == 1 ? all_blocks : static_cast<long long>(all_blocks) * (split + 1) / SPLIT - first_block;
    if (blocks == 0) first_block = all_blocks + 1, blocks = 1;  // one that lies beyond K, and reads as zeros

    if (warpgroup == CONSUMERS) {
      if constexpr (REDISTRIBUTE) ptx::shrink_registers<PRODUCER_REGISTERS>();
      if (A_BY_THREADS || (GROUPED ? warp == CONSUMERS * 4 : threadIdx.x == CONSUMER_THREADS))
        produce(params, order, cluster, clusters, first_block, blocks, rank, ring, full, empty);
      if constexpr (SPLIT > 1) ptx::cluster_meet();  // as the consumers, in `add_up`
    } else {
      if constexpr (REDISTRIBUTE) ptx::grow_registers<CONSUMER_REGISTERS>();
      unsigned char* slabs = shared_memory + SLABS_AT + warp * (SLABS * SLAB_BYTES);
      const int warp_m = (PING_PONG ? 0 : warpgroup * M_BLOCKS * 64) + warp % 4 * 16;
      int slab = 0;
      Ring position;
      if constexpr (PING_PONG) {
        position.skip(warpgroup * blocks);
        if (warpgroup == CONSUMERS - 1) pass_turn(warpgroup);
      }

#pragma unroll 1
      for (unsigned index = cluster + (PING_PONG ? warpgroup * clusters : 0); order.has(index);
           index += (PING_PONG ? CONSUMERS : 1) * clusters) {
        unsigned sums[M_BLOCKS][Multiply::SUMS];  // here, so that they are dead between tiles
        multiply(sums, position, blocks, rank, warpgroup, ring, full, empty);
        const Tile tile = order[index];
        const int m = tile.m + warp_m, n = tile.n + split * EPILOGUE_N;
        if constexpr (SPLIT == 1) {
          auto sum = [&](int strip, int i) { return decode(Multiply::value(sums[strip], i)); };
          store(params, epilogue, sum, slabs, slab, GROUPED ? 0 : tile.batch, m, n, GROUPED ? tile.end : params.m);
        } else {
          f32 totals[M_BLOCKS][OWN_PIECES * 4];
          add_up(totals, sums, split, rank, shared_memory, arrived);
          ptx::let_next_grid_start();
          auto total = [&](int strip, int i) { return totals[strip][i]; };
          if (split < OWNERS) store(params, epilogue, total, slabs, slab, tile.batch, m, n, params.m);
        }
      }
    }
    if constexpr (!OUT_TRANSPOSED) ptx::store_wait_read<0>();  // the copy engine may still read the slabs
  }

  // ---- the producer ----

  static __device__ __forceinline__ void produce(const Sm90Params& params, Order& order, unsigned cluster, unsigned clusters,
                                                 int first_block, int blocks, unsigned rank, unsigned ring, unsigned full,
                                                 unsigned empty) {
    const int rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M % CLUSTER_N;
    const int base = rank / (CLUSTER_M * CLUSTER_N) * (CLUSTER_M * CLUSTER_N);  // the first CTA of this part of K
    // A goes to all tiles of the same row, B to all of the same column.
    unsigned row = 0;
    for (int n = 0; n < CLUSTER_N; ++n) row |= 1u << (base + rank_m + n * CLUSTER_M);
    const unsigned column = ((1u << CLUSTER_M) - 1) << (base + rank_n * CLUSTER_M);

    Ring position;
#pragma unroll 1
    for (unsigned index = cluster; order.has(index); index += clusters) {
      const Tile tile = order[index];
      if (GROUPED && threadIdx.x % 32 != 0) continue;  // of a warp that walks the groups together, one thread loads
      const int batch_a = params.a_batched ? tile.batch : 0, batch_b = params.b_batched ? tile.batch : 0;
      const bool starts_copies = !A_BY_THREADS || threadIdx.x == CONSUMER_THREADS;
#pragma unroll 1
      for (int block = 0; block < blocks; ++block) {
        const int k = (first_block + block) * TILE_K;
        const unsigned a = ring + position.stage * STAGE_BYTES, b = a + A_BYTES, ready = full + 8 * position.stage;
        ptx::barrier_wait(empty + 8 * position.stage, position.parity ^ 1);
        if (starts_copies) {
          ptx::barrier_arrive_expecting(ready, A_BY_THREADS ? B_BYTES : STAGE_BYTES);
          if (!A_BY_THREADS) load<A_K_MAJOR, BOXES_A, SLICE_A, CLUSTER_N>(a, &params.a, ready, tile.m, k, batch_a, rank_n, row);
          load<B_K_MAJOR, BOXES_B, SLICE_B, CLUSTER_M>(b, &params.b, ready, tile.n, k, batch_b, rank_m, column);
        }
        if constexpr (A_BY_THREADS) {
          load_by_threads(params, a, tile.m, k, batch_a);
          ptx::barrier_arrive_behind_copies(ready);
        }
        position.advance();
      }
    }
    // Other CTAs still arrive at these barriers, and this one must not be gone before.
    if (CLUSTER_M * CLUSTER_N > 1 && (!GROUPED || threadIdx.x % 32 == 0))
#pragma unroll 1
      for (int stage = 0; stage < STAGES; ++stage, position.advance())
        ptx::barrier_wait(empty + 8 * position.stage, position.parity ^ 1);
  }

  // One operand's tile, or this CTA's slice of it, to all `ctas` that share it.
  template <bool K_MAJOR, int BOXES, int SLICE, int SHARED_BY>
  static __device__ __forceinline__ void load(unsigned shared, const TensorMap* map, unsigned barrier, int mn, int k, int batch,
                                              int slice, unsigned ctas) {
    shared += slice * SLICE * 128;
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
      const int x = K_MAJOR ? k : mn + BOX_MN * box, y = (K_MAJOR ? mn : k) + slice * SLICE;
      if constexpr (SHARED_BY == 1) ptx::load_box(shared + box * MN_BOX_BYTES, map, barrier, x, y, batch);
      else ptx::load_box(shared + box * MN_BOX_BYTES, map, barrier, x, y, batch, static_cast<unsigned short>(ctas));
    }
  }

  // A's tile, by all threads of the producer, in pieces of A_ALIGN bytes. Rows beyond the last are left as they are: what comes of them
  // is not stored.
  static __device__ __forceinline__ void load_by_threads(const Sm90Params& params, unsigned shared, int m, int k, int batch) {
    constexpr int PIECES_A_ROW = 128 / A_ALIGN, STEP = WARPGROUP / PIECES_A_ROW;  // rows
    const int thread = threadIdx.x - CONSUMER_THREADS, row = thread / PIECES_A_ROW, byte = thread % PIECES_A_ROW * A_ALIGN;
    const unsigned target = shared + row * 128 + (byte ^ row % 8 << 4);  // with the swizzle
    const int column = k + byte / int(sizeof(A)), valid = column < params.k ? A_ALIGN : 0;  // beyond K, zeros
    const A* from = static_cast<const A*>(params.a_pointer) + params.a_stride[0] * batch + params.a_stride[1] * (m + row) + (valid ? column : 0);
#pragma unroll 8
    for (int i = 0; i < TILE_M / STEP; ++i, from += params.a_stride[1] * STEP)
      if (m + row + i * STEP < params.m) ptx::copy_async<A_ALIGN>((target + i * STEP * 128) ^ (i * STEP % 8 << 4), from, valid);
  }

  // ---- the consumers ----

  // One tile's sums. While a K block is multiplied, the next one is already issued; a stage is released once the block after it is
  // under way and its own has been read.
  static __device__ __forceinline__ void multiply(unsigned (&sums)[M_BLOCKS][Multiply::SUMS], Ring& position, int blocks,
                                                  unsigned rank, int warpgroup, unsigned ring, unsigned full, unsigned empty) {
    if constexpr (PING_PONG) ptx::numbered_barrier_sync<2 * WARPGROUP>(1 + warpgroup);  // until the consumer before passes the turn
    unsigned previous = 0;
    if constexpr (A_FROM_REGISTERS) previous = multiply_from_registers(sums, position, blocks, rank, warpgroup, ring, full, empty);
    else
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const unsigned stage = ring + position.stage * STAGE_BYTES;
      const auto a = ptx::matrix_descriptor(stage + (PING_PONG ? 0 : warpgroup) * (M_BLOCKS * BLOCK_BYTES), BLOCK_BYTES, 1024);
      const auto b = ptx::matrix_descriptor(stage + A_BYTES, BLOCK_BYTES, 1024);
      ptx::barrier_wait(full + 8 * position.stage, position.parity);
      if constexpr (A_BY_THREADS) ptx::fence_for_copy_engine();  // wgmma reads as that does, threads do not write as that does
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < M_BLOCKS; ++i) Multiply::issue(sums[i], a + i * (BLOCK_BYTES / 16), b, block > 0);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (block > 0) release(empty + 8 * previous, rank);
      previous = position.stage;
      position.advance();
    }
    if constexpr (PING_PONG) {
      pass_turn(warpgroup);
      position.skip((CONSUMERS - 1) * blocks);  // of the others
    }
    ptx::wgmma_wait<0>();
    release(empty + 8 * previous, rank);
#pragma unroll
    for (int i = 0; i < SUMS; ++i)  // nobody reads a sum before the wait
      asm volatile("" : "+r"(sums[i / Multiply::SUMS][i % Multiply::SUMS])::"memory");
  }

  // The same with A from registers, up to the last block, whose stage it gives. Half a block's elements of A are loaded while the half
  // before is multiplied.
  static __device__ __forceinline__ unsigned multiply_from_registers(unsigned (&sums)[M_BLOCKS][Multiply::SUMS], Ring& position,
                                                                     int blocks, unsigned rank, int warpgroup, unsigned ring,
                                                                     unsigned full, unsigned empty) {
    const ptx::WgmmaFragments<M_BLOCKS> at(ring + warpgroup * (M_BLOCKS * BLOCK_BYTES));
    unsigned fragments[2][M_BLOCKS][8];
    auto load = [&](int half) { at.load(fragments[half], position.stage * STAGE_BYTES + half * 2048); };
    ptx::barrier_wait(full + 8 * position.stage, position.parity);
    load(0);
    unsigned previous = 0;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const auto b = ptx::matrix_descriptor(ring + position.stage * STAGE_BYTES + A_BYTES, BLOCK_BYTES, 1024);
      auto issue = [&](int half) {  // and wait for the half before, whose registers are loaded next
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < M_BLOCKS; ++i) Multiply::issue_half(sums[i], fragments[half][i], b + half * 4, block + half > 0);
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
      if (thread < SHARING && (thread % CLUSTER_M == own % CLUSTER_M || thread / CLUSTER_M == own / CLUSTER_M))
        ptx::barrier_arrive(barrier, rank - own + thread);
    }
  }

  // Adds up what the CTAs of a split tile have, of the columns that this one stores: each sends the others' shares to where they are
  // added, and waits for its own.
  static __device__ __forceinline__ void add_up(f32 (&totals)[M_BLOCKS][OWN_PIECES * 4], const unsigned (&sums)[M_BLOCKS][Multiply::SUMS],
                                                unsigned split, unsigned rank, unsigned char* shared_memory, unsigned arrived) {
    constexpr int OWN = M_BLOCKS * OWN_PIECES;
    const float4* const parts = reinterpret_cast<const float4*>(shared_memory) + threadIdx.x;
    const unsigned part = ptx::shared_address(parts) + split * PART_BYTES, peer = rank % (CLUSTER_M * CLUSTER_N);
    ptx::cluster_meet();  // nobody reads a ring any more
#pragma unroll 1
    for (int turn = 1; turn <= SPLIT; ++turn) {  // each CTA begins with another owner
      const int owner = (split + turn) % SPLIT;
      const unsigned cta = peer + owner * (CLUSTER_M * CLUSTER_N);
      const unsigned target = ptx::map_shared(part, cta), barrier = ptx::map_shared(arrived, cta);
#pragma unroll
      for (int at = 0; at < OWNERS; ++at)
        if (at == owner)
#pragma unroll
          for (int i = 0; i < OWN; ++i) {
            auto value = [&](int e) { return decode(Multiply::value(sums[i / OWN_PIECES], (at * OWN_PIECES + i % OWN_PIECES) * 4 + e)); };
            ptx::store_async(target + i * (CONSUMER_THREADS * 16), {value(0), value(1), value(2), value(3)}, barrier);
          }
    }
    ptx::barrier_wait_cluster(arrived, 0);
    if (split >= OWNERS) return;
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      f32* const total = &totals[i / OWN_PIECES][i % OWN_PIECES * 4];
#pragma unroll
      for (int s = 0; s < SPLIT; ++s) {
        const float4 v = parts[s * (PART_BYTES / 16) + i * CONSUMER_THREADS];
        total[0] = s == 0 ? v.x : total[0] + v.x;
        total[1] = s == 0 ? v.y : total[1] + v.y;
        total[2] = s == 0 ? v.z : total[2] + v.z;
        total[3] = s == 0 ? v.w : total[3] + v.w;
      }
    }
  }

  // ---- the epilogue ----

  // A warp's sums: M_BLOCKS strips of 16 rows, 64 rows apart, EPILOGUE_N columns wide, from (m, n) on. `value` gives a sum by
  // its strip and its index there. Of the rows, only those before `end` are stored.
  template <class Sums>
  static __device__ __forceinline__ void store(const Sm90Params& params, Epilogue epilogue, const Sums& value, unsigned char* slabs,
                                               int& slab, int batch, int m, int n, int end) {
    if constexpr (A_FROM_REGISTERS && OUT_TRANSPOSED && is_same<Epilogue, Identity>)
      if (store_pairs(params, value, batch, m, n)) return;
    if constexpr (OUT_TRANSPOSED && BY_LINES) store_lines(params, value, slabs, slab, batch, m, n);
    else if constexpr (OUT_TRANSPOSED) store_transposed(params, epilogue, value, slabs, batch, m, n);
    else store_rows(params, epilogue, value, slabs, slab, batch, m, n, end);
  }

  template <class Sums>
  static __device__ __forceinline__ void store_rows(const Sm90Params& params, Epilogue epilogue, const Sums& value,
                                                    unsigned char* slabs, int& slab, int batch, int m, int n, int end) {
    const int lane = threadIdx.x % 32;
    unsigned char* rows = slabs;
    Operands operands[2], next[2];  // of the two row halves
    auto row_of = [&](int round) { return m + round / (BOXES * ROUNDS) * 64; };
    auto column_of = [&](int round) { return n + round / ROUNDS % BOXES * BOX_N; };
    auto load = [&](int round) {
      const int last = min(params.n, column_of(round) + BOX_N), column = column_of(round) + round % ROUNDS * 32 + lane % 4 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(round) + strip_row(lane / 4 + 8 * half), valid = row < end ? last - column : 0;
        if (half == 0) epilogue.load(next[0], batch, row, column, valid);
        else epilogue.load_below(next[1], next[0], batch, row, column, valid);
      }
    };
    if constexpr (LOAD_AHEAD) load(0);
    // Rolled, for the sake of compile time: only what picks registers is there once for each round.
#pragma unroll 1
    for (int round = 0; round < M_BLOCKS * BOXES * ROUNDS; ++round) {
      const int row = row_of(round), column = column_of(round);
      if (GROUPED && row >= end) break;
      if (round % ROUNDS == 0) {
        rows = slabs + slab * SLAB_BYTES;
        slab = (slab + 1) % SLABS;
        if (lane == 0) ptx::store_wait_read<SLABS - 1>();
        __syncwarp();
      }
      if constexpr (CONVERT_ONLY) write_matrices(value, round, ptx::shared_address(rows));
      else {
        if constexpr (LOAD_AHEAD) {
          operands[0] = next[0];
          operands[1] = next[1];
          if (round + 1 < M_BLOCKS * BOXES * ROUNDS) load(round + 1);
        }
        write_groups(params, epilogue, value, operands, round, rows, batch, row, column, end);
      }
      if (round % ROUNDS != ROUNDS - 1) continue;

      if (params.out_by_tma && (!GROUPED || row + 16 <= end)) {
        ptx::fence_for_copy_engine();
        __syncwarp();
        if (lane == 0) ptx::store_box(&params.out, ptx::shared_address(rows), column, row, batch);
      } else if (GROUPED && params.out_by_tma) {  // below a group's last rows are the next one's, which the copy engine would write
        __syncwarp();
        store_vectors(params, rows, row, column, end);
      } else {
        __syncwarp();
        Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[0] * batch;
#pragma unroll 2
        for (int index = lane; index < 16 * BOX_N; index += 32) {
          const int r = index / BOX_N, c = index % BOX_N;
          if (row + r < end && column + c < params.n)
            out[params.out_stride[1] * (row + r) + params.out_stride[2] * (column + c)] =
                *reinterpret_cast<const Out*>(rows + slab_offset(r, c * int(sizeof(Out))));
        }
      }
      if (lane == 0) ptx::store_commit();  // without a store, an empty group: to count groups is to count slabs
    }
  }

  // A box's rows before `end`, 16 bytes at a time, of an output that the copy engine could address.
  static __device__ __forceinline__ void store_vectors(const Sm90Params& params, const unsigned char* rows, int row, int column,
                                                       int end) {
    constexpr int VECTORS = BOX_BYTES / 16, WIDTH = 16 / int(sizeof(Out));
    static_assert(!GROUPED || BOX_BYTES % 16 == 0);
    Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[1] * row + column;
    for (int index = threadIdx.x % 32; index < 16 * VECTORS; index += 32) {
      const int r = index / VECTORS, c = index % VECTORS * WIDTH;
      if (row + r < end && column + c < params.n)
        ptx::store_global(out + params.out_stride[1] * r + c,
                          *reinterpret_cast<const ptx::Vector*>(rows + slab_offset(r, c * int(sizeof(Out)))));
    }
  }

  // The row of a strip that is wgmma's row r of 16.
  static __device__ __forceinline__ constexpr int strip_row(int r) { return A_FROM_REGISTERS ? ptx::fragment_row(r) : r; }

  // Where a byte of a row lies in a slab, with the copy engine's swizzle: bits 7 to 9 of an offset change its bits 4 to 6.
  static __device__ __forceinline__ int slab_offset(int row, int byte) {
    const int offset = row * BOX_BYTES + byte;
    return offset ^ (offset >> 7 & SWIZZLE) << 4;
  }

  // Sums that need no more than a conversion to 16 bits: two 8 x 8 matrices of rows 0 to 7, two of rows 8 to 15 at a time.
  template <class Sums> static __device__ __forceinline__ void write_matrices(const Sums& value, int box, unsigned rows) {
    const int lane = threadIdx.x % 32;
    const unsigned target = rows + slab_offset(strip_row(lane % 16), lane / 16 * 16);
#pragma unroll
    for (int at = 0; at < M_BLOCKS * BOXES; ++at)
      if (at == box)
#pragma unroll
        for (int group = 0; group < GROUPS; group += 2) {
          auto bits = [&](int i) -> unsigned {
            return encode<Out>(value(at / BOXES, 4 * (at % BOXES * GROUPS + group) + i)).bits;
          };
          auto pair = [&](int i) { return bits(i) | bits(i + 1) << 16; };
          // The group's bits are above those that lanes differ in: to add is to XOR.
          const unsigned matrices = SWIZZLE ? target ^ group * 16 : target + group * 16;
          if (group + 1 < GROUPS) ptx::store_matrices(matrices, pair(0), pair(2), pair(4), pair(6));
          else ptx::store_matrices(matrices, pair(0), pair(2));
        }
  }

  // A round's sums, where it is one from FIRST to before END. Branches halve what is left: of many in a row, the compiler would make
  // instructions of all rounds, each of which a predicate skips.
  template <int FIRST, int END, class Sums>
  static __device__ __forceinline__ void pick(const Sums& value, int round, Value (&values)[2][2 * ROUND_GROUPS]) {
    if constexpr (END - FIRST > 1) {
      constexpr int MIDDLE = (FIRST + END) / 2;
      if (round < MIDDLE) pick<FIRST, MIDDLE>(value, round, values);
      else pick<MIDDLE, END>(value, round, values);
    } else {
      constexpr int STRIP = FIRST / ROUNDS / BOXES, BOX = FIRST / ROUNDS % BOXES;
#pragma unroll
      for (int i = 0; i < 4 * ROUND_GROUPS; ++i) {
        const int group = FIRST % ROUNDS * 4 + i / 4;
        Value& target = values[i / 2 % 2][i / 4 * 2 + i % 2];
        target = group < GROUPS ? value(STRIP, 4 * (BOX * GROUPS + group) + i % 4) : Value{};
        asm volatile("" : "+f"(target));  // or it would select among all rounds' sums
      }
    }
  }

  // Any sums and any epilogue, 4 groups of 8 columns a round, as lanes hold them: two neighbours of each group in row lane / 4, and two
  // eight rows below.
  template <class Sums>
  static __device__ __forceinline__ void write_groups(const Sm90Params& params, Epilogue epilogue, const Sums& value,
                                                      Operands (&operands)[2], int round, unsigned char* rows, int batch, int m,
                                                      int n, int end) {
    const int lane = threadIdx.x % 32, first = round % ROUNDS * 4;  // group
    Value values[2][2 * ROUND_GROUPS];
    pick<0, M_BLOCKS * BOXES * ROUNDS>(value, round, values);
    const int column = n + first * 8 + lane % 4 * 2, own = n + BOX_N - column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m + strip_row(lane / 4 + 8 * half), valid = row < end ? min(own, params.n - column) : 0;
      if constexpr (!LOAD_AHEAD) {
        if (half == 0) epilogue.load(operands[0], batch, row, column, valid);
        else epilogue.load_below(operands[1], operands[0], batch, row, column, valid);
      }
      const Place place{batch, row, column, valid, m / 8 + half, n / BOX_N * ROUNDS + round % ROUNDS, true, own};
      finish_sums<8, 4, AT_A_TIME>(epilogue, values[half], operands[half], place);
    }

    auto element = [&](int half, int i) { return encode<Out>(Epilogue::result(values[half][i])); };
    if constexpr (sizeof(Out) == 2) {
      const unsigned target = ptx::shared_address(rows) + slab_offset(strip_row(lane % 16), lane / 16 * 16);
      auto pair = [&](int half, int group) -> unsigned { return element(half, 2 * group).bits | element(half, 2 * group + 1).bits << 16; };
#pragma unroll
      for (int group = 0; group < ROUND_GROUPS; group += 2) {
        const int byte = (first + group) * 16;
        const unsigned matrices = SWIZZLE ? target ^ byte : target + byte;  // as in write_matrices
        if (group + 1 < ROUND_GROUPS && first + group + 1 < GROUPS)
          ptx::store_matrices(matrices, pair(0, group), pair(1, group), pair(0, group + 1), pair(1, group + 1));
        else if (first + group < GROUPS) ptx::store_matrices(matrices, pair(0, group), pair(1, group));
      }
    } else {
      struct alignas(2 * sizeof(Out)) Pair { Out elements[2]; };
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int group = 0; group < ROUND_GROUPS; ++group)
          if (first + group < GROUPS) {
            const int byte = ((first + group) * 8 + lane % 4 * 2) * int(sizeof(Out));
            *reinterpret_cast<Pair*>(rows + slab_offset(strip_row(lane / 4 + 8 * half), byte)) = {element(half, 2 * group), element(half, 2 * group + 1)};
          }
    }
  }

  // Sums that need no more than a conversion to 16 bits, for an output whose rows are the sums' columns. 8 x 8 matrices are transposed on
  // their way into the warpgroup's slab, whose pieces of 16 bytes lie as in the operands' tiles: neither the 8 rows of a matrix nor a
  // row's 8 pieces meet in a bank. A quarter warp then stores a whole line of 128 bytes.
  template <class Sums>
  static __device__ __forceinline__ void store_lines(const Sm90Params& params, const Sums& value, unsigned char* slabs, int& slab,
                                                     int batch, int m, int n) {
    const int thread = threadIdx.x % WARPGROUP, warp = thread / 32, lane = thread % 32;
    slabs -= warp * SLAB_BYTES;  // the warpgroup's
    auto offset = [](int row, int piece) { return row * LINE_BYTES + (piece ^ row % 8) * 16; };
    const unsigned matrices = ptx::shared_address(slabs) + offset(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
    const unsigned char* const own = slabs + offset(thread / 8, thread % 8);  // this thread stores 16 bytes of each 16th row
    Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[0] * batch;
    const bool aligned = params.out_stride[2] == 1 && ((reinterpret_cast<unsigned long long>(out) |
                                                        (params.out_stride[1] | params.m) * sizeof(Out)) & 15) == 0;
    const int rows = min(EPILOGUE_N, params.n - n);
#pragma unroll 1
    for (int strip = 0; strip < M_BLOCKS; ++strip) {
      const int left = m - warp * 16 + strip * 64, column = left + thread % 8 * 8;
      Out* line = out + params.out_stride[1] * (n + thread / 8) + column;
#pragma unroll 1
      for (int first = 0; first < EPILOGUE_N; first += LINES) {
        const int used = slab * (LINES * LINE_BYTES);
        slab ^= 1;
#pragma unroll
        for (int i = 0; i < M_BLOCKS; ++i)
#pragma unroll
          for (int j = 0; j < EPILOGUE_N; j += LINES)
            if (i == strip && j == first)
#pragma unroll
              for (int row = j; row < min(j + LINES, EPILOGUE_N); row += 16) {
                auto bits = [&](int e) -> unsigned { return encode<Out>(value(i, row / 2 + e)).bits; };
                auto pair = [&](int e) { return bits(e) | bits(e + 1) << 16; };
                const unsigned target = matrices + used + (row - j) * LINE_BYTES;
                if (row + 8 < EPILOGUE_N) ptx::store_matrices<true>(target, pair(0), pair(2), pair(4), pair(6));
                else ptx::store_matrices<true>(target, pair(0), pair(2));
              }
        // Whoever arrives here has read the other slab. (Barriers up to CONSUMERS are for taking turns, and for `reduce`.)
        ptx::numbered_barrier_sync<WARPGROUP>(1 + CONSUMERS + threadIdx.x / WARPGROUP);
        if (aligned) {
#pragma unroll
          for (int i = 0; i < LINES; i += 16) {
            if (first + i + thread / 8 < rows && column < params.m)
              ptx::store_global(line, *reinterpret_cast<const ptx::Vector*>(own + used + i * LINE_BYTES));
            line += 16 * params.out_stride[1];
          }
        } else {
#pragma unroll 2
          for (int index = thread; index < LINES * 64; index += WARPGROUP) {
            const int r = index / 64, c = index % 64;
            if (first + r < rows && left + c < params.m)
              out[params.out_stride[1] * (n + first + r) + params.out_stride[2] * (left + c)] =
                  *reinterpret_cast<const Out*>(slabs + used + offset(r, c / 8) + c % 8 * 2);
          }
        }
      }
    }
  }

  // Any sums and any epilogue, for such an output: 16 rows at a time through a warp's slab, where each lane picks up 8 neighbours along m.
  template <class Sums>
  static __device__ __forceinline__ void store_transposed(const Sm90Params& params, Epilogue epilogue, const Sums& value,
                                                          unsigned char* slab, int batch, int m, int n) {
    constexpr int ROUNDS = (EPILOGUE_N + TRANSPOSED_N - 1) / TRANSPOSED_N;
    const int lane = threadIdx.x % 32;
    Value* const values = reinterpret_cast<Value*>(slab);
    Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[0] * batch;
    const bool wide = params.out_stride[2] == 1 &&
                      ((reinterpret_cast<unsigned long long>(out) | params.out_stride[1] * sizeof(Out)) & 15) == 0;
#pragma unroll 1
    for (int round = 0; round < M_BLOCKS * ROUNDS; ++round) {
      __syncwarp();  // the slab's former values have been read
#pragma unroll
      for (int at = 0; at < M_BLOCKS * ROUNDS; ++at)
        if (at == round)
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const int first = at % ROUNDS * TRANSPOSED_N + i / 4 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (first < EPILOGUE_N)
              values[column * TRANSPOSED_PITCH + strip_row(lane / 4 + i / 2 % 2 * 8)] = value(at / ROUNDS, first / 2 + i % 4);
          }
      __syncwarp();
      // A quarter warp has rows 0, 1, 4 and 5, the next one 2, 3, 6 and 7: what its lanes read at once then lies in banks of its own.
      const int slab_row = (lane / 2 & 9) + (lane / 4 & 2) + (lane & 4), first = round % ROUNDS * TRANSPOSED_N + slab_row;
      const int block = m + round / ROUNDS * 64, row = n + first, column = block + lane % 2 * 8;
      const bool own = first < EPILOGUE_N;
      const int valid = own && row < params.n ? min(8, params.m - column) : 0;
      if (!Epilogue::REDUCES && valid <= 0) continue;
      Value eight[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) eight[e] = values[slab_row * TRANSPOSED_PITCH + lane % 2 * 8 + e];
      typename Epilogue::template Operands<8, 8> operands;
      epilogue.load(operands, batch, row, column, valid);
      const Place place{batch, row, column, valid, n / EPILOGUE_N * ROUNDS + round % ROUNDS, block / 16, own, 8};
      finish_sums<16, 2>(epilogue, eight, operands, place);
      if (valid <= 0) continue;
      Out* const target = out + params.out_stride[1] * row + params.out_stride[2] * column;
      union { Out elements[8]; ptx::Vector vectors[(sizeof(Out) + 1) / 2]; } packed;
#pragma unroll
      for (int e = 0; e < 8; ++e) packed.elements[e] = encode<Out>(Epilogue::result(eight[e]));
      if (sizeof(Out) > 1 && wide && valid == 8) {
#pragma unroll
        for (int i = 0; i < int(sizeof(Out)) / 2; ++i)
          ptx::store_global(reinterpret_cast<ptx::Vector*>(target) + i, packed.vectors[i]);
      } else {
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (e < valid) target[params.out_stride[2] * e] = packed.elements[e];
      }
    }
  }

  // The same for whole tiles of which each lane has pairs along m: 8 lanes' lie side by side. False, if that cannot be.
  template <class Sums>
  static __device__ __forceinline__ bool store_pairs(const Sm90Params& params, const Sums& value, int batch, int m, int n) {
    struct alignas(2 * sizeof(Out)) Pair { Out elements[2]; };
    const int lane = threadIdx.x % 32;
    Out* target = static_cast<Out*>(params.out_pointer) + params.out_stride[0] * batch + params.out_stride[1] * (n + lane % 4 * 2) +
                  m + lane / 4 * 2;
    const bool aligned = ((reinterpret_cast<unsigned long long>(target) | params.out_stride[1] * sizeof(Out)) & (sizeof(Pair) - 1)) == 0;
    const bool whole = m + (M_BLOCKS - 1) * 64 + 16 <= params.m && n + EPILOGUE_N <= params.n;
    if (params.out_stride[2] != 1 || !aligned || !whole) return false;
#pragma unroll
    for (int group = 0; group < EPILOGUE_N / 8; ++group) {
#pragma unroll
      for (int i = 0; i < 2 * M_BLOCKS; ++i) {
        const int strip = i / 2, row = i % 2;
        auto element = [&](int half) { return encode<Out>(value(strip, 4 * group + 2 * half + row)); };
        *reinterpret_cast<Pair*>(target + params.out_stride[1] * row + strip * 64) = {element(0), element(1)};
      }
      target += params.out_stride[1] * 8;
    }
    return true;
  }
};
