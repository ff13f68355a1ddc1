// Block scales of float8 products (Epilogue::SCALES): what the sums over a part of a K block are
// multiplied by before they are added to the totals. Scales of all of K multiply the whole sums
// (sm90/factors.cuh), except those of a split tile.
#pragma once
#include "common/ptx.cuh"
#include "common/types.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"

template <class Config> struct Sm90Scales {
  using Epilogue = typename Config::Epilogue;
  static constexpr bool BEHIND = !Config::MIXED && Config::SPLIT == 1,
                        A_BEHIND = BEHIND && Epilogue::A_WHOLE,
                        B_BEHIND = BEHIND && Epilogue::B_WHOLE;
  static constexpr int A_ROWS = Epilogue::A_ROWS, A_DEPTH = A_BEHIND ? 0 : Epilogue::A_DEPTH,
                       B_COLUMNS = Epilogue::B_COLUMNS, B_DEPTH = B_BEHIND ? 0 : Epilogue::B_DEPTH;
  static constexpr bool PRESENT = !Config::MIXED && (A_DEPTH > 0 || B_DEPTH > 0);

  // Elements of K whose products have one factor: 32, 64 or a whole K block.
  static constexpr int shorter(int depth, int other) {
    return depth > 0 && depth < other ? depth : other;
  }
  static constexpr int DEPTH =
      PRESENT ? shorter(A_DEPTH, shorter(B_DEPTH, Config::TILE_K)) : Config::TILE_K;
  static constexpr int PARTS = Config::TILE_K / DEPTH;  // of a K block
  static_assert(DEPTH % 32 == 0 && Config::TILE_K % DEPTH == 0, "wgmma multiplies 32 of K");
  static_assert(!PRESENT || (A_DEPTH % DEPTH == 0 && B_DEPTH % DEPTH == 0));

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

  // The scales of AHEAD parts are loaded at a time, AHEAD parts before their use, as far as they
  // fit beside sums, totals and other registers: beside the loads of operands, a load from L2 takes
  // up to 0.4 us, and multiplying one part of a small tile half of that. AHEAD = 0: scales are
  // loaded while wgmma multiplies their own part; with many columns, wgmma takes longer.
  // COUNT: scales of a part. MOST: registers for scales that are loaded ahead. LEFT: what sums,
  // totals and 48 others (Sm90Registers::OTHERS) leave of a consumer's registers. The host decides
  // by the same numbers whether the scales fit (Sm90::applies).
  static constexpr int COUNT = A_COUNT + B_COUNT, MOST = 40;
  static constexpr int LEFT =
      (Config::CONSUMERS == 3 ? 160 : 232) - 48 - 2 * Config::Multiply::SUMS;
  static constexpr int FOR_SETS = LEFT < MOST ? LEFT : MOST;
  static constexpr int AHEAD = COUNT * 8 <= FOR_SETS   ? 4
                               : COUNT * 4 <= FOR_SETS ? 2
                               : COUNT * 2 <= MOST     ? 1
                                                       : 0;
  static constexpr int REGISTERS = PRESENT ? COUNT * (AHEAD > 0 ? 2 * AHEAD : 1) : 0;

  // The scales of one part of a K block.
  struct Factors {
    f32 a[A_COUNT], b[B_COUNT];
    __device__ __forceinline__ Factors() {
#pragma unroll
      for (f32& scale : a) scale = 1.0f;
#pragma unroll
      for (f32& scale : b) scale = 1.0f;
    }
    // The factor of value VALUE of a block of 64 rows (see Wgmma).
    template <int VALUE> __device__ __forceinline__ f32 of() const {
      constexpr int OCTET = VALUE / 4, HALF = VALUE / 2 % 2, COLUMN = VALUE % 2;
      return a[A_COUNT == 1 ? 0 : HALF] *
             b[COLUMNS_SHARE ? OCTET * 8 / SHARED : 2 * OCTET + COLUMN];
    }
  };

  // Whether the scales of successive parts lie at equal distances: pointers replace indices, whose
  // arithmetic would delay the next wgmma.
  static constexpr bool BY_POINTERS =
      PRESENT && Epilogue::A_LINEAR && Epilogue::B_LINEAR &&
      is_same<typename Epilogue::AScale, f32> && is_same<typename Epilogue::BScale, f32> &&
      (A_DEPTH == 0 || A_DEPTH == DEPTH) && (B_DEPTH == 0 || B_DEPTH == DEPTH);

  const Sm90Params& params;
  const Epilogue& epilogue;
  int batch, m, n;               // m: the lane's first row. n: the lane's first column.
  int k;                         // the first element of the part to load next
  const f32 *rows[2], *columns;  // BY_POINTERS: the next scales of rows m and m + 8, of column n

  // `m`: the warp's first row. `n`: the tile's first column. `batch`: the matrix or the group. `k`:
  // the first element of K.
  __device__ __forceinline__ Sm90Scales(const Sm90Params& params, const Epilogue& epilogue,
                                        int batch, int m, int n, int k)
      : params(params),
        epilogue(epilogue),
        batch(batch),
        m(m + threadIdx.x % 32 / 4),
        n(n + (COLUMNS_SHARE ? 0 : threadIdx.x % 4 * 2)),
        k(k) {
    if constexpr (BY_POINTERS) {
      const int part = k / DEPTH;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        rows[i] = epilogue.a_scales(batch, min(this->m + 8 * i, params.m - 1)) +
                  epilogue.a_scale_step() * part;
      columns =
          epilogue.b_scales(batch, min(this->n, params.n - 1)) + epilogue.b_scale_step() * part;
    }
  }

  // Fetches the scales of the first `parts` parts into L2, one part a lane. The first CTA that
  // reads a scale would otherwise wait for device memory at each part.
  __device__ __forceinline__ void prefetch(int parts) const {
    if constexpr (PRESENT && BY_POINTERS)
#pragma unroll 1
      for (int part = threadIdx.x % 32; part < parts && k + part * DEPTH < params.k; part += 32) {
        if constexpr (A_DEPTH > 0)
#pragma unroll
          for (int i = 0; i < A_COUNT; ++i)
            ptx::prefetch_to_l2(rows[i] + epilogue.a_scale_step() * part);
        if constexpr (B_DEPTH > 0) ptx::prefetch_to_l2(columns + epilogue.b_scale_step() * part);
      }
  }

  // Loads the scales of the next part. Beyond K, where sums are 0, they stay as they are. Rows and
  // columns outside the output, which are not stored, have the scales of others.
  __device__ __forceinline__ void load_next(Factors& factors) {
    const bool present = k < params.k;
    if constexpr (BY_POINTERS) {
#pragma unroll
      for (int i = 0; i < A_COUNT; ++i) {
        if constexpr (A_DEPTH > 0) ptx::load_if(present, factors.a[i], rows[i]);
        rows[i] += epilogue.a_scale_step();
      }
#pragma unroll
      for (int i = 0; i < B_COUNT; ++i)
        if constexpr (B_DEPTH > 0) ptx::load_if(present, factors.b[i], columns + column_offset(i));
      columns += epilogue.b_scale_step();
    } else if (present) {
#pragma unroll
      for (int i = 0; i < A_COUNT; ++i)
        if constexpr (A_DEPTH > 0)
          factors.a[i] = epilogue.scale_a(batch, min(m + 8 * i, params.m - 1), k / A_DEPTH);
#pragma unroll
      for (int i = 0; i < B_COUNT; ++i)
        if constexpr (B_DEPTH > 0) factors.b[i] = epilogue.scale_b(batch, column(i), k / B_DEPTH);
    }
    if (present) k += DEPTH;
  }

  // The column of scale `i` of B.
  __device__ __forceinline__ int column(int i) const {
    return min(n + (COLUMNS_SHARE ? i * SHARED : i / 2 * 8 + i % 2), params.n - 1);
  }
  // The distance from the scale of column(0), where `columns` points, to that of column(i).
  __device__ __forceinline__ long long column_offset(int i) const {
    if constexpr (B_COUNT == 1)
      return 0;
    else
      return epilogue.b_scale_stride() * (column(i) / B_COLUMNS - column(0) / B_COLUMNS);
  }
};
