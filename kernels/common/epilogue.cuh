// What happens to a sum of products before it is stored.
//
// An epilogue is a functor. A kernel calls it once for each element of the output, with the element's coordinates, never
// for one that lies outside; what it returns is converted to the output's type. It sees f64, f32 or s32: sums kept in
// f16 are widened first.
#pragma once
#include "common/types.cuh"

template <class Accumulator> using EpilogueValue = decltype(decode(Accumulator{}));

struct Identity {
  template <class Value> __device__ __forceinline__ Value operator()(Value accum, int batch, int m, int n) const {
    return accum;
  }
};
