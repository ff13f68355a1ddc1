// The second step of reductions: folds the partial results that a GEMM's epilogue stored, in their order, into what the user asked for.
//
// One launch serves all reductions of an epilogue: the grid covers first the CTAs of operands[0], then those of operands[1], and so
// on. A reduction has rows of partial results, for each batch so many, one after the other in memory. Rows are folded element by
// element; if `whole`, so are then their elements.
#pragma once
#include "common/cluster.cuh"
#include "common/fusion.cuh"

struct ReduceOperand {
  const void* parts;
  void* out;
  long long out_stride[2];  // along batches, and elements of a row; in elements
  long long pitch;          // from one row to the next; in elements
  long long count;          // rows that become one
  int extent;               // elements of a row; the pitch may be longer
  int whole;
  int batches;
  int ctas;
};
static_assert(sizeof(ReduceOperand) == 64);

template <int COUNT> struct ReduceParams { ReduceOperand operands[COUNT]; };

// One reduction: of what, by what, into what.
template <class Value, class Fold, class Out> struct Reduce {
  static constexpr int THREADS = 256, WIDTH = 32;  // of a CTA: threads, and results if not `whole`

  static __device__ __forceinline__ void run(const ReduceOperand& operand, int index) {
    __shared__ Value values[THREADS];
    const int thread = threadIdx.x, of_batch = operand.ctas / operand.batches,
              batch = index / of_batch;
    const Value* const parts =
        static_cast<const Value*>(operand.parts) + operand.pitch * operand.count * batch;
    const int element = operand.whole ? 0 : (index - batch * of_batch) * WIDTH + thread % WIDTH;
    Value value = Fold::template identity<Value>();
    if (operand.whole) {
      for (long long row = 0; row < operand.count; ++row)
#pragma unroll 4
        for (int at = thread; at < operand.extent; at += THREADS)
          value = Fold::apply(value, parts[operand.pitch * row + at]);
    } else if (element < operand.extent) {
#pragma unroll 8
      for (long long row = thread / WIDTH; row < operand.count; row += THREADS / WIDTH)
        value = Fold::apply(value, parts[operand.pitch * row + element]);
    }
    values[thread] = value;
    __syncthreads();
    // Threads of one element are WIDTH apart, or if `whole`, all are of one.
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

template <class... Reductions>
__device__ __forceinline__ void reduce_all(const ReduceParams<sizeof...(Reductions)>& params) {
  ptx::wait_for_grids_before();
  int index = blockIdx.x, at = 0;
  auto one = [&](auto reduction) {
    const ReduceOperand& operand = params.operands[at++];
    if (index >= 0 && index < operand.ctas) decltype(reduction)::run(operand, index);
    index -= operand.ctas;
  };
  (one(Reductions{}), ...);
}
