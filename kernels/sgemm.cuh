// GEMM of f32 operands on the CUDA cores, without rounding to tf32: FMA with a cp.async pipeline.
//
//   global memory --cp.async--> pipeline of STAGES tiles --128-bit loads--> registers --FMA-->
//     accumulators --shared memory--> epilogue --> global memory
//
// A CTA of 256 threads computes TILE_M x TILE_N of the output and walks K in blocks of TILE_K. A
// warp computes 32 x 64 of the tile, a thread 8 x 8. Tiles with fewer than eight such parts have
// SLICES of K: each K block is cut into SLICES equal parts, and each part has warps of its own.
//
// Sums          Each K block's 16 products are summed separately and added to the total, because
//               the error of one sum grows with its length (see simt.cuh).
// Strides       1 along K if A_K_MAJOR (B_K_MAJOR), else along M (N). The other stride, the batch
//               stride and the base pointer are multiples of ALIGN bytes: 16 or 4. Output strides
//               are free.
// Split-K       The SPLIT CTAs of a cluster share a tile, each with a part of the blocks of K. 9.0
//               and later.
// Shared memory K is the outer dimension of both tiles. K-major operands are transposed on the way.
#pragma once
#include "common/cluster.cuh"
#include "common/epilogue.cuh"
#include "common/params.cuh"
#include "common/ptx.cuh"
#include "common/raster.cuh"
#include "common/types.cuh"
#include "common/vector.cuh"

// One thread's share in copying an operand's tiles, one K block after the other. "MN" is M for A
// and N for B. A piece is ALIGN bytes along the contiguous dimension, and adjacent threads copy
// adjacent pieces. cp.async copies a piece, unless several elements along K must be transposed:
// fetch() loads these to registers, and store() stores them to as many rows of the tile.
template <bool K_MAJOR, int TILE_MN, int TILE_K, int THREADS, int ALIGN> struct SgemmCopier {
  static_assert(ALIGN == 16 || ALIGN == 4);
  static constexpr int PER_PIECE = ALIGN / 4;
  static constexpr bool BY_REGISTERS = K_MAJOR && PER_PIECE > 1;
  // Bytes between the tile's rows of one K index.
  static constexpr int PITCH = (TILE_MN + 4) * 4;
  static constexpr int BYTES = TILE_K * PITCH;
  // Lanes of adjacent pieces. 32 bytes along K: the elements that a warp transposes at once lie in
  // different banks.
  static constexpr int LANES_ALONG = (K_MAJOR ? 8 : TILE_MN) / PER_PIECE;
  // Pieces that the CTA copies at once: ALONG the contiguous dimension, and ACROSS. K_STEP and
  // MN_STEP elements along K and along MN.
  static constexpr int ACROSS =
      K_MAJOR && TILE_MN < THREADS / LANES_ALONG ? TILE_MN : THREADS / LANES_ALONG;
  static constexpr int ALONG = THREADS / ACROSS;
  static constexpr int K_STEP = K_MAJOR ? ALONG * PER_PIECE : ACROSS;
  static constexpr int MN_STEP = K_MAJOR ? ACROSS : TILE_MN;
  // A thread's pieces along K and along MN.
  static constexpr int K_COUNT = TILE_K / K_STEP, MN_COUNT = TILE_MN / MN_STEP;
  static constexpr int PIECES = K_COUNT * MN_COUNT;
  static_assert(ALONG * ACROSS == THREADS && ALONG % LANES_ALONG == 0);
  static_assert(TILE_K % K_STEP == 0 && TILE_MN % MN_STEP == 0);

  const char* source;     // this thread's first piece of the next K block
  long long row_bytes;    // between pieces of this thread that are adjacent across
  long long block_bytes;  // between K blocks
  int k, mn;              // of this thread's first piece in the tile
  int mn_left;            // extent of the operand along MN, from this thread's first piece on
  bool is_partial;        // whether the operand ends inside a piece of the tile along MN

  __device__ __forceinline__ SgemmCopier(const void* operand, long long batch_offset,
                                         long long mn_stride, long long k_stride, int mn_start,
                                         int mn_extent) {
    const int lanes = threadIdx.x / LANES_ALONG, across = lanes % ACROSS;
    const int along = (lanes / ACROSS * LANES_ALONG + threadIdx.x % LANES_ALONG) * PER_PIECE;
    k = K_MAJOR ? along : across;
    mn = K_MAJOR ? across : along;
    mn_left = mn_extent - mn_start - mn;
    is_partial =
        !K_MAJOR && mn_extent - mn_start < TILE_MN && (mn_extent - mn_start) % PER_PIECE != 0;
    const long long row_stride = (K_MAJOR ? mn_stride : k_stride) * 4;
    source =
        static_cast<const char*>(operand) + batch_offset * 4 +
        (K_MAJOR ? row_stride * (mn_start + mn) + k * 4 : row_stride * k + (mn_start + mn) * 4LL);
    row_bytes = row_stride * ACROSS;
    block_bytes = K_MAJOR ? TILE_K * 4 : row_stride * TILE_K;
  }

  // Offset of this thread's first element in the tile.
  __device__ __forceinline__ unsigned destination() const { return k * PITCH + mn * 4; }

  // Elements beyond the end of K must be zero in A and in B: a stale NaN times zero would be NaN.
  // Elements beyond the end of MN may be anything, since their sums are not stored. A ragged block
  // ends inside the tile's K, or inside a piece.
  __device__ __forceinline__ bool is_ragged(int k_left) const {
    return k_left < TILE_K || is_partial;
  }

  // Calls copy(i, j, address) for this thread's i-th piece across and its j-th along.
  template <class Copy> __device__ __forceinline__ void for_whole(int k_left, Copy copy) const {
    const int limit = is_ragged(k_left) ? 0 : mn_left;
    const char* address = source;
#pragma unroll
    for (int i = 0; i < (K_MAJOR ? MN_COUNT : K_COUNT); ++i) {
#pragma unroll
      for (int j = 0; j < (K_MAJOR ? K_COUNT : MN_COUNT); ++j)
        if ((K_MAJOR ? i * MN_STEP : 0) < limit)
          copy(i, j, address + (K_MAJOR ? j * K_STEP * 4 : 0));
      address = ptx::opaque(address + row_bytes);
    }
  }

  // These two do nothing for a ragged block, so that callers need no branch around them.
  __device__ __forceinline__ void copy_whole(unsigned tile, int k_left) const {
    for_whole(k_left, [&](int i, int j, const char* address) {
      ptx::copy_async<ALIGN>(
          tile + (K_MAJOR ? j * K_STEP * PITCH + i * MN_STEP * 4 : i * K_STEP * PITCH), address);
    });
  }
  struct Staged { ptx::Vector pieces[MN_COUNT][K_COUNT]; };
  __device__ __forceinline__ void fetch(Staged& staged, int k_left) const {
    for_whole(k_left, [&](int i, int j, const char* address) {
      staged.pieces[i][j] = ptx::load_global(address);
    });
  }

  // Stores the piece of that number, unless the block is ragged.
  __device__ __forceinline__ void store(const Staged& staged, int piece, unsigned tile,
                                        int k_left) const {
    const int i = piece / K_COUNT, j = piece % K_COUNT;
    const bool whole = !is_ragged(k_left);
#pragma unroll
    for (int e = 0; e < PER_PIECE; ++e)
      if (whole)
        ptx::store_shared(tile + (j * K_STEP + e) * PITCH + i * MN_STEP * 4,
                          staged.pieces[i][j].words[e]);
  }

  // Copies element by element, in rolled loops: ragged blocks are rare.
  __device__ __forceinline__ void copy_ragged(unsigned tile, int k_left) const {
    const char* address = source;
#pragma unroll 1
    for (int i = 0; i < (K_MAJOR ? MN_COUNT : K_COUNT); ++i) {
#pragma unroll 1
      for (int j = 0; j < (K_MAJOR ? K_COUNT : MN_COUNT) * PER_PIECE; ++j) {
        const int along = K_MAJOR ? j / PER_PIECE * K_STEP + j % PER_PIECE : j;
        const int k_at = K_MAJOR ? along : i * K_STEP, mn_at = K_MAJOR ? i * MN_STEP : along;
        const bool inside = k + k_at < k_left && mn_at < mn_left;
        ptx::copy_async<4>(tile + k_at * PITCH + mn_at * 4, address + along * 4, inside ? 4 : 0);
      }
      address += row_bytes;
    }
  }

  __device__ __forceinline__ void advance(int blocks = 1) {
    source = ptx::opaque(source + block_bytes * blocks);
  }
};

template <class Out, bool A_K_MAJOR, bool B_K_MAJOR, int TILE_M, int TILE_N, int TILE_K, int STAGES,
          int ALIGN, int SPLIT, Groups GROUPS, class Epilogue>
struct Sgemm {
  static constexpr int THREADS = 256, MIN_CTAS = 1;
  static constexpr int WARP_M = 32, WARP_N = 64;
  static constexpr int WARPS_M = TILE_M / WARP_M, WARPS_N = TILE_N / WARP_N;
  static constexpr int SLICES = THREADS / 32 / (WARPS_M * WARPS_N);
  static constexpr int STEPS = TILE_K / SLICES;  // K indices of a slice in a block
  static_assert(THREADS == 32 * WARPS_M * WARPS_N * SLICES && TILE_K % SLICES == 0);
  static_assert(STEPS % 2 == 0, "fragments are double-buffered");
  static_assert(STEPS == 16, "the length of the chains");
  static constexpr bool GROUPED = GROUPS != Groups::NONE, ALONG_M = GROUPS == Groups::ALONG_M;
  static_assert(ALIGN == 4 || !ALONG_M || A_K_MAJOR, "a group may begin at any row");
  static_assert(ALIGN == 4 || GROUPS != Groups::ALONG_K || !(A_K_MAJOR || B_K_MAJOR),
                "a group may begin anywhere along K");
  static_assert(!GROUPED || SPLIT == 1);

  using CopierA = SgemmCopier<A_K_MAJOR, TILE_M, TILE_K, THREADS, ALIGN>;
  using CopierB = SgemmCopier<B_K_MAJOR, TILE_N, TILE_K, THREADS, ALIGN>;
  static constexpr int STAGE_BYTES = CopierA::BYTES + CopierB::BYTES;
  // Whether the loads to registers begin in a branch of their own. ptxas then assigns them a
  // scoreboard of their own; among loads from shared memory they may share one, and FMA waits for
  // global memory. Not in grouped kernels, where ptxas would spill on 8.x.
  static constexpr bool FETCH_A = CopierA::BY_REGISTERS && !GROUPED,
                        FETCH_B = CopierB::BY_REGISTERS && !GROUPED;

  // The epilogue exchanges all sums through shared memory: a thread has 16 vectors of 4 adjacent
  // columns, and the CTA's vectors with one index are adjacent.
  static constexpr int VECTORS = 16, SUMS_BYTES = THREADS * VECTORS * 16;
  static constexpr int SMEM_BYTES =
      STAGES * STAGE_BYTES > SUMS_BYTES ? STAGES * STAGE_BYTES : SUMS_BYTES;
  // The vectors that a thread finishes. SLICES * SPLIT threads hold sums of the same elements.
  static constexpr int OWN_VECTORS = VECTORS / (SLICES * SPLIT);
  static_assert(VECTORS % (SLICES * SPLIT) == 0);

  struct Fragments { f32 a[8], b[8]; };

  // Lanes form a 4 x 8 grid. A shared-memory load of 16 bytes serves half a warp at once if the
  // lanes that differ in bit 0, or in bit 1, read the same address. Bit 0 therefore counts along N
  // (A's address does not depend on it), and bit 1 along M.
  static __device__ __forceinline__ int lane_m() {
    return (threadIdx.x >> 1 & 1) | (threadIdx.x >> 3 & 2);
  }
  static __device__ __forceinline__ int lane_n() {
    return (threadIdx.x & 1) | (threadIdx.x >> 1 & 6);
  }
  // A thread's rows (columns) are two runs of four.
  static __device__ __forceinline__ int row_of(int i) { return i / 4 * 16 + lane_m() * 4 + i % 4; }
  static __device__ __forceinline__ int column_of(int j) {
    return j / 4 * 32 + lane_n() * 4 + j % 4;
  }

  // This CTA's part of K.
  static __device__ __forceinline__ int split_rank() { return blockIdx.x % SPLIT; }

  static __device__ __forceinline__ void run(const GemmParams& params, Epilogue epilogue) {
    ptx::launch_dependent_grids();
    if constexpr (GROUPED) ptx::wait_for_prior_grids();  // before the offsets are read
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const unsigned shared = ptx::shared_address(shared_memory);
    const int warp = threadIdx.x / 32, slice = warp / (WARPS_M * WARPS_N);
    const int warp_m = warp % WARPS_M * WARP_M, warp_n = warp / WARPS_M % WARPS_N * WARP_N;

    const TilePosition position = tile_position<TILE_M, TILE_N, GROUPS, SPLIT>(params);
    if (ALONG_M && position.m >= position.end) return;
    CopierA copier_a(params.a,
                     params.a_stride[0] * position.batch + params.a_stride[2] * position.start_k,
                     params.a_stride[1], params.a_stride[2], position.m, position.end);
    CopierB copier_b(params.b,
                     params.b_stride[0] * position.batch + params.b_stride[1] * position.start_k,
                     params.b_stride[2], params.b_stride[1], position.n, params.n);
    const unsigned write_a = ptx::opaque(copier_a.destination());
    const unsigned write_b = ptx::opaque(CopierA::BYTES + copier_b.destination());
    const unsigned read_a = ptx::opaque(slice * STEPS * CopierA::PITCH + (warp_m + row_of(0)) * 4);
    const unsigned read_b =
        ptx::opaque(CopierA::BYTES + slice * STEPS * CopierB::PITCH + (warp_n + column_of(0)) * 4);

    int blocks = position.k / TILE_K + (position.k % TILE_K != 0);
    int k_left = position.k;  // from the next block to be copied on
    if constexpr (SPLIT > 1) {
      const int share = (blocks + SPLIT - 1) / SPLIT, first = min(split_rank() * share, blocks);
      blocks = min(share, blocks - first);
      k_left = min(k_left - first * TILE_K, blocks * TILE_K);
      copier_a.advance(first);
      copier_b.advance(first);
    }

    unsigned filled = shared, read = shared;  // the stage to fill next, the stage to read next
    auto advance = [&](unsigned stage) {
      stage += STAGE_BYTES;
      return stage == shared + STAGES * STAGE_BYTES ? shared : stage;
    };
    typename CopierA::Staged staged_a;  // if BY_REGISTERS
    typename CopierB::Staged staged_b;
    auto ragged_a = [&] {
      if (k_left > 0 && copier_a.is_ragged(k_left)) copier_a.copy_ragged(filled + write_a, k_left);
    };
    auto ragged_b = [&] {
      if (k_left > 0 && copier_b.is_ragged(k_left)) copier_b.copy_ragged(filled + write_b, k_left);
    };
    // The copies that contain branches, ahead of the FMA of a block.
    auto begin_copy = [&] {
      if (!FETCH_A) ragged_a();
      if (!FETCH_B) ragged_b();
      if (k_left >= TILE_K) {
        if constexpr (FETCH_A) copier_a.fetch(staged_a, TILE_K);
        if constexpr (FETCH_B) copier_b.fetch(staged_b, TILE_K);
      } else {
        if (FETCH_A) ragged_a();
        if (FETCH_B) ragged_b();
      }
    };
    auto copy_a = [&] {
      if constexpr (!CopierA::BY_REGISTERS)
        copier_a.copy_whole(filled + write_a, k_left);
      else if constexpr (!FETCH_A)
        copier_a.fetch(staged_a, k_left);
    };
    auto copy_b = [&] {
      if constexpr (!CopierB::BY_REGISTERS)
        copier_b.copy_whole(filled + write_b, k_left);
      else if constexpr (!FETCH_B)
        copier_b.fetch(staged_b, k_left);
      ptx::copy_async_commit();  // an empty group beyond the last block: one group per iteration
    };
    constexpr int PIECES_A = CopierA::BY_REGISTERS ? CopierA::PIECES : 0;
    constexpr int PIECES = PIECES_A + (CopierB::BY_REGISTERS ? CopierB::PIECES : 0);
    static_assert(PIECES <= STEPS - 4, "a piece is stored after it is fetched");
    auto store_piece = [&](int piece) {
      if (piece < PIECES_A)
        copier_a.store(staged_a, piece, filled + write_a, k_left);
      else
        copier_b.store(staged_b, piece - PIECES_A, filled + write_b, k_left);
    };
    auto next_block = [&] {
      copier_a.advance();
      copier_b.advance();
      k_left -= TILE_K;
      filled = advance(filled);
    };

    Fragments fragments[2];
    f32 totals[8][8] = {}, chain[8][8] = {};
    auto load = [&](int step) {
      Fragments& next = fragments[step % 2];
#pragma unroll
      for (int run = 0; run < 2; ++run) {
        load_vector(&next.a[4 * run], read + read_a + step * CopierA::PITCH + run * 64);
        load_vector(&next.b[4 * run], read + read_b + step * CopierB::PITCH + run * 128);
      }
    };
    auto multiply = [&](int step) {
      const Fragments& current = fragments[step % 2];
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int index = 0; index < 8; ++index) {
          const int j = i % 2 ? 7 - index : index;  // each product shares a factor with the last
          chain[i][j] = multiply_add(current.a[i], current.b[j], step == 0 ? 0.0f : chain[i][j]);
        }
    };
    auto add_chain = [&] {
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) totals[i][j] += chain[i][j];
    };

    if constexpr (!GROUPED) ptx::wait_for_prior_grids();
    if (blocks > 0) {
#pragma unroll 1
      for (int stage = 0; stage < STAGES - 1; ++stage) {
        begin_copy();
        copy_a();
        copy_b();
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) store_piece(piece);
        next_block();
      }
      ptx::copy_async_wait<STAGES - 2>();
      __syncthreads();
      load(0);
    }

#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      begin_copy();
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if (step == STEPS - 1) {
          // The block's last fragments are in registers. After the barrier, the next block has
          // arrived and this block's stage may be filled. (After the last block, the fragments
          // loaded below are not used.)
          ptx::copy_async_wait<STAGES - 2>();
          next_block();
          __syncthreads();
          read = advance(read);
        }
        load((step + 1) % STEPS);
        if (step == 1) copy_a();
        if (step == 2) copy_b();
        // One piece a step, the last ones before the barrier: more at once would delay the loads of
        // all warps.
        const int piece = step - (STEPS - 1 - PIECES);
        if (piece >= 0 && piece < PIECES) store_piece(piece);
        if (step == 0) add_chain();
        multiply(step);
      }
    }
    add_chain();

    ptx::copy_async_wait<0>();
    __syncthreads();  // the stages may be overwritten by the sums
    store_sums(params, epilogue, totals, reinterpret_cast<f32(*)[THREADS][4]>(shared_memory),
               position, position.m + warp_m, position.n + warp_n, slice);
  }

  static __device__ __forceinline__ void load_vector(f32* values, unsigned shared) {
    unsigned words[4];
    ptx::load_shared(words, shared);
#pragma unroll
    for (int e = 0; e < 4; ++e) values[e] = __uint_as_float(words[e]);
  }

  static __device__ __forceinline__ void add_vector(f32 (&values)[4], const unsigned (&words)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) values[e] += __uint_as_float(words[e]);
  }

  // Adds up the sums of the slices and of the splits, in this order, and stores them. `m`, `n`: of
  // the warp's first element. `sums`: [vector][thread].
  static __device__ __forceinline__ void store_sums(const GemmParams& params, Epilogue epilogue,
                                                    const f32 (&totals)[8][8],
                                                    f32 (*sums)[THREADS][4],
                                                    const TilePosition& position, int m, int n,
                                                    int slice) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[v][threadIdx.x][e] = totals[v / 2][v % 2 * 4 + e];
    if constexpr (SLICES > 1) __syncthreads();

    // Threads of different slices with equal `place` hold sums of the same elements.
    constexpr int PLACES = THREADS / SLICES;
    const int place = threadIdx.x % PLACES;
    auto add_slices = [&](f32(&values)[4], int v) {
#pragma unroll
      for (int other = 0; other < SLICES; ++other) {
        unsigned words[4];
        ptx::load_shared(words, ptx::shared_address(sums[v][place + other * PLACES]));
        add_vector(values, words);
      }
    };
    int first = slice * (VECTORS / SLICES);
    if constexpr (SPLIT > 1) {
      // No other thread of this CTA reads the sums that this one overwrites.
#pragma unroll
      for (int v = first; v < first + VECTORS / SLICES; ++v) {
        f32 values[4] = {};
        add_slices(values, v);
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[v][place][e] = values[e];
      }
      ptx::cluster_arrive();
      ptx::cluster_wait();
      first += split_rank() * OWN_VECTORS;
    }

    const int batch = position.batch;
    Out* out = static_cast<Out*>(params.out) + params.out_stride[0] * batch;
    const long long stride_m = params.out_stride[1], stride_n = params.out_stride[2];
    struct alignas(4 * sizeof(Out)) OutVector { Out elements[4]; };
    const bool aligned =
        stride_n == 1 && ((reinterpret_cast<unsigned long long>(out) | stride_m * sizeof(Out)) &
                          (sizeof(OutVector) - 1)) == 0;
    // One copy of the epilogue, for compile time.
    constexpr int UNROLL = is_same<Epilogue, Identity> && OWN_VECTORS > 1 ? 2 : 1;
#pragma unroll UNROLL
    for (int at = 0; at < OWN_VECTORS; ++at) {
      const int v = first + at;
      f32 values[4] = {};
      if constexpr (SPLIT > 1) {
#pragma unroll
        for (int split = 0; split < SPLIT; ++split) {
          unsigned words[4];
          ptx::load_cluster(words, ptx::map_shared(ptx::shared_address(sums[v][place]), split));
          add_vector(values, words);
        }
      } else {
        add_slices(values, v);
      }
      const int row = m + row_of(v / 2), column = n + column_of(v % 2 * 4);
      const int valid = row < position.end ? min(4, params.n - column) : 0;
      if (valid <= 0) continue;
      typename Epilogue::template Operands<4, 4> operands;
      epilogue.load(operands, batch, row, column, valid);
      finish_sums<1, 1>(epilogue, values, operands,
                        {batch, row, column, valid, row, column / 4, true, valid});
      Out* target = out + stride_m * row + stride_n * column;
      OutVector vector;
#pragma unroll
      for (int e = 0; e < 4; ++e) vector.elements[e] = encode<Out>(Epilogue::result(values[e]));
      if (aligned && valid == 4) {
        *reinterpret_cast<OutVector*>(target) = vector;
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (e < valid) target[stride_n * e] = vector.elements[e];
      }
    }
    if constexpr (SPLIT > 1) {
      // The others have read this CTA's sums.
      ptx::cluster_arrive();
      ptx::cluster_wait();
    }
  }
};
