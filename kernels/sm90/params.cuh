// The parameter of an sm90 kernel.
#pragma once
#include "common/field.cuh"
#include "common/groups.cuh"
#include "common/tma.cuh"

// Mirrored field by field in the Rust core (src/kernel/sm90/params.rs). Tensor maps have three
// dimensions: contiguous first, batch last; that of two matrices has five (sm90/boxes.cuh). They
// hold valid addresses even where k is 0.
struct alignas(64) Sm90Params {
  TensorMap a, b, out;
  void* out_pointer;         // used if OUT_TRANSPOSED, or if out_by_tma is 0
  long long out_stride[3];   // along batch, rows, columns; in elements
  int m, n, k, batch;        // if GROUPED: batch is the number of groups, m (ALONG_M, unless
                             // masked) or k (ALONG_K) the sum over all groups
  int a_batched, b_batched;  // 0: all batches read one matrix, and the tensor map has one
  int out_by_tma;            // 0: strides or rows are not multiples of 16 bytes
  int band;                  // height of a band, in clusters (sm90/tile_order.cuh)
  union {
    int a_box;   // rows of a box of a K-major operand (sm90/boxes.cuh)
    int a_rows;  // if gathered: the rows of A
  };
  int b_box;              // as a_box
  GroupOffsets offsets;   // if GROUPED
  const void* a_pointer;  // if A_ALIGN < 16 or gathered, in place of `a`
  long long a_stride[2];  // along batch (if gathered, of the index), rows; in elements
  union {
    unsigned long long* workspace;  // if OVER_GRID (sm90/grid_split.cuh)
    const int* index;  // if GATHERS: the row of A for each row of the output; null if not gathered
  };
  int splits_or_stacked;  // if OVER_GRID: splits of K. If ALONG_M: -1, or 0 if masked
  int reversed;           // if DUAL: whether the epilogue's `products` come first
  TensorMap b_shorter;    // of the shorter slices of B, where slices are unequal
};
static_assert(sizeof(Sm90Params) == 640);
RUTLASS_FIELD(Sm90Params, out_pointer, 384);
RUTLASS_FIELD(Sm90Params, m, 416);
RUTLASS_FIELD(Sm90Params, a_batched, 432);
RUTLASS_FIELD(Sm90Params, a_box, 448);
RUTLASS_FIELD(Sm90Params, offsets, 456);
RUTLASS_FIELD(Sm90Params, a_pointer, 472);
RUTLASS_FIELD(Sm90Params, workspace, 496);
RUTLASS_FIELD(Sm90Params, b_shorter, 512);

// The parameter of a joint kernel: in addition, the further matrices B. They are on the side of the
// program's A if MATRICES_ARE_A. `m` (else `n`) counts the columns of all.
struct alignas(64) JointSm90Params : Sm90Params {
  TensorMap panels[3];
  int starts[3];  // the first column of each; INT_MAX if there is no such matrix
};
static_assert(sizeof(JointSm90Params) == 1088);
RUTLASS_FIELD(JointSm90Params, panels, 640);
RUTLASS_FIELD(JointSm90Params, starts, 1024);
