// What an sm90 kernel is launched with.
#pragma once
#include "common/groups.cuh"
#include "common/tma.cuh"

// Mirrored field by field in the Rust core. Tensor maps have three dimensions, the fastest first, the batch last;
// where k is 0, they still need a valid address.
struct alignas(64) Sm90Params {
  TensorMap a, b, out;
  void* out_pointer;         // used where out_by_tma is 0, and if OUT_TRANSPOSED
  long long out_stride[3];   // in elements: along batch, rows, columns
  int m, n, k, batch;        // if GROUPED, the batch is the groups, and m all rows
  int a_batched, b_batched;  // 0: all batches read the same matrix, and the tensor map has one
  int out_by_tma;  // 0: the copy engine cannot address the output: strides, or rows, of no multiple of 16 bytes
  int band;  // clusters along M that are walked before the next one along N
  int a_box,
      b_box;  // rows of a box of a K-major operand; all of its slice if A_ALIGN is not 16, or slices are unequal
  GroupOffsets offsets;           // if GROUPED
  const void* a_pointer;          // if A_ALIGN is not 16, in place of `a`
  long long a_stride[2];          // in elements: along batch, rows
  unsigned long long* workspace;  // if OVER_GRID: where the CTAs of a tile meet (sm90/parts.cuh)
  int parts;                      // of K
  TensorMap
      b_shorter;  // where the CTAs that share a K-major tile of B load unequal slices: of the shorter ones
};
static_assert(sizeof(Sm90Params) == 640);
