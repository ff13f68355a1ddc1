// Elementwise addition: out = epilogue(a + b), for any element type and any strides, including 0.
// Bound by memory bandwidth.
//
// A chunk is WIDTH adjacent elements along the last dimension, 16 bytes. Adjacent threads process
// adjacent chunks. Rows that are contiguous in all tensors move 16 bytes at a time:
//   ALIGNED  all rows are aligned: a thread loads COUNT chunks of both operands before it adds.
//   LOOSE    otherwise: chunks start where `out` is aligned, and loads are shifted in registers.
// Ends of rows and other strides are processed by element. `a` or `b` may be `out` itself: the same
// thread reads an element before it writes it.
#pragma once
#include "common/epilogue.cuh"
#include "common/field.cuh"
#include "common/fusion.cuh"
#include "common/types.cuh"
#include "common/vector.cuh"

// Mirrored field by field in the Rust core (src/kernel/elementwise/launch.rs). Without an epilogue,
// the host merges dimensions and orders them by the strides of `out`, so that a contiguous tensor
// is one row.
struct ElementwiseParams {
  const void* a;
  const void* b;
  void* out;
  long long a_stride[3];  // along batch, m, n; in elements
  long long b_stride[3];
  long long out_stride[3];
  long long a_bytes;  // extent in memory, from the first to the last element
  long long b_bytes;
  long long n;
  long long chunks;   // of one row: ceil(n / WIDTH), or one more if LOOSE
  long long step_at;  // THREADS chunks are step_row rows and step_at chunks
  int step_row;
  int m;        // rows of one matrix
  int rows;     // of all matrices of the batch
  int vectors;  // 0: rows are not contiguous in all tensors; else ALIGNED or LOOSE

  static constexpr int ALIGNED = 1, LOOSE = 2;
};
static_assert(sizeof(ElementwiseParams) == 152);
RUTLASS_FIELD(ElementwiseParams, a_stride, 24);
RUTLASS_FIELD(ElementwiseParams, a_bytes, 96);
RUTLASS_FIELD(ElementwiseParams, step_row, 136);

// Walks a thread's chunks, which are THREADS chunks apart.
struct ElementwiseCursor {
  int row;
  long long at;  // chunk of the row

  __device__ __forceinline__ ElementwiseCursor(const ElementwiseParams& params, long long chunk)
      : row(0), at(chunk) {
    if (params.rows == 1) return;
    // Divide in 32 bits if possible: a 64-bit division takes about a hundred instructions.
    row = (chunk | params.chunks) >> 32 ? int(chunk / params.chunks)
                                        : int(unsigned(chunk) / unsigned(params.chunks));
    at = chunk - row * params.chunks;
  }
  __device__ __forceinline__ void advance(const ElementwiseParams& params) {
    row += params.step_row;
    at += params.step_at;
    if (at >= params.chunks) at -= params.chunks, ++row;
  }
};

template <class Element, class Accumulator, class Epilogue> struct ElementwiseAdd {
  static constexpr int THREADS = 256, SMEM_BYTES = 0;
  static constexpr int WIDTH = 16 / int(sizeof(Element));
  // Chunks in flight, to hide memory latency: at 64 registers per thread, a multiprocessor holds
  // 1024 threads with 128 bytes in flight each.
  static constexpr int COUNT = 4;
  static constexpr int TILE = THREADS * COUNT * WIDTH;  // elements of a CTA
  static constexpr int MIN_CTAS = is_same<Epilogue, Identity> ? 4 : 2;

  using Value = EpilogueValue<Accumulator>;
  using Chunk = VectorOf<Element>;

  // The position of a chunk, and how many of its elements lie inside the row; 0 beyond the last
  // row.
  struct Place {
    int batch, m, valid;
    long long n;

    __device__ __forceinline__ Place(const ElementwiseParams& params,
                                     const ElementwiseCursor& cursor)
        : n(cursor.at * WIDTH) {
      batch = params.rows > params.m ? cursor.row / params.m : 0;
      m = cursor.row - batch * params.m;
      int most = WIDTH;
      if (params.vectors == ElementwiseParams::LOOSE) {
        // The first chunk ends where `out` is aligned.
        const long long row = params.out_stride[0] * batch + params.out_stride[1] * m;
        const int before =
            unsigned(reinterpret_cast<unsigned long long>(params.out) / sizeof(Element) + row) %
            WIDTH;
        if (cursor.at == 0)
          most -= before;
        else
          n -= before;
      }
      const long long left = cursor.row < params.rows ? params.n - n : 0;
      valid = left <= 0 ? 0 : left < most ? int(left) : most;
    }
    __device__ __forceinline__ long long offset(const long long (&stride)[3]) const {
      return stride[0] * batch + stride[1] * m + stride[2] * n;
    }
    __device__ __forceinline__ bool aligned(const ElementwiseParams& params) const {
      return valid == WIDTH && params.vectors == ElementwiseParams::ALIGNED;
    }
    // Whether the chunk of both operands can be read with unaligned 16-byte loads.
    __device__ __forceinline__ bool loose(const ElementwiseParams& params) const {
      return valid == WIDTH && params.vectors == ElementwiseParams::LOOSE &&
             fits(params.a, params.a_bytes, offset(params.a_stride)) &&
             fits(params.b, params.b_bytes, offset(params.b_stride));
    }
    static __device__ __forceinline__ bool fits(const void* operand, long long bytes,
                                                long long offset) {
      const char* begin = static_cast<const char*>(operand);
      return LooseVector::fits(begin + offset * int(sizeof(Element)), begin, begin + bytes);
    }
  };

  static __device__ __forceinline__ Chunk sum(const Chunk& left, const Chunk& right,
                                              const Place& place, Epilogue epilogue) {
    Value values[WIDTH];
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
      values[e] = fused::add(Value(decode(left.get(e))), Value(decode(right.get(e))));
    typename Epilogue::template Operands<WIDTH, WIDTH> operands;
    epilogue.load(operands, place.batch, place.m, int(place.n), place.valid);
    finish_sums<1, 1>(epilogue, values, operands,
                      {place.batch, place.m, int(place.n), place.valid});
    Chunk result{};
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) result.put(e, encode<Element>(Epilogue::result(values[e])));
    return result;
  }

  static __device__ __forceinline__ void run(const ElementwiseParams& params, Epilogue epilogue) {
    const Element* a = static_cast<const Element*>(params.a);
    const Element* b = static_cast<const Element*>(params.b);
    Element* out = static_cast<Element*>(params.out);
    const ElementwiseCursor first(params, (long long)blockIdx.x * (THREADS * COUNT) + threadIdx.x);

    Chunk left[COUNT], right[COUNT];
    ElementwiseCursor cursor = first;
#pragma unroll
    for (int i = 0; i < COUNT; ++i, cursor.advance(params)) {
      const Place place(params, cursor);
      if (!place.aligned(params)) continue;
      left[i].load(a + place.offset(params.a_stride));
      right[i].load(b + place.offset(params.b_stride));
    }
    cursor = first;
#pragma unroll
    for (int i = 0; i < COUNT; ++i, cursor.advance(params)) {
      const Place place(params, cursor);
      if (place.aligned(params))
        sum(left[i], right[i], place, epilogue).store(out + place.offset(params.out_stride));
    }
    if (params.vectors == ElementwiseParams::ALIGNED && params.n % WIDTH == 0) return;
    cursor = first;
#pragma unroll 1
    for (int i = 0; i < COUNT; ++i, cursor.advance(params)) {
      const Place place(params, cursor);
      if (place.valid == 0 || place.aligned(params)) continue;
      const Element* from_a = a + place.offset(params.a_stride);
      const Element* from_b = b + place.offset(params.b_stride);
      Element* to = out + place.offset(params.out_stride);
      Chunk one{}, other{};
      const bool loose = place.loose(params);
      if (loose) {
        const char *first = reinterpret_cast<const char*>(from_a),
                   *second = reinterpret_cast<const char*>(from_b);
        LooseVector vectors[2];
        vectors[0].load(first);
        vectors[1].load(second);
        one.vector = vectors[0].get(first);
        other.vector = vectors[1].get(second);
      } else {
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) {
          if (e >= place.valid) break;
          one.put(e, from_a[params.a_stride[2] * e]);
          other.put(e, from_b[params.b_stride[2] * e]);
        }
      }
      const Chunk result = sum(one, other, place, epilogue);
      if (loose)
        result.store(to);
      else {
#pragma unroll
        for (int e = 0; e < WIDTH; ++e)
          if (e < place.valid) to[params.out_stride[2] * e] = result.get(e);
      }
    }
  }
};
