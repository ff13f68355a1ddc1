// Block scales and zero points of the weights of a mixed product (Epilogue::SCALES): an element
// counts as (element - zero point) * scale, rounded once to the type of B.
#pragma once
#include "common/ptx.cuh"
#include "common/types.cuh"
#include "common/widen.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"
#include "sm90/scales.cuh"

template <class Config> struct Sm90WeightScales {
  using Epilogue = typename Config::Epilogue;
  using Scale = typename Epilogue::AScale;
  using Zero = typename Epilogue::AZero;
  static constexpr bool PRESENT = Epilogue::SCALES && Config::MIXED;
  static constexpr int M_BLOCKS = Config::M_BLOCKS, TILE_K = Config::TILE_K;
  static constexpr int A_ROWS = Epilogue::A_ROWS, A_DEPTH = Epilogue::A_DEPTH;

  // Elements of K of one row that have one scale: 16, 32, 64 or a whole K block. An
  // instruction multiplies 16.
  static constexpr int DEPTH = PRESENT ? greatest_common_divisor(TILE_K, A_DEPTH) : TILE_K;
  static_assert(!PRESENT || (Epilogue::A_LINEAR && A_DEPTH > 0 && DEPTH % 16 == 0));
  // Groups of two instructions that share scales; parts of a group with a scale each, which are
  // loaded together.
  static constexpr int GROUPS = DEPTH < 32 ? 1 : DEPTH / 32, PARTS = DEPTH < 32 ? 2 : 1;
  static_assert(!PRESENT || Epilogue::B_DEPTH == 0, "the weights are A");

  static constexpr bool HAS_ZEROS = Epilogue::A_ZERO,
                        FRACTIONS = HAS_ZEROS && (is_same<Zero, f32> || is_same<Zero, f16> ||
                                                  is_same<Zero, bf16>);
  static constexpr bool CODES = bits_of<typename Config::A> == 4;
  using Factors = typename Conditional<
      CODES,
      ptx::CodeFactors<M_BLOCKS, ptx::CodeFactor<typename Config::B, typename Config::A, Scale,
                                                 Zero, HAS_ZEROS>>,
      ptx::RowFactors<M_BLOCKS, typename Config::A, FRACTIONS>>::Type;
  // Whether scales are powers of two, of which large ones need a second multiplication.
  static constexpr bool POWERS = PRESENT && Factors::POWERS;
  // What the sums are multiplied by at the end.
  static constexpr f32 REST = PRESENT ? Factors::REST : 1.0f;

  // Whether the scales of successive parts lie at equal distances: pointers replace indices.
  static constexpr bool BY_POINTERS = PRESENT && A_DEPTH == DEPTH && A_ROWS == 1;

  // Parts that are loaded together, a span ahead: a part's products hide no latency of device
  // memory. Of scales of 8 bits, four or eight parts at a time where their bytes are adjacent.
  static constexpr bool BYTES =
      CODES && BY_POINTERS && !HAS_ZEROS && sizeof(Scale) == 1 && TILE_K / DEPTH >= 4;
  static constexpr int SPAN = !CODES               ? PARTS
                              : BYTES              ? (TILE_K / DEPTH < 8 ? 4 : 8)
                              : TILE_K / DEPTH < 2 ? 1
                                                   : 2;

  // The scales and zero points of a span, as they are stored: they are decoded when they are
  // needed, so that no decoding waits for its load.
  struct Values {
    Scale scales[SPAN][M_BLOCKS][2];
    Zero zeros[SPAN][M_BLOCKS][2];
    __device__ __forceinline__ Scale scale(int i, int part) const {
      return scales[part][i / 2][i % 2];
    }
    __device__ __forceinline__ void set(int i, int part, Scale scale) {
      scales[part][i / 2][i % 2] = scale;
    }
  };
  struct Words {
    static constexpr int WORDS = SPAN < 8 ? 1 : 2;
    struct alignas(4 * WORDS) Row {
      unsigned words[WORDS];
      __device__ __forceinline__ void set(const unsigned short* halves) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i)
          words[i] = halves[2 * i] | unsigned(halves[2 * i + 1]) << 16;
      }
    };
    Row rows[2 * M_BLOCKS];
    static __device__ __forceinline__ unsigned shift(int part) { return part % 4 * 8; }
    __device__ __forceinline__ Scale scale(int i, int part) const {
      return {static_cast<unsigned char>(rows[i].words[part / 4] >> shift(part))};
    }
    __device__ __forceinline__ void set(int i, int part, Scale scale) {
      unsigned& word = rows[i].words[part / 4];
      word = (word & ~(0xffu << shift(part))) | unsigned(scale.bits) << shift(part);
    }
  };
  using Stored = typename Conditional<BYTES, Words, Values>::Type;

  // Registers of scales and zero points that are in use and that are loaded ahead.
  static constexpr int OF_ROW =
      BYTES ? 1 + 2 * (SPAN / 4) : (HAS_ZEROS ? 2 : 1) * (CODES ? 1 + 2 * SPAN : 1 + PARTS);
  static constexpr int REGISTERS = PRESENT ? M_BLOCKS * 2 * OF_ROW : 0;

  const Sm90Params& params;
  const Epilogue& epilogue;
  int batch, m;         // m: the lane's first row
  int k;                // the first element of the part to load next
  const Scale* scales;  // BY_POINTERS: the next scale of row m
  const Zero* zeros;

  // `m`: the warp's first row. `k`: the first element of K.
  __device__ __forceinline__ Sm90WeightScales(const Sm90Params& params, const Epilogue& epilogue,
                                              int batch, int m, int, int k)
      : params(params), epilogue(epilogue), batch(batch), m(m + threadIdx.x % 32 / 4), k(k) {
    if constexpr (BY_POINTERS) {
      scales = epilogue.a_scales(batch, this->m) + epilogue.a_scale_step() * (k / DEPTH);
      zeros = epilogue.a_zeros(batch, this->m) + epilogue.a_zero_step() * (k / DEPTH);
    }
  }

  // A lane's row i is m + row(i): two of each block of 64 (see WidenedFragments).
  static __device__ __forceinline__ constexpr int row(int i) { return i / 2 * 64 + i % 2 * 8; }

  // Fetches the scales of the next `parts` parts into L2: the first CTA that reads a scale would
  // wait for device memory at each part. Adjacent scales share a sector pair of 64 bytes.
  __device__ __forceinline__ void prefetch(int parts) const {
    if constexpr (BY_POINTERS) {
      const int shared = epilogue.a_scale_step() == 1 && !HAS_ZEROS ? 64 / sizeof(Scale) : 1;
#pragma unroll 1
      for (int part = threadIdx.x % 32 * shared; part < parts && k + part * DEPTH < params.k;
           part += 32 * shared) {
#pragma unroll
        for (int i = 0; i < 2 * M_BLOCKS; ++i)
          if (m + row(i) < params.m) {
            ptx::prefetch_to_l2(scales + epilogue.a_scale_step() * part +
                                epilogue.a_scale_stride() * row(i));
            if constexpr (HAS_ZEROS)
              ptx::prefetch_to_l2(zeros + epilogue.a_zero_step() * part +
                                  epilogue.a_zero_stride() * row(i));
          }
      }
    }
  }

  // Loads the next span.
  __device__ __forceinline__ void load_next(Stored& stored) {
    if constexpr (BYTES) {
      const long long stride = epilogue.a_scale_stride();
      const auto aligned =
          reinterpret_cast<unsigned long long>(scales) | static_cast<unsigned long long>(stride);
      // Rows of any even number of scales, as the 90 of K = 2880 in MXFP4, by two bytes at a time.
      if (k + SPAN * DEPTH <= params.k && epilogue.a_scale_step() == 1 && aligned % 2 == 0) {
        const bool at_once = aligned % SPAN == 0;
#pragma unroll
        for (int i = 0; i < 2 * M_BLOCKS; ++i)
          if (m + row(i) < params.m) {
            const Scale* from = scales + stride * row(i);
            if (at_once)
              stored.rows[i] = *reinterpret_cast<const typename Words::Row*>(from);
            else
              stored.rows[i].set(reinterpret_cast<const unsigned short*>(from));
          }
        k += SPAN * DEPTH;
        scales += SPAN;
        return;
      }
    }
#pragma unroll
    for (int part = 0; part < SPAN; ++part) load_part(stored, part);
  }

  // Beyond K, where B is 0, the scales stay as they are: a product of 0 and a scale that is not
  // finite would be NaN.
  __device__ __forceinline__ void load_part(Stored& stored, int part) {
    if (k < params.k) {
#pragma unroll
      for (int i = 0; i < 2 * M_BLOCKS; ++i)
        if (m + row(i) < params.m) {
          const int block = BY_POINTERS ? 0 : k / A_DEPTH;
          const Scale* scale =
              BY_POINTERS ? scales + epilogue.a_scale_stride() * row(i)
                          : epilogue.a_scales(batch, m + row(i)) + epilogue.a_scale_step() * block;
          stored.set(i, part, *scale);
          if constexpr (HAS_ZEROS) {
            const Zero* zero =
                BY_POINTERS ? zeros + epilogue.a_zero_stride() * row(i)
                            : epilogue.a_zeros(batch, m + row(i)) + epilogue.a_zero_step() * block;
            stored.zeros[part][i / 2][i % 2] = *zero;
          }
        }
    }
    k += DEPTH;
    if constexpr (BY_POINTERS) {
      scales += epilogue.a_scale_step();
      zeros += epilogue.a_zero_step();
    }
  }

  static __device__ __forceinline__ void decode_into(Factors& factors, const Stored& stored,
                                                     int part) {
#pragma unroll
    for (int i = 0; i < 2 * M_BLOCKS; ++i) {
      const Scale scale = stored.scale(i, part);
      Zero zero{};
      if constexpr (HAS_ZEROS) zero = stored.zeros[part][i / 2][i % 2];
      if constexpr (CODES)
        factors.rows[i / 2][i % 2].set(scale, zero);
      else
        factors.set(i, f32(decode(scale)), HAS_ZEROS ? f32(decode(zero)) : 0.0f);
    }
  }

  // Multiplies the fragments of a group by what their part's large scales leave, if the span has
  // some.
  static __device__ __forceinline__ void multiply_rest(unsigned (&a)[M_BLOCKS][8],
                                                       const Stored& stored, int part,
                                                       bool is_large) {
    if (is_large)
#pragma unroll
      for (int i = 0; i < 2 * M_BLOCKS; ++i) Factors::multiply_rest(a, i, stored.scale(i, part));
  }
  static __device__ __forceinline__ bool has_large(const Stored& stored) {
    unsigned all = 0;
#pragma unroll
    for (int i = 0; i < 2 * M_BLOCKS; ++i) {
      if constexpr (BYTES) {
#pragma unroll
        for (unsigned word : stored.rows[i].words) all |= word;
      } else {
#pragma unroll
        for (int part = 0; part < SPAN; ++part) all |= stored.scale(i, part).bits;
      }
    }
    return Factors::is_large(all);
  }
};
