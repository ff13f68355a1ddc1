// The vocabulary of generated epilogues (src/epilogue/cuda.rs) and prologues
// (src/epilogue/cuda_prologue.rs): operands, operations, reductions.
#pragma once
#include "common/epilogue.cuh"
#include "common/field.cuh"
#include "common/ptx.cuh"
#include "common/types.cuh"

// A tensor broadcast to the shape of the program's output (of A, for a prologue), or block scales.
// Mirrored in the Rust core (src/epilogue/bound.rs).
struct EpilogueTensor {
  void* data;
  // In elements, along batch, m, n. Of block scales: along batch, blocks of rows of A (columns of
  // B), blocks of K. Of swizzled scales: along batch, tiles of 128 rows; the third is unused.
  long long stride[3];
};
static_assert(sizeof(EpilogueTensor) == 32);
RUTLASS_FIELD(EpilogueTensor, stride, 8);

// ---- operands --------------------------------------------------------------------------------
template <int BYTES> struct Word;
template <> struct Word<1> { using Type = unsigned char; };
template <> struct Word<2> { using Type = unsigned short; };
template <> struct Word<4> { using Type = unsigned; };
template <> struct Word<8> { using Type = uint2; };
template <> struct Word<16> { using Type = uint4; };

// WIDTH elements of a row, in runs of RUN adjacent elements (common/epilogue.cuh), each run in as
// few words of at most 16 bytes as possible.
template <class Element, int WIDTH, int RUN> struct RowElements {
  static constexpr int WORD_BYTES =
      RUN * int(sizeof(Element)) < 16 ? RUN * int(sizeof(Element)) : 16;
  static constexpr int WORDS = WIDTH * int(sizeof(Element)) / WORD_BYTES,
                       PER_WORD = WORD_BYTES / int(sizeof(Element));
  using Type = typename Word<WORD_BYTES>::Type;
  union {
    Type words[WORDS];
    Element elements[WIDTH];
  };

  // Column of a word's first element, relative to the row's first.
  static __device__ __forceinline__ constexpr int column(int word) {
    return run_column<WIDTH, RUN>(word * PER_WORD);
  }
};

// The stride of a tensor along a dimension, as far as a program depends on it: 0, 1, or a value
// that the launch passes.
enum class Step { REPEATS, ONE, ANY };

template <Step ALONG_M, Step ALONG_N, class Element>
__device__ __forceinline__ Element* element_at(const EpilogueTensor& tensor, int batch, int m,
                                               int n) {
  Element* at = static_cast<Element*>(tensor.data) + tensor.stride[0] * batch;
  if constexpr (ALONG_M != Step::REPEATS) at += tensor.stride[1] * m;
  if constexpr (ALONG_N == Step::ONE) at += n;
  if constexpr (ALONG_N == Step::ANY) at += tensor.stride[2] * n;
  return at;
}

// Whether all elements are valid and the words are aligned.
template <class Element, int WIDTH, int RUN>
__device__ __forceinline__ bool is_whole(const void* first, int valid) {
  constexpr unsigned MASK = RowElements<Element, WIDTH, RUN>::WORD_BYTES - 1;
  return valid > run_column<WIDTH, RUN>(WIDTH - 1) &&
         (unsigned(reinterpret_cast<unsigned long long>(first)) & MASK) == 0;
}

// Loads elements of row m from column n on, without decoding them: encoded elements take fewer
// registers. Elements at or beyond `valid` are not read and become zero. A tensor that repeats
// along n is loaded as one element (WIDTH == 1).
template <Step ALONG_M, Step ALONG_N, class Element, int WIDTH, int RUN>
__device__ __forceinline__ void load_operand(RowElements<Element, WIDTH, RUN>& row,
                                             const EpilogueTensor& tensor, int batch, int m, int n,
                                             int valid) {
  using Row = RowElements<Element, WIDTH, RUN>;
  static_assert(ALONG_N != Step::REPEATS || WIDTH == 1);
  const Element* const first = element_at<ALONG_M, ALONG_N, const Element>(tensor, batch, m, n);
  if constexpr (RUN > 1 && ALONG_N == Step::ONE) {
    if (is_whole<Element, WIDTH, RUN>(first, valid)) {
#pragma unroll
      for (int w = 0; w < Row::WORDS; ++w)
        row.words[w] = *reinterpret_cast<const typename Row::Type*>(first + Row::column(w));
      return;
    }
  }
  const long long step = ALONG_N == Step::ONE ? 1 : tensor.stride[2];
#pragma unroll
  for (int e = 0; e < WIDTH; ++e) {
    const int column = run_column<WIDTH, RUN>(e);
    row.elements[e] = column < valid ? first[step * column] : Element{};
  }
}

// Stores values to row m from column n on; those at or beyond `valid` are dropped.
template <Step ALONG_N, class Element, int WIDTH, int RUN, class Value>
__device__ __forceinline__ void store_operand(const Value (&values)[WIDTH],
                                              const EpilogueTensor& tensor, const Place& place) {
  using Row = RowElements<Element, WIDTH, RUN>;
  Element* const first =
      element_at<Step::ANY, ALONG_N, Element>(tensor, place.batch, place.m, place.n);
  if constexpr (RUN > 1 && ALONG_N == Step::ONE) {
    if (is_whole<Element, WIDTH, RUN>(first, place.valid)) {
      Row row;
#pragma unroll
      for (int e = 0; e < WIDTH; ++e) row.elements[e] = encode<Element>(values[e]);
#pragma unroll
      for (int w = 0; w < Row::WORDS; ++w)
        *reinterpret_cast<typename Row::Type*>(first + Row::column(w)) = row.words[w];
      return;
    }
  }
  const long long step = ALONG_N == Step::ONE ? 1 : tensor.stride[2];
#pragma unroll
  for (int e = 0; e < WIDTH; ++e) {
    const int column = run_column<WIDTH, RUN>(e);
    if (column < place.valid) first[step * column] = encode<Element>(values[e]);
  }
}

// The scale, or zero point, of a block: `outer` counts blocks along rows of A (columns of B),
// `block` along K. A tile of swizzled scales is 128 x 4, and rows 32 apart are adjacent (cuBLAS,
// "1D Block Scaling Factors Layout").
template <class Element, bool SWIZZLED>
__device__ __forceinline__ f32 block_scale(const EpilogueTensor& scales, int batch, int outer,
                                           int block) {
  const Element* at = static_cast<const Element*>(scales.data) + scales.stride[0] * batch;
  if constexpr (SWIZZLED)
    at += scales.stride[1] * (outer / 128) + block / 4 * 512 + outer % 32 * 16 +
          outer / 32 % 4 * 4 + block % 4;
  else
    at += scales.stride[1] * outer + scales.stride[2] * block;
  return f32(decode(*at));
}

// ---- operations ------------------------------------------------------------------------------

// Operations on f32, f64 and s32. Integers wrap around.
namespace fused {

__device__ __forceinline__ f32 add(f32 x, f32 y) { return x + y; }
__device__ __forceinline__ f64 add(f64 x, f64 y) { return x + y; }
__device__ __forceinline__ s32 add(s32 x, s32 y) { return s32(unsigned(x) + unsigned(y)); }
__device__ __forceinline__ f32 subtract(f32 x, f32 y) { return x - y; }
__device__ __forceinline__ f64 subtract(f64 x, f64 y) { return x - y; }
__device__ __forceinline__ s32 subtract(s32 x, s32 y) { return s32(unsigned(x) - unsigned(y)); }
__device__ __forceinline__ f32 multiply(f32 x, f32 y) { return x * y; }
__device__ __forceinline__ f64 multiply(f64 x, f64 y) { return x * y; }
__device__ __forceinline__ s32 multiply(s32 x, s32 y) { return s32(unsigned(x) * unsigned(y)); }
__device__ __forceinline__ f32 divide(f32 x, f32 y) { return x / y; }
__device__ __forceinline__ f64 divide(f64 x, f64 y) { return x / y; }

// NaN if either operand is NaN. PTX ISA, "Floating Point Instructions: max, min".
__device__ __forceinline__ f32 maximum(f32 x, f32 y) {
  f32 z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ __forceinline__ f32 minimum(f32 x, f32 y) {
  f32 z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ __forceinline__ f64 maximum(f64 x, f64 y) { return x > y || x != x ? x : y; }
__device__ __forceinline__ f64 minimum(f64 x, f64 y) { return x < y || x != x ? x : y; }
__device__ __forceinline__ s32 maximum(s32 x, s32 y) { return x > y ? x : y; }
__device__ __forceinline__ s32 minimum(s32 x, s32 y) { return x < y ? x : y; }

__device__ __forceinline__ f32 negate(f32 x) { return -x; }
__device__ __forceinline__ f64 negate(f64 x) { return -x; }
__device__ __forceinline__ s32 negate(s32 x) { return s32(0u - unsigned(x)); }
__device__ __forceinline__ f32 absolute(f32 x) { return fabsf(x); }
__device__ __forceinline__ f64 absolute(f64 x) { return fabs(x); }
__device__ __forceinline__ s32 absolute(s32 x) { return x < 0 ? negate(x) : x; }

__device__ __forceinline__ f32 round(f32 x) { return ::rintf(x); }
__device__ __forceinline__ f64 round(f64 x) { return ::rint(x); }
__device__ __forceinline__ s32 round(s32 x) { return x; }

__device__ __forceinline__ f32 exp(f32 x) { return ::expf(x); }
__device__ __forceinline__ f64 exp(f64 x) { return ::exp(x); }
__device__ __forceinline__ f32 log(f32 x) { return ::logf(x); }
__device__ __forceinline__ f64 log(f64 x) { return ::log(x); }
__device__ __forceinline__ f32 log1p(f32 x) { return ::log1pf(x); }
__device__ __forceinline__ f64 log1p(f64 x) { return ::log1p(x); }
__device__ __forceinline__ f32 sqrt(f32 x) { return ::sqrtf(x); }
__device__ __forceinline__ f64 sqrt(f64 x) { return ::sqrt(x); }
__device__ __forceinline__ f32 rsqrt(f32 x) { return ::rsqrtf(x); }
__device__ __forceinline__ f64 rsqrt(f64 x) { return ::rsqrt(x); }
__device__ __forceinline__ f32 tanh(f32 x) { return ::tanhf(x); }
__device__ __forceinline__ f64 tanh(f64 x) { return ::tanh(x); }
__device__ __forceinline__ f32 erf(f32 x) { return ::erff(x); }
__device__ __forceinline__ f64 erf(f64 x) { return ::erf(x); }
__device__ __forceinline__ f32 sin(f32 x) { return ::sinf(x); }
__device__ __forceinline__ f64 sin(f64 x) { return ::sin(x); }
__device__ __forceinline__ f32 cos(f32 x) { return ::cosf(x); }
__device__ __forceinline__ f64 cos(f64 x) { return ::cos(x); }

// x * sigmoid(y). In f32 with the hardware's exponential and reciprocal: 6 instructions, relative
// error up to 4e-6, mostly from rounding y * log2(e). Divisor and dividend carry a factor of 1/4,
// since the reciprocal flushes to zero beyond 2^126.
__device__ __forceinline__ f32 silu_of(f32 x, f32 y) {
  return 0.25f * x * ptx::reciprocal(fmaf(0.25f, ptx::exp2(-1.44269504f * y), 0.25f));
}
__device__ __forceinline__ f64 silu_of(f64 x, f64 y) { return x / (1.0 + ::exp(-y)); }
template <class T> __device__ __forceinline__ T sigmoid(T x) { return silu_of(T(1), x); }
template <class T> __device__ __forceinline__ T silu(T x) { return silu_of(x, x); }
__device__ __forceinline__ f64 gelu(f64 x) {
  return 0.5 * x * (1.0 + fused::erf(x * 0.70710678118654752));
}
// gelu(x) = x Phi(x), with the normal distribution's tail q = 1 - Phi(|x|): x - x q for positive x,
// x q for negative x. q = 2^P(|x|) with a polynomial P of degree 10: log2(q) is smooth and nearly a
// parabola. P minimizes the maximum relative error of q (Lawson's iteratively reweighted least
// squares): 1e-6 for |x| <= 2, growing by 5e-7 per unit up to |x| = 8.2. P keeps falling beyond; q
// is 0 from 13 on.
__device__ __forceinline__ f32 gelu(f32 x) {
  const f32 y = fminf(fabsf(x), 14.0f);  // finite, also where x is infinite or NaN
  f32 p = -3.0233065e-9f;
  p = fmaf(p, y, 1.2405653e-7f);
  p = fmaf(p, y, -2.0821717e-6f);
  p = fmaf(p, y, 1.7016786e-5f);
  p = fmaf(p, y, -3.9603838e-5f);
  p = fmaf(p, y, -5.9927098e-4f);
  p = fmaf(p, y, 7.8562815e-3f);
  p = fmaf(p, y, -0.053232845f);
  p = fmaf(p, y, -0.45887133f);
  p = fmaf(p, y, -1.1511639f);
  p = fmaf(p, y, -0.99999833f);
  return fmaf(-y, ptx::exp2(p), maximum(x, 0.0f));
}
// x / 2 * (1 + tanh(u)) == x * sigmoid(2 u), which takes fewer steps and has no cancellation.
template <class T> __device__ __forceinline__ T gelu_tanh(T x) {
  return silu_of(x, T(1.5957691216057308) * (x + T(0.044715) * x * x * x));
}
template <class T> __device__ __forceinline__ T hardswish(T x) {
  return x * minimum(maximum(x + T(3), T(0)), T(6)) * T(1.0 / 6.0);
}

// The operations of reductions: associative, with an identity element.
struct Sum {
  template <class T> static __device__ __forceinline__ T identity() { return T(0); }
  template <class T> static __device__ __forceinline__ T apply(T x, T y) { return add(x, y); }
};
struct Maximum {
  template <class T> static __device__ __forceinline__ T identity() {
    if constexpr (is_same<T, s32>)
      return -2147483647 - 1;
    else
      return T(__int_as_float(0xff800000));  // minus infinity
  }
  template <class T> static __device__ __forceinline__ T apply(T x, T y) { return maximum(x, y); }
};

}  // namespace fused

// ---- reductions ------------------------------------------------------------------------------

// Reduces along m the columns that the lanes of a warp hold, and stores one partial result for each
// column, at (batch, partial_m, column). In each butterfly step, paired lanes exchange halves of
// their columns, until each lane has one column (or an odd number, which both then reduce).
template <class Fold, int LANES_M, int LANES_N, int RUN, class Value, int WIDTH>
__device__ __forceinline__ void reduce_m(Value (&values)[WIDTH], const EpilogueTensor& partials,
                                         const Place& place) {
  int first = 0, width = WIDTH;
  if constexpr (LANES_M > 1) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int distance = 16; distance >= LANES_N; distance /= 2) {
      const bool upper = lane & distance, halves = width % 2 == 0;
      if (halves) width /= 2;
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        if (i >= width) continue;
        const Value kept = halves && upper ? values[(i + width) % WIDTH] : values[i];
        const Value sent = halves && !upper ? values[(i + width) % WIDTH] : values[i];
        values[i] = Fold::apply(kept, __shfl_xor_sync(0xffffffffu, sent, distance));
      }
      if (halves && upper) first += width;
    }
  }
  Value* const row = static_cast<Value*>(partials.data) + partials.stride[0] * place.batch +
                     partials.stride[1] * place.partial_m;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    const int column = run_column<WIDTH, RUN>(first + i);
    if (i < width && column < place.own_columns)
      row[partials.stride[2] * (place.n + column)] = values[i];
  }
}

// Reduces along n the row that LANES_N lanes hold, and stores its partial result, at (batch, row,
// partial_n).
template <class Fold, int LANES_N, class Value, int WIDTH>
__device__ __forceinline__ void reduce_n(const Value (&values)[WIDTH],
                                         const EpilogueTensor& partials, const Place& place) {
  Value total = values[0];
#pragma unroll
  for (int e = 1; e < WIDTH; ++e) total = Fold::apply(total, values[e]);
#pragma unroll
  for (int distance = 1; distance < LANES_N; distance *= 2)
    total = Fold::apply(total, __shfl_xor_sync(0xffffffffu, total, distance));
  if (threadIdx.x % LANES_N == 0 && place.own_row)
    static_cast<Value*>(
        partials.data)[partials.stride[0] * place.batch + partials.stride[1] * place.m +
                       partials.stride[2] * place.partial_n] = total;
}
