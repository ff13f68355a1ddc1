// What happens to sums of products before they are stored.
//
// An epilogue is a functor. A kernel calls it with WIDTH sums of one row of its row-major output: row m, from column n on, of one
// matrix of the batch. They are runs of RUN neighbours, and where there are several runs, each begins 8 columns after the one
// before: so the lanes of a warp hold the sums of a matrix instruction. `valid` is how many columns from n on lie inside the output (at
// least one); sums further away are no part of it. n is a multiple of RUN. Each element is passed exactly once. The functor
// replaces the values, in place, by those of the output, reads what else it needs, and writes what further outputs there are. A kernel
// stores `encode<Out>(Epilogue::result(value))`. Values are f64, f32 or s32: sums kept in f16 are widened first.
//
// Where a kernel has something else to do meanwhile, it calls `load` first, which gets what one call reads into registers. `valid` may
// be 0 or less there: then nothing is read.
#pragma once
#include "common/types.cuh"

template <class Accumulator> using EpilogueValue = decltype(decode(Accumulator{}));

// Where element e of a call lies, in columns from the first.
template <int WIDTH, int RUN> __device__ __forceinline__ constexpr int run_column(int e) {
  return RUN == WIDTH ? e : e / RUN * 8 + e % RUN;
}

struct Identity {
  template <int WIDTH, int RUN> struct Operands {};
  template <int WIDTH, int RUN>
  __device__ __forceinline__ void load(Operands<WIDTH, RUN>& operands, int batch, int m, int n, int valid) const {}

  template <class Value, int WIDTH, int RUN>
  __device__ __forceinline__ void operator()(Value (&values)[WIDTH], const Operands<WIDTH, RUN>& operands, int batch, int m, int n,
                                             int valid) const {}
  // The same, for a single run, loading by itself.
  template <class Value, int WIDTH>
  __device__ __forceinline__ void operator()(Value (&values)[WIDTH], int batch, int m, int n, int valid) const {}

  // The number that a value stands for: itself, or a float whose bits were put where an s32 was.
  template <class Value> static __device__ __forceinline__ Value result(Value value) { return value; }
};
