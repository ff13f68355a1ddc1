// Step 3 of the ladder: tensor cores through mma.sync.
//
// Adds     A warp multiplies 16 x 8 outputs over 16 elements of K, 4096 FLOP, with one instruction.
//          Operands stay fp16. ldmatrix loads the fragments that the instruction needs.
// Relieves the FP32 units: 4096 FLOP took 64 FMA of a warp. And shared memory, whose tiles have
//          half the bytes.
// Limit    Bank conflicts. ldmatrix reads 8 rows of 16 bytes at a time. Rows of the tile are 128
//          bytes apart, all 32 banks: the 8 pieces lie in the same 4 banks, and are read in 8
//          clocks instead of 1. For a block of K (64), the 8 warps load 192 times 4 such matrices:
//          192 x 4 x 8 = 6144 clocks. The products, 2.1 MFLOP, take 1024 clocks at the 2048 FLOP a
//          clock that an A100, or mma.sync on an H100, can do.
//
// A CTA of 8 warps computes 128 x 128 outputs, a warp 64 x 32. Tiles of A and of B are 128 rows of
// 64 elements of K each, 16 KiB.
#pragma once
#include "ladder/matrix.cuh"

constexpr int TILE = 128, TILE_K = 64, TILE_BYTES = TILE * TILE_K * 2, THREADS = 256;
constexpr int WARP_M = 64, WARP_N = 32;
constexpr int VECTORS = TILE_BYTES / 16 / THREADS;  // of a tile, for each thread to copy

// The row of a tile, and the 16-byte chunk of the row, of the i-th vector that this thread copies.
__device__ __forceinline__ int own_row(int i) { return (threadIdx.x + THREADS * i) / 8; }
__device__ __forceinline__ int own_chunk() { return threadIdx.x % 8; }

// Where a tile stores a chunk, in bytes: here, as in a row-major matrix.
struct RowMajor {
  static __device__ __forceinline__ constexpr int offset(int row, int chunk) {
    return row * (TILE_K * 2) + chunk * 16;
  }
};

// A warp's outputs.
template <class Layout> struct WarpTile {
  using Mma = ptx::Mma<f16, f16, f32>;
  Mma::Sums sums[WARP_M / 16][WARP_N / 8] = {};

  // The warp's first row and column in the CTA's tile.
  static __device__ __forceinline__ int first_row() { return threadIdx.x / 32 % 2 * WARP_M; }
  static __device__ __forceinline__ int first_column() { return threadIdx.x / 64 * WARP_N; }

  // Adds the products of a block of K. `a` and `b`: the tiles' addresses in shared memory.
  __device__ __forceinline__ void multiply(unsigned a, unsigned b) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < TILE_K / 16; ++step) {
      // A lane passes ldmatrix the address of one row of one of four 8 x 8 matrices. Of B, they
      // are the first and second 8 elements of K of columns 0-7, then of columns 8-15.
      unsigned of_b[WARP_N / 16][4];
#pragma unroll
      for (int j = 0; j < WARP_N / 16; ++j)
        ptx::load_matrices<false>(
            of_b[j], b + Layout::offset(first_column() + 16 * j + lane / 16 * 8 + lane % 8,
                                        2 * step + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < WARP_M / 16; ++i) {
        // Of A, rows 0-7 and 8-15 of the first 8 elements of K, then of the second 8.
        unsigned of_a[4];
        ptx::load_matrices<false>(
            of_a, a + Layout::offset(first_row() + 16 * i + lane % 16, 2 * step + lane / 16));
#pragma unroll
        for (int j = 0; j < WARP_N / 8; ++j)
          Mma::accumulate(sums[i][j], of_a[0], of_a[1], of_a[2], of_a[3], of_b[j / 2][j % 2 * 2],
                          of_b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }

  // Lane 4 g + q holds columns 2 q and 2 q + 1 of rows g and g + 8 of each 16 x 8 outputs.
  __device__ __forceinline__ void store(const Output& d, int tile_row, int tile_column) const {
    const int row = tile_row + first_row() + threadIdx.x % 32 / 4,
              column = tile_column + first_column() + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < WARP_M / 16; ++i)
#pragma unroll
      for (int j = 0; j < WARP_N / 8; ++j) {
        const auto& values = sums[i][j].values;
        d.store_pair(row + 16 * i, column + 8 * j, values[0], values[1]);
        d.store_pair(row + 16 * i + 8, column + 8 * j, values[2], values[3]);
      }
  }
};

template <class Layout>
__global__ void __launch_bounds__(THREADS, 2)
    tensor_cores(const f16* a_data, const f16* b_data, f16* d_data, int m, int n, int k) {
  __shared__ __align__(128) unsigned char tiles[2 * TILE_BYTES];
  const unsigned a_tile = ptx::shared_address(tiles), b_tile = a_tile + TILE_BYTES;
  const Matrix a{a_data, m, k}, b{b_data, n, k};
  const Output d{d_data, m, n};
  const int tile_row = blockIdx.y * TILE, tile_column = blockIdx.x * TILE;
  WarpTile<Layout> outputs;

  for (int at = 0; at < k; at += TILE_K) {
    VectorOf<f16> of_a[VECTORS], of_b[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      of_a[i] = a.load(tile_row + own_row(i), at + 8 * own_chunk());
      of_b[i] = b.load(tile_column + own_row(i), at + 8 * own_chunk());
    }
    __syncthreads();  // the previous block has been read
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      const int offset = Layout::offset(own_row(i), own_chunk());
      ptx::store_shared(a_tile + offset, of_a[i].vector);
      ptx::store_shared(b_tile + offset, of_b[i].vector);
    }
    __syncthreads();  // this block is complete
    outputs.multiply(a_tile, b_tile);
  }
  outputs.store(d, tile_row, tile_column);
}
