// What happens to sums of products before they are stored.
//
// An epilogue is a functor. A kernel applies it, through `finish_sums`, to WIDTH sums of one row of its row-major output: row m, from
// column n on, of one matrix of the batch. They are runs of RUN neighbours, and where there are several runs, each begins 8 columns
// after the one before: so the lanes of a warp hold the sums of a matrix instruction. `valid` is how many columns from n on lie inside
// the output (at least one); sums further away are no part of it. n is a multiple of RUN. Each element is passed exactly once. The
// functor replaces the values, in place, by those of the output, reads what else it needs, and writes what further outputs there are.
// A kernel stores `encode<Out>(Epilogue::result(value))`. Values are f64, f32 or s32: sums kept in f16 are widened first.
//
// Before, it calls `load`, which gets what one call reads into registers. `valid` may be 0 or less there: then nothing is read. In
// place of it, `load_below` takes what repeats along m from what was loaded for a row above, for the same columns.
#pragma once
#include "common/types.cuh"

template <class Accumulator> using EpilogueValue = decltype(decode(Accumulator{}));

// Where element e of a call lies, in columns from the first.
template <int WIDTH, int RUN> __device__ __forceinline__ constexpr int run_column(int e) {
  return RUN == WIDTH ? e : e / RUN * 8 + e % RUN;
}

// Where the sums of a call lie. Behind an epilogue that reduces, all lanes that share a partial result call `finish_sums` together, those
// outside the output included (`valid` 0).
struct Place {
  int batch, m, n, valid;
  // What only epilogues that reduce look at: the partial results' place along m (of columns) and n (of rows), and whether this row, and
  // how many columns from n on, are the warp's own; some are another's.
  int part_m, part_n;
  bool own_row;
  int own_columns;
};

// Makes the e-th value of a call wait until the one AT_A_TIME before it has been computed, by an instruction that changes nothing: it
// brings in what that value and the sign of `place.valid`, which is positive, have in common. To the compiler the elements of a call are
// independent, and it would compute as many at a time as registers allow. PTX ISA, "Logic and Shift Instructions".
template <int AT_A_TIME, class Value, int WIDTH>
__device__ __forceinline__ void in_turn(Value (&values)[WIDTH], int e, const Place& place) {
  if constexpr (AT_A_TIME < WIDTH) {
    static_assert(is_same<Value, f32>);
    if (e < AT_A_TIME) return;
    asm("{ .reg .b32 value, before, zero;\n mov.b32 value, %0;\n mov.b32 before, %1;\n shr.u32 "
        "zero, %2, 31;\n"
        "and.b32 before, before, zero;\n or.b32 value, value, before;\n mov.b32 %0, value; }"
        : "+f"(values[e])
        : "f"(values[e - AT_A_TIME]), "r"(place.valid));
  }
}

// Calls an epilogue, which computes AT_A_TIME elements of the call at the same time, or as many as there are. If it reduces, what the
// lanes have together is reduced, and stored as one partial result: lanes lie along m and n, LANES_M by LANES_N, neighbours along n; or
// each has a partial result to itself (1 by 1), and then need not be called together.
template <int LANES_M, int LANES_N, int AT_A_TIME = 1024, class Epilogue, class Value, int WIDTH,
          class Operands>
__device__ __forceinline__ void finish_sums(const Epilogue& epilogue, Value (&values)[WIDTH],
                                            const Operands& operands, const Place& place) {
  static_assert(LANES_M * LANES_N == 32 || LANES_M * LANES_N == 1);
  typename Epilogue::template Folded<WIDTH> folded;
  if constexpr (Epilogue::REDUCES) folded.clear();
  if (place.valid > 0) epilogue.template apply<AT_A_TIME>(values, operands, folded, place);
  if constexpr (Epilogue::REDUCES)
    epilogue.template reduce<LANES_M, LANES_N>(operands, folded, place);
}

struct Identity {
  static constexpr bool REDUCES = false;
  template <int WIDTH, int RUN> struct Operands {};
  template <int WIDTH> struct Folded {};

  template <int WIDTH, int RUN> __device__ __forceinline__ void load(Operands<WIDTH, RUN>& operands,
                                                                     int batch, int m, int n,
                                                                     int valid) const {}

  template <int WIDTH, int RUN>
  __device__ __forceinline__ void load_below(Operands<WIDTH, RUN>& operands,
                                             const Operands<WIDTH, RUN>& above, int batch, int m,
                                             int n, int valid) const {}

  template <int AT_A_TIME, class Value, int WIDTH, int RUN>
  __device__ __forceinline__ void apply(Value (&values)[WIDTH],
                                        const Operands<WIDTH, RUN>& operands, Folded<WIDTH>& folded,
                                        const Place& place) const {}

  // The number that a value stands for: itself, or a float whose bits were put where an s32 was.
  template <class Value> static __device__ __forceinline__ Value result(Value value) {
    return value;
  }
};
