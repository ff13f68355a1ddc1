// Which tile of the output a CTA computes.
#pragma once
#include "common/params.cuh"

struct TilePosition {
  int batch;  // or group
  int m, n;   // first row and column
  int end;    // the row after the last that the tile has
};

// CTAs that run at the same time should share what they read. Tiles are therefore walked in bands of GROUP tile rows, down
// each column of a band before the next column: a wave of W CTAs then covers about GROUP x W/GROUP tiles, and reads that many
// strips of each operand. For the 132 to 264 CTAs of today's chips, 8 makes that close to a square.
// The grid has one dimension, tiles_m * tiles_n * batch. Of a grouped GEMM, it is an upper bound, and the CTAs left over have no rows.
template <int TILE_M, int TILE_N, bool GROUPED>
__device__ __forceinline__ TilePosition tile_position(const GemmParams& params) {
  constexpr int BAND = 8;
  const int tiles_n = (params.n + TILE_N - 1) / TILE_N;
  int batch, index, start = 0, end = params.m;
  if constexpr (GROUPED) {
    GroupWalk<TILE_M> walk(params.offsets, params.batch, params.m, tiles_n);
    if (!walk.has(blockIdx.x)) return {0, 0, 0, 0};
    const auto place = walk[blockIdx.x];
    batch = place.group, index = place.tile, start = place.start, end = place.end;
  }
  const int tiles_m = (end - start + TILE_M - 1) / TILE_M;
  if constexpr (!GROUPED) {
    const int tiles = tiles_m * tiles_n;
    batch = blockIdx.x / tiles;
    index = blockIdx.x - batch * tiles;
  }
  const int first =
      index / (BAND * tiles_n) * BAND;  // the band's first tile row; the last band may be lower
  const int height = min(BAND, tiles_m - first);
  index -= first * tiles_n;
  const int column = index / height;
  return {batch, start + (first + index - column * height) * TILE_M, column * TILE_N, end};
}
