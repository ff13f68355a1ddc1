// A warp's sums of a skinny GEMM whose B has codes of 4 bits or bytes, which it converts in
// registers. Each warp copies what it will multiply to shared memory of its own, STAGES K blocks
// ahead, and waits for no other. The copies run on from one tile of columns to the next: during the
// last K blocks of a tile, the warp copies the first of the next tile.
//
// mma.sync sums over K in any order if both operands agree on it, so that a lane loads 16 bytes at
// a time. A step is what four lanes load of a row: 128 codes or 64 bytes. Lane 4 g + j has
// elements j * PER_LOAD to (j + 1) * PER_LOAD of row g of B, which stand beside as many elements of
// row g of A, CHUNKS chunks of 16 bytes:
//   codes   Pair p of word w stands beside word w of chunk p. An instruction takes pair p of two
//           neighbouring words.
//   bytes   A word is the lane's share of an instruction.
//
// Epilogue::B_DEPTH elements of a row have a scale and, if Epilogue::B_ZERO, a zero point. Those of
// whole steps multiply the step's sums, in float32: scale * (sum - zero point * sum of A), where
// ones as B yield the sum of A; the conversion of codes subtracts zero points in uint8 (CONVERTED).
// Others multiply the lane's codes. All are loaded a K block ahead.
#pragma once
#include "common/params.cuh"
#include "common/ptx.cuh"
#include "common/types.cuh"
#include "common/vector.cuh"
#include "common/widen.cuh"
#include "skinny/range.cuh"
#include "skinny/store_sums.cuh"

template <class Gemm> struct SkinnyStreamedSums {
  using Element = typename Gemm::Element;
  using Code = typename Gemm::WideElement;
  using Epilogue = typename Gemm::EpilogueOf;
  using Mma = ptx::Mma<Element, Element, f32>;
  static constexpr bool CODES = bits_of<Code> == 4;
  static constexpr int ROWS = Gemm::TILE_ROWS, WARP_N = Gemm::WARP_N;
  static constexpr int TILE_K = Gemm::TILE_DEPTH, LENGTH = TILE_K / Gemm::WARPS_K;
  static constexpr int PER_LOAD = 128 / bits_of<Code>, CHUNKS = PER_LOAD / 8;
  static constexpr int STEP = 4 * PER_LOAD, STEPS = LENGTH / STEP;
  static_assert(Gemm::WARPS_ALONG_N == 1 && LENGTH % STEP == 0 && WARP_N % 16 == 0);

  using Scale = typename Epilogue::BScale;
  using Zero = typename Epilogue::BZero;
  static constexpr bool ZEROS = Epilogue::B_ZERO;
  // Scales of all of K multiply the final sums; others (SCALED) what is added.
  static constexpr bool AT_END = Epilogue::SCALES && Epilogue::B_WHOLE && !ZEROS;
  static constexpr bool SCALED = Epilogue::SCALES && !AT_END;
  static_assert(!Epilogue::SCALES || Epilogue::B_COLUMNS == 1 || Epilogue::B_COLUMNS % WARP_N == 0,
                "the rows of a tile have a scale each, or one");
  // Elements of K of one scale, at most those of a step: 16, 32, 64 or all.
  static constexpr int DEPTH = SCALED ? greatest_common_divisor(STEP, Epilogue::B_DEPTH) : STEP;
  static_assert(DEPTH % 16 == 0);
  static constexpr bool OF_STEPS = SCALED && DEPTH == STEP;
  static_assert(CODES || !SCALED || OF_STEPS);
  static constexpr int PARTS = DEPTH == 16 ? 2 : 1;  // scales of a lane's elements
  // Whether K blocks and steps have whole scales: pointers replace indices.
  static constexpr bool BY_POINTERS = DEPTH == Epilogue::B_DEPTH;
  // Whether the conversion of codes subtracts the zero point: it is added to the number that the
  // conversion subtracts anyway.
  static constexpr bool CONVERTED = CODES && ZEROS && is_same<Zero, u8>;
  struct StepFactor {
    static constexpr f32 REST = 1.0f;
    static constexpr bool POWERS = false;
    f32 scale, zero;
    ptx::CodeNumbers<Element, Code> numbers;  // CONVERTED: less the zero point
    __device__ __forceinline__ void set(Scale new_scale, Zero new_zero) {
      scale = f32(decode(new_scale));
      if constexpr (CONVERTED)
        numbers.subtract(new_zero);
      else if constexpr (ZEROS)
        zero = f32(decode(new_zero));
    }
  };
  using Factor = typename Conditional<OF_STEPS || !SCALED, StepFactor,
                                      ptx::CodeFactor<Element, Code, Scale, Zero, ZEROS>>::Type;
  static constexpr bool IS_POWER = SCALED && Factor::POWERS;

  // A lane's vectors of 16 bytes in a step: those of A, then those of B. A lane reads the vectors
  // of B that it copied, which are neighbours of those of other lanes. Of A, the warp copies whole
  // rows, ROWS_AT_ONCE with an instruction.
  static constexpr int OF_A = ROWS / 8 * CHUNKS, OF_B = WARP_N / 8, VECTORS = OF_A + OF_B;
  static constexpr int ROW_BYTES_A = 2 * STEP, ROWS_AT_ONCE = 512 / ROW_BYTES_A;
  static constexpr int BLOCKS = Gemm::BLOCKS, BLOCK_BYTES = STEPS * VECTORS * 512;
  static_assert(Gemm::WARPS * BLOCK_BYTES == Gemm::STAGE_BYTES);
  // Groups of copies, each of a step of 16 rows, that may be pending before one of them is read.
  static constexpr int PAIRS = WARP_N / 16, PENDING = BLOCKS * STEPS * PAIRS - 1;

  using Sums = typename Mma::Sums[ROWS / 8];  // of 16 rows of B
  using A = unsigned[ROWS / 8][CHUNKS][4];    // a lane's part of a step

  // A K block of a tile.
  struct Place {
    int blocks_left;  // K blocks of the tile, from this one on; none behind the last tile
    int rows_left;    // of B in the CTA's range, from the lane's first row in the tile on

    // Moves on by a K block. Returns whether the new one is the first of a tile.
    __device__ __forceinline__ bool advance(const SkinnyRange& range) {
      if (--blocks_left > 0 || !Gemm::PERSISTENT) return false;
      rows_left -= range.columns;
      if (!ptx::any(rows_left > 0)) return false;
      blocks_left = range.blocks;
      return true;
    }
  };

  const Epilogue& epilogue;
  const SkinnyRange range;
  // What is copied next, and in the persistent form whose scales are loaded next: the same with one
  // K block in shared memory.
  Place copied, loaded;
  // The lane's part of the first rows of A and B that it copies, in the K block that is copied
  // next, and the bytes from there to its next rows.
  const char *source_a, *source_b;
  int stride_a, stride_b;
  const Scale* scales;  // of the first row of B, in the K block after the one that is read
  const Zero* zeros;
  int scale_stride, zero_stride;  // between a lane's rows
  ptx::CodeMasks masks;
  ptx::WidenWord<Element, typename Conditional<CODES, u8, Code>::Type> widen;
  int rows_left_a;  // rows of A, from the lane's first row on
  // Elements of K from the K block behind the last on, none or fewer: from the warp's part of that
  // block, and from the lane's first element of A and of B in it.
  int k_behind, k_behind_a, k_behind_b;
  // Shared addresses of the lane's first vector of B: of all, and of the K block that is read next,
  // whose place the next copy takes.
  unsigned first_block, block;
  // From there to the first vector of A that the lane copies, and to the first that it reads.
  int target_a, part_a;
  // Bits of the scales and zero points of the K block that is read next.
  unsigned next_scales[STEPS][OF_B][PARTS], next_zeros[STEPS][OF_B][PARTS];
  Sums sums[PAIRS];

  // The place of a chunk of 16 bytes of a row of A, in shared memory: the lanes of a phase read
  // chunks CHUNKS * j of two rows, which lie in different banks.
  static __device__ __forceinline__ unsigned offset_a(int row, int chunk) {
    return row * ROW_BYTES_A + (chunk ^ (chunk >> 3 & 1) << 1 ^ (row & 1)) * 16;
  }

  __device__ __forceinline__ SkinnyStreamedSums(int warp, const GemmParams& params,
                                                const Epilogue& epilogue, const SkinnyRange& range,
                                                unsigned shared)
      : epilogue(epilogue), range(range), next_scales{}, next_zeros{}, sums{} {
    const int batch = range.batch;
    const int lane = threadIdx.x % 32, row = lane / 4, j = lane % 4;
    constexpr int LANES = 32 / ROWS_AT_ONCE;  // that copy a row of A
    const int k = range.start_k + warp * LENGTH, k_of_a = lane % LANES * 8, k_of_b = PER_LOAD * j;
    const int of_b = OF_A * 512 + lane * 16;
    block = first_block = ptx::opaque(shared + warp * BLOCKS * BLOCK_BYTES + of_b);
    target_a = ptx::opaque(offset_a(lane / LANES, lane % LANES) - of_b);
    part_a = ptx::opaque(offset_a(row, CHUNKS * j) - of_b);
    const int m = range.start_m + lane / LANES, n = range.start_n + row;
    k_behind = range.k_end - k - range.blocks * TILE_K;
    k_behind_a = ptx::opaque(k_behind - k_of_a);
    k_behind_b = ptx::opaque(k_behind - k_of_b);
    k_behind = ptx::opaque(k_behind);
    rows_left_a = ptx::opaque(params.m - m);
    copied = loaded = {range.blocks, int(ptx::opaque(range.end_n - n))};
    source_a = ptx::opaque(
        static_cast<const char*>(params.a) +
        bytes_of<Element>(params.a_stride[0] * batch + params.a_stride[1] * m + (k + k_of_a)));
    source_b = ptx::opaque(
        static_cast<const char*>(params.b) +
        bytes_of<Code>(params.b_stride[0] * batch + params.b_stride[2] * n + (k + k_of_b)));
    stride_a = int(bytes_of<Element>(params.a_stride[1] * ROWS_AT_ONCE));
    stride_b = int(bytes_of<Code>(params.b_stride[2] * 8));
    if constexpr (Epilogue::SCALES) {
      const int block = SCALED && BY_POINTERS ? (k + (OF_STEPS ? 0 : k_of_b)) / DEPTH : 0;
      scales = epilogue.b_scales(batch, n) + epilogue.b_scale_step() * block;
      zeros = epilogue.b_zeros(batch, n) + epilogue.b_zero_step() * block;
      scale_stride = Epilogue::B_COLUMNS > 1 ? 0 : int(8 * epilogue.b_scale_stride());
      zero_stride = Epilogue::B_COLUMNS > 1 ? 0 : int(8 * epilogue.b_zero_stride());
    }
  }

  // Bytes of a vector of which `left` elements and more lie inside K: all or none of codes, whose K
  // is a multiple of 32.
  template <class T> static __device__ __forceinline__ int valid_bytes(int left) {
    if constexpr (CODES)
      return left > 0 ? 16 : 0;
    else
      return max(0, min(16, bytes_of<T>(left)));
  }

  // Copies 16 rows of a step of the next K block, as a group; with the first of them, the rows of
  // A. What lies beyond K becomes 0. Rows beyond M, and beyond the range's columns, are not copied:
  // their sums are not stored.
  __device__ __forceinline__ void copy_pair(int step, int pair) {
    const unsigned target = block + step * VECTORS * 512;
    const int k_left = copied.blocks_left * TILE_K - step * STEP;
    if (pair == 0) {
      const int valid = valid_bytes<Element>(k_behind_a + k_left);
#pragma unroll
      for (int i = 0; i < OF_A; ++i)
        ptx::copy_async_if(
            i * ROWS_AT_ONCE < rows_left_a, target + target_a + i * 512,
            source_a + static_cast<long long>(stride_a) * i + bytes_of<Element>(step * STEP),
            valid);
    }
    const int valid = valid_bytes<Code>(k_behind_b + k_left);
#pragma unroll
    for (int i = 2 * pair; i < 2 * pair + 2; ++i)
      ptx::copy_async_if(
          8 * i < copied.rows_left, target + i * 512,
          source_b + static_cast<long long>(stride_b) * i + bytes_of<Code>(step * STEP), valid);
    ptx::copy_async_commit();
  }

  // The K block whose scales are loaded next.
  __device__ __forceinline__ Place place_of_scales() const {
    if constexpr (Gemm::PERSISTENT) return loaded;
    return {copied.blocks_left + BLOCKS - 1, copied.rows_left};
  }

  // Loads the scales of 16 rows of a step. Those beyond K stay as they are.
  __device__ __forceinline__ void load_scales(int step, int pair, const Place& at) {
    if constexpr (SCALED) {
      const int left = (OF_STEPS ? k_behind : k_behind_b) + at.blocks_left * TILE_K;
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        const int place = step * STEP + part * 16;
        const bool present = place < left;
        const int block =
            BY_POINTERS ? place / DEPTH : (range.k_end - left + place) / Epilogue::B_DEPTH;
#pragma unroll
        for (int i = 2 * pair; i < 2 * pair + 2; ++i) {
          const bool is_inside = present && 8 * i < at.rows_left;
          ptx::load_if(
              is_inside, next_scales[step][i][part],
              scales + epilogue.b_scale_step() * block + static_cast<long long>(scale_stride) * i);
          if constexpr (ZEROS)
            ptx::load_if(
                is_inside, next_zeros[step][i][part],
                zeros + epilogue.b_zero_step() * block + static_cast<long long>(zero_stride) * i);
        }
      }
    }
  }

  // Moves on by a K block. Returns whether the new one is the first of a tile.
  __device__ __forceinline__ bool advance_copies() {
    source_a = ptx::opaque(source_a + bytes_of<Element>(TILE_K));
    source_b = ptx::opaque(source_b + bytes_of<Code>(TILE_K));
    if constexpr (BLOCKS > 1) {
      block += BLOCK_BYTES;
      if (block == first_block + BLOCKS * BLOCK_BYTES) block = first_block;
    }
    const bool starts_tile = copied.advance(range);
    if (starts_tile) {
      const int k = range.blocks * TILE_K;
      source_a = ptx::opaque(source_a - bytes_of<Element>(k));
      source_b = ptx::opaque(source_b + static_cast<long long>(stride_b) * (range.columns / 8) -
                             bytes_of<Code>(k));
    }
    return starts_tile;
  }
  // The same of scales. `starts_tile`: what advance_copies returned.
  __device__ __forceinline__ void advance_scales(bool starts_tile) {
    if constexpr (SCALED) {
      if constexpr (BLOCKS == 1)
        loaded = copied;
      else if constexpr (Gemm::PERSISTENT)
        starts_tile = loaded.advance(range);
      skip_blocks(1);
      if (starts_tile) point_to_next_tile(range.end_n - loaded.rows_left);
    }
  }
  __device__ __forceinline__ void skip_blocks(int blocks) {
    if constexpr (!BY_POINTERS) return;
    scales += epilogue.b_scale_step() * blocks * (TILE_K / DEPTH);
    zeros += epilogue.b_zero_step() * blocks * (TILE_K / DEPTH);
  }
  // Moves from the scales of a tile to those of the next, where the lane's first row is n. `renew`
  // forces a branch: predicated instructions would be issued in each K block.
  __device__ __forceinline__ void point_to_next_tile(int n) {
    ptx::renew(scale_stride);
    skip_blocks(-range.blocks);
    const int batch = range.batch, last = n - range.columns;
    if constexpr (Epilogue::B_COLUMNS == 1) {
      scales += epilogue.b_scale_stride() * range.columns;
      zeros += epilogue.b_zero_stride() * range.columns;
    } else {
      scales += epilogue.b_scales(batch, n) - epilogue.b_scales(batch, last);
      zeros += epilogue.b_zeros(batch, n) - epilogue.b_zeros(batch, last);
    }
  }
  // Whether a tile of so many columns has these 16 rows of B. All tiles of a range have the same
  // number, except that the last may have fewer: a warp that skips rows has no more to copy there.
  static __device__ __forceinline__ bool has_pair(int pair, int columns) {
    return !Gemm::PERSISTENT || pair == 0 || 16 * pair < columns;
  }

  // Begins with the copies of the first K blocks.
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair)
        if (has_pair(pair, range.columns)) load_scales(step, pair, copied);
    bool starts_tile = false;
#pragma unroll 1
    for (int i = 0; i < BLOCKS; ++i) {
#pragma unroll
      for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
          if (has_pair(pair, range.columns))
            copy_pair(step, pair);
          else
            ptx::copy_async_commit();  // an empty group
        }
      starts_tile = advance_copies();
    }
    advance_scales(starts_tile);
  }

  // Adds the products of the next tile: of `columns` columns from start_n on.
  __device__ __forceinline__ void add(int start_n, int columns) {
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
      for (int j = 0; j < ROWS / 8; ++j) sums[pair][j] = {};
    if constexpr (AT_END) load_end_scales(start_n, columns);
#pragma unroll 1
    for (int i = 0; i < range.blocks; ++i) {
      if constexpr (IS_POWER) {
        unsigned all = 0;
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
          for (int row = 0; row < OF_B; ++row) all |= next_scales[step][row][0];
        if (ptx::any(Factor::is_large(all)))
          add_block<ptx::LargeFactor<Factor>>(columns);
        else
          add_block<Factor>(columns);
      } else {
        add_block<Factor>(columns);
      }
    }
  }

  template <class Factor_> __device__ __forceinline__ void add_block(int columns) {
    unsigned source = block;
#pragma unroll
    for (int step = 0; step < STEPS; ++step, source += VECTORS * 512) {
      A a;
      Sums sums_of_a = {};
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
        if (!has_pair(pair, columns)) {
          ptx::copy_async_commit();
          continue;
        }
        ptx::renew(stride_a), ptx::renew(stride_b);
        ptx::renew(scale_stride), ptx::renew(zero_stride);
        ptx::copy_async_wait<PENDING>();
        if (pair == 0) {
          __syncwarp();  // other lanes copied the rows of A
#pragma unroll
          for (int i = 0; i < ROWS / 8; ++i)
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk)
              ptx::load_shared(a[i][chunk], (source + part_a ^ chunk * 16) + i * 8 * ROW_BYTES_A);
          __syncwarp();  // before the next copy
          if constexpr (OF_STEPS && ZEROS && !CONVERTED) add_ones(sums_of_a, a);
        }
        unsigned b[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) ptx::load_shared(b[i], source + (2 * pair + i) * 512);
        Factor_ factors[2][PARTS];
        if constexpr (SCALED) {
#pragma unroll
          for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
              factors[i][part].set(ptx::of_bits<Scale>(next_scales[step][2 * pair + i][part]),
                                   ptx::of_bits<Zero>(next_zeros[step][2 * pair + i][part]));
        }
        copy_pair(step, pair);
        load_scales(step, pair, place_of_scales());
        if constexpr (OF_STEPS) {
          Sums step_sums = {};
          if constexpr (CONVERTED)
            multiply_codes(step_sums, a, b,
                           [&](int i, int) -> const auto& { return factors[i][0].numbers; });
          else
            multiply(step_sums, a, b);
          add_scaled(sums[pair], step_sums, sums_of_a, factors);
        } else if constexpr (SCALED) {
          multiply_codes(sums[pair], a, b,
                         [&](int i, int part) -> const auto& { return factors[i][part % PARTS]; });
        } else {
          multiply(sums[pair], a, b);
        }
        // Adds 0 (CodeMasks), so that the next loads depend on these sums: ptxas would load all
        // rows of the K block first, and spill.
        source += __float_as_uint(sums[pair][0].values[0]) & threadIdx.y;
      }
    }
    advance_scales(advance_copies());
  }

  // Products of unscaled elements of 16 rows.
  __device__ __forceinline__ void multiply(Sums& sums, const A& a,
                                           const unsigned (&b)[2][4]) const {
    if constexpr (CODES) {
      multiply_codes(sums, a, b, [](int, int) { return ptx::CodeNumbers<Element, Code>(); });
    } else {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        unsigned low[2], high[2];  // rows g and g + 8
        widen(low, b[0][word]);
        widen(high, b[1][word]);
#pragma unroll
        for (int j = 0; j < ROWS / 8; ++j)
          Mma::accumulate(sums[j], low[0], high[0], low[1], high[1], a[j][word / 2][word % 2 * 2],
                          a[j][word / 2][word % 2 * 2 + 1]);
      }
    }
  }
  // The same of codes. `numbers`: what converts those of one of the two rows and of one half of the
  // pairs.
  template <class Numbers>
  __device__ __forceinline__ void multiply_codes(Sums& sums, const A& a, const unsigned (&b)[2][4],
                                                 const Numbers& numbers) const {
#pragma unroll
    for (int word = 0; word < 4; word += 2) {
      instruction<0>(sums, a, b, word, numbers(0, 0), numbers(1, 0));
      instruction<1>(sums, a, b, word, numbers(0, 0), numbers(1, 0));
      instruction<2>(sums, a, b, word, numbers(0, 1), numbers(1, 1));
      instruction<3>(sums, a, b, word, numbers(0, 1), numbers(1, 1));
    }
  }
  // Multiplies pair PAIR of two words of two rows.
  template <int PAIR, class Numbers>
  __device__ __forceinline__ void instruction(Sums& sums, const A& a, const unsigned (&b)[2][4],
                                              int word, const Numbers& of_upper,
                                              const Numbers& of_lower) const {
    const unsigned pairs[4] = {of_upper.template pair<PAIR>(b[0][word], masks),
                               of_lower.template pair<PAIR>(b[1][word], masks),
                               of_upper.template pair<PAIR>(b[0][word + 1], masks),
                               of_lower.template pair<PAIR>(b[1][word + 1], masks)};
#pragma unroll
    for (int i = 0; i < ROWS / 8; ++i)
      Mma::accumulate(sums[i], pairs[0], pairs[1], pairs[2], pairs[3], a[i][PAIR][word],
                      a[i][PAIR][word + 1]);
  }
  // Products of A by ones: its sums, in each row.
  static __device__ __forceinline__ void add_ones(Sums& sums, const A& a) {
    constexpr unsigned ONES = is_same<Element, f16> ? 0x3c003c00u : 0x3f803f80u;
#pragma unroll
    for (int i = 0; i < ROWS / 8; ++i)
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
        for (int word = 0; word < 4; word += 2)
          Mma::accumulate(sums[i], ONES, ONES, ONES, ONES, a[i][chunk][word],
                          a[i][chunk][word + 1]);
  }

  // Adds the products of a step by the scales of its rows.
  static __device__ __forceinline__ void add_scaled(Sums& sums, const Sums& step_sums,
                                                    const Sums& sums_of_a,
                                                    const Factor (&factors)[2][PARTS]) {
#pragma unroll
    for (int j = 0; j < ROWS / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const auto& factor = factors[half][0];
          f32 sum = Mma::get(step_sums[j], half, c);
          if constexpr (ZEROS && !CONVERTED)
            sum = multiply_add(-factor.zero, Mma::get(sums_of_a[j], 0, c), sum);
          f32& total = sums[j].values[2 * half + c];
          total = multiply_add(factor.scale, sum, total);
        }
  }

  // Loads the scales that multiply the sums of a tile, well ahead of their use in store().
  __device__ __forceinline__ void load_end_scales(int start_n, int columns) {
    const int row = threadIdx.x % 32 / 4;
    const Scale* first = epilogue.b_scales(range.batch, start_n + row);
#pragma unroll
    for (int i = 0; i < OF_B; ++i)
      ptx::load_if(row + 8 * i < columns, next_scales[0][i][0],
                   first + static_cast<long long>(scale_stride) * i);
  }

  __device__ __forceinline__ void store(f32* slab) {
    if constexpr (AT_END) {
#pragma unroll
      for (int i = 0; i < OF_B; ++i) {
        const f32 scale = f32(decode(ptx::of_bits<Scale>(next_scales[0][i][0])));
#pragma unroll
        for (int j = 0; j < ROWS / 8; ++j)
#pragma unroll
          for (int c = 0; c < 2; ++c) sums[i / 2][j].values[i % 2 * 2 + c] *= scale;
      }
    }
    store_sums<Mma, Gemm::SUM_PITCH>(slab, sums, threadIdx.x % 32 / 4,
                                     SCALED ? Factor::REST : 1.0f);
  }
};
