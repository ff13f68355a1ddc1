// The epilogue: what a kernel applies to its accumulators before it stores the output.
//
// An epilogue is a functor type with these members; `Identity` below is the smallest example, and
// src/epilogue/cuda.rs generates the others. `EpilogueContract` checks what every one has.
//   REDUCES            whether the epilogue has reductions among its outputs.
//   DUAL               whether the epilogue takes the values of a second product (dual GEMM), which
//                      apply() then has as a second array. Such an epilogue does not reduce.
//   Operands           the tensor operands of one call, in registers.
//   load()             reads the operands of one call. A kernel may call it well ahead of apply().
//   load_below()       the same for a row below: operands that repeat along m are copied from the
//                      row above, which was loaded for the same columns.
//   apply()            replaces the values, in place, by those of the main output; stores other
//                      outputs; accumulates reductions in `Folded`.
//   reduce()           reduces across the warp and stores partial results. Only if REDUCES.
//   PLAIN              whether apply() only multiplies the accumulators by row_factor() and
//                      column_factor(), if there are any. A kernel may do so itself, and call
//                      neither load() nor apply().
//   ROW_FACTORS        whether row_factor() is other than 1: the factor of row m of the program's
//                      output, inside matrix `batch`. COLUMN_FACTORS, column_factor(): the same of
//                      column n. False and 1 unless PLAIN.
//   SCALES             whether the kernel scales blocks of A and B along K while it sums up: an
//                      element x counts as (x - zero point) * scale.
//   A_ROWS, A_DEPTH    rows of the program's A, and elements along K, that share a scale; 0 if A
//                      has no scales. B_COLUMNS, B_DEPTH: the same of the program's B.
//   A_WHOLE, B_WHOLE   whether the factor's scales hold for all of K. A_DEPTH (B_DEPTH) then
//                      exceeds every K.
//   A_ZERO, B_ZERO     whether the factor has zero points.
//   scale_a(), zero_a()  scale and zero point of the block along K with this index, for row m of a
//                      matrix or group `batch`. Both lie inside A. 1 if A has no scales, 0 if it
//                      has no zero points. scale_b(), zero_b(): the same for column n of B.
//   A_LINEAR, B_LINEAR whether scales and zero points lie at equal distances along K.
//   AScale, AZero      their types in memory; f32 if there are none. Of B: BScale, BZero.
//   a_scales()         only if SCALES, for A_LINEAR: the address of the first scale of row m of a
//                      matrix or group `batch`. a_scale_step(), a_scale_stride(): the distance of
//                      the next scale along K, along m. a_zeros(), a_zero_step(), a_zero_stride():
//                      the same of zero points. b_scales() and so on: the same for column n of B.
//   result()           the number that a value of the main output stands for.
// A kernel stores encode<Out>(Epilogue::result(value)).
//
// One call covers WIDTH accumulators of row m of the program's output, starting at column n, of one
// matrix of the batch. With groups along M, `batch` is the group, and operands with the rows of all
// groups have the batch stride 0. The accumulators form runs of RUN adjacent columns; consecutive
// runs start 8 columns apart, as in the accumulator fragments of mma and wgmma. n is a multiple of
// RUN. `valid` counts the columns from n on that lie inside the output: elements at or beyond it
// are ignored. load() accepts valid <= 0 and reads nothing. Each output element is passed exactly
// once. Values are f64, f32 or s32: f16 accumulators are widened first.
#pragma once
#include "common/types.cuh"

template <class Accumulator> using EpilogueValue = decltype(decode(Accumulator{}));

// Checks the members that every epilogue has.
template <class Epilogue> struct EpilogueContract {
  template <class... Flags> static constexpr bool ARE_FLAGS = (is_same<Flags, const bool> && ...);
  static_assert(ARE_FLAGS<decltype(Epilogue::REDUCES), decltype(Epilogue::DUAL)>);
  static_assert(ARE_FLAGS<decltype(Epilogue::PLAIN), decltype(Epilogue::ROW_FACTORS),
                          decltype(Epilogue::COLUMN_FACTORS)>);
  static_assert(
      ARE_FLAGS<decltype(Epilogue::SCALES), decltype(Epilogue::A_WHOLE),
                decltype(Epilogue::B_WHOLE), decltype(Epilogue::A_ZERO), decltype(Epilogue::B_ZERO),
                decltype(Epilogue::A_LINEAR), decltype(Epilogue::B_LINEAR)>);
  static_assert(!(Epilogue::REDUCES && Epilogue::DUAL));
  static_assert(Epilogue::PLAIN || !(Epilogue::ROW_FACTORS || Epilogue::COLUMN_FACTORS));
  static_assert(Epilogue::SCALES == (Epilogue::A_DEPTH > 0 || Epilogue::B_DEPTH > 0));
  static_assert((Epilogue::A_ROWS > 0) == (Epilogue::A_DEPTH > 0));
  static_assert((Epilogue::B_COLUMNS > 0) == (Epilogue::B_DEPTH > 0));

  template <class... Functions>
  static constexpr bool ARE_FACTORS =
      (is_same<Functions, f32 (Epilogue::*)(int, int) const> && ...);
  static_assert(ARE_FACTORS<decltype(&Epilogue::row_factor), decltype(&Epilogue::column_factor)>);
  template <class... Functions>
  static constexpr bool ARE_SCALES =
      (is_same<Functions, f32 (Epilogue::*)(int, int, int) const> && ...);
  static_assert(ARE_SCALES<decltype(&Epilogue::scale_a), decltype(&Epilogue::scale_b),
                           decltype(&Epilogue::zero_a), decltype(&Epilogue::zero_b)>);
  static_assert(sizeof(typename Epilogue::AScale) > 0 && sizeof(typename Epilogue::BScale) > 0);
  static_assert(sizeof(typename Epilogue::AZero) > 0 && sizeof(typename Epilogue::BZero) > 0);
};

// Column of element e of a call, relative to the call's first column.
template <int WIDTH, int RUN> __device__ __forceinline__ constexpr int run_column(int e) {
  return RUN == WIDTH ? e : e / RUN * 8 + e % RUN;
}

// The position of a call's accumulators. If the epilogue reduces, all lanes that share a partial
// result call `finish_sums` together, including lanes outside the output (valid == 0).
struct Place {
  int batch, m, n, valid;
  // For reductions only.
  int partial_m, partial_n;  // index of the partial result, of columns along m and of rows along n
  bool own_row;              // this warp, not another one, owns the row ...
  int own_columns;           // ... and that many columns from n on
};

// Makes the e-th value depend on the value AT_A_TIME before it, which limits how many elements the
// compiler computes at once. Elements of a call are independent, so that it would otherwise
// interleave as many as registers allow. It ORs in `before & sign(valid)`; the sign bit is 0, so
// nothing changes.
// PTX ISA, "Logic and Shift Instructions".
template <int AT_A_TIME, class Value, int WIDTH>
__device__ __forceinline__ void in_turn(Value (&values)[WIDTH], int e, const Place& place) {
  if constexpr (AT_A_TIME < WIDTH) {
    static_assert(is_same<Value, f32>);
    if (e < AT_A_TIME) return;
    asm("{ .reg .b32 value, before, zero;\n mov.b32 value, %0;\n mov.b32 before, %1;\n"
        " shr.u32 zero, %2, 31;\nand.b32 before, before, zero;\n or.b32 value, value, before;\n"
        " mov.b32 %0, value; }"
        : "+f"(values[e])
        : "f"(values[e - AT_A_TIME]), "r"(place.valid));
  }
}

// Applies an epilogue to one call's values, at most AT_A_TIME elements at once. If the epilogue
// reduces, each warp reduces what its lanes hold and stores one partial result. The lanes form a
// LANES_M x LANES_N grid, adjacent along n; or each lane stores a partial result of its own (1 x 1)
// and the warp need not be converged.
template <int LANES_M, int LANES_N, int AT_A_TIME = 1024, class Epilogue, class Value, int WIDTH,
          class Operands>
__device__ __forceinline__ void finish_sums(const Epilogue& epilogue, Value (&values)[WIDTH],
                                            const Operands& operands, const Place& place) {
  static_assert(LANES_M * LANES_N == 32 || LANES_M * LANES_N == 1);
  static_assert(sizeof(EpilogueContract<Epilogue>) > 0);
  typename Epilogue::template Folded<WIDTH> folded;
  if constexpr (Epilogue::REDUCES) folded.clear();
  if (place.valid > 0) epilogue.template apply<AT_A_TIME>(values, operands, folded, place);
  if constexpr (Epilogue::REDUCES)
    epilogue.template reduce<LANES_M, LANES_N>(operands, folded, place);
}

// The same with the values of a second product.
template <int AT_A_TIME = 1024, class Epilogue, class Value, int WIDTH, class Operands>
__device__ __forceinline__ void finish_dual_sums(const Epilogue& epilogue, Value (&values)[WIDTH],
                                                 const Value (&products)[WIDTH],
                                                 const Operands& operands, const Place& place) {
  static_assert(!Epilogue::REDUCES && sizeof(EpilogueContract<Epilogue>) > 0);
  typename Epilogue::template Folded<WIDTH> folded;
  if (place.valid > 0)
    epilogue.template apply<AT_A_TIME>(values, products, operands, folded, place);
}

// No epilogue: the output is the accumulators.
struct Identity {
  static constexpr bool REDUCES = false, DUAL = false;
  static constexpr bool SCALES = false, A_LINEAR = true, B_LINEAR = true;
  static constexpr int A_ROWS = 0, A_DEPTH = 0;
  static constexpr int B_COLUMNS = 0, B_DEPTH = 0;
  static constexpr bool A_WHOLE = false, B_WHOLE = false;
  static constexpr bool A_ZERO = false, B_ZERO = false;
  using AScale = f32;
  using BScale = f32;
  using AZero = f32;
  using BZero = f32;
  static constexpr bool PLAIN = true, ROW_FACTORS = false, COLUMN_FACTORS = false;
  __device__ __forceinline__ f32 row_factor(int batch, int m) const { return 1.0f; }
  __device__ __forceinline__ f32 column_factor(int batch, int n) const { return 1.0f; }
  __device__ __forceinline__ f32 scale_a(int batch, int m, int block) const { return 1.0f; }
  __device__ __forceinline__ f32 scale_b(int batch, int n, int block) const { return 1.0f; }
  __device__ __forceinline__ f32 zero_a(int batch, int m, int block) const { return 0.0f; }
  __device__ __forceinline__ f32 zero_b(int batch, int n, int block) const { return 0.0f; }

  template <int WIDTH, int RUN> struct Operands {};
  template <int WIDTH> struct Folded {};

  template <int WIDTH, int RUN>
  __device__ __forceinline__ void load(Operands<WIDTH, RUN>& operands, int batch, int m, int n,
                                       int valid) const {}

  template <int WIDTH, int RUN>
  __device__ __forceinline__ void load_below(Operands<WIDTH, RUN>& operands,
                                             const Operands<WIDTH, RUN>& above, int batch, int m,
                                             int n, int valid) const {}

  template <int AT_A_TIME, class Value, int WIDTH, int RUN>
  __device__ __forceinline__ void apply(Value (&values)[WIDTH],
                                        const Operands<WIDTH, RUN>& operands, Folded<WIDTH>& folded,
                                        const Place& place) const {}

  // The value itself; in generated epilogues of integer accumulators, a float may be bit-cast to
  // s32.
  template <class Value> static __device__ __forceinline__ Value result(Value value) {
    return value;
  }
};
