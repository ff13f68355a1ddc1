// The parameter of the simt, skinny and sm80 kernels.
#pragma once
#include "common/field.cuh"
#include "common/groups.cuh"

// out[l, m, n] = epilogue(sum over k of a[l, m, k] * b[l, k, n]). Strides count elements and may be
// anything, including 0; matrices of a batch may overlap. Each family states what else it requires.
// A grouped GEMM has `batch` groups. Along M: with a matrix b each; m is the rows of all groups, or
// those of each matrix of a and out if masked (common/groups.cuh). Along K: with a matrix of the
// output each; k is that of all groups, and a and b have no batch.
//
// Mirrored field by field in the Rust core (src/kernel/params.rs).
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
RUTLASS_FIELD(GemmParams, a_stride, 24);
RUTLASS_FIELD(GemmParams, m, 96);
RUTLASS_FIELD(GemmParams, offsets, 112);

// A further matrix B of a joint GEMM, whose columns follow those of the matrices before.
struct GemmPanel {
  const void* b;
  long long stride;  // along n, in elements
  long long start;   // its first column; beyond `n` if there is no such matrix
};

// The parameter of a joint skinny kernel. `n` counts the columns of all matrices.
struct JointGemmParams : GemmParams { GemmPanel panels[3]; };
static_assert(sizeof(JointGemmParams) == 200);
RUTLASS_FIELD(JointGemmParams, panels, 128);
