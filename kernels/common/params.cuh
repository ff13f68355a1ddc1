// What a GEMM kernel is launched with. Mirrored field by field in the Rust core.
#pragma once
#include "common/groups.cuh"

// out[l, m, n] = epilogue(sum over k of a[l, m, k] * b[l, k, n]). Strides count elements and may be anything, 0 included;
// a batch may overlap the next one. Each kernel says what else it asks of them.
// A grouped GEMM has a matrix b for each group, of which there are `batch`; its rows m are those of all groups.
struct GemmParams {
  const void* a;
  const void* b;
  void* out;
  long long a_stride[3];    // along batch, m, k
  long long b_stride[3];    // along batch, k, n
  long long out_stride[3];  // along batch, m, n
  int m, n, k;              // extents; k may be 0
  int batch;
  GroupOffsets offsets;  // of a grouped GEMM
};
static_assert(sizeof(GemmParams) == 128);
