// A warp's sums of a skinny GEMM whose B has codes of 4 bits: converts them in registers.
//
// 32 elements of K of a row of B are 16 bytes, of which a lane has a word: its share of two
// instructions (DType::packed_place). Epilogue::B_DEPTH elements of a row have a scale and, if
// Epilogue::B_ZERO, a zero point; those of the next K block are loaded ahead.
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
  using TileB = typename Gemm::TileB;
  static constexpr int ROWS = Gemm::TILE_ROWS, WARP_N = Gemm::WARP_N, WARPS_N = Gemm::WARPS_ALONG_N;
  static constexpr int TILE_K = Gemm::TILE_DEPTH;
  static constexpr int LENGTH = TILE_K / Gemm::WARPS_K, GROUPS = LENGTH / 32, ROWS_B = WARP_N / 8;
  static_assert(GROUPS >= 1 && is_power_of_two(GROUPS) && WARP_N % 16 == 0);
  static constexpr bool SCALED = Epilogue::SCALES;
  // Elements of K of one scale: at least those of an instruction, at most those of a warp.
  static constexpr int DEPTH = SCALED ? greatest_common_divisor(LENGTH, Epilogue::B_DEPTH) : LENGTH;
  static_assert(DEPTH % 16 == 0);
  static constexpr int PARTS = LENGTH / DEPTH;
  using Scale = typename Epilogue::BScale;
  using Zero = typename Epilogue::BZero;
  using Factor = ptx::CodeFactor<Element, Scale, Zero, Epilogue::B_ZERO>;
  static constexpr int READ_M = ROWS < 16 ? 16 : ROWS;  // as MmaSums
  using ReaderA = FragmentReader<Element, true, (READ_M > Gemm::TILE_M ? READ_M : Gemm::TILE_M),
                                 TILE_K, READ_M, Adjacent::HALVES>;
  using Mma = ptx::Mma<Element, f32>;

  const GemmParams& params;
  const Epilogue& epilogue;
  const Scale* scales;  // of the lane's first row of B
  const Zero* zeros;
  int warp_n, n, k;  // n: the lane's first row of B; k: the warp's first element of the next block
  ReaderA reader_a;
  unsigned b_offset;
  Scale next_scales[PARTS][ROWS_B];
  Zero next_zeros[PARTS][ROWS_B];
  typename Mma::Sums sums[WARP_N / 16][ROWS / 8];

  __device__ __forceinline__ SkinnyCodeSums(int warp, const GemmParams& params,
                                            const Epilogue& epilogue, int batch, int start_n,
                                            int start_k)
      : params(params),
        epilogue(epilogue),
        warp_n(warp % WARPS_N * WARP_N),
        n(start_n + warp_n + threadIdx.x % 32 / 4),
        k(start_k + warp / WARPS_N * LENGTH),
        reader_a(0),
        next_scales{},
        next_zeros{},
        sums{} {
    const int warp_k = warp / WARPS_N, lane = threadIdx.x % 32;
    reader_a.lane_offset ^= warp_k * (LENGTH / 16) * 32;
    b_offset = ptx::opaque(TileB::offset(warp_n + lane / 4, warp_k * GROUPS) + lane % 4 * 4);
    scales = epilogue.b_scales(batch, n);
    zeros = epilogue.b_zeros(batch, n);
  }

  // Beyond K, where A is 0, the scales stay as they are.
  __device__ __forceinline__ void load_next() {
    if constexpr (SCALED) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        const int first = k + part * DEPTH, block = first / Epilogue::B_DEPTH;
        if (first >= params.k) continue;
#pragma unroll
        for (int i = 0; i < ROWS_B; ++i)
          if (n + 8 * i < params.n) {
            next_scales[part][i] =
                scales[epilogue.b_scale_step() * block + epilogue.b_scale_stride() * (8 * i)];
            if constexpr (Epilogue::B_ZERO)
              next_zeros[part][i] =
                  zeros[epilogue.b_zero_step() * block + epilogue.b_zero_stride() * (8 * i)];
          }
      }
      k += TILE_K;
    }
  }

  __device__ __forceinline__ void add(unsigned a_tile, unsigned b_tile) {
    Factor factors[PARTS][ROWS_B];
    if constexpr (SCALED) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int i = 0; i < ROWS_B; ++i)
          factors[part][i].set(next_scales[part][i], next_zeros[part][i]);
    }
    load_next();
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
      unsigned words[ROWS_B][1];
#pragma unroll
      for (int i = 0; i < ROWS_B; ++i)
        ptx::load_shared(words[i], b_tile + (b_offset ^ group * 16) + i * 8 * TileB::ROW_BYTES);
      step<0>(words, factors, a_tile, group);
      step<1>(words, factors, a_tile, group);
    }
  }

  // One of the two instructions of a group.
  template <int INSTRUCTION>
  __device__ __forceinline__ void step(const unsigned (&words)[ROWS_B][1],
                                       const Factor (&factors)[PARTS][ROWS_B], unsigned a_tile,
                                       int group) {
    typename ReaderA::Fragments a;
    reader_a.load(a, a_tile, 2 * group + INSTRUCTION);
    const int part = (32 * group + 16 * INSTRUCTION) / DEPTH;
    unsigned pairs[ROWS_B][2];
#pragma unroll
    for (int i = 0; i < ROWS_B; ++i) {
      pairs[i][0] = ptx::widen_codes<Element, Code, 2 * INSTRUCTION>(words[i][0]);
      pairs[i][1] = ptx::widen_codes<Element, Code, 2 * INSTRUCTION + 1>(words[i][0]);
      if constexpr (SCALED)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          pairs[i][half] = factors[part][i].apply(pairs[i][half]);
    }
#pragma unroll
    for (int i = 0; i < WARP_N / 16; ++i)
#pragma unroll
      for (int j = 0; j < ROWS / 8; ++j)
        Mma::accumulate(sums[i][j], pairs[2 * i][0], pairs[2 * i + 1][0], pairs[2 * i][1],
                        pairs[2 * i + 1][1], a.words[j][0], a.words[j][1]);
  }

  __device__ __forceinline__ void store(f32* slab) const {
    store_sums<Mma, Gemm::SUM_PITCH>(slab + warp_n, sums);
  }
};
