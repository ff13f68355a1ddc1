// Which tile of the output a CTA computes.
#pragma once

struct TilePosition {
  int batch;
  int m, n;  // in tiles
};

// CTAs that run at the same time should share what they read. Tiles are therefore walked in bands of GROUP tile rows, down
// each column of a band before the next column: a wave of W CTAs then covers about GROUP x W/GROUP tiles, and reads that many
// strips of each operand. For the 132 to 264 CTAs of today's chips, 8 makes that close to a square.
// The grid has one dimension, tiles_m * tiles_n * batch.
template <int TILE_M, int TILE_N> __device__ __forceinline__ TilePosition tile_position(int m, int n) {
  constexpr int GROUP = 8;
  int tiles_m = (m + TILE_M - 1) / TILE_M;
  int tiles_n = (n + TILE_N - 1) / TILE_N;
  int tiles = tiles_m * tiles_n;
  int batch = blockIdx.x / tiles;
  int index = blockIdx.x - batch * tiles;
  int first = index / (GROUP * tiles_n) * GROUP;  // the band's first tile row; the last band may be lower
  int height = min(GROUP, tiles_m - first);
  index -= first * tiles_n;
  int column = index / height;
  return {batch, first + index - column * height, column};
}
