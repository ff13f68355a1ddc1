// The order in which clusters take tiles, and a CTA's share of them.
//
// Concurrent clusters should read the same operands. Tiles are walked in bands, down each column of
// a band before the next column. The host chooses the height of a band for each problem.
#pragma once
#include "common/cluster.cuh"
#include "common/groups.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"
#include "sm90/scales.cuh"

template <class Config> struct Sm90TileOrder {
  // This CTA's tile: first row and column. If GROUPED, `batch` is the group. If ALONG_M, `end` is
  // the row of the output after the group's last. If ALONG_K, the tile multiplies the indices of K
  // from `k` on, `depth` of them, at least 1, of which the first `head` precede the group.
  struct Tile {
    int batch, m, n, end, k, depth, head;
    // What lies along m and along n ends here: that of all, or of the tile's group.
    __device__ __forceinline__ int end_m(const Sm90Params& params) const {
      return Config::ALONG_M && !Config::OUT_TRANSPOSED ? end : params.m;
    }
    __device__ __forceinline__ int end_n(const Sm90Params& params) const {
      return Config::ALONG_M && Config::OUT_TRANSPOSED ? end : params.n;
    }
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
    // What `Tile::k` is a multiple of. A box of a K-major operand begins at a multiple of 16 bytes
    // (TMA raises an illegal instruction otherwise); scales of blocks, at those of a K block.
    static constexpr int STEP = !Config::A_K_MAJOR            ? 1
                                : Sm90Scales<Config>::PRESENT ? Config::TILE_K
                                                              : 128 / bits_of<typename Config::A>;
    int k;
    GroupDepths depths;
    __device__ __forceinline__ Deep(const Sm90Params& params)
        : Batched(params), k(params.k), depths(params.offsets, params.batch, params.k) {}
    __device__ __forceinline__ Tile operator[](unsigned index) {
      Tile tile = Batched::operator[](index);
      const auto [start, length] = depths[tile.batch];
      // Without K, multiply one block beyond K, which TMA reads as zeros.
      tile.head = length > 0 ? start % STEP : 0;
      tile.k = length > 0 ? start - tile.head : (k / STEP + 1) * STEP;
      tile.depth = length > 0 ? tile.head + length : Config::TILE_K;
      return tile;
    }
  };

  // The groups along M of a grouped GEMM, one after the other. Their rows lie along n if
  // OUT_TRANSPOSED. Every call takes a whole warp.
  struct Grouped {
    static constexpr bool ALONG_N = Config::OUT_TRANSPOSED;
    static constexpr int STRIP = ALONG_N ? Config::TILE_N * Config::CLUSTER_N
                                         : Config::TILE_M * Config::CLUSTER_M,
                         OTHER = ALONG_N ? Config::TILE_M * Config::CLUSTER_M
                                         : Config::TILE_N * Config::CLUSTER_N;
    unsigned across, band;  // across: clusters of a strip
    GroupWalk<STRIP> walk;
    __device__ __forceinline__ Grouped(const Sm90Params& params)
        : across(tiles_along(ALONG_N ? params.m : params.n, OTHER)),
          band(params.band),
          walk(params.offsets, params.splits_or_stacked, params.batch,
               ALONG_N ? params.n : params.m, across) {}
    __device__ __forceinline__ bool has(unsigned index) { return walk.has(index); }
    __device__ __forceinline__ Tile operator[](unsigned index) const {
      const auto place = walk[index];
      const unsigned strips = tiles_along(place.end - place.start, STRIP);
      Tile tile = in_bands(place.tile, ALONG_N ? across : strips, ALONG_N ? strips : across, band);
      tile.batch = place.group;
      (ALONG_N ? tile.n : tile.m) += place.start;
      tile.end = place.end;
      return tile;
    }
  };

  using Order =
      typename Conditional<Config::ALONG_M, Grouped,
                           typename Conditional<Config::ALONG_K, Deep, Batched>::Type>::Type;

  // This CTA's work: the tiles of indices cluster, cluster + clusters and so on, and of each tile,
  // unless ALONG_K, `blocks` K blocks from `first_block` on.
  struct Work {
    Order order;
    const unsigned rank, clusters = gridDim.x / Config::CLUSTER;  // rank: in the cluster
    unsigned cluster = blockIdx.x / Config::CLUSTER, split;
    int first_block, blocks;

    __device__ __forceinline__ Work(const Sm90Params& params, unsigned rank)
        : order(params), rank(rank), split(rank / Config::TILES_PER_CLUSTER) {
      unsigned splits = Config::SPLIT;
      if constexpr (Config::OVER_GRID) {
        splits = params.splits_or_stacked;
        split = cluster / order.count;
        cluster -= split * order.count;
      }
      const int all_blocks = params.k / Config::TILE_K + (params.k % Config::TILE_K != 0);
      const auto until = [&](unsigned splits_before) {
        return static_cast<long long>(all_blocks) * splits_before / splits;
      };
      first_block = Config::SPLIT == 1 ? 0 : until(split);
      blocks = Config::SPLIT == 1 ? all_blocks : until(split + 1) - first_block;
      // Without a block of K, multiply one beyond K, which TMA reads as zeros.
      if (blocks == 0) first_block = all_blocks + 1, blocks = 1;
    }
    // Of a grid split: the tiles of all clusters of a slice of K, and this CTA's among them.
    __device__ __forceinline__ unsigned tiles() const { return order.count * Config::CLUSTER; }
    __device__ __forceinline__ unsigned tile() const { return cluster * Config::CLUSTER + rank; }

    // The K blocks of a tile; those of the tile with an index, which may be beyond the last one;
    // and the first index of a block of a tile.
    __device__ __forceinline__ int blocks_of(const Tile& tile) const {
      return Config::ALONG_K ? tile.blocks() : blocks;
    }
    __device__ __forceinline__ int blocks_at(unsigned index) {
      if constexpr (Config::ALONG_K) return order.has(index) ? order[index].blocks() : 0;
      return blocks;
    }
    __device__ __forceinline__ int k_of(const Tile& tile, int block) const {
      return Config::ALONG_K ? tile.k + block * Config::TILE_K
                             : (first_block + block) * Config::TILE_K;
    }
  };
};
