// A warp's sums of a skinny GEMM whose B has codes of 4 bits: converts them in registers.
//
// mma.sync sums over K in any order if both operands agree on it, so that a lane loads 16 bytes at
// a time. A step is 128 elements of K, eight instructions. Lane 4 g + j has 32 elements of K of a
// row of B: chunk j of the step's four. Pair p of its word w stands beside word w of chunk 4 j + p
// of A. An instruction takes pair p of two neighbouring words.
//
// Epilogue::B_DEPTH elements of a row have a scale and, if Epilogue::B_ZERO, a zero point. Those
// of whole steps multiply the step's sums, in float32: scale * (sum - zero point * sum of A), where
// ones as B yield the sum of A. Others multiply the lane's elements. All are loaded a K block
// ahead.
#pragma once
#include "common/operand_tile.cuh"
#include "common/params.cuh"
#include "common/ptx.cuh"
#include "common/types.cuh"
#include "common/widen.cuh"
#include "skinny/store_sums.cuh"

template <class Gemm> struct SkinnyCodeSums {
  using Element = typename Gemm::Element;
  using Code = typename Gemm::WideElement;
  using Epilogue = typename Gemm::EpilogueOf;
  using TileA = typename Gemm::TileA;
  using TileB = typename Gemm::TileB;
  using Mma = ptx::Mma<Element, f32>;
  static constexpr int ROWS = Gemm::TILE_ROWS, WARP_N = Gemm::WARP_N, WARPS_N = Gemm::WARPS_ALONG_N;
  static constexpr int TILE_K = Gemm::TILE_DEPTH, LENGTH = TILE_K / Gemm::WARPS_K;
  static constexpr int STEP = 128, STEPS = LENGTH / STEP, ROWS_B = WARP_N / 8;
  static_assert(LENGTH % STEP == 0 && is_power_of_two(STEPS) && WARP_N % 16 == 0);

  using Scale = typename Epilogue::BScale;
  using Zero = typename Epilogue::BZero;
  static constexpr bool SCALED = Epilogue::SCALES, ZEROS = Epilogue::B_ZERO;
  // Elements of K of one scale, at most those of a step: 16, 32, 64 or all.
  static constexpr int DEPTH = SCALED ? greatest_common_divisor(STEP, Epilogue::B_DEPTH) : STEP;
  static_assert(DEPTH % 16 == 0);
  static constexpr bool OF_STEPS = SCALED && DEPTH == STEP;
  static constexpr int PARTS = DEPTH == 16 ? 2 : 1;  // scales of a lane's 32 elements
  // Whether K blocks and steps have whole scales: pointers replace indices.
  static constexpr bool BY_POINTERS = DEPTH == Epilogue::B_DEPTH;
  struct StepFactor {
    static constexpr f32 REST = 1.0f;
    static constexpr bool POWERS = false;
    f32 scale, zero;
    __device__ __forceinline__ void set(Scale new_scale, Zero new_zero) {
      scale = f32(decode(new_scale));
      if constexpr (ZEROS) zero = f32(decode(new_zero));
    }
  };
  using Factor = typename Conditional<OF_STEPS, StepFactor,
                                      ptx::CodeFactor<Element, Code, Scale, Zero, ZEROS>>::Type;

  static constexpr bool IS_POWER = SCALED && Factor::POWERS;

  const GemmParams& params;
  const Epilogue& epilogue;
  const Scale* scales;  // of the lane's first row of B
  const Zero* zeros;
  long long scale_stride, zero_stride;  // between a lane's rows
  ptx::CodeMasks masks;
  // warp_n: the warp's first row in the tile. row: the lane's first row after it; the rows 4 to 7
  // of an instruction are odd g, so that a phase of eight lanes reads all banks (TileB::swizzle).
  int warp_n, row;
  int rows_left;  // of B, from the lane's first row on
  int k;          // the lane's first element of the next K block
  unsigned a_offset, b_offset;
  Scale next_scales[STEPS][ROWS_B][PARTS];
  Zero next_zeros[STEPS][ROWS_B][PARTS];
  typename Mma::Sums sums[WARP_N / 16][ROWS / 8];

  __device__ __forceinline__ SkinnyCodeSums(int warp, const GemmParams& params,
                                            const Epilogue& epilogue, int batch, int start_n,
                                            int start_k)
      : params(params),
        epilogue(epilogue),
        warp_n(warp % WARPS_N * WARP_N),
        next_scales{},
        next_zeros{},
        sums{} {
    const int lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
    const int warp_k = warp / WARPS_N * LENGTH;
    row = g % 2 * 4 + g / 2;
    const int n = start_n + warp_n + row;
    rows_left = params.n - n;
    k = start_k + warp_k + (OF_STEPS ? 0 : 32 * j);
    a_offset = ptx::opaque(TileA::offset(g, warp_k / 8 + 4 * j));
    b_offset = ptx::opaque(TileB::offset(warp_n + row, warp_k / 32 + j));
    if constexpr (SCALED) {
      const int block = BY_POINTERS ? k / DEPTH : 0;
      scales = epilogue.b_scales(batch, n) + epilogue.b_scale_step() * block;
      zeros = epilogue.b_zeros(batch, n) + epilogue.b_zero_step() * block;
      scale_stride = 8 * epilogue.b_scale_stride();
      zero_stride = 8 * epilogue.b_zero_stride();
    }
  }

  // Beyond K, where A is 0, the scales stay as they are.
  __device__ __forceinline__ void load_next() {
    if constexpr (SCALED) {
#pragma unroll
      for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
          const int first = k + step * STEP + part * 16;
          if (first >= params.k) continue;
          const int block =
              BY_POINTERS ? (step * STEP + part * 16) / DEPTH : first / Epilogue::B_DEPTH;
          const Scale* scale = scales + epilogue.b_scale_step() * block;
          const Zero* zero = zeros + epilogue.b_zero_step() * block;
#pragma unroll
          for (int i = 0; i < ROWS_B; ++i) {
            if (8 * i < rows_left) {
              next_scales[step][i][part] = *scale;
              if constexpr (ZEROS) next_zeros[step][i][part] = *zero;
            }
            scale = ptx::opaque(scale + scale_stride);
            if constexpr (ZEROS) zero = ptx::opaque(zero + zero_stride);
          }
        }
      k += TILE_K;
      if constexpr (BY_POINTERS) {
        scales += epilogue.b_scale_step() * (TILE_K / DEPTH);
        zeros += epilogue.b_zero_step() * (TILE_K / DEPTH);
      }
    }
  }

  __device__ __forceinline__ void add(unsigned a_tile, unsigned b_tile) {
    if constexpr (IS_POWER) {
      unsigned all = 0;
#pragma unroll
      for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < ROWS_B; ++i) all |= next_scales[step][i][0].bits;
      if (ptx::any(Factor::is_large(all))) {
        add_by<ptx::LargeFactor<Factor>>(a_tile, b_tile);
        return;
      }
    }
    add_by<Factor>(a_tile, b_tile);
  }

  template <class Factor_>
  __device__ __forceinline__ void add_by(unsigned a_tile, unsigned b_tile) {
    Factor_ factors[STEPS][ROWS_B][PARTS];
    if constexpr (SCALED) {
#pragma unroll
      for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < ROWS_B; ++i)
#pragma unroll
          for (int part = 0; part < PARTS; ++part)
            factors[step][i][part].set(next_scales[step][i][part], next_zeros[step][i][part]);
    }
    load_next();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      unsigned b[ROWS_B][4], a[ROWS / 8][4][4];
#pragma unroll
      for (int i = 0; i < ROWS_B; ++i)
        ptx::load_shared(b[i],
                         b_tile + (b_offset ^ step * (STEP / 32) * 16) + i * 8 * TileB::ROW_BYTES);
#pragma unroll
      for (int i = 0; i < ROWS / 8; ++i)
#pragma unroll
        for (int chunk = 0; chunk < 4; ++chunk)
          ptx::load_shared(a[i][chunk], a_tile + (a_offset ^ (step * (STEP / 8) + chunk) * 16) +
                                            i * 8 * TileA::ROW_BYTES);
      if constexpr (OF_STEPS) {
        add_scaled(a, b, factors[step]);
      } else if constexpr (SCALED) {
        multiply(sums, a, b,
                 [&](int i, int part) -> const auto& { return factors[step][i][part % PARTS]; });
      } else {
        multiply(sums, a, b, [](int, int) { return ptx::CodeNumbers<Element, Code>(); });
      }
    }
  }

  // The step's products. `numbers`: what converts the pairs of row i and of a half of a word.
  template <class Numbers>
  __device__ __forceinline__ void multiply(typename Mma::Sums (&sums)[WARP_N / 16][ROWS / 8],
                                           const unsigned (&a)[ROWS / 8][4][4],
                                           const unsigned (&b)[ROWS_B][4],
                                           const Numbers& numbers) const {
#pragma unroll
    for (int i = 0; i < WARP_N / 16; ++i)
#pragma unroll
      for (int word = 0; word < 4; word += 2) {
        const auto &upper = b[2 * i], &lower = b[2 * i + 1];
        instruction<0>(sums[i], a, upper + word, lower + word, word, numbers(2 * i, 0),
                       numbers(2 * i + 1, 0));
        instruction<1>(sums[i], a, upper + word, lower + word, word, numbers(2 * i, 0),
                       numbers(2 * i + 1, 0));
        instruction<2>(sums[i], a, upper + word, lower + word, word, numbers(2 * i, 1),
                       numbers(2 * i + 1, 1));
        instruction<3>(sums[i], a, upper + word, lower + word, word, numbers(2 * i, 1),
                       numbers(2 * i + 1, 1));
      }
  }
  // Multiplies pair PAIR of two words of two rows.
  template <int PAIR, class Numbers>
  __device__ __forceinline__ void instruction(typename Mma::Sums (&sums)[ROWS / 8],
                                              const unsigned (&a)[ROWS / 8][4][4],
                                              const unsigned* upper, const unsigned* lower,
                                              int word, const Numbers& of_upper,
                                              const Numbers& of_lower) const {
    const unsigned b[4] = {of_upper.template pair<PAIR>(upper[0], masks),
                           of_lower.template pair<PAIR>(lower[0], masks),
                           of_upper.template pair<PAIR>(upper[1], masks),
                           of_lower.template pair<PAIR>(lower[1], masks)};
#pragma unroll
    for (int i = 0; i < ROWS / 8; ++i)
      Mma::accumulate(sums[i], b[0], b[1], b[2], b[3], a[i][PAIR][word], a[i][PAIR][word + 1]);
  }

  // Adds the step's products by the scales of its rows.
  __device__ __forceinline__ void add_scaled(const unsigned (&a)[ROWS / 8][4][4],
                                             const unsigned (&b)[ROWS_B][4],
                                             const Factor (&factors)[ROWS_B][PARTS]) {
    typename Mma::Sums step_sums[WARP_N / 16][ROWS / 8] = {}, sums_of_a[ROWS / 8] = {};
    multiply(step_sums, a, b, [](int, int) { return ptx::CodeNumbers<Element, Code>(); });
    if constexpr (ZEROS) {
      constexpr unsigned ONES = is_same<Element, f16> ? 0x3c003c00u : 0x3f803f80u;
#pragma unroll
      for (int i = 0; i < ROWS / 8; ++i)
#pragma unroll
        for (int chunk = 0; chunk < 4; ++chunk)
#pragma unroll
          for (int word = 0; word < 4; word += 2)
            Mma::accumulate(sums_of_a[i], ONES, ONES, ONES, ONES, a[i][chunk][word],
                            a[i][chunk][word + 1]);
    }
#pragma unroll
    for (int i = 0; i < WARP_N / 16; ++i)
#pragma unroll
      for (int j = 0; j < ROWS / 8; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const auto& factor = factors[2 * i + half][0];
            f32 sum = Mma::get(step_sums[i][j], half, c);
            if constexpr (ZEROS)
              sum = multiply_add(-factor.zero, Mma::get(sums_of_a[j], half, c), sum);
            f32& total = sums[i][j].values[2 * half + c];
            total = multiply_add(factor.scale, sum, total);
          }
  }

  __device__ __forceinline__ void store(f32* slab) const {
    store_sums<Mma, Gemm::SUM_PITCH>(slab + warp_n, sums, row, SCALED ? Factor::REST : 1.0f);
  }
};
