// The part of the output that a CTA of a mixed skinny GEMM computes.
#pragma once
#include "common/params.cuh"

// Rows from start_m on and columns start_n to end_n, over K from start_k to k_end.
struct SkinnyRange {
  int batch, start_m, start_n, end_n, start_k, k_end;
  int columns;  // of each tile but the last, which has what is left
  int blocks;   // K blocks

  // The range of a persistent CTA. The CTAs of a strip, ROWS rows of a matrix of the batch, divide
  // its columns; their shares differ by a unit at most.
  template <int ROWS, int TILE_N, int TILE_K, int UNIT>
  static __device__ __forceinline__ SkinnyRange of_cta(const GemmParams& params) {
    int ctas = gridDim.x, rank = blockIdx.x, batch = 0, start_m = 0;
    if (params.m > ROWS || params.batch > 1) {
      const int strips = params.m > ROWS ? (params.m + ROWS - 1) / ROWS : 1;  // of a matrix
      ctas /= strips * params.batch;
      const int strip = rank / ctas;
      rank -= strip * ctas;
      batch = strip / strips;
      start_m = (strip - batch * strips) * ROWS;
    }
    const int units = params.n / UNIT + (params.n % UNIT != 0), share = units / ctas;
    const int longer = units - share * ctas, count = share + (rank < longer);
    const int start_n = (share * rank + min(rank, longer)) * UNIT;
    const int end_n = start_n + min(params.n - start_n, count * UNIT);
    int columns = UNIT;
    if constexpr (TILE_N > UNIT) {
      // Tiles of a range are equally wide, so that the pipeline is equally full.
      const int tiles = max((count * UNIT + TILE_N - 1) / TILE_N, 1);
      columns *= (count + tiles - 1) / tiles;
    }
    const int blocks = (unsigned(params.k) + TILE_K - 1) / TILE_K;
    return {batch, start_m, start_n, end_n, 0, params.k, columns, blocks};
  }
};
