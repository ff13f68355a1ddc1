// The CTA's tile of steps 6 to 8, and the products of one warpgroup with wgmma.
//
// A CTA computes 128 x 256 outputs, each of its 2 warpgroups that multiply 64 x 256. For a block of
// 64 elements of K, a stage holds 128 rows of A (16 KiB) and 256 rows of B (32 KiB), with the
// swizzle of step 4, which TMA applies as it writes and wgmma as it reads. The block is 4.2 MFLOP,
// 1024 clocks of the tensor cores of an H100.
#pragma once
#include "common/cluster.cuh"
#include "common/mbarrier.cuh"
#include "common/tma.cuh"
#include "common/wgmma.cuh"
#include "ladder/matrix.cuh"

constexpr int TILE_M = 128, TILE_N = 256, TILE_K = 64, STAGES = 4, WARPGROUP = 128;
constexpr int A_BYTES = TILE_M * TILE_K * 2, B_BYTES = TILE_N * TILE_K * 2,
              STAGE_BYTES = A_BYTES + B_BYTES;

// A thread has 64 x 256 / 128 = 128 sums, the PTX registers s0 to s127, which common/wgmma.cuh
// names in its instructions.
constexpr int SUMS = 128;
#define TEN(T)                                                                                     \
  "s" #T "0, s" #T "1, s" #T "2, s" #T "3, s" #T "4, s" #T "5, s" #T "6, s" #T "7, s" #T "8, s" #T \
  "9, "
template <> struct ptx::SumNames<0> {
  static constexpr char text[] = TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8)
      TEN(9) TEN(10) TEN(11) "s120, s121, s122, s123, s124, s125, s126, s127";
};
#undef TEN

// Issues the products of a block of K: 4 instructions of 64 x 256 outputs by 16 elements of K. They
// read `a` (64 rows) and `b` (256 rows) from shared memory until ptx::wgmma_wait says otherwise.
// `adds`: whether they add to the sums or overwrite them.
__device__ __forceinline__ void multiply_block(unsigned a, unsigned b, bool adds) {
  using Multiply = ptx::Wgmma<f16, f16, f32, TILE_N, true, true, 128>;
  ptx::wgmma_fence();
  Multiply::issue<0>(ptx::matrix_descriptor(a, 0), ptx::matrix_descriptor(b, 0), adds);
  ptx::wgmma_commit();
}

// Stores a warpgroup's sums. Each 8 columns have the layout of mma.sync (step 3); a warp has 16 of
// the 64 rows. `row`, `column`: the warpgroup's first ones.
template <int OCTET = 0>
__device__ __forceinline__ void store_sums(const Output& d, int row, int column) {
  f32 values[4];
  ptx::Results<f32, SUMS, false>::read<0, 4 * OCTET, 4>(values);
  const int lane = threadIdx.x % 32, to_row = row + threadIdx.x / 32 % 4 * 16 + lane / 4,
            to_column = column + 8 * OCTET + lane % 4 * 2;
  d.store_pair(to_row, to_column, values[0], values[1]);
  d.store_pair(to_row + 8, to_column, values[2], values[3]);
  if constexpr (OCTET + 1 < TILE_N / 8) store_sums<OCTET + 1>(d, row, column);
}
