// Packs a GEMM's operands: copies them into workspace, with contiguous and 16-byte aligned rows, as
// TMA requires.
//
// One launch copies both operands, since a launch costs more than a small copy. The grid covers the
// tiles of operands[0], then those of operands[1]. For each operand, `rows` rows of `columns`
// elements are written, one matrix of the batch after the other. The caller chooses which dimension
// of the GEMM runs along the columns. The source may have any strides:
//   contiguous along columns  aligned 16-byte loads, shifted into place in registers
//   contiguous along rows     the same loads, then a transposition in shared memory
//   otherwise                 element by element
// No byte outside the source's first and last element is read. Padding of a destination row up to
// the next 16 bytes is undefined: the tensor map holds the extents, so TMA reads zeros there.
#pragma once
#include "common/cluster.cuh"
#include "common/field.cuh"
#include "common/vector.cuh"

// Mirrored field by field in the Rust core (src/kernel/pack.rs).
struct PackOperand {
  const void* source;
  void* destination;           // 16-byte aligned
  long long source_stride[3];  // along batch, row, column; in elements, not negative
  long long pitch;             // between destination rows; in bytes, a multiple of 16
  long long batch_pitch;       // between destination matrices; in bytes, a multiple of 16
  int rows, columns, batch;
  int tiles;  // of one matrix: see PackSide
};
struct PackParams { PackOperand operands[2]; };  // batch is 0 for an operand that is not packed
static_assert(sizeof(PackParams) == 144);
RUTLASS_FIELD(PackOperand, source_stride, 16);
RUTLASS_FIELD(PackOperand, pitch, 40);
RUTLASS_FIELD(PackOperand, rows, 56);

// The copy of one operand, whose elements have SIZE bytes: 1, 2, 4 or 8.
template <int SIZE> struct PackSide {
  static constexpr int THREADS = 256;
  static constexpr int PER_VECTOR = 16 / SIZE;
  static constexpr int COUNT = 4;  // vectors in flight per thread
  // A tile of a copy is COPY_VECTORS vectors of 16 bytes, counted row by row:
  //   tiles = ceil(rows * ceil(columns * SIZE / 16) / 1024).
  static constexpr int COPY_VECTORS = THREADS * COUNT;
  // A tile of a transposition is 128 bytes of 128 lines of the source, where a line is contiguous:
  //   tiles = ceil(rows * SIZE / 128) * ceil(columns / 128).
  static constexpr int LINE_VECTORS = 8, LINES = COPY_VECTORS / LINE_VECTORS,
                       LINE = LINE_VECTORS * PER_VECTOR;
  static constexpr int SMEM_BYTES = COPY_VECTORS * 16;  // of static shared memory

  using Element = typename BitsOf<SIZE>::Type;

  static __device__ __forceinline__ void run(const PackOperand& operand, int index) {
    const int batch = index / operand.tiles, tile = index - batch * operand.tiles;
    const long long batch_bytes = operand.source_stride[0] * SIZE;
    const char* first = static_cast<const char*>(operand.source);
    const long long row_step = operand.source_stride[1] * SIZE,
                    column_step = operand.source_stride[2] * SIZE;
    const char* last = first + batch_bytes * (operand.batch - 1) + row_step * (operand.rows - 1) +
                       column_step * (operand.columns - 1) + SIZE;
    const char* source = first + batch_bytes * batch;
    char* destination = static_cast<char*>(operand.destination) + operand.batch_pitch * batch;
    if (column_step != SIZE && row_step == SIZE)
      transpose(operand, source, destination, tile, column_step, first, last);
    else
      copy(operand, source, destination, tile, row_step, column_step, first, last);
  }

  static __device__ __forceinline__ void copy(const PackOperand& operand, const char* source,
                                              char* destination, int tile, long long row_step,
                                              long long column_step, const char* first,
                                              const char* last) {
    const int per_row = (operand.columns + PER_VECTOR - 1) / PER_VECTOR;  // vectors
    const int vector = tile * COPY_VECTORS + threadIdx.x;
    int row = vector / per_row, at = vector - row * per_row;
    const int next_row = THREADS / per_row, next_at = THREADS - next_row * per_row;

    const char* from[COUNT];
    char* to[COUNT];
    int left[COUNT];  // elements up to the row's end; 0 beyond the last row
    bool whole[COUNT];
    LooseVector vectors[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      from[i] = source + row_step * row + column_step * (at * PER_VECTOR);
      to[i] = destination + operand.pitch * row + at * 16;
      left[i] = row < operand.rows ? operand.columns - at * PER_VECTOR : 0;
      whole[i] = left[i] > 0 && column_step == SIZE && LooseVector::fits(from[i], first, last);
      row += next_row;
      at += next_at;
      if (at >= per_row) at -= per_row, ++row;
      if (whole[i]) vectors[i].load(from[i]);
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      if (whole[i]) ptx::store_global(to[i], vectors[i].get(from[i]));
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (whole[i]) continue;
      const int count = min(left[i], PER_VECTOR);
#pragma unroll 1
      for (int e = 0; e < count; ++e)
        reinterpret_cast<Element*>(to[i])[e] =
            *reinterpret_cast<const Element*>(from[i] + column_step * e);
    }
  }

  // The offset in shared memory of vector `at` of a line, swizzled: lines that are read together
  // keep this vector in different banks.
  static __device__ __forceinline__ int place(int line, int at) {
    const int swizzle = SIZE == 1   ? (line & 1) | (line >> 3 & 6)
                        : SIZE == 2 ? (line & 1) | (line >> 2 & 6)
                        : SIZE == 4 ? line >> 1 & 6
                                    : line << 1 & 4;
    return line * (LINE_VECTORS * 16) + ((at ^ swizzle) << 4);
  }

  // Lines of the source, contiguous along rows, become columns of the destination.
  static __device__ __forceinline__ void transpose(const PackOperand& operand, const char* source,
                                                   char* destination, int tile, long long line_step,
                                                   const char* first, const char* last) {
    __shared__ __align__(128) unsigned char shared_memory[SMEM_BYTES];
    const unsigned shared = ptx::shared_address(shared_memory);
    const int across = (operand.rows + LINE - 1) / LINE;
    const int start_row = tile % across * LINE, start_line = tile / across * LINES;
    {
      const int at = threadIdx.x % LINE_VECTORS, line = threadIdx.x / LINE_VECTORS;
      const int row = start_row + at * PER_VECTOR;
      const char* from[COUNT];
      bool inside[COUNT], whole[COUNT];
      LooseVector vectors[COUNT];
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        const int column = start_line + line + i * (THREADS / LINE_VECTORS);
        from[i] = source + line_step * column + row * SIZE;
        inside[i] = row < operand.rows && column < operand.columns;
        whole[i] = inside[i] && LooseVector::fits(from[i], first, last);
        if (whole[i]) vectors[i].load(from[i]);
      }
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        const int target = place(line + i * (THREADS / LINE_VECTORS), at);
        if (whole[i])
          ptx::store_shared(shared + target, vectors[i].get(from[i]));
        else if (inside[i]) {
#pragma unroll 1
          for (int e = 0; e < min(PER_VECTOR, operand.rows - row); ++e)
            reinterpret_cast<Element*>(shared_memory + target)[e] =
                reinterpret_cast<const Element*>(from[i])[e];
        }
      }
    }
    __syncthreads();

    // A warp's unit: 8 destination rows of 64 bytes (16 rows if SIZE == 1), one vector per lane.
    constexpr int UNIT_ROWS = SIZE == 1 ? 16 : 8, UNIT_LINES = 4 * PER_VECTOR;
    constexpr int UNITS_ALONG = LINES / UNIT_LINES, UNITS = LINE / UNIT_ROWS * UNITS_ALONG;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll(SIZE == 1 ? 1 : UNITS / 8)
    for (int unit = warp; unit < UNITS; unit += THREADS / 32) {
      const int unit_row = unit / UNITS_ALONG * UNIT_ROWS,
                unit_line = unit % UNITS_ALONG * UNIT_LINES;
      const int group = SIZE <= 2 ? lane / 4 : lane % 8, column = SIZE <= 2 ? lane % 4 : lane / 8;
      const int line = unit_line + column * PER_VECTOR;  // this lane's first
      auto put = [&](int row, const unsigned (&words)[4]) {
        if (start_row + row < operand.rows && start_line + line < operand.columns)
          ptx::store_global(
              destination + operand.pitch * (start_row + row) + (start_line + line) * SIZE,
              ptx::Vector{{words[0], words[1], words[2], words[3]}});
      };
      if constexpr (SIZE <= 2) {
        // Row r of matrix q is line (r / 2) * PER_VECTOR + 2 q + r % 2. After the transposition,
        // word q of lane 4 g + j holds two adjacent elements of the lane's own 16 bytes. Single
        // bytes are transposed as pairs along the rows and sorted afterwards.
        const int matrix = lane / 8, r = lane % 8;
        const int my_line = unit_line + r / 2 * PER_VECTOR + 2 * matrix + r % 2;
        unsigned words[4];
        ptx::load_matrices<true>(words, shared + place(my_line, unit_row / PER_VECTOR));
        if constexpr (SIZE == 2)
          put(unit_row + group, words);
        else {
          unsigned more[4], even[4], odd[4];
          ptx::load_matrices<true>(more, shared + place(my_line + 8, unit_row / PER_VECTOR));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            even[i] = ptx::permute_bytes<0x6420>(words[2 * i], words[2 * i + 1]);
            odd[i] = ptx::permute_bytes<0x7531>(words[2 * i], words[2 * i + 1]);
            even[i + 2] = ptx::permute_bytes<0x6420>(more[2 * i], more[2 * i + 1]);
            odd[i + 2] = ptx::permute_bytes<0x7531>(more[2 * i], more[2 * i + 1]);
          }
          put(unit_row + 2 * group, even);
          put(unit_row + 2 * group + 1, odd);
        }
      } else {
        const int row = unit_row + group;
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < PER_VECTOR; ++i) {
          unsigned element[SIZE / 4];
          ptx::load_shared(element,
                           shared + place(line + i, row / PER_VECTOR) + row % PER_VECTOR * SIZE);
#pragma unroll
          for (int w = 0; w < SIZE / 4; ++w) words[i * (SIZE / 4) + w] = element[w];
        }
        put(row, words);
      }
    }
  }
};

// The kernel for elements of SIZE_A and SIZE_B bytes. The grid has one dimension, the sum of
// batch * tiles over both operands.
template <int SIZE_A, int SIZE_B> struct Pack {
  static constexpr int THREADS = 256, MIN_CTAS = SIZE_A == 1 || SIZE_B == 1 ? 2 : 3,
                       SMEM_BYTES = 0;  // of dynamic shared memory

  static __device__ __forceinline__ void run(const PackParams& params) {
    ptx::launch_dependent_grids();
    ptx::wait_for_prior_grids();
    const int tiles_a = params.operands[0].batch * params.operands[0].tiles;
    const bool is_a = int(blockIdx.x) < tiles_a;
    const int index = is_a ? blockIdx.x : blockIdx.x - tiles_a;
    if constexpr (SIZE_A == SIZE_B)
      PackSide<SIZE_A>::run(params.operands[!is_a], index);
    else if (is_a)
      PackSide<SIZE_A>::run(params.operands[0], index);
    else
      PackSide<SIZE_B>::run(params.operands[1], index);
  }
};
