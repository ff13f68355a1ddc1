// The row kernel: computes a prologue, one CTA for each row of A, and stores the activations that
// the product behind it multiplies.
//
// A prologue is a functor type with these members; src/epilogue/cuda_prologue.rs generates it.
//   WIDTH              elements that a thread loads at once: a vector.
//   KEPT               vectors that a thread keeps in registers from the first pass to the last.
//                      Vectors beyond these are read again in each pass.
//   Activation         the type of the activations.
//   PASSES             passes over the row that reduce over K. A pass may read what the passes
//                      before it have reduced.
//   REDUCTIONS<PASS>   reductions of a pass.
//   Row                the numbers of a row that passes have computed.
//   Inputs             a vector of A and of the other tensors, in registers.
//   load<PASS>()       reads what a pass needs; PASS == PASSES: what apply() needs; ALL: both.
//   fold<PASS>()       accumulates the reductions of a pass. identity(), combine(): the operations.
//   finish<PASS>()     the numbers of a row from its reductions over K, of `depth` elements.
//   apply()            the activations of a vector; stores further outputs.
//   store_numbers()    stores outputs that are one number for the row.
#pragma once
#include "common/cluster.cuh"
#include "common/field.cuh"
#include "common/fusion.cuh"

// Mirrored field by field in the Rust core (src/kernel/rows.rs).
struct RowsParams {
  void* activations;
  long long pitch;  // of the rows of activations, in elements: a multiple of 16
  int rows;         // of one matrix of the batch
  int depth;        // K
  int chunks;       // CTAs of a row: 1 if the prologue reduces
  int padding;
};
static_assert(sizeof(RowsParams) == 32);
RUTLASS_FIELD(RowsParams, pitch, 8);
RUTLASS_FIELD(RowsParams, depth, 20);

// A number as an activation. Integers round to nearest even; they and float8 saturate. NaN becomes
// 0 in integers.
template <class To> __device__ __forceinline__ To round_to_activation(f32 x) {
  if constexpr (class_of<To> == ElementClass::INTEGER8) {
    constexpr int LEAST = is_same<To, u8> ? 0 : -128;
    return static_cast<To>(min(max(__float2int_rn(x), LEAST), LEAST + 255));
  } else if constexpr (class_of<To> == ElementClass::FLOAT8) {
    constexpr f32 LARGEST = is_same<To, e4m3> ? 448.0f : 57344.0f;
    return encode<To>(fused::maximum(fused::minimum(x, LARGEST), -LARGEST));
  } else
    return encode<To>(x);
}

template <class Prologue> struct Rows {
  // Most threads of a CTA. The host passes fewer for short rows.
  static constexpr int THREADS = 512, WARPS = THREADS / 32;
  static constexpr int WIDTH = Prologue::WIDTH, PASSES = Prologue::PASSES, ALL = -1;
  using Inputs = typename Prologue::Inputs;
  using Row = typename Prologue::Row;
  static constexpr int KEPT = Prologue::KEPT;

  const RowsParams& params;
  const Prologue& prologue;
  int row, batch, m, first, step, vectors;

  static __device__ __forceinline__ void run(const RowsParams& params, const Prologue& prologue) {
    // First, so that the CTAs of the product start on idle multiprocessors and prefetch weights.
    // They read nothing that this kernel writes before their griddepcontrol.wait, which lasts until
    // this grid is complete (PTX ISA, "griddepcontrol").
    ptx::launch_dependent_grids();
    // Until the preceding grid is complete. It may write A. It may also be a product that reads the
    // activations of an earlier launch from the same memory. Grids before it are complete as well:
    // no grid of a product completes before its own wait, for the grid in front of it, has.
    ptx::wait_for_prior_grids();
    const int row = blockIdx.x / params.chunks, chunk = blockIdx.x - row * params.chunks;
    const int batch = row / params.rows, threads = blockDim.x;
    Rows rows{params,
              prologue,
              row,
              batch,
              row - batch * params.rows,
              chunk * threads + int(threadIdx.x),
              params.chunks * threads,
              (params.depth + WIDTH - 1) / WIDTH};
    rows.compute(chunk == 0 && threadIdx.x == 0);
  }

  __device__ __forceinline__ void compute(bool stores_numbers) const {
    Inputs kept[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; ++i)
      if (first + i * step < vectors) load<ALL>(kept[i], first + i * step);
    Row numbers{};
    reduce<0>(kept, numbers);
    if (stores_numbers) prologue.store_numbers(numbers, batch, m);
#pragma unroll
    for (int i = 0; i < KEPT; ++i)
      if (first + i * step < vectors) store(kept[i], numbers, first + i * step);
#pragma unroll 1
    for (int vector = first + KEPT * step; vector < vectors; vector += step) {
      Inputs inputs;
      load<PASSES>(inputs, vector);
      store(inputs, numbers, vector);
    }
  }

  __device__ __forceinline__ int valid(int vector) const {
    return min(WIDTH, params.depth - vector * WIDTH);
  }

  template <int PASS> __device__ __forceinline__ void load(Inputs& inputs, int vector) const {
    prologue.template load<PASS>(inputs, batch, m, vector * WIDTH, valid(vector));
  }

  // The passes from PASS on. The order of a sum depends on K and the CTA's threads alone: the
  // elements of a thread, the lanes of a warp, the warps.
  template <int PASS>
  __device__ __forceinline__ void reduce(const Inputs (&kept)[KEPT], Row& numbers) const {
    if constexpr (PASS < PASSES) {
      constexpr int COUNT = Prologue::template REDUCTIONS<PASS>;
      __shared__ f32 of_warps[COUNT][WARPS];
      f32 folded[COUNT];
#pragma unroll
      for (int i = 0; i < COUNT; ++i) folded[i] = Prologue::template identity<PASS>(i);
#pragma unroll
      for (int i = 0; i < KEPT; ++i) {
        const int vector = first + i * step;
        if (vector < vectors) prologue.template fold<PASS>(folded, kept[i], numbers, valid(vector));
      }
#pragma unroll 1
      for (int vector = first + KEPT * step; vector < vectors; vector += step) {
        Inputs inputs;
        load<PASS>(inputs, vector);
        prologue.template fold<PASS>(folded, inputs, numbers, valid(vector));
      }
      const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        combine_lanes<PASS>(i, folded[i]);
        if (lane == 0) of_warps[i][threadIdx.x / 32] = folded[i];
      }
      __syncthreads();
      // Each warp combines the results of all, so that each thread has the numbers of the row.
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        folded[i] = lane < warps ? of_warps[i][lane] : Prologue::template identity<PASS>(i);
        combine_lanes<PASS>(i, folded[i]);
      }
      prologue.template finish<PASS>(numbers, folded, f32(params.depth));
      reduce<PASS + 1>(kept, numbers);
    }
  }

  template <int PASS>
  static __device__ __forceinline__ void combine_lanes(int reduction, f32& value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      value = Prologue::template combine<PASS>(reduction, value,
                                               __shfl_xor_sync(0xffffffffu, value, distance));
  }

  // Stores a vector of activations; those beyond K, in the padding of the row, are 0.
  __device__ __forceinline__ void store(const Inputs& inputs, const Row& numbers,
                                        int vector) const {
    using Activation = typename Prologue::Activation;
    using Vector = RowElements<Activation, WIDTH, WIDTH>;
    const int inside = valid(vector);
    f32 values[WIDTH];
    prologue.apply(values, inputs, numbers, Place{batch, m, vector * WIDTH, inside});
    Vector rounded;
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
      rounded.elements[e] = e < inside ? round_to_activation<Activation>(values[e]) : Activation{};
    Activation* const at =
        static_cast<Activation*>(params.activations) + params.pitch * row + vector * WIDTH;
#pragma unroll
    for (int word = 0; word < Vector::WORDS; ++word)
      *reinterpret_cast<typename Vector::Type*>(at + Vector::column(word)) = rounded.words[word];
  }
};
