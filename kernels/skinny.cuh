// Skinny GEMM: few rows times a large matrix. Bound by memory bandwidth, since each element of the
// large matrix is used only once per row.
//
//   global memory --cp.async--> pipeline of STAGES tiles --mma.sync or FMA--> accumulators
//     --shared memory--> sums over warps, then over the cluster --epilogue--> global memory
//
// Frame      M is the narrow side; A holds the few rows, B the large matrix. For a narrow N the
//            host transposes the problem, and the epilogue sees transposed coordinates. Each CTA
//            computes ROWS rows. Kernels are offered for at most as many, since further blocks of
//            rows read B again.
// Pipeline   Bandwidth requires 64 to 128 KB in flight per multiprocessor at 3 TB/s, hence many
//            stages and small everything else.
// Fragments  mma.sync is 16 x 8: B takes the side of 16, the few rows of A the side of 8.
// Split-K    The warps of a CTA split the tile along N and along K. The SPLIT CTAs of a cluster
//            split K again, so that all multiprocessors read even a small matrix. The partial sums
//            are added in shared memory, in a fixed order: first those of the CTA's warps, then
//            those of the cluster's CTAs, each of which reduces a share of the columns.
// Elements   f16, bf16 or f32, the same for A and B; or MIXED: f16 or bf16, times s8, u8, e4m3 or
//            codes of 4 bits, which skinny/streamed_sums.cuh adds up without these tiles. f32 sums.
//            Method::MMA rounds f32 to tf32; Method::FMA, f32 only, does not.
// Joint      B consists of MATRICES matrices (N_i, K), whose columns lie side by side in the
//            output. A tile lies in one of them.
// Strides    1 along K if A_K_MAJOR (B_K_MAJOR), else along M (N). The other stride, the batch
//            stride and the base pointer are multiples of ALIGN bytes: 16, 8, 4 or the size of an
//            element. Output strides are free.
// Grid       SPLIT * ceil(n / TILE_N) * ceil(m / ROWS) * batch CTAs, in clusters of SPLIT: 1
//            before sm_90. MIXED without a split: any multiple of ceil(m / ROWS) * batch CTAs, each
//            of which computes a range of columns, tile by tile (skinny/range.cuh).
#pragma once
#include "common/cluster.cuh"
#include "common/epilogue.cuh"
#include "common/operand_tile.cuh"
#include "common/params.cuh"
#include "common/ptx.cuh"
#include "common/types.cuh"
#include "common/vector.cuh"
#include "common/widen.cuh"
#include "skinny/joint.cuh"
#include "skinny/range.cuh"
#include "skinny/store_sums.cuh"
#include "skinny/streamed_sums.cuh"

enum class Method { MMA, FMA };

template <class A, class B, class Out, bool A_K_MAJOR, bool B_K_MAJOR, int ROWS, int TILE_N,
          int TILE_K, int WARPS_N, int STAGES, int SPLIT, int ALIGN, Method METHOD, class Epilogue,
          int MATRICES = 1>
struct SkinnyGemm {
  // MIXED: B is converted to A's type, of 16 bits, in registers.
  static constexpr bool MIXED = class_of<A> == ElementClass::HALF && is_widened<B>;
  static_assert(MIXED ? A_K_MAJOR && B_K_MAJOR : is_same<A, B>);
  using WideElement = B;
  using EpilogueOf = Epilogue;
  static constexpr int TILE_ROWS = ROWS, WARPS_ALONG_N = WARPS_N, TILE_DEPTH = TILE_K;
  using Element = A;  // what is multiplied
  static constexpr int WARPS = 8, THREADS = 32 * WARPS;
  static constexpr int WARPS_K = WARPS / WARPS_N;  // warps that split the tile along K
  static constexpr bool ASYNC = ALIGN >= 4;        // cp.async copies at least 4 bytes
  static_assert(MIXED || (ASYNC ? STAGES >= 2 : STAGES == 2),
                "copies through registers are double-buffered");
  static_assert(SPLIT == 1 || SPLIT == 2 || SPLIT == 4 || SPLIT == 8,
                "a portable cluster has at most 8 CTAs");
  static_assert(MATRICES == 1 || (class_of<B> == ElementClass::HALF && B_K_MAJOR));
  static_assert(METHOD != Method::FMA || is_same<Element, f32>,
                "on tensor cores, products of 16-bit elements are exact in f32");

  static constexpr int SIZE = sizeof(Element);
  // The tile of A may have more rows than ROWS: the swizzle needs rows of 64 or 128 bytes
  // (SWIZZLE_M), the copy at least 16 bytes per thread (COPY_M).
  static constexpr int SWIZZLE_M = A_K_MAJOR ? 8 : (bits_of<Element> == 32 ? 128 : 64) / SIZE;
  static constexpr int COPY_M = THREADS * 16 / (TILE_K * SIZE),
                       MIN_M = SWIZZLE_M > COPY_M ? SWIZZLE_M : COPY_M;
  static constexpr int TILE_M = ROWS > MIN_M ? ROWS : MIN_M;
  static constexpr int WARP_N = TILE_N / WARPS_N;

  using TileA = OperandTile<A, A_K_MAJOR, TILE_M, TILE_K>;
  using TileB = OperandTile<B, B_K_MAJOR, TILE_N, TILE_K>;
  using CopierA = TileCopier<A, A_K_MAJOR, TILE_M, TILE_K, THREADS, ALIGN>;
  using CopierB = TileCopier<B, B_K_MAJOR, TILE_N, TILE_K, THREADS, ALIGN>;

  static constexpr int STAGE_BYTES = TileA::BYTES + bytes_of<B>(TILE_N * TILE_K), BLOCKS = STAGES;
  // PERSISTENT: stages are filled while slabs are read, and do not overlap them.
  static constexpr bool PERSISTENT = MIXED && SPLIT == 1;
  // Partial sums in shared memory: a slab of ROWS rows of TILE_N for each of the WARPS_K warps
  // along K. Four words of padding avoid bank conflicts, or the order of words does (sum_offset):
  // without padding, two CTAs of 32 columns and 96 KiB of stages share a multiprocessor.
  static constexpr int SUM_PITCH = TILE_N + (PERSISTENT && TILE_N % 32 == 0 ? 0 : 4);
  static constexpr int SLAB_WORDS = ROWS * SUM_PITCH;
  static constexpr int SLAB_BYTES = WARPS_K * SLAB_WORDS * 4;
  static constexpr int RING_BYTES = STAGES * STAGE_BYTES;
  static constexpr int WORK_BYTES = PERSISTENT                ? RING_BYTES + SLAB_BYTES
                                    : RING_BYTES > SLAB_BYTES ? RING_BYTES
                                                              : SLAB_BYTES;
  // Partial sums from the CTAs of the cluster: ROWS rows of this CTA's OWN_N columns from each.
  // They do not overlap the stages, which this CTA may still read when they arrive.
  static constexpr int OWN_N = TILE_N / SPLIT;
  static constexpr int SMEM_BYTES = WORK_BYTES + (SPLIT > 1 ? ROWS * TILE_N * 4 : 0);
  static_assert(TILE_N % (4 * SPLIT) == 0);
  // CTAs per multiprocessor: as many as its shared memory (CUDA Programming Guide, "Compute
  // Capabilities"; 1 KB is reserved per CTA) and its 65536 registers allow. Copying through
  // registers needs up to 255 registers per thread for many rows, 128 for few rows, 80 for few rows
  // and a small tile. MIXED needs up to 128.
#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
  static constexpr int SMEM_KB_PER_SM = 99;
#elif __CUDA_ARCH__ < 900
  static constexpr int SMEM_KB_PER_SM = 163;
#else
  static constexpr int SMEM_KB_PER_SM = 227;
#endif
  static constexpr int BY_MEMORY = SMEM_KB_PER_SM * 1024 / (SMEM_BYTES + 1024);
  static constexpr int BY_REGISTERS = MIXED || ASYNC ? 2 : ROWS > 16 ? 1 : TILE_N > 32 ? 2 : 3;
  static constexpr int MIN_CTAS = BY_MEMORY < 1              ? 1
                                  : BY_MEMORY < BY_REGISTERS ? BY_MEMORY
                                                             : BY_REGISTERS;

  // A warp's accumulators: adds the product over the warp's part of a K block, with mma.sync.
  struct MmaSums {
    // ldmatrix reads 16 rows even if ROWS is 8; the others, from behind A's tile, are not used.
    static constexpr int READ_M = ROWS < 16 ? 16 : ROWS;
    using ReaderA = FragmentReader<Element, A_K_MAJOR, (READ_M > TILE_M ? READ_M : TILE_M), TILE_K,
                                   READ_M, Adjacent::HALVES>;
    using ReaderB = FragmentReader<Element, B_K_MAJOR, TILE_N, TILE_K, WARP_N, Adjacent::SLOTS>;
    using Mma = ptx::Mma<Element, Element, f32>;
    static constexpr int STEPS = TILE_K / TileA::K_STEP / WARPS_K;  // of mma.sync along K
    static_assert(STEPS >= 1);

    int warp_n;
    ReaderA reader_a;
    ReaderB reader_b;
    typename Mma::Sums sums[WARP_N / 16][ROWS / 8];

    __device__ __forceinline__ explicit MmaSums(int warp)
        : warp_n(warp % WARPS_N * WARP_N), reader_a(0), reader_b(warp_n), sums{} {
      const int warp_k = warp / WARPS_N;  // the warp's part of the K block
      skip(reader_a, warp_k * STEPS, A_K_MAJOR, TileA::ROW_BYTES);
      skip(reader_b, warp_k * STEPS, B_K_MAJOR, TileB::ROW_BYTES);
    }
    template <class Reader>
    static __device__ __forceinline__ void skip(Reader& reader, int steps, bool k_major,
                                                int row_bytes) {
      if (k_major)
        reader.lane_offset ^= steps * 32;
      else
        reader.lane_offset += steps * TileA::K_STEP * row_bytes;
    }

    __device__ __forceinline__ void add(unsigned a_tile, unsigned b_tile) {
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        typename ReaderA::Fragments a;
        typename ReaderB::Fragments b;
        reader_b.load(b, b_tile, step);
        reader_a.load(a, a_tile, step);
#pragma unroll
        for (int i = 0; i < WARP_N / 16; ++i)
#pragma unroll
          for (int j = 0; j < ROWS / 8; ++j)
            Mma::accumulate(sums[i][j], b.words[2 * i][0], b.words[2 * i + 1][0], b.words[2 * i][1],
                            b.words[2 * i + 1][1], a.words[j][0], a.words[j][1]);
      }
    }

    __device__ __forceinline__ void store(f32* slab) const {
      const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < WARP_N / 16; ++i)
#pragma unroll
        for (int j = 0; j < ROWS / 8; ++j)
#pragma unroll
          for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int c = 0; c < 2; ++c)
              slab[ReaderA::coordinate(j, pair + c) * SUM_PITCH + warp_n +
                   ReaderB::coordinate(2 * i + half, group)] = Mma::get(sums[i][j], half, c);
    }
  };

  // The same with FMA: a lane has WARP_N / 32 columns of B and reads four elements along K at a
  // time; A's elements are the same for all lanes.
  struct FmaSums {
    static constexpr int COLUMNS = WARP_N / 32 > 0 ? WARP_N / 32 : 1, LENGTH = TILE_K / WARPS_K;
    static_assert(METHOD != Method::FMA || (WARP_N % 32 == 0 && LENGTH % 4 == 0));
    int n, k;
    f32 sums[COLUMNS][ROWS];

    __device__ __forceinline__ explicit FmaSums(int warp)
        : n(warp % WARPS_N * WARP_N + threadIdx.x % 32), k(warp / WARPS_N * LENGTH), sums{} {}

    // Loads four elements along K, from k on, of row `mn` of an operand's tile.
    template <class Tile, bool K_MAJOR>
    static __device__ __forceinline__ void load(f32 (&values)[4], unsigned tile, int mn, int k) {
      unsigned words[4];
      if constexpr (K_MAJOR) {
        ptx::load_shared(words, tile + Tile::offset(mn, k / 4));
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          unsigned word[1];
          ptx::load_shared(word, tile + Tile::offset(k + i, mn / 4) + mn % 4 * 4);
          words[i] = word[0];
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = __uint_as_float(words[i]);
    }

    __device__ __forceinline__ void add(unsigned a_tile, unsigned b_tile) {
      // Blocks are accumulated separately, for accuracy (see simt.cuh).
      f32 block[COLUMNS][ROWS] = {};
#pragma unroll(ROWS > 4 ? 1 : 4)
      for (int at = 0; at < LENGTH; at += 4) {
        f32 b[COLUMNS][4];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) load<TileB, B_K_MAJOR>(b[c], b_tile, n + 32 * c, k + at);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
          f32 a[4];
          load<TileA, A_K_MAJOR>(a, a_tile, row, k + at);
#pragma unroll
          for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (int i = 0; i < 4; ++i) block[c][row] = multiply_add(a[i], b[c][i], block[c][row]);
        }
      }
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
        for (int row = 0; row < ROWS; ++row) sums[c][row] += block[c][row];
    }

    __device__ __forceinline__ void store(f32* slab) const {
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
        for (int row = 0; row < ROWS; ++row) slab[row * SUM_PITCH + n + 32 * c] = sums[c][row];
    }
  };

  // Columns by which ranges of CTAs differ: those of an instruction, or of a scale's tiles.
  static constexpr int UNIT = Epilogue::B_COLUMNS > 1 ? TILE_N : 16;

  using Sums = typename Conditional<
      MIXED, SkinnyStreamedSums<SkinnyGemm>,
      typename Conditional<METHOD == Method::FMA, FmaSums, MmaSums>::Type>::Type;

  static __device__ __forceinline__ void run(const GemmParams& params, Epilogue epilogue) {
    if constexpr (PERSISTENT)
      run_range(params, epilogue);
    else
      run_tile(params, epilogue);
  }

  // The persistent form. The warps' pipelines run on from one tile to the next: while the sums of a
  // tile are added up and stored, the first K blocks of the next tile are on their way.
  static __device__ __forceinline__ void run_range(const GemmParams& params, Epilogue& epilogue) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    ptx::launch_dependent_grids();
    const auto range = SkinnyRange::of_cta<ROWS, TILE_N, TILE_K, UNIT>(params);
    const int warp = threadIdx.x / 32, start_n = range.start_n, end_n = range.end_n;
    Sums sums(warp, params, epilogue, range, ptx::shared_address(shared_memory));
    prefetch(params, range.batch, start_n, min(end_n, start_n + range.columns), 0, params.k);
    ptx::wait_for_prior_grids();
    sums.begin();
    f32* slabs = reinterpret_cast<f32*>(shared_memory + RING_BYTES);
#pragma unroll 1
    for (int n = start_n; n < end_n; n += range.columns) {
      const int columns = min(range.columns, end_n - n);
      sums.add(n, columns);
      __syncthreads();  // the slabs of the last tile have been read
      sums.store(slabs + warp * SLAB_WORDS);
      __syncthreads();
      store_tile(params, epilogue, slabs, range, n, columns);
    }
    ptx::copy_async_wait<0>();
  }

  static __device__ __forceinline__ void store_tile(const GemmParams& params, Epilogue& epilogue,
                                                    const f32* slabs, const SkinnyRange& range,
                                                    int start_n, int columns) {
    const int rows = min(ROWS, params.m - range.start_m);
#pragma unroll 1
    for (int index = threadIdx.x; index < rows * (TILE_N / 4); index += THREADS) {
      const int m = index / (TILE_N / 4), n = index % (TILE_N / 4) * 4;
      if (n >= columns) continue;
      f32 values[4];
      add_up<WARPS_K>(values, slabs + sum_offset<SUM_PITCH>(m, n), SLAB_WORDS);
      finish(params, epilogue, values, range.batch, range.start_m + m, start_n + n);
    }
  }

  static __device__ __forceinline__ void run_tile(const GemmParams& params, Epilogue& epilogue) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const unsigned shared = ptx::shared_address(shared_memory);
    ptx::launch_dependent_grids();
#if __CUDA_ARCH__ >= 900
    // The matching wait precedes the first store to another CTA, which must have started by then.
    if constexpr (SPLIT > 1) ptx::cluster_arrive();
#endif

    const int rank = blockIdx.x % SPLIT, tiles = (params.n + TILE_N - 1) / TILE_N;
    const int strip = blockIdx.x / SPLIT / tiles,
              start_n = (blockIdx.x / SPLIT - strip * tiles) * TILE_N;
    int batch = strip, start_m = 0;
    if (params.m > ROWS) {
      const int strips = (params.m + ROWS - 1) / ROWS;
      batch = strip / strips;
      start_m = (strip - batch * strips) * ROWS;
    }
    const int rows = min(ROWS, params.m - start_m);

    // This CTA's split of K: `share` blocks, fewer for the last CTAs.
    const int all_blocks = params.k / TILE_K + (params.k % TILE_K != 0);
    const int share = (all_blocks + SPLIT - 1) / SPLIT, first_block = min(rank * share, all_blocks);
    const int blocks = min(share, all_blocks - first_block);
    const long long start_k =
        min(static_cast<long long>(first_block) * TILE_K, static_cast<long long>(params.k));
    const int k_length = min(params.k - int(start_k), share * TILE_K);
    const int warp = threadIdx.x / 32;
    Sums sums = [&] {
      if constexpr (MIXED)
        return Sums(warp, params, epilogue,
                    {batch, start_m, start_n, params.n, int(start_k), int(start_k) + k_length,
                     TILE_N, blocks},
                    shared);
      else
        return Sums(warp);
    }();
    if constexpr (MIXED) {
      if (blockIdx.x < FIRST_WAVE) prefetch(params, batch, start_n, params.n, start_k, k_length);
      ptx::wait_for_prior_grids();
      sums.begin();
      sums.add(start_n, params.n - start_n);
      ptx::copy_async_wait<0>();
    } else {
      CopierA copier_a(params.a, params.a_stride[0] * batch + params.a_stride[2] * start_k,
                       params.a_stride[1], params.a_stride[2], start_m, params.m);
      CopierB copier_b = skinny_copier_of_b<CopierB, MATRICES>(params, batch, start_n, start_k);
      ptx::wait_for_prior_grids();
      add_blocks(sums, copier_a, copier_b, blocks, k_length, shared);
    }
    __syncthreads();  // the stages may be overwritten by the slabs

    f32* slabs = reinterpret_cast<f32*>(shared_memory);
    sums.store(slabs + warp / WARPS_N * SLAB_WORDS);
    __syncthreads();
    // The sum of four columns of a row over the warps along K, in a fixed order.
    auto warps_sum = [&](f32(&values)[4], int m, int n) {
      add_up<WARPS_K>(values, slabs + m * SUM_PITCH + n, SLAB_WORDS);
    };
    if constexpr (SPLIT == 1) {
#pragma unroll 4
      for (int index = threadIdx.x; index < rows * (TILE_N / 4); index += THREADS) {
        const int m = index / (TILE_N / 4), n = index % (TILE_N / 4) * 4;
        f32 values[4];
        warps_sum(values, m, n);
        finish(params, epilogue, values, batch, start_m + m, start_n + n);
      }
    } else {
#if __CUDA_ARCH__ >= 900
      // Each CTA sends every CTA of the cluster that CTA's columns, to a place by the sender's
      // rank. Then each CTA adds up what it received.
      f32* received = reinterpret_cast<f32*>(shared_memory + WORK_BYTES);
      const unsigned received_address = shared + WORK_BYTES;
      ptx::cluster_wait();
#pragma unroll 4
      for (int index = threadIdx.x; index < rows * (TILE_N / 4); index += THREADS) {
        const int m = index / (TILE_N / 4), n = index % (TILE_N / 4) * 4;
        f32 values[4];
        warps_sum(values, m, n);
        const unsigned target = received_address + ((rank * ROWS + m) * OWN_N + n % OWN_N) * 4;
        ptx::store_cluster(ptx::map_shared(target, n / OWN_N), values);
      }
      ptx::cluster_arrive();
      ptx::cluster_wait();
#pragma unroll 4
      for (int index = threadIdx.x; index < rows * (OWN_N / 4); index += THREADS) {
        const int m = index / (OWN_N / 4), n = index % (OWN_N / 4) * 4;
        f32 values[4];
        add_up<SPLIT>(values, received + m * OWN_N + n, ROWS * OWN_N);
        finish(params, epilogue, values, batch, start_m + m, start_n + rank * OWN_N + n);
      }
#endif
    }
  }

  // Adds the products of K blocks that all warps read from tiles in shared memory. `k_left`:
  // elements of K from the next block to be copied on.
  static __device__ __forceinline__ void add_blocks(Sums& sums, CopierA& copier_a,
                                                    CopierB& copier_b, int blocks, int k_left,
                                                    unsigned shared) {
    typename CopierA::Staged staged_a;  // if not ASYNC
    typename CopierB::Staged staged_b;

    unsigned filled = shared, read = shared;  // the stage to fill next, the stage to read next
    auto advance = [&](unsigned at) {
      at += STAGE_BYTES;
      return at == shared + STAGES * STAGE_BYTES ? shared : at;
    };
    auto next_block = [&] {
      k_left -= TILE_K;
      filled = advance(filled);
    };
    auto copy = [&] {
      if (k_left > 0 && copier_b.is_ragged(k_left))
        copier_b.copy_ragged(filled + TileA::BYTES, k_left);
      if (k_left > 0 && copier_a.is_ragged(k_left)) copier_a.copy_ragged(filled, k_left);
      copier_b.copy_whole(filled + TileA::BYTES, k_left);
      copier_a.copy_whole(filled, k_left);
      next_block();
      ptx::copy_async_commit();  // an empty group beyond the last block: one group per iteration
    };
    auto fetch = [&] {
      copier_b.fetch(staged_b, k_left);
      copier_a.fetch(staged_a, k_left);
    };
    auto store = [&] {
      copier_b.store(staged_b, filled + TileA::BYTES);
      copier_a.store(staged_a, filled);
      next_block();
    };

    if constexpr (ASYNC) {
#pragma unroll 1
      for (int stage = 0; stage < STAGES - 1; ++stage) copy();
    } else {
      fetch();
      store();
    }
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      // After the barrier, this block has arrived and the stage of the previous block may be
      // filled.
      if constexpr (ASYNC) ptx::copy_async_wait<STAGES - 2>();
      __syncthreads();
      if constexpr (ASYNC)
        copy();
      else
        fetch();  // beyond the last block, reads nothing and yields zeros
      sums.add(read, read + TileA::BYTES);
      if constexpr (!ASYNC) store();
      read = advance(read);
    }
    if constexpr (ASYNC) ptx::copy_async_wait<0>();
  }

  // Prefetches the CTA's first stages of B into L2. As the CTA waits for the preceding grid, memory
  // would idle otherwise. Later CTAs find that grid complete.
  static constexpr int FIRST_WAVE = 132 * MIN_CTAS;  // CTAs that an H100 or H200 holds
  static __device__ __forceinline__ void prefetch(const GemmParams& params, int batch, int start_n,
                                                  int end_n, long long start_k, int k_left) {
    constexpr int LINE = 128, LINES = bytes_of<B>(STAGES * TILE_K) / LINE;  // of a row
    const char* first =
        static_cast<const char*>(params.b) +
        bytes_of<B>(params.b_stride[0] * batch + params.b_stride[2] * start_n + start_k);
#pragma unroll 1
    for (int i = threadIdx.x; i < TILE_N * LINES; i += THREADS) {
      const int row = i / LINES, k = i % LINES * (8 * LINE / bits_of<B>);
      if (start_n + row < end_n && k < k_left)
        ptx::prefetch_to_l2(first + bytes_of<B>(params.b_stride[2] * row + k));
    }
  }

  // Adds COUNT vectors of four, `step` words apart.
  template <int COUNT>
  static __device__ __forceinline__ void add_up(f32 (&values)[4], const f32* first, int step) {
    struct alignas(16) Four { f32 values[4]; };
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const Four four = *reinterpret_cast<const Four*>(first + i * step);
#pragma unroll
      for (int e = 0; e < 4; ++e) values[e] = i == 0 ? four.values[e] : values[e] + four.values[e];
    }
  }

  // Applies the epilogue to four sums of row m, from column n on, and stores them.
  static __device__ __forceinline__ void finish(const GemmParams& params, Epilogue& epilogue,
                                                f32 (&values)[4], int batch, int m, int n) {
    const int valid = min(4, params.n - n);
    if (valid <= 0) return;
    typename Epilogue::template Operands<4, 4> operands;
    epilogue.load(operands, batch, m, n, valid);
    finish_sums<1, 1>(epilogue, values, operands, {batch, m, n, valid, m, n / 4, true, valid});
    const long long stride_n = params.out_stride[2];
    Out* target = static_cast<Out*>(params.out) + params.out_stride[0] * batch +
                  params.out_stride[1] * m + stride_n * n;
    struct alignas(4 * sizeof(Out)) Four { Out values[4]; } four;
#pragma unroll
    for (int e = 0; e < 4; ++e) four.values[e] = encode<Out>(Epilogue::result(values[e]));
    if (valid == 4 && stride_n == 1 &&
        reinterpret_cast<unsigned long long>(target) % sizeof(Four) == 0) {
      *reinterpret_cast<Four*>(target) = four;
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (e < valid) target[stride_n * e] = four.values[e];
    }
  }
};
