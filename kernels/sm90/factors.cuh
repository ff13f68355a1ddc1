// Factors of the sums, by which they are multiplied after the main loop:
//   - factors of the output's rows and columns (Epilogue::ROW_FACTORS), such as the scales of
//     quantized operands. The sums are then stored as without an epilogue.
//   - scales of float8 operands that hold for all of K (Sm90Scales::A_BEHIND).
#pragma once
#include "common/types.cuh"
#include "common/wgmma.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"
#include "sm90/scales.cuh"
#include "sm90/shared_memory.cuh"

template <class Config> struct Sm90Factors {
  using Epilogue = typename Config::Epilogue;
  using Memory = Sm90Memory<Config>;
  using Scales = Sm90Scales<Config>;
  // Whether the factors are all of the epilogue, which the stores then do not call.
  static constexpr bool REPLACE_EPILOGUE =
      (Epilogue::ROW_FACTORS || Epilogue::COLUMN_FACTORS) &&
      (Config::OUT_TRANSPOSED ? Memory::BY_LINES : Memory::CONVERT_ONLY);
  // In the program's frame, whose rows are the output's columns if OUT_TRANSPOSED.
  static constexpr bool EPILOGUE_ROWS =
                            REPLACE_EPILOGUE && (Config::OUT_TRANSPOSED ? Epilogue::COLUMN_FACTORS
                                                                        : Epilogue::ROW_FACTORS),
                        EPILOGUE_COLUMNS =
                            REPLACE_EPILOGUE && (Config::OUT_TRANSPOSED ? Epilogue::ROW_FACTORS
                                                                        : Epilogue::COLUMN_FACTORS);
  static constexpr bool OF_ROWS = EPILOGUE_ROWS || Scales::A_BEHIND,
                        OF_COLUMNS = EPILOGUE_COLUMNS || Scales::B_BEHIND;
  static constexpr bool PRESENT = OF_ROWS || OF_COLUMNS;
  static constexpr int BLOCK_SUMS = Config::TILE_N / 2;

  // `batch`: the matrix or the group.
  static __device__ __forceinline__ f32 of_row(const Epilogue& epilogue, int batch, int m) {
    f32 factor = 1.0f;
    if constexpr (EPILOGUE_ROWS)
      factor =
          Config::OUT_TRANSPOSED ? epilogue.column_factor(batch, m) : epilogue.row_factor(batch, m);
    if constexpr (Scales::A_BEHIND) factor *= epilogue.scale_a(batch, m, 0);
    return factor;
  }
  static __device__ __forceinline__ f32 of_column(const Epilogue& epilogue, int batch, int n) {
    f32 factor = 1.0f;
    if constexpr (EPILOGUE_COLUMNS)
      factor =
          Config::OUT_TRANSPOSED ? epilogue.row_factor(batch, n) : epilogue.column_factor(batch, n);
    if constexpr (Scales::B_BEHIND) factor *= epilogue.scale_b(batch, n, 0);
    return factor;
  }

  // Multiplies the sums of a tile. `batch`: the matrix or the group, `m`: the warp's first row,
  // `n`: the tile's first column, `end`: the end of the rows.
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
    if constexpr (Memory::IS_INTEGER) {
      ptx::convert_sums<4 * OCTET>();
      if constexpr (Config::M_BLOCKS > 1) ptx::convert_sums<BLOCK_SUMS + 4 * OCTET>();
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
