// Quantization to 8 bits: out = x / scale, with a scale for each group of elements. A group is a
// part of a row, a part of a column, a block, or the whole matrix. Bound by memory bandwidth.
//
// The scale of a group is its largest magnitude over the largest finite number of the output type,
// and at least the smallest normal float, so that its reciprocal is finite. A quotient exceeds the
// largest number by at most the rounding errors of a float, which disappear in the output type:
// nothing overflows. A NaN or infinity becomes the scale of its group.
//
// A CTA holds a tile in registers: COUNT vectors of 16 bytes in each thread. Groups within a tile
// are read once. Longer rows and columns are read again, except for their last tile, in reverse
// order, because the tiles that were read last are in L2. A scale of the whole matrix takes two
// launches.
#pragma once
#include "common/types.cuh"
#include "common/vector.cuh"

namespace quantize {

enum Group { ROW, COLUMN, BLOCK };

// ---- element types ---------------------------------------------------------------------------

// The bits of |x|. Their order is that of the magnitudes, with infinity and NaN on top.
template <class In> __device__ __forceinline__ unsigned magnitude_bits(In x) {
  if constexpr (is_same<In, f32>)
    return __float_as_uint(x) & 0x7fffffffu;
  else
    return x.bits & 0x7fffu;
}
template <class In> __device__ __forceinline__ f32 from_magnitude_bits(unsigned bits) {
  if constexpr (is_same<In, f32>)
    return __uint_as_float(bits);
  else
    return decode(In{static_cast<unsigned short>(bits)});
}

// LARGEST: the largest finite number. pair(): two elements, `low` in the lower byte.
template <class Out> struct Narrow;

// PTX ISA, "Data Movement and Conversion Instructions: cvt".
#define RUTLASS_NARROW(ELEMENT, MAXIMUM)                                 \
  template <> struct Narrow<ELEMENT> {                                   \
    static constexpr f32 LARGEST = MAXIMUM;                              \
    static __device__ __forceinline__ unsigned pair(f32 low, f32 high) { \
      RUTLASS_NARROW_PAIR(ELEMENT)                                       \
    }                                                                    \
  };
#if __CUDA_ARCH__ >= 890
#define RUTLASS_NARROW_PAIR(ELEMENT)                                                         \
  unsigned short pair;                                                                       \
  asm("cvt.rn.satfinite." #ELEMENT "x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low)); \
  return pair;
#else
#define RUTLASS_NARROW_PAIR(ELEMENT) \
  return encode<ELEMENT>(low).bits | unsigned(encode<ELEMENT>(high).bits) << 8;
#endif
RUTLASS_NARROW(e4m3, 448.0f)
RUTLASS_NARROW(e5m2, 57344.0f)
#undef RUTLASS_NARROW
#undef RUTLASS_NARROW_PAIR

template <> struct Narrow<s8> {
  static constexpr f32 LARGEST = 127.0f;
  // NaN becomes 0, as it has a NaN as its scale.
  static __device__ __forceinline__ unsigned pair(f32 low, f32 high) {
    return (__float2int_rn(low) & 0xff) | (__float2int_rn(high) & 0xff) << 8;
  }
};

template <class Out> __device__ __forceinline__ f32 scale_of(f32 largest) {
  constexpr f32 SMALLEST = 0x1p-126f;
  const f32 scale = __fdiv_rn(largest, Narrow<Out>::LARGEST);
  return scale < SMALLEST ? SMALLEST : scale;  // fmaxf would drop a NaN
}

// ---- tiles -----------------------------------------------------------------------------------

template <class Element> struct Matrix {
  Element* data;
  long long row_step, column_step;  // in elements

  __device__ __forceinline__ Element* at(long long row, long long column) const {
    return data + row * row_step + column * column_step;
  }
};

// A tile's first element, and the number of its rows and columns inside the matrix or the group.
struct Place {
  long long row, column;
  int rows, columns;
};

// A thread's vectors are in one column (STACKED) or in one row. ALIGNED: rows of both matrices are
// contiguous, a multiple of a vector long, and begin at a multiple of a vector.
template <class In, int ROW_THREADS_, int COLUMN_THREADS_, int COUNT_, bool STACKED_, bool ALIGNED>
struct Tile {
  static constexpr int ROW_THREADS = ROW_THREADS_, COLUMN_THREADS = COLUMN_THREADS_;
  static constexpr int THREADS = ROW_THREADS * COLUMN_THREADS, COUNT = COUNT_;
  static constexpr bool STACKED = STACKED_;
  static constexpr int WIDTH = 16 / int(sizeof(In));  // elements of a vector
  static constexpr int ROW_STEP = STACKED ? ROW_THREADS : 0;
  static constexpr int COLUMN_STEP = STACKED ? 0 : COLUMN_THREADS * WIDTH;
  static constexpr int ROWS = ROW_THREADS * (STACKED ? COUNT : 1);
  static constexpr int COLUMNS = COLUMN_THREADS * WIDTH * (STACKED ? 1 : COUNT);

  VectorOf<In> vectors[COUNT];

  static __device__ __forceinline__ Place place(long long row, long long column, long long row_end,
                                                long long column_end) {
    return {row, column, int(min(row_end - row, (long long)ROWS)),
            int(min(column_end - column, (long long)COLUMNS))};
  }
  // The thread's first element, in the tile.
  static __device__ __forceinline__ int thread_row() { return threadIdx.x / COLUMN_THREADS; }
  static __device__ __forceinline__ int thread_column() {
    return threadIdx.x % COLUMN_THREADS * WIDTH;
  }
  // How many elements of vector i are inside.
  static __device__ __forceinline__ int valid(const Place& place, int i) {
    int count = place.columns - thread_column() - i * COLUMN_STEP;
    if (thread_row() + i * ROW_STEP >= place.rows) count = 0;
    return count;
  }
  template <class Element>
  static __device__ __forceinline__ Element* vector(const Matrix<Element>& matrix,
                                                    const Place& place, int i) {
    Element* first = matrix.at(place.row + thread_row(), place.column + thread_column()) +
                     i * (ROW_STEP * matrix.row_step + COLUMN_STEP * matrix.column_step);
    // Otherwise the addresses of all elements would stay in registers, and spill.
    if constexpr (!ALIGNED) ptx::compute_here(first);
    return first;
  }

  // Elements outside count as zeros.
  __device__ __forceinline__ void load(const Matrix<const In>& x, const Place& place) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      vectors[i] = {};
      const int count = valid(place, i);
      if (count <= 0) continue;
      const In* const from = vector(x, place, i);
      if constexpr (ALIGNED)
        vectors[i].load(from);
      else
#pragma unroll
        for (int e = 0; e < WIDTH; ++e)
          if (e < count) vectors[i].put(e, from[e * x.column_step]);
    }
  }

  // inverse(i, e): the reciprocal of the scale of element e of vector i.
  template <class Out, class Inverse>
  __device__ __forceinline__ void store(const Matrix<Out>& out, const Place& place,
                                        Inverse inverse) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int count = valid(place, i);
      if (count <= 0) continue;
      unsigned words[WIDTH / 4];
#pragma unroll
      for (int e = 0; e < WIDTH; e += 4) {
        f32 values[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) values[j] = decode(vectors[i].get(e + j)) * inverse(i, e + j);
        words[e / 4] =
            Narrow<Out>::pair(values[0], values[1]) | Narrow<Out>::pair(values[2], values[3]) << 16;
      }
      Out* const to = vector(out, place, i);
      if constexpr (!ALIGNED) {
#pragma unroll
        for (int e = 0; e < WIDTH; ++e)
          if (e < count) reinterpret_cast<unsigned char*>(to)[e] = words[e / 4] >> e % 4 * 8;
      } else if constexpr (WIDTH == 8)
        *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
      else
        *reinterpret_cast<unsigned*>(to) = words[0];
    }
  }
};

// The largest magnitudes, as bits, of the groups that a thread has elements of.
template <class Tile, Group GROUP> struct Maxima {
  static constexpr int COUNT = GROUP == COLUMN                 ? Tile::WIDTH
                               : GROUP == ROW && Tile::STACKED ? Tile::COUNT
                                                               : 1;
  static_assert(GROUP != COLUMN || Tile::STACKED);
  unsigned bits[COUNT] = {};

  // Which of the thread's groups contains element e of vector i.
  static __device__ __forceinline__ constexpr int index(int i, int e) {
    return GROUP == COLUMN ? e : GROUP == ROW && Tile::STACKED ? i : 0;
  }
  __device__ __forceinline__ void add(const Tile& tile) {
#pragma unroll
    for (int i = 0; i < Tile::COUNT; ++i)
#pragma unroll
      for (int e = 0; e < Tile::WIDTH; ++e)
        bits[index(i, e)] = max(bits[index(i, e)], magnitude_bits(tile.vectors[i].get(e)));
  }
  // Groups of rows that lie in COLUMN_THREADS lanes each, COUNT of them: combines their maxima and
  // returns that of group lane / LANES_OF_GROUP. At each step, a lane sends half of its maxima and
  // keeps the other half.
  static constexpr bool IN_LANES = GROUP == ROW && Tile::STACKED;
  static constexpr int LANES_OF_GROUP = Tile::COLUMN_THREADS / COUNT;
  __device__ __forceinline__ unsigned reduce_by_halving() {
    static_assert(IN_LANES && LANES_OF_GROUP >= 1 && Tile::COLUMN_THREADS <= 32);
    int count = COUNT;
#pragma unroll
    for (int lanes = Tile::COLUMN_THREADS / 2; lanes > 0; lanes /= 2) {
      const bool keeps_upper = count > 1 && (threadIdx.x & lanes);
      const int half = count > 1 ? count / 2 : 0;
      count -= half;
#pragma unroll
      for (int k = 0; k < count; ++k) {
        const unsigned sent = keeps_upper ? bits[k] : bits[k + half];
        if (keeps_upper) bits[k] = bits[k + half];
        bits[k] = max(bits[k], __shfl_xor_sync(0xffffffffu, sent, lanes));
      }
    }
    return bits[0];
  }
  // Combines the maxima of the CTA's threads. Call once in a kernel.
  __device__ __forceinline__ void reduce() {
    // The lanes of a group differ in the bits FIRST to LAST / 2.
    constexpr int FIRST = GROUP == COLUMN ? Tile::COLUMN_THREADS : 1;
    constexpr int LAST = GROUP == ROW && Tile::COLUMN_THREADS < 32 ? Tile::COLUMN_THREADS : 32;
#pragma unroll
    for (int k = 0; k < COUNT; ++k)
#pragma unroll
      for (int lanes = FIRST; lanes < LAST; lanes *= 2)
        bits[k] = max(bits[k], __shfl_xor_sync(0xffffffffu, bits[k], lanes));
    if constexpr (GROUP != ROW || Tile::COLUMN_THREADS > 32) {
      constexpr int SLOTS = GROUP == COLUMN ? Tile::COLUMNS : GROUP == ROW ? Tile::ROWS : 1;
      __shared__ unsigned slots[SLOTS];
      const int thread = threadIdx.x, first = GROUP == COLUMN ? Tile::thread_column()
                                              : GROUP == ROW  ? Tile::thread_row()
                                                              : 0;
      constexpr int STEP = GROUP == ROW ? Tile::ROW_STEP : 1;
      for (int slot = thread; slot < SLOTS; slot += Tile::THREADS) slots[slot] = 0;
      __syncthreads();
      if ((thread & (LAST - 1) & -FIRST) == 0)
#pragma unroll
        for (int k = 0; k < COUNT; ++k) atomicMax(&slots[first + k * STEP], bits[k]);
      __syncthreads();
#pragma unroll
      for (int k = 0; k < COUNT; ++k) bits[k] = slots[first + k * STEP];
    }
  }
};

// ---- kernels ---------------------------------------------------------------------------------

__device__ __forceinline__ long long ceil_div(long long a, int b) { return (a + b - 1) / b; }

// A scale for each group. A CTA serves cta_rows x cta_columns elements, which are whole groups; the
// matrix is column_ctas of them wide. The extent across a group's direction is the tile's.
template <class In, class Out, Group GROUP, int ROW_THREADS, int COLUMN_THREADS, int COUNT,
          bool STACKED, bool ALIGNED>
__global__ void __launch_bounds__(ROW_THREADS* COLUMN_THREADS)
    groups(const In* x_data, Out* out_data, f32* scales_data, long long rows, long long columns,
           long long x_row_step, long long x_column_step, long long out_row_step,
           long long scale_row_step, long long scale_column_step, long long cta_rows,
           long long cta_columns, int column_ctas) {
  using Tile = Tile<In, ROW_THREADS, COLUMN_THREADS, COUNT, STACKED, ALIGNED>;
  using Maxima = Maxima<Tile, GROUP>;
  const Matrix<const In> x{x_data, x_row_step, x_column_step};
  const Matrix<Out> out{out_data, out_row_step, 1};
  const Matrix<f32> scales{scales_data, scale_row_step, scale_column_step};
  const int cta_row = int(blockIdx.x) / column_ctas,
            cta_column = int(blockIdx.x) - cta_row * column_ctas;
  const long long first_row = cta_row * cta_rows, first_column = cta_column * cta_columns,
                  row_end = min(rows, first_row + cta_rows),
                  column_end = min(columns, first_column + cta_columns);
  constexpr int ROWS = GROUP == COLUMN ? Tile::ROWS : 0, COLUMNS = GROUP == ROW ? Tile::COLUMNS : 0;
  const long long tiles = GROUP == COLUMN ? ceil_div(row_end - first_row, Tile::ROWS)
                          : GROUP == ROW  ? ceil_div(column_end - first_column, Tile::COLUMNS)
                                          : 1;
  Tile tile;
  Maxima maxima;
  auto place = [&](long long t) {
    return Tile::place(first_row + t * ROWS, first_column + t * COLUMNS, row_end, column_end);
  };
#pragma unroll 1
  for (long long t = 0; t < tiles; ++t) {
    tile.load(x, place(t));
    maxima.add(tile);
  }
  f32 inverse[Maxima::COUNT];
  if constexpr (Maxima::IN_LANES) {
    const f32 scale = scale_of<Out>(from_magnitude_bits<In>(maxima.reduce_by_halving())),
              own = __frcp_rn(scale);
    constexpr int LANES = Maxima::LANES_OF_GROUP;
    const int lane = threadIdx.x % COLUMN_THREADS;
    const long long row = first_row + Tile::thread_row() + lane / LANES * Tile::ROW_STEP;
    if (lane % LANES == 0 && row < row_end) *scales.at(row, cta_column) = scale;
#pragma unroll
    for (int k = 0; k < Maxima::COUNT; ++k)
      inverse[k] = __shfl_sync(0xffffffffu, own, k * LANES, COLUMN_THREADS);
  } else {
    maxima.reduce();
#pragma unroll
    for (int k = 0; k < Maxima::COUNT; ++k) {
      const f32 scale = scale_of<Out>(from_magnitude_bits<In>(maxima.bits[k]));
      inverse[k] = __frcp_rn(scale);
      // One thread of each group stores the scale.
      const long long row = first_row + Tile::thread_row() + k * Tile::ROW_STEP,
                      column = first_column + Tile::thread_column() + k;
      if constexpr (GROUP == ROW) {
        if (Tile::thread_column() == 0 && row < row_end) *scales.at(row, cta_column) = scale;
      } else if constexpr (GROUP == COLUMN) {
        if (Tile::thread_row() == 0 && column < column_end) *scales.at(cta_row, column) = scale;
      } else {
        if (threadIdx.x == 0) *scales.at(cta_row, cta_column) = scale;
      }
    }
  }
#pragma unroll 1
  for (long long t = tiles - 1;; tile.load(x, place(--t))) {
    tile.store(out, place(t), [&](int i, int e) { return inverse[Maxima::index(i, e)]; });
    if (t == 0) break;
  }
}

// The first launch for a scale of the whole matrix: the largest magnitude of each CTA's tiles.
template <class In, int ROW_THREADS, int COLUMN_THREADS, int COUNT, bool STACKED, bool ALIGNED>
__global__ void __launch_bounds__(ROW_THREADS* COLUMN_THREADS)
    largest(const In* x_data, f32* partials, long long rows, long long columns,
            long long x_row_step, long long x_column_step, int tiles, int column_tiles) {
  using Tile = Tile<In, ROW_THREADS, COLUMN_THREADS, COUNT, STACKED, ALIGNED>;
  const Matrix<const In> x{x_data, x_row_step, x_column_step};
  Maxima<Tile, BLOCK> maxima;
#pragma unroll 1
  for (long long t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int row = int(t) / column_tiles, column = int(t) - row * column_tiles;
    Tile tile;
    tile.load(x, Tile::place((long long)row * Tile::ROWS, (long long)column * Tile::COLUMNS, rows,
                             columns));
    maxima.add(tile);
  }
  maxima.reduce();
  if (threadIdx.x == 0) partials[blockIdx.x] = from_magnitude_bits<In>(maxima.bits[0]);
}

// The second launch: each CTA quantizes a tile, the last first, since the first launch left these
// in L2.
template <class In, class Out, int ROW_THREADS, int COLUMN_THREADS, int COUNT, bool STACKED,
          bool ALIGNED>
__global__ void __launch_bounds__(ROW_THREADS* COLUMN_THREADS)
    whole(const In* x_data, Out* out_data, f32* scale_data, const f32* partials, int partial_count,
          long long rows, long long columns, long long x_row_step, long long x_column_step,
          long long out_row_step, int column_tiles) {
  using Tile = Tile<In, ROW_THREADS, COLUMN_THREADS, COUNT, STACKED, ALIGNED>;
  const int t = gridDim.x - 1 - blockIdx.x, row = t / column_tiles, column = t - row * column_tiles;
  const Place place =
      Tile::place((long long)row * Tile::ROWS, (long long)column * Tile::COLUMNS, rows, columns);
  Tile tile;
  tile.load({x_data, x_row_step, x_column_step}, place);
  Maxima<Tile, BLOCK> maxima;
  for (int i = threadIdx.x; i < partial_count; i += Tile::THREADS)
    maxima.bits[0] = max(maxima.bits[0], __float_as_uint(partials[i]));
  maxima.reduce();
  const f32 scale = scale_of<Out>(__uint_as_float(maxima.bits[0])), inverse = __frcp_rn(scale);
  if (t == 0 && threadIdx.x == 0) *scale_data = scale;
  tile.store(Matrix<Out>{out_data, out_row_step, 1}, place, [&](int, int) { return inverse; });
}

}  // namespace quantize
