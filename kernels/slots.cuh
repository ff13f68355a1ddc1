// Mixtures of experts. A slot is one choice of a token: slot token * top_k + choice. `sort` orders
// slots by their expert; `add` adds the rows of each token's slots.
#pragma once
#include "common/types.cuh"

namespace slots {

// ---- sort ----

// The slots of a CTA, one a thread, and the most experts.
constexpr int CHUNK = 1024, MOST_EXPERTS = 511;

// A stable counting sort in one launch. Each CTA counts the experts of all slots, and places those
// of its chunk, so that CTAs do not wait for each other. Of 65,536 slots, a thread counts 64.
//
// `index`: the expert of each slot; a negative number counts as 0, and a number from `experts` on
// as `experts`, none. The results: of each row in order of the experts, its expert (`sorted`), its
// slot and its token; of each slot its row; of each expert the row behind its last.
template <class Index>
__global__ void __launch_bounds__(CHUNK)
    sort(const Index* index, int count, int top_k, int experts, long long* sorted,
         long long* row_slots, int* tokens, int* rows, int* ends) {
  constexpr int WARPS = CHUNK / 32, BINS = MOST_EXPERTS + 1;
  // Counts of experts: before the chunk and from it on, in all slots; of each warp, in the chunk.
  __shared__ int before[BINS], after[BINS], totals[WARPS];
  __shared__ unsigned short of_warps[WARPS][BINS];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int chunk = blockIdx.x * CHUNK, slot = chunk + thread;
  if (thread < BINS) before[thread] = after[thread] = 0;
  for (int bin = lane; bin <= experts; bin += 32) of_warps[warp][bin] = 0;
  __syncthreads();
  auto expert_of = [&](int at) {
    const Index value = index[at];
    return value < 0 ? 0 : value < experts ? int(value) : experts;
  };
#pragma unroll 4
  for (int at = thread; at < count; at += CHUNK)
    atomicAdd(at < chunk ? before + expert_of(at) : after + expert_of(at), 1);

  // The slots of this warp with the same expert, and how many of them come first.
  const int expert = slot < count ? expert_of(slot) : BINS;
  const unsigned same = __match_any_sync(0xffffffffu, expert);
  const int earlier = __popc(same & ((1u << lane) - 1));
  if (earlier == 0 && slot < count) of_warps[warp][expert] = __popc(same);
  __syncthreads();

  // The first row of each expert: an exclusive sum over experts, one a thread.
  const int own = thread <= experts ? before[thread] + after[thread] : 0;
  int sum = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == 31) totals[warp] = sum;
  __syncthreads();
  for (int i = 0; i < warp; ++i) sum += totals[i];
  if (thread <= experts) {
    if (blockIdx.x == 0 && thread < experts) ends[thread] = sum;
    // The first row of the chunk's slots; then, of each warp's slots from there on.
    before[thread] += sum - own;
    int in_chunk = 0;
    for (int i = 0; i < WARPS; ++i) {
      const int of_warp = of_warps[i][thread];
      of_warps[i][thread] = in_chunk;
      in_chunk += of_warp;
    }
  }
  __syncthreads();
  if (slot >= count) return;
  const int row = before[expert] + of_warps[warp][expert] + earlier;
  sorted[row] = expert;
  row_slots[row] = slot;
  tokens[row] = slot / top_k;
  rows[slot] = row;
}

// ---- add ----

constexpr int THREADS = 256;

// Bound by memory bandwidth: a thread reads WIDTH columns of each of the token's rows.
//
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
