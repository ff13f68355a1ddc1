// The second step of an epilogue's reductions: folds the partial results that the GEMM stored, in a
// fixed order, into the outputs.
//
// One launch serves all reductions of an epilogue: the grid covers the CTAs of operands[0], then
// those of operands[1], and so on. The partial results of a reduction are `count` consecutive rows
// for each batch. The rows are folded elementwise into one; if `whole`, the elements of that row
// are folded too.
#pragma once
#include "common/cluster.cuh"
#include "common/field.cuh"
#include "common/fusion.cuh"

// Mirrored field by field in the Rust core (src/kernel/reduction.rs).
struct ReduceOperand {
  const void* partials;
  void* out;
  long long out_stride[2];  // along batches, and along elements of a row; in elements
  long long pitch;          // between rows; in elements
  long long count;          // rows that become one
  int extent;               // elements of a row, at most the pitch
  int whole;
  int batches;
  int ctas;  // for this reduction
};
static_assert(sizeof(ReduceOperand) == 64);
RUTLASS_FIELD(ReduceOperand, out_stride, 16);
RUTLASS_FIELD(ReduceOperand, count, 40);
RUTLASS_FIELD(ReduceOperand, extent, 48);

template <int COUNT> struct ReduceParams { ReduceOperand operands[COUNT]; };

// One reduction: the type of the partial results, the operation, the type of the output.
template <class Value, class Fold, class Out> struct Reduce {
  static constexpr int THREADS = 256;
  static constexpr int WIDTH = 32;  // results of a CTA, if not `whole`

  static __device__ __forceinline__ void run(const ReduceOperand& operand, int index) {
    __shared__ Value values[THREADS];
    const int thread = threadIdx.x, of_batch = operand.ctas / operand.batches,
              batch = index / of_batch;
    const Value* const partials =
        static_cast<const Value*>(operand.partials) + operand.pitch * operand.count * batch;
    const int element = operand.whole ? 0 : (index - batch * of_batch) * WIDTH + thread % WIDTH;
    Value value = Fold::template identity<Value>();
    if (operand.whole) {
      for (long long row = 0; row < operand.count; ++row)
#pragma unroll 4
        for (int at = thread; at < operand.extent; at += THREADS)
          value = Fold::apply(value, partials[operand.pitch * row + at]);
    } else if (element < operand.extent) {
#pragma unroll 8
      for (long long row = thread / WIDTH; row < operand.count; row += THREADS / WIDTH)
        value = Fold::apply(value, partials[operand.pitch * row + element]);
    }
    values[thread] = value;
    __syncthreads();
    // Tree reduction. The threads of one element are WIDTH apart; if `whole`, all belong to one.
#pragma unroll 1
    for (int half = THREADS / 2; half >= (operand.whole ? 1 : WIDTH); half /= 2) {
      if (thread < half) values[thread] = Fold::apply(values[thread], values[thread + half]);
      __syncthreads();
    }
    if (thread < (operand.whole ? 1 : WIDTH) && element < max(operand.extent, operand.whole))
      static_cast<Out*>(
          operand.out)[operand.out_stride[0] * batch + operand.out_stride[1] * element] =
          encode<Out>(values[thread]);
  }
};

// The kernel for the reductions of one epilogue.
template <class... Reductions>
__device__ __forceinline__ void reduce_all(const ReduceParams<sizeof...(Reductions)>& params) {
  ptx::wait_for_prior_grids();
  int index = blockIdx.x, at = 0;
  auto one = [&](auto reduction) {
    const ReduceOperand& operand = params.operands[at++];
    if (index >= 0 && index < operand.ctas) decltype(reduction)::run(operand, index);
    index -= operand.ctas;
  };
  (one(Reductions{}), ...);
}
