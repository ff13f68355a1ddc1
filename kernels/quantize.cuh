// Quantization to 8 bits: out = x / scale, with a scale for each group of elements. A group is a
// part of a row, a part of a column, a block, or the whole matrix. Bound by memory bandwidth.
//
// - A float scale is the largest magnitude of its group over the largest finite number of the
//   output type. A quotient exceeds the largest number by at most the rounding errors of a float,
//   which disappear in the output type: nothing overflows.
// - An e8m0 scale is the largest power of two that is at most the largest magnitude, over the
//   largest power of two of the output type (OCP Microscaling Formats 1.0, section 6.3). Quotients
//   reach twice that power of two, and saturate.
// - With zero points (u8), the scale is the range of the group, which includes 0, over 255, and
//   out = x / scale + zero.
//
// Float scales are at least the smallest normal float, so that the reciprocal is finite. A group
// with NaN or infinity has one of them as its scale (e8m0: NaN).
//
// A CTA holds a tile in registers: COUNT vectors of 16 bytes in each thread. Groups within a tile
// are read once. Longer rows are read again, except for their last tile, in reverse order, because
// the tiles that were read last are in L2. Longer columns and a scale of the whole matrix take two
// launches: narrow tiles of whole columns would have few CTAs and short stores.
#pragma once
#include "common/types.cuh"
#include "common/vector.cuh"
#include "quantize/element.cuh"

namespace quantize {

enum Group { ROW, COLUMN, BLOCK };

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
  using Element = In;
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

  // factor(i, e): the Factor of element e of vector i.
  template <class Out, class FactorOf>
  __device__ __forceinline__ void store(const Matrix<Out>& out, const Place& place,
                                        FactorOf factor) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int count = valid(place, i);
      if (count <= 0) continue;
      unsigned words[WIDTH / 4];
#pragma unroll
      for (int e = 0; e < WIDTH; e += 4) {
        f32 values[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) values[j] = factor(i, e + j)(decode(vectors[i].get(e + j)));
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

// The largest magnitudes, as bits, of the groups that a thread has elements of. SIDES: 2 to keep
// those of positive and of negative elements apart. ACROSS: the groups side by side in a row of a
// stacked tile.
template <class Tile, Group GROUP, int SIDES = 1, int ACROSS = 1> struct Maxima {
  static constexpr int COUNT = GROUP == COLUMN                 ? Tile::WIDTH
                               : GROUP == ROW && Tile::STACKED ? Tile::COUNT
                                                               : 1;
  static_assert(GROUP != COLUMN || Tile::STACKED);
  unsigned bits[SIDES][COUNT] = {};

  // Which of the thread's groups contains element e of vector i.
  static __device__ __forceinline__ constexpr int index(int i, int e) {
    return GROUP == COLUMN ? e : GROUP == ROW && Tile::STACKED ? i : 0;
  }
  __device__ __forceinline__ void add(const Tile& tile) {
    if constexpr (SIDES == 2) {
      add_sides(tile);
    } else {
#pragma unroll
      for (int i = 0; i < Tile::COUNT; ++i)
#pragma unroll
        for (int e = 0; e < Tile::WIDTH; ++e) {
          unsigned& largest = bits[0][index(i, e)];
          largest = max(largest, magnitude_bits(tile.vectors[i].get(e)));
        }
    }
  }
  // As signed integers, the bits of positive elements are the largest; as unsigned, those of
  // negative ones.
  __device__ __forceinline__ void add_sides(const Tile& tile) {
    using In = typename Tile::Element;
    int positive[COUNT] = {};
    unsigned negative[COUNT] = {};
#pragma unroll
    for (int i = 0; i < Tile::COUNT; ++i)
#pragma unroll
      for (int e = 0; e < Tile::WIDTH; ++e) {
        const unsigned element = signed_bits(tile.vectors[i].get(e));
        const int k = index(i, e);
        positive[k] = max(positive[k], int(element));
        negative[k] = max(negative[k], element);
      }
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      const unsigned below = negative[k] >> 31 ? negative[k] & 0x7fffffffu : 0;
      bits[0][k] = max(bits[0][k], from_signed_bits<In>(unsigned(positive[k])));
      bits[1][k] = max(bits[1][k], from_signed_bits<In>(below));
    }
  }
  // The factor of the thread's group k, after a reduction.
  template <class In, class Out, class Scale>
  __device__ __forceinline__ Factor<Out, Scale> factor(int k) const {
    return Factor<Out, Scale>::of(from_magnitude_bits<In>(bits[0][k]),
                                  from_magnitude_bits<In>(bits[SIDES - 1][k]));
  }
  // Groups of rows that lie in LANES lanes each, COUNT of them: combines their maxima. Those of
  // group lane / LANES_OF_GROUP are in bits[side][0] then. At each step, a lane sends half of its
  // maxima and keeps the other half.
  static constexpr bool IN_LANES = GROUP == ROW && Tile::STACKED;
  static constexpr int LANES = Tile::COLUMN_THREADS / ACROSS, LANES_OF_GROUP = LANES / COUNT;
  __device__ __forceinline__ void reduce_by_halving() {
    static_assert(IN_LANES && LANES_OF_GROUP >= 1 && LANES <= 32);
#pragma unroll
    for (int side = 0; side < SIDES; ++side) {
      unsigned (&maxima)[COUNT] = bits[side];
      int count = COUNT;
#pragma unroll
      for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
        const bool keeps_upper = count > 1 && (threadIdx.x & lanes);
        const int half = count > 1 ? count / 2 : 0;
        count -= half;
#pragma unroll
        for (int k = 0; k < count; ++k) {
          const unsigned sent = keeps_upper ? maxima[k] : maxima[k + half];
          if (keeps_upper) maxima[k] = maxima[k + half];
          maxima[k] = max(maxima[k], __shfl_xor_sync(0xffffffffu, sent, lanes));
        }
      }
    }
  }
  // Combines the maxima of the CTA's threads. Call once in a kernel.
  __device__ __forceinline__ void reduce() {
    static_assert(GROUP != ROW || ACROSS == 1);
    // The lanes of a group differ in the bits FIRST to LAST / 2.
    constexpr int FIRST = GROUP == COLUMN ? Tile::COLUMN_THREADS : 1;
    constexpr int LAST = GROUP == ROW && Tile::COLUMN_THREADS < 32 ? Tile::COLUMN_THREADS : 32;
#pragma unroll
    for (int side = 0; side < SIDES; ++side)
#pragma unroll
      for (int k = 0; k < COUNT; ++k)
#pragma unroll
        for (int lanes = FIRST; lanes < LAST; lanes *= 2)
          bits[side][k] = max(bits[side][k], __shfl_xor_sync(0xffffffffu, bits[side][k], lanes));
    if constexpr (GROUP != ROW || Tile::COLUMN_THREADS > 32) {
      constexpr int SLOTS = GROUP == COLUMN ? Tile::COLUMNS : GROUP == ROW ? Tile::ROWS : 1;
      __shared__ unsigned slots[SIDES][SLOTS];
      const int thread = threadIdx.x, first = GROUP == COLUMN ? Tile::thread_column()
                                              : GROUP == ROW  ? Tile::thread_row()
                                                              : 0;
      constexpr int STEP = GROUP == ROW ? Tile::ROW_STEP : 1;
      for (int slot = thread; slot < SIDES * SLOTS; slot += Tile::THREADS) slots[0][slot] = 0;
      __syncthreads();
      if ((thread & (LAST - 1) & -FIRST) == 0)
#pragma unroll
        for (int side = 0; side < SIDES; ++side)
#pragma unroll
          for (int k = 0; k < COUNT; ++k) atomicMax(&slots[side][first + k * STEP], bits[side][k]);
      __syncthreads();
#pragma unroll
      for (int side = 0; side < SIDES; ++side)
#pragma unroll
        for (int k = 0; k < COUNT; ++k) bits[side][k] = slots[side][first + k * STEP];
    }
  }
};

// ---- kernels ---------------------------------------------------------------------------------

__device__ __forceinline__ long long ceil_div(long long a, int b) { return (a + b - 1) / b; }

// The scales, or zero points, of groups. `outer` counts along the rows or columns that hold the
// groups, `deep` the groups of a row or column. SWIZZLED: in tiles of 128 x 4, as the layout
// `Swizzle32x4x4`; the steps are those of tiles.
template <class Element, bool SWIZZLED> struct Scales {
  Element* data;
  long long outer_step, deep_step;  // in elements

  __device__ __forceinline__ void store(long long outer, int deep, Element element) const {
    if constexpr (SWIZZLED) {
      const int row = outer % 128;
      data[outer / 128 * outer_step + deep / 4 * deep_step + row % 32 * 16 + row / 32 * 4 +
           deep % 4] = element;
    } else
      data[outer * outer_step + deep * deep_step] = element;
  }
};

// A scale for each group. A CTA serves cta_rows x cta_columns elements, which are whole groups; the
// matrix is column_ctas of them wide. The extent across a group's direction is the tile's. TILED: a
// CTA serves one tile, with whole groups: GROUP == ROW has ACROSS of them side by side. Otherwise a
// row or column is one group, of any length. There are outer x deep scales (GROUP == BLOCK: along
// rows and columns), including those that pad tiles of swizzled scales, which are the scales of
// zeros. zeros_data: the zero points, only with HAS_ZERO, in the layout of the scales.
template <class In, class Out, class Scale, bool SWIZZLED, Group GROUP, bool TILED, int ACROSS,
          int ROW_THREADS, int COLUMN_THREADS, int COUNT, bool STACKED, bool ALIGNED>
__global__ void __launch_bounds__(ROW_THREADS* COLUMN_THREADS)
    groups(const In* x_data, Out* out_data, void* scales_data, u8* zeros_data, long long rows,
           long long columns, long long x_row_step, long long x_column_step, long long out_row_step,
           long long outer_step, long long deep_step, long long outer, int deep, long long cta_rows,
           long long cta_columns, int column_ctas) {
  using Tile = Tile<In, ROW_THREADS, COLUMN_THREADS, COUNT, STACKED, ALIGNED>;
  using Maxima = Maxima<Tile, GROUP, HAS_ZERO<Out> ? 2 : 1, ACROSS>;
  using Factor = Factor<Out, Scale>;
  const Matrix<const In> x{x_data, x_row_step, x_column_step};
  const Matrix<Out> out{out_data, out_row_step, 1};
  const int cta_row = int(blockIdx.x) / column_ctas,
            cta_column = int(blockIdx.x) - cta_row * column_ctas;
  const long long first_row = cta_row * cta_rows, first_column = cta_column * cta_columns,
                  row_end = min(rows, first_row + cta_rows),
                  column_end = min(columns, first_column + cta_columns);
  constexpr int ROWS = GROUP == COLUMN ? Tile::ROWS : 0, COLUMNS = GROUP == ROW ? Tile::COLUMNS : 0;
  const long long tiles = TILED             ? 1
                          : GROUP == COLUMN ? ceil_div(rows, Tile::ROWS)
                                            : ceil_div(columns, Tile::COLUMNS);
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
  auto store_factor = [&](long long at_outer, int at_deep, const Factor& factor) {
    // Of a row, a tile can hold fewer groups than ACROSS.
    if (at_outer >= outer || (GROUP == ROW && at_deep >= deep)) return;
    Scales<Scale, SWIZZLED>{static_cast<Scale*>(scales_data), outer_step, deep_step}.store(
        at_outer, at_deep, factor.scale);
    if constexpr (HAS_ZERO<Out>)
      Scales<u8, SWIZZLED>{zeros_data, outer_step, deep_step}.store(
          at_outer, at_deep, u8(Narrow<u8>::byte(factor.zero)));
  };
  Factor factors[Maxima::COUNT];
  if constexpr (Maxima::IN_LANES) {
    maxima.reduce_by_halving();
    const Factor own = maxima.template factor<In, Out, Scale>(0);
    constexpr int LANES = Maxima::LANES, LANES_OF_GROUP = Maxima::LANES_OF_GROUP;
    const int column_thread = threadIdx.x % COLUMN_THREADS, lane = column_thread % LANES;
    if (lane % LANES_OF_GROUP == 0)
      store_factor(first_row + Tile::thread_row() + lane / LANES_OF_GROUP * Tile::ROW_STEP,
                   cta_column * ACROSS + column_thread / LANES, own);
#pragma unroll
    for (int k = 0; k < Maxima::COUNT; ++k) {
      const int source = k * LANES_OF_GROUP;
      factors[k].inverse = __shfl_sync(0xffffffffu, own.inverse, source, LANES);
      if constexpr (HAS_ZERO<Out>)
        factors[k].zero = __shfl_sync(0xffffffffu, own.zero, source, LANES);
    }
  } else {
    maxima.reduce();
#pragma unroll
    for (int k = 0; k < Maxima::COUNT; ++k) {
      factors[k] = maxima.template factor<In, Out, Scale>(k);
      // One thread of each group stores the scale.
      if constexpr (GROUP == ROW) {
        if (Tile::thread_column() == 0)
          store_factor(first_row + Tile::thread_row() + k * Tile::ROW_STEP, cta_column, factors[k]);
      } else if constexpr (GROUP == COLUMN) {
        if (Tile::thread_row() == 0)
          store_factor(first_column + Tile::thread_column() + k, cta_row, factors[k]);
      } else {
        if (threadIdx.x == 0) store_factor(cta_row, cta_column, factors[k]);
      }
    }
  }
#pragma unroll 1
  for (long long t = tiles - 1;; tile.load(x, place(--t))) {
    tile.store(out, place(t), [&](int i, int e) { return factors[Maxima::index(i, e)]; });
    if (t == 0) break;
  }
}

// The first launch for scales of long columns: the largest magnitudes of each CTA's tiles, which
// are one below the other. partials: a row for each of the row_ctas CTAs of a column.
template <class In, int ROW_THREADS, int COLUMN_THREADS, int COUNT, bool STACKED, bool ALIGNED>
__global__ void __launch_bounds__(ROW_THREADS* COLUMN_THREADS)
    largest_of_columns(const In* x_data, f32* partials, long long rows, long long columns,
                       long long x_row_step, long long x_column_step, int row_ctas) {
  using Tile = Tile<In, ROW_THREADS, COLUMN_THREADS, COUNT, STACKED, ALIGNED>;
  const int cta_column = int(blockIdx.x) / row_ctas,
            cta_row = int(blockIdx.x) - cta_column * row_ctas;
  const long long column = (long long)cta_column * Tile::COLUMNS;
  Maxima<Tile, COLUMN> maxima;
#pragma unroll 1
  for (long long row = (long long)cta_row * Tile::ROWS; row < rows;
       row += (long long)row_ctas * Tile::ROWS) {
    Tile tile;
    tile.load({x_data, x_row_step, x_column_step}, Tile::place(row, column, rows, columns));
    maxima.add(tile);
  }
  maxima.reduce();
  if (Tile::thread_row() != 0) return;
  const long long first = column + Tile::thread_column();
#pragma unroll
  for (int e = 0; e < Tile::WIDTH; ++e)
    if (first + e < columns)
      partials[cta_row * columns + first + e] = from_magnitude_bits<In>(maxima.bits[0][e]);
}

// The second launch: each CTA quantizes a tile, the last first, since the first launch left these
// in L2.
template <class In, class Out, int ROW_THREADS, int COLUMN_THREADS, int COUNT, bool STACKED,
          bool ALIGNED>
__global__ void __launch_bounds__(ROW_THREADS* COLUMN_THREADS)
    long_columns(const In* x_data, Out* out_data, f32* scales, const f32* partials, int row_ctas,
                 long long rows, long long columns, long long x_row_step, long long x_column_step,
                 long long out_row_step, long long scale_step, int column_tiles) {
  using Tile = Tile<In, ROW_THREADS, COLUMN_THREADS, COUNT, STACKED, ALIGNED>;
  const int t = gridDim.x - 1 - blockIdx.x, row = t / column_tiles, column = t - row * column_tiles;
  const Place place =
      Tile::place((long long)row * Tile::ROWS, (long long)column * Tile::COLUMNS, rows, columns);
  Tile tile;
  tile.load({x_data, x_row_step, x_column_step}, place);
  const long long first = place.column + Tile::thread_column();
  Maxima<Tile, COLUMN> maxima;
  for (int i = Tile::thread_row(); i < row_ctas; i += ROW_THREADS)
#pragma unroll
    for (int e = 0; e < Tile::WIDTH; ++e)
      if (first + e < columns)
        maxima.bits[0][e] =
            max(maxima.bits[0][e], __float_as_uint(partials[i * columns + first + e]));
  maxima.reduce();
  Factor<Out, f32> factors[Tile::WIDTH];
#pragma unroll
  for (int e = 0; e < Tile::WIDTH; ++e) {
    factors[e] = Factor<Out, f32>::of(__uint_as_float(maxima.bits[0][e]));
    if (row == 0 && Tile::thread_row() == 0 && first + e < columns)
      scales[(first + e) * scale_step] = factors[e].scale;
  }
  tile.store(Matrix<Out>{out_data, out_row_step, 1}, place, [&](int, int e) { return factors[e]; });
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
  if (threadIdx.x == 0) partials[blockIdx.x] = from_magnitude_bits<In>(maxima.bits[0][0]);
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
    maxima.bits[0][0] = max(maxima.bits[0][0], __float_as_uint(partials[i]));
  maxima.reduce();
  const auto factor = Factor<Out, f32>::of(__uint_as_float(maxima.bits[0][0]));
  if (t == 0 && threadIdx.x == 0) *scale_data = factor.scale;
  tile.store(Matrix<Out>{out_data, out_row_step, 1}, place, [&](int, int) { return factor; });
}

}  // namespace quantize
