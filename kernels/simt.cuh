// GEMM on the CUDA cores: any element types, any strides, any alignment. Serves what no other
// family does.
//
// A CTA of 16 x 16 threads computes TILE_M x TILE_N of the output and walks K in blocks of TILE_K.
// Elements are widened to the accumulator type on the way to shared memory, where both operands lie
// with K as the outer dimension. Each thread reads some rows of A and columns of B, 16 bytes at a
// time, and computes their outer product. Tiles are double-buffered: the elements of the next block
// are loaded to registers while the current block is multiplied.
//
// f32 and f64 accumulate each block of K separately and then add it to the total. The error of a
// sum of K terms grows with sqrt(K), in blocks of b terms with sqrt(b + K / b), for one more
// addition in b (Higham, "Accuracy and Stability of Numerical Algorithms", 4.2). Products of 16-bit
// elements are exact in f32, and tensor cores round only once per 16 of them; to be as accurate,
// blocks of 16-bit elements consist of chains of 4 products.
#pragma once
#include "common/epilogue.cuh"
#include "common/params.cuh"
#include "common/raster.cuh"
#include "common/types.cuh"

// Loads an operand's tiles. "MN" is M for A and N for B.
template <class Element, class Accumulator, int TILE_MN, int TILE_K> struct SimtOperand {
  static constexpr int THREADS = 256;
  static constexpr int COUNT = TILE_MN * TILE_K / THREADS;  // elements of a tile per thread
  // 16 bytes of padding: threads that store along K use banks 4 words apart, and rows stay aligned.
  static constexpr int PITCH = TILE_MN + 16 / int(sizeof(Accumulator));
  static_assert(TILE_MN * TILE_K % THREADS == 0 && THREADS % TILE_K == 0 && THREADS % TILE_MN == 0);

  struct Tile { alignas(16) Accumulator rows[TILE_K][PITCH]; };

  // Codes of 4 bits, contiguous along K: a row's codes have an order of their own in memory.
  static constexpr bool CODES = bits_of<Element> == 4;

  const Element* source;   // this thread's first element of the next K block; CODES: of its row
  long long next_element;  // between consecutive elements of this thread
  long long next_block;    // from the end of this thread's elements to its first of the next block
  int k, k_step;           // K coordinate of the first element in the tile, and step to the next
  int mn, mn_step;         // coordinate along MN of the first element, and step to the next
  int place, place_step;   // offset of the first element in shared memory, and step to the next
  unsigned inside_mn;      // bit i: the i-th element lies inside the operand along MN
  int k_block = 0;         // CODES: the first element of the next K block
  Accumulator staged[COUNT];

  // Adjacent threads load elements adjacent along K if K is contiguous, else along MN.
  __device__ __forceinline__ SimtOperand(const void* operand, long long batch_offset,
                                         long long mn_stride, long long k_stride, int mn_start,
                                         int mn_extent) {
    const int thread = threadIdx.x;
    const bool along_k = k_stride == 1 && mn_stride != 1;
    mn = mn_start + (along_k ? thread / TILE_K : thread % TILE_MN);
    mn_step = along_k ? THREADS / TILE_K : 0;
    k = along_k ? thread % TILE_K : thread / TILE_MN;
    k_step = along_k ? 0 : THREADS / TILE_MN;
    place = k * PITCH + mn - mn_start;
    place_step = k_step * PITCH + mn_step;
    inside_mn = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) inside_mn |= unsigned(mn + i * mn_step < mn_extent) << i;
    if constexpr (CODES) {
      source =
          static_cast<const Element*>(operand) + bytes_of<Element>(batch_offset + mn_stride * mn);
      next_element = bytes_of<Element>(mn_stride * mn_step);
      next_block = -next_element * COUNT;
      return;
    }
    source = static_cast<const Element*>(operand) + batch_offset + mn_stride * mn + k_stride * k;
    next_element = mn_stride * mn_step + k_stride * k_step;
    next_block = k_stride * TILE_K - next_element * COUNT;
  }

  __device__ __forceinline__ Accumulator element(int i) const {
    if constexpr (CODES)
      return code_at(source, k_block + k + i * k_step);
    else
      return convert<Accumulator>(*source);
  }

  // Loads the block's elements to registers. `k_left`: extent along K from the block's start.
  // `scaled(x, mn, k)`: the value of element x, with k counted from the block's start.
  template <class Scaled> __device__ __forceinline__ void fetch(int k_left, const Scaled& scaled) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const bool inside = (inside_mn >> i & 1) && k + i * k_step < k_left;
      staged[i] = inside ? scaled(element(i), mn + i * mn_step, k + i * k_step) : Accumulator{};
      source += next_element;
    }
    source += next_block;
    if constexpr (CODES) k_block += TILE_K;
  }

  __device__ __forceinline__ void store(Tile& tile) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) (&tile.rows[0][0])[place + i * place_step] = staged[i];
  }
};

template <class A, class B, class Accumulator, class Out, int TILE_M, int TILE_N, int TILE_K,
          Groups GROUPS, class Epilogue>
struct SimtGemm {
  static constexpr int THREADS = 256;
  static constexpr bool ALONG_M = GROUPS == Groups::ALONG_M;
  static constexpr int SMEM_BYTES = 0;                            // of dynamic shared memory
  static constexpr int PER_M = TILE_M / 16, PER_N = TILE_N / 16;  // rows and columns of a thread
  // BLOCKED: each block of K is accumulated separately. NARROW: from chains of CHAIN products.
  static constexpr bool BLOCKED = is_same<Accumulator, f32> || is_same<Accumulator, f64>;
  static constexpr bool NARROW = is_same<Accumulator, f32> && class_of<A> == ElementClass::HALF &&
                                 class_of<B> == ElementClass::HALF;
  static constexpr int CHAIN = 4;
  static_assert(TILE_K % CHAIN == 0);
  static_assert(!Epilogue::SCALES || is_same<Accumulator, f32>);
  static constexpr int SUM_REGISTERS = PER_M * PER_N * (bits_of<Accumulator> == 64 ? 2 : 1) *
                                       (NARROW    ? 3
                                        : BLOCKED ? 2
                                                  : 1);
  // CTAs per multiprocessor. Its 65536 registers are 255 per thread for one CTA, 128 for two, 80
  // for three. For 12.0, NVRTC 13.0 spills a register if three CTAs with 16 sums walk groups.
  static constexpr int MIN_CTAS = SUM_REGISTERS >= (BLOCKED ? 48 : 128)  ? 1
                                  : SUM_REGISTERS >= (ALONG_M ? 16 : 32) ? 2
                                                                         : 3;

  // Steps of K that are unrolled. 64 sums in two CTAs leave 64 registers per thread; for 8.x, NVRTC
  // 13.2 spills if it unrolls four steps.
  static constexpr int UNROLL_K = !BLOCKED && SUM_REGISTERS >= 64 ? 2 : TILE_K;

  using Value = EpilogueValue<Accumulator>;
  using OperandA = SimtOperand<A, Accumulator, TILE_M, TILE_K>;
  using OperandB = SimtOperand<B, Accumulator, TILE_N, TILE_K>;
  struct Tiles {
    typename OperandA::Tile a;
    typename OperandB::Tile b;
  };
  static_assert(2 * sizeof(Tiles) <= 48 * 1024, "the limit of static shared memory");

  // A thread's rows (columns) form runs of RUN adjacent ones, 16 bytes where there are enough. The
  // runs of the 16 threads are adjacent.
  template <int PER_THREAD> struct Runs {
    static constexpr int WORD = 16 / int(sizeof(Accumulator));
    static constexpr int RUN = PER_THREAD < WORD ? PER_THREAD : WORD < 4 ? WORD : 4;
    struct alignas(RUN * sizeof(Accumulator)) Run { Accumulator values[RUN]; };

    static __device__ __forceinline__ int coordinate(int thread, int i) {
      return i / RUN * (16 * RUN) + thread * RUN + i % RUN;
    }
    static __device__ __forceinline__ void load(Accumulator (&values)[PER_THREAD],
                                                const Accumulator* row, int thread) {
#pragma unroll
      for (int i = 0; i < PER_THREAD; i += RUN) {
        const Run run = *reinterpret_cast<const Run*>(row + coordinate(thread, i));
#pragma unroll
        for (int e = 0; e < RUN; ++e) values[i + e] = run.values[e];
      }
    }
  };

  static __device__ __forceinline__ void run(const GemmParams& params, Epilogue epilogue) {
    __shared__ Tiles tiles[2];
    // A warp is 4 threads along M by 8 along N, the shape that reads the fewest distinct bytes; the
    // CTA is 4 x 2 warps.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int thread_m = warp / 2 * 4 + lane / 8, thread_n = warp % 2 * 8 + lane % 8;

    const TilePosition position = tile_position<TILE_M, TILE_N, GROUPS>(params);
    const int tile_m = position.m, tile_n = position.n;
    if (ALONG_M && tile_m >= position.end) return;
    OperandA a(params.a,
               params.a_stride[0] * position.batch + params.a_stride[2] * position.start_k,
               params.a_stride[1], params.a_stride[2], tile_m, position.end);
    OperandB b(params.b,
               params.b_stride[0] * position.batch + params.b_stride[1] * position.start_k,
               params.b_stride[2], params.b_stride[1], tile_n, params.n);

    // Block scales apply to each element, so that blocks may have any extents. They count the K of
    // all groups.
    int k_left = position.k, current = 0;
    const int end_k = position.start_k + position.k;
    const auto scaled_a = [&](Accumulator x, int m, int k) {
      if constexpr (Epilogue::A_DEPTH > 0) {
        const int block = (end_k - k_left + k) / Epilogue::A_DEPTH;
        if constexpr (Epilogue::A_ZERO) x -= epilogue.zero_a(position.batch, m, block);
        x *= epilogue.scale_a(position.batch, m, block);
      }
      return x;
    };
    const auto scaled_b = [&](Accumulator x, int n, int k) {
      if constexpr (Epilogue::B_DEPTH > 0) {
        const int block = (end_k - k_left + k) / Epilogue::B_DEPTH;
        if constexpr (Epilogue::B_ZERO) x -= epilogue.zero_b(position.batch, n, block);
        x *= epilogue.scale_b(position.batch, n, block);
      }
      return x;
    };

    Accumulator sums[PER_M][PER_N] = {};
    if (k_left > 0) {
      a.fetch(k_left, scaled_a);
      b.fetch(k_left, scaled_b);
      a.store(tiles[0].a);
      b.store(tiles[0].b);
    }
    __syncthreads();

    // One barrier per block suffices: the buffer that an iteration fills was last read before the
    // previous barrier.
#pragma unroll 1
    while (k_left > 0) {
      k_left -= TILE_K;
      if (k_left > 0) {
        a.fetch(k_left, scaled_a);
        b.fetch(k_left, scaled_b);
      }
      Accumulator block[PER_M][PER_N] = {}, chain[PER_M][PER_N] = {};
#pragma unroll UNROLL_K
      for (int k = 0; k < TILE_K; ++k) {
        Accumulator row[PER_M], column[PER_N];
        Runs<PER_M>::load(row, tiles[current].a.rows[k], thread_m);
        Runs<PER_N>::load(column, tiles[current].b.rows[k], thread_n);
#pragma unroll
        for (int i = 0; i < PER_M; ++i)
#pragma unroll
          for (int j = 0; j < PER_N; ++j) {
            Accumulator& sum = NARROW ? chain[i][j] : BLOCKED ? block[i][j] : sums[i][j];
            sum = multiply_add(row[i], column[j], sum);
            if constexpr (NARROW) {
              if (k % CHAIN == CHAIN - 1) {
                block[i][j] += chain[i][j];
                chain[i][j] = 0;
              }
            }
          }
      }
      if constexpr (BLOCKED) {
#pragma unroll
        for (int i = 0; i < PER_M; ++i)
#pragma unroll
          for (int j = 0; j < PER_N; ++j) sums[i][j] += block[i][j];
      }
      current ^= 1;
      if (k_left > 0) {
        a.store(tiles[current].a);
        b.store(tiles[current].b);
      }
      __syncthreads();
    }

    Out* out = static_cast<Out*>(params.out) + params.out_stride[0] * position.batch;
    constexpr int WIDTH = Runs<PER_N>::RUN;
    // Unrolled only without an epilogue: one copy of the functor per row compiles slowly.
    constexpr int UNROLL = is_same<Epilogue, Identity> ? PER_M : 1;
#pragma unroll UNROLL
    for (int i = 0; i < PER_M; ++i) {
      Value row[PER_N];
#pragma unroll
      for (int at = 0; at < PER_M; ++at)
#pragma unroll
        for (int j = 0; j < PER_N; ++j)
          if (at == i) row[j] = decode(sums[at][j]);
      const int m = tile_m + Runs<PER_M>::coordinate(thread_m, i);
#pragma unroll
      for (int j = 0; j < PER_N; j += WIDTH) {
        const int n = tile_n + Runs<PER_N>::coordinate(thread_n, j);
        const int valid = min(WIDTH, params.n - n);
        if (m >= position.end || valid <= 0) continue;
        Value values[WIDTH];
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) values[e] = row[j + e];
        typename Epilogue::template Operands<WIDTH, WIDTH> operands;
        epilogue.load(operands, position.batch, m, n, valid);
        finish_sums<1, 1>(epilogue, values, operands,
                          {position.batch, m, n, valid, m, n / WIDTH, true, valid});
#pragma unroll
        for (int e = 0; e < WIDTH; ++e)
          if (e < valid)
            out[params.out_stride[1] * m + params.out_stride[2] * (n + e)] =
                encode<Out>(Epilogue::result(values[e]));
      }
    }
  }
};
