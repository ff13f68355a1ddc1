// Block scales of float8 products (Epilogue::SCALES): what the sums over a part of a K block are
// multiplied by before they are added to the totals.
//
// Each thread loads the scales of its rows and columns of the tile a K block ahead, and stores them
// in shared memory, where the warps read them by row and by column. Loads from global memory by the
// lanes that need the scales would take four to eight times as many instructions, and registers.
#pragma once
#include "common/types.cuh"

template <class Epilogue, int TILE_M, int TILE_N, int TILE_K, int THREADS> struct Sm80Scales {
  static constexpr bool PRESENT = Epilogue::SCALES;
  static_assert(!PRESENT || !(Epilogue::A_ZERO || Epilogue::B_ZERO), "float8 has no zero points");

  // Elements of K whose products have one factor: 32, 64 or a whole K block.
  static constexpr int shorter(int depth, int other) {
    return depth > 0 && depth < other ? depth : other;
  }
  static constexpr int DEPTH = shorter(Epilogue::A_DEPTH, shorter(Epilogue::B_DEPTH, TILE_K));
  static constexpr int PARTS = TILE_K / DEPTH;  // of a K block
  static_assert(!PRESENT || (DEPTH % 32 == 0 && TILE_K % DEPTH == 0), "mma.sync takes 32 of K");
  static_assert(Epilogue::A_DEPTH % DEPTH == 0 && Epilogue::B_DEPTH % DEPTH == 0);

  // A scale for each row of the tile, then one for each column.
  static constexpr int ENTRIES = TILE_M + TILE_N;
  static constexpr int OF_THREAD = (ENTRIES + THREADS - 1) / THREADS;
  // One buffer is read while the next is filled. A warp may fill it before another one has read the
  // last part of the block before: both lie between the same two barriers.
  static constexpr int BUFFERS = 3;

  static constexpr int BYTES = PRESENT ? BUFFERS * PARTS * ENTRIES * int(sizeof(f32)) : 0;

  // A step loads PER_STEP parts, which the next step stores. Few at a time: all parts at once would
  // spill.
  static constexpr int STEPS = TILE_K / 32;
  static constexpr int PER_STEP = PARTS > 1 ? (PARTS + STEPS - 2) / (STEPS - 1) : 1;

  const Epilogue& epilogue;
  int batch, start_m, start_n, end_m, end_n, end_k;
  f32 staged[OF_THREAD][PER_STEP];  // what was loaded last

  // Loads the scales of a step's parts of the K block that begins at `k`. Outside the operands,
  // they are 1.
  __device__ __forceinline__ void fetch(int k, int step) {
#pragma unroll
    for (int i = 0; i < OF_THREAD; ++i) {
      const int entry = threadIdx.x + i * THREADS;
#pragma unroll
      for (int turn = 0; turn < PER_STEP; ++turn) {
        const int at = k + (step * PER_STEP + turn) * DEPTH;
        f32& scale = staged[i][turn];
        scale = 1.0f;
        if (step * PER_STEP + turn >= PARTS || at >= end_k) continue;
        if (entry < TILE_M) {
          const int m = start_m + entry;
          if (Epilogue::A_DEPTH > 0 && m < end_m)
            scale = epilogue.scale_a(batch, m, at / Epilogue::A_DEPTH);
        } else if (entry < ENTRIES) {
          const int n = start_n + entry - TILE_M;
          if (Epilogue::B_DEPTH > 0 && n < end_n)
            scale = epilogue.scale_b(batch, n, at / Epilogue::B_DEPTH);
        }
      }
    }
  }

  // Stores the scales that a step loaded, of this K block.
  __device__ __forceinline__ void store(int block, int step) const {
#pragma unroll
    for (int i = 0; i < OF_THREAD; ++i)
#pragma unroll
      for (int turn = 0; turn < PER_STEP; ++turn)
        if (const int entry = threadIdx.x + i * THREADS, part = step * PER_STEP + turn;
            part < PARTS && entry < ENTRIES)
          of(block, part)[entry] = staged[i][turn];
  }

  // The scales of a part of a K block: of the tile's rows, then of its columns.
  static __device__ __forceinline__ f32* of(int block, int part) {
    __shared__ f32 buffers[BUFFERS][PARTS][ENTRIES];  // Sm80::applies of the host
    return buffers[block % BUFFERS][part];
  }
};
