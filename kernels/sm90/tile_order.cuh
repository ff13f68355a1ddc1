// The order in which clusters take tiles.
//
// Concurrent clusters should read the same operands. Tiles are walked in bands, down each column of
// a band before the next column. The host chooses the height of a band for each problem.
#pragma once
#include "common/cluster.cuh"
#include "common/groups.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"

template <class Config> struct Sm90TileOrder {
  // This CTA's tile: first row and column. If GROUPED, `batch` is the group. If ALONG_M, `end` is
  // the row after the group's last. If ALONG_K, `k` is the group's first index of K, and `depth`
  // the extent of K, at least 1.
  struct Tile {
    int batch, m, n, end, k, depth;
    // The number of K blocks, if ALONG_K.
    __device__ __forceinline__ int blocks() const {
      return (depth + Config::TILE_K - 1) / Config::TILE_K;
    }
  };

  static __device__ __forceinline__ unsigned tiles_along(int extent, int tile) {
    return (extent + tile - 1) / tile;
  }
  // `index` and all extents count clusters.
  static __device__ __forceinline__ Tile in_bands(unsigned index, unsigned tiles_m,
                                                  unsigned tiles_n, unsigned band) {
    const unsigned first = index / (band * tiles_n) * band, height = min(band, tiles_m - first);
    index -= first * tiles_n;
    const unsigned column = index / height, row = first + index - column * height;
    const unsigned rank = Config::CLUSTER == 1 ? 0 : ptx::cluster_rank();
    return {0, int(row * Config::CLUSTER_M + rank % Config::CLUSTER_M) * Config::TILE_M,
            int(column * Config::CLUSTER_N + rank / Config::CLUSTER_M % Config::CLUSTER_N) *
                Config::TILE_N};
  }

  // The matrices of a batch, one after the other.
  struct Batched {
    unsigned tiles_m, tiles_n, count, band;
    __device__ __forceinline__ Batched(const Sm90Params& params) {
      tiles_m = tiles_along(params.m, Config::TILE_M * Config::CLUSTER_M);
      tiles_n = tiles_along(params.n, Config::TILE_N * Config::CLUSTER_N);
      count = tiles_m * tiles_n * params.batch;
      band = params.band;
    }
    __device__ __forceinline__ bool has(unsigned index) const { return index < count; }
    __device__ __forceinline__ Tile operator[](unsigned index) const {
      const unsigned tiles = tiles_m * tiles_n, batch = index / tiles;
      Tile tile = in_bands(index - batch * tiles, tiles_m, tiles_n, band);
      tile.batch = batch;
      return tile;
    }
  };

  // The same, where the matrices are those of groups along K. Every call takes a whole warp.
  struct Deep : Batched {
    int k;
    GroupDepths depths;
    __device__ __forceinline__ Deep(const Sm90Params& params)
        : Batched(params), k(params.k), depths(params.offsets, params.batch, params.k) {}
    __device__ __forceinline__ Tile operator[](unsigned index) {
      Tile tile = Batched::operator[](index);
      const auto [start, length] = depths[tile.batch];
      // Without K, multiply one block beyond K, which TMA reads as zeros.
      tile.k = length > 0 ? start : k + 1;
      tile.depth = length > 0 ? length : Config::TILE_K;
      return tile;
    }
    // The K blocks of a tile, which may be beyond the last one.
    __device__ __forceinline__ int blocks(unsigned index) {
      return this->has(index) ? (*this)[index].blocks() : 0;
    }
  };

  // The groups along M of a grouped GEMM, one after the other. Every call takes a whole warp.
  struct Grouped {
    static constexpr int STRIP = Config::TILE_M * Config::CLUSTER_M;
    unsigned tiles_n, band;
    GroupWalk<STRIP> walk;
    __device__ __forceinline__ Grouped(const Sm90Params& params)
        : tiles_n(tiles_along(params.n, Config::TILE_N * Config::CLUSTER_N)),
          band(params.band),
          walk(params.offsets, params.batch, params.m, tiles_n) {}
    __device__ __forceinline__ bool has(unsigned index) { return walk.has(index); }
    __device__ __forceinline__ Tile operator[](unsigned index) const {
      const auto place = walk[index];
      Tile tile = in_bands(place.tile, tiles_along(place.end - place.start, STRIP), tiles_n, band);
      tile.batch = place.group;
      tile.m += place.start;
      tile.end = place.end;
      return tile;
    }
  };

  using Order =
      typename Conditional<Config::ALONG_M, Grouped,
                           typename Conditional<Config::ALONG_K, Deep, Batched>::Type>::Type;
};
