// Factors of the output's rows and columns (Epilogue::PLAIN), such as the scales of quantized
// operands. The sums are multiplied by them behind the main loop and stored as without an
// epilogue.
#pragma once
#include "common/types.cuh"
#include "common/wgmma.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"
#include "sm90/shared_memory.cuh"

template <class Config> struct Sm90Factors {
  using Epilogue = typename Config::Epilogue;
  using Memory = Sm90Memory<Config>;
  // Whether the sums are stored without calling the epilogue.
  static constexpr bool PRESENT =
      (Epilogue::ROW_FACTORS || Epilogue::COLUMN_FACTORS) &&
      (Config::OUT_TRANSPOSED ? Memory::BY_LINES : Memory::CONVERT_ONLY);
  // In the program's frame, whose rows are the output's columns if OUT_TRANSPOSED.
  static constexpr bool OF_ROWS = Config::OUT_TRANSPOSED ? Epilogue::COLUMN_FACTORS
                                                         : Epilogue::ROW_FACTORS,
                        OF_COLUMNS = Config::OUT_TRANSPOSED ? Epilogue::ROW_FACTORS
                                                            : Epilogue::COLUMN_FACTORS;
  static constexpr int BLOCK_SUMS = Config::TILE_N / 2;

  static __device__ __forceinline__ f32 of_row(const Epilogue& epilogue, int batch, int m) {
    return Config::OUT_TRANSPOSED ? epilogue.column_factor(batch, m)
                                  : epilogue.row_factor(batch, m);
  }
  static __device__ __forceinline__ f32 of_column(const Epilogue& epilogue, int batch, int n) {
    return Config::OUT_TRANSPOSED ? epilogue.row_factor(batch, n)
                                  : epilogue.column_factor(batch, n);
  }

  // Multiplies the sums of a tile. `m`: the warp's first row, `n`: the tile's first column, `end`:
  // the end of the rows.
  static __device__ __forceinline__ void apply(const Sm90Params& params, const Epilogue& epilogue,
                                               int batch, int m, int n, int end) {
    const int lane = threadIdx.x % 32;
    f32 rows[Config::M_BLOCKS][2];
#pragma unroll
    for (int i = 0; i < 2 * Config::M_BLOCKS; ++i) {
      // Rows g and g + 8 of a block (see Wgmma).
      const int r = i % 2 * 8 + lane / 4,
                row = m + i / 2 * 64 + (Config::PAIRED_ROWS ? ptx::fragment_row(r) : r);
      rows[i / 2][i % 2] = OF_ROWS && row < end ? of_row(epilogue, batch, row) : 1.0f;
    }
    multiply<0>(params, epilogue, rows, batch, n + lane % 4 * 2);
  }

 private:
  // The sums of octet OCTET and of those behind it. `n`: the lane's first column.
  template <int OCTET>
  static __device__ __forceinline__ void multiply(const Sm90Params& params,
                                                  const Epilogue& epilogue,
                                                  const f32 (&rows)[Config::M_BLOCKS][2], int batch,
                                                  int n) {
    f32 columns[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = n + 8 * OCTET + c;
      columns[c] = OF_COLUMNS && column < params.n ? of_column(epilogue, batch, column) : 1.0f;
    }
    ptx::multiply_sums<4 * OCTET>(rows[0][0] * columns[0], rows[0][0] * columns[1],
                                  rows[0][1] * columns[0], rows[0][1] * columns[1]);
    if constexpr (Config::M_BLOCKS > 1)
      ptx::multiply_sums<BLOCK_SUMS + 4 * OCTET>(rows[1][0] * columns[0], rows[1][0] * columns[1],
                                                 rows[1][1] * columns[0], rows[1][1] * columns[1]);
    if constexpr (8 * OCTET + 8 < Config::TILE_N)
      multiply<OCTET + 1>(params, epilogue, rows, batch, n);
  }
};
