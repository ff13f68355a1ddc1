// What a GEMM kernel is launched with. Mirrored field by field in the Rust core.
#pragma once

// out[l, m, n] = epilogue(sum over k of a[l, m, k] * b[l, k, n]). Strides count elements and may be anything, 0 included;
// a batch may overlap the next one. Each kernel says what else it asks of them.
struct GemmParams {
  const void* a;
  const void* b;
  void* out;
  long long a_stride[3];    // along batch, m, k
  long long b_stride[3];    // along batch, k, n
  long long out_stride[3];  // along batch, m, n
  int m, n, k;              // extents; k may be 0
  int batch;
};
static_assert(sizeof(GemmParams) == 112);
