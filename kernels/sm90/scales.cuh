// Block scales of float8 products (Epilogue::SCALES): what the sums over a part of a K block are
// multiplied by before they are added to the totals.
#pragma once
#include "common/types.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"

__host__ __device__ constexpr int greatest_common_divisor(int a, int b) {
  return b == 0 ? a : greatest_common_divisor(b, a % b);
}

template <class Config> struct Sm90Scales {
  using Epilogue = typename Config::Epilogue;
  static constexpr bool PRESENT = Epilogue::SCALES && !Config::MIXED;
  static constexpr int A_ROWS = Epilogue::A_ROWS, A_DEPTH = Epilogue::A_DEPTH,
                       B_COLUMNS = Epilogue::B_COLUMNS, B_DEPTH = Epilogue::B_DEPTH;

  // Elements of K whose products have one factor: 32, 64 or a whole K block.
  static constexpr int shorter(int depth, int other) {
    return depth > 0 && depth < other ? depth : other;
  }
  static constexpr int DEPTH =
      PRESENT ? shorter(A_DEPTH, shorter(B_DEPTH, Config::TILE_K)) : Config::TILE_K;
  static constexpr int PARTS = Config::TILE_K / DEPTH;  // of a K block
  static_assert(DEPTH % 32 == 0 && Config::TILE_K % DEPTH == 0, "wgmma multiplies 32 of K");
  static_assert(A_DEPTH % DEPTH == 0 && B_DEPTH % DEPTH == 0);

  // A's scales: one for the 64 rows of a warpgroup, or one for each of a lane's two rows (see
  // Wgmma: rows g and g + 8). A group begins at any row.
  static constexpr bool ROWS_SHARE = A_DEPTH == 0 || (A_ROWS % 64 == 0 && !Config::GROUPED);
  static constexpr int A_COUNT = ROWS_SHARE ? 1 : 2;
  // B's scales: one for each SHARED columns of the tile, or one for each of a lane's columns
  // 8 j + 2 q + c.
  static constexpr int SHARED =
      B_DEPTH == 0 ? Config::TILE_N : greatest_common_divisor(Config::TILE_N, B_COLUMNS);
  static constexpr bool COLUMNS_SHARE = SHARED % 8 == 0;
  static constexpr int B_COUNT = COLUMNS_SHARE ? Config::TILE_N / SHARED : Config::TILE_N / 4;

  // Whether the scales are loaded one part ahead. Otherwise they are loaded while wgmma multiplies,
  // which takes longer for a tile of many columns than the load.
  static constexpr bool AHEAD = A_COUNT + B_COUNT <= 18;
  static constexpr int REGISTERS = PRESENT ? (A_COUNT + B_COUNT) * (AHEAD ? 2 : 1) : 0;

  // The scales of one part of a K block.
  struct Factors {
    f32 a[A_COUNT], b[B_COUNT];
    // The factor of value VALUE of a block of 64 rows (see Wgmma).
    template <int VALUE> __device__ __forceinline__ f32 of() const {
      constexpr int OCTET = VALUE / 4, HALF = VALUE / 2 % 2, COLUMN = VALUE % 2;
      return a[A_COUNT == 1 ? 0 : HALF] *
             b[COLUMNS_SHARE ? OCTET * 8 / SHARED : 2 * OCTET + COLUMN];
    }
  };

  const Sm90Params& params;
  const Epilogue& epilogue;
  int batch, m, n;  // m: the lane's first row. n: the tile's first column.

  // `m`: the warp's first row. `batch`: the matrix or the group.
  __device__ __forceinline__ Sm90Scales(const Sm90Params& params, const Epilogue& epilogue,
                                        int batch, int m, int n)
      : params(params), epilogue(epilogue), batch(batch), m(m + threadIdx.x % 32 / 4), n(n) {}

  // Loads the scales of the part that begins at element k of K. Outside the operands, factors are
  // 1: beyond K sums are 0, and other sums are not stored.
  __device__ __forceinline__ void load(Factors& factors, int k) const {
    const bool inside = k < params.k;
#pragma unroll
    for (int i = 0; i < A_COUNT; ++i) {
      factors.a[i] = 1.0f;
      if constexpr (A_DEPTH > 0)
        if (inside && m + 8 * i < params.m)
          factors.a[i] = epilogue.scale_a(batch, m + 8 * i, k / A_DEPTH);
    }
#pragma unroll
    for (int i = 0; i < B_COUNT; ++i) {
      factors.b[i] = 1.0f;
      const int column = n + (COLUMNS_SHARE ? i * SHARED : i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2);
      if constexpr (B_DEPTH > 0)
        if (inside && column < params.n)
          factors.b[i] = epilogue.scale_b(batch, column, k / B_DEPTH);
    }
  }
};
