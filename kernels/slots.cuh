// Mixtures of experts: adds the rows of each token's slots. Bound by memory bandwidth: a thread
// reads WIDTH columns of each of the token's rows.
#pragma once
#include "common/types.cuh"

namespace slots {

constexpr int THREADS = 256;

// out[token] = sum over slots of weights[token, slot] * values[rows[token, slot]], in order, in f32
// (f64 of f64), rounded once. Without WEIGHTED, weights are 1 and not read. Rows from *end on
// belong to no expert and are not read. Each of `ctas` CTAs of a token has THREADS * WIDTH columns.
// With VECTORS, rows are whole vectors of 16 bytes.
template <class Value, class Weight, bool WEIGHTED, bool VECTORS>
__global__ void __launch_bounds__(THREADS)
    add(const Value* values, const Weight* weights, const int* rows, const int* end, Value* out,
        int top_k, int columns, int ctas) {
  using Sum = typename Conditional<is_same<Value, f64>, f64, f32>::Type;
  constexpr int WIDTH = VECTORS ? 16 / int(sizeof(Value)) : 1;
  struct alignas(VECTORS ? 16 : sizeof(Value)) Elements { Value elements[WIDTH]; };
  const int token = blockIdx.x / ctas, last = *end;
  const int column = ((blockIdx.x - token * ctas) * THREADS + threadIdx.x) * WIDTH;
  if (column >= columns) return;
  Sum sums[WIDTH] = {};
#pragma unroll 8
  for (int slot = 0; slot < top_k; ++slot) {
    const long long at = static_cast<long long>(token) * top_k + slot;
    const int row = rows[at];
    if (row >= last) continue;
    const Sum weight = WEIGHTED ? Sum(decode(weights[at])) : Sum(1);
    const auto read =
        *reinterpret_cast<const Elements*>(values + static_cast<long long>(row) * columns + column);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
      sums[i] = multiply_add(weight, Sum(decode(read.elements[i])), sums[i]);
  }
  Elements result;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) result.elements[i] = encode<Value>(sums[i]);
  *reinterpret_cast<Elements*>(out + static_cast<long long>(token) * columns + column) = result;
}

}  // namespace slots
