// Which tile of the output a CTA of a simt or sm80 kernel computes.
#pragma once
#include "common/params.cuh"

struct TilePosition {
  int batch;       // or group
  int m, n;        // first row and column
  int end;         // the tile's rows lie before this one
  int start_k, k;  // the range of K: its start and its extent
};

// Concurrent CTAs should read the same operands, so that L2 serves them. Tiles are therefore walked
// in bands of BAND tile rows, down each column of a band before the next column: W concurrent CTAs
// cover about BAND x W/BAND tiles and read that many strips of A and of B. With 132 to 264
// concurrent CTAs, BAND = 8 makes that region about as high as it is wide.
//
// The grid has one dimension, tiles_m * tiles_n * batch * SPLIT: SPLIT adjacent CTAs share a tile.
// With groups along M that is an upper bound; surplus CTAs get no rows (m >= end).
template <int TILE_M, int TILE_N, Groups GROUPS, int SPLIT = 1>
__device__ __forceinline__ TilePosition tile_position(const GemmParams& params) {
  constexpr int BAND = 8;
  constexpr bool ALONG_M = GROUPS == Groups::ALONG_M;
  static_assert(GROUPS == Groups::NONE || SPLIT == 1);
  const int tiles_n = (params.n + TILE_N - 1) / TILE_N;
  int batch, index, start = 0, end = params.m;
  if constexpr (ALONG_M) {
    // Each matrix of a masked output begins elsewhere.
    const int stacked = params.out_stride[0] == 0 ? -1 : 0;
    GroupWalk<TILE_M> walk(params.offsets, stacked, params.batch, params.m, tiles_n);
    if (!walk.has(blockIdx.x)) return {};
    const auto place = walk[blockIdx.x];
    batch = place.group, index = place.tile, start = place.start, end = place.end;
  }
  const int tiles_m = (end - start + TILE_M - 1) / TILE_M;
  if constexpr (!ALONG_M) {
    const int tiles = tiles_m * tiles_n;
    batch = blockIdx.x / SPLIT / tiles;
    index = blockIdx.x / SPLIT - batch * tiles;
  }
  // The band's first tile row; the last band may be lower.
  const int first = index / (BAND * tiles_n) * BAND;
  const int height = min(BAND, tiles_m - first);
  index -= first * tiles_n;
  const int column = index / height;
  GroupDepths::Depth depth{0, params.k};
  if constexpr (GROUPS == Groups::ALONG_K)
    depth = GroupDepths(params.offsets, params.batch, params.k)[batch];
  const int row = first + index - column * height;
  return {batch, start + row * TILE_M, column * TILE_N, end, depth.start, depth.length};
}
