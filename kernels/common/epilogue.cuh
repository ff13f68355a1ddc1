// What happens to sums of products before they are stored.
//
// An epilogue is a functor. A kernel calls it with WIDTH neighbouring sums of one row of its row-major output: row m, columns
// n to n + WIDTH - 1 of one matrix of the batch, of which the first `valid` (at least one) lie inside the output. n is a
// multiple of WIDTH. Each element is passed exactly once. The functor replaces the values, in place, by those of the output, reads
// what else it needs, and writes what further outputs there are. A kernel stores `encode<Out>(Epilogue::result(value))`.
// Values are f64, f32 or s32: sums kept in f16 are widened first.
//
// Where a kernel has something else to do meanwhile, it brings what the functor reads nearer in two steps: `prefetch` asks for a whole
// tile (`rows` by `columns` from (m, n) on, all inside the output, the work shared by THREADS threads), and `load` gets what one call
// takes, into registers. Nothing may be inside the output there (`valid` 0 or less): then nothing is read.
#pragma once
#include "common/types.cuh"

template <class Accumulator> using EpilogueValue = decltype(decode(Accumulator{}));

struct Identity {
  template <int THREADS>
  __device__ __forceinline__ void prefetch(int batch, int m, int n, int rows, int columns, int thread) const {}

  template <int WIDTH> struct Operands {};
  template <int WIDTH>
  __device__ __forceinline__ void load(Operands<WIDTH>& operands, int batch, int m, int n, int valid) const {}

  template <class Value, int WIDTH>
  __device__ __forceinline__ void operator()(Value (&values)[WIDTH], const Operands<WIDTH>& operands, int batch, int m, int n,
                                             int valid) const {}
  template <class Value, int WIDTH>
  __device__ __forceinline__ void operator()(Value (&values)[WIDTH], int batch, int m, int n, int valid) const {}

  // The number that a value stands for: itself, or a float whose bits were put where an s32 was.
  template <class Value> static __device__ __forceinline__ Value result(Value value) { return value; }
};
