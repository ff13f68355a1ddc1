// What the copy engine loads of one operand's tile, which has TILE rows (columns) along M (N) from `first` on: boxes that begin before
// `end`. Those outside it would fill with zeros at some 2 TB/s on the whole chip, a quarter of what else it manages
// (docs/notes/sm90-runs.md, run 19); what is multiplied in their place, anything, is not stored. The CTAs that share the tile load a slice each:
// of a K-major tile some of its rows, of an MN-major one some of each box's. Slices are whole swizzle atoms, of 8 rows; where the CTAs
// do not divide a tile's, the first slices have one more than the others, and each is a box, the shorter ones of a tensor map of their own.
//
// For a slice that lies outside, its CTA counts a byte at the others' barriers all the same. A CTA that waited for nothing of a peer's could
// overtake it by a round of the ring: its second release of a stage would be taken there for that of a third CTA, which still reads.
// (So it was: the stage filled too soon, and CTAs that waited for ever for what had been counted; run 27 of docs/notes/sm90-runs.md.) As it
// is, a stage that is full says that all who share it have found it empty.
#pragma once
#include "common/tma.cuh"

template <class Element, bool K_MAJOR, int TILE, int ROW_BYTES, int SHARED_BY, bool EVICT_FIRST>
struct Sm90Boxes {
  static constexpr int TILE_K = 128 / sizeof(Element);
  static constexpr int BOX_MN = ROW_BYTES / sizeof(Element);
  static constexpr int ATOMS = (K_MAJOR ? TILE : TILE_K) / 8,
                       LONGER = ATOMS % SHARED_BY;  // slices that have an atom more
  static constexpr int SHORT = ATOMS / SHARED_BY * 8, SLICE = SHORT + (LONGER > 0 ? 8 : 0);
  static_assert(SHORT > 0 && (K_MAJOR || LONGER == 0));
  static constexpr int MOST = K_MAJOR ? 1 : (TILE + BOX_MN - 1) / BOX_MN;
  int mn, extent, batch;  // the first box's place and its extent along M (N)
  int count;              // in this CTA's slice
  int bytes;  // of a stage, that arrive from all CTAs, with one for each slice of another's that lies outside

  __device__ __forceinline__ Sm90Boxes(int first, int end, int box_rows, int batch, int slice)
      : mn(first + (K_MAJOR ? start(slice) : 0)),
        extent(K_MAJOR ? box_rows : BOX_MN),
        batch(batch) {
    const int inside = min(max(end - first, 0), TILE);
    if constexpr (LONGER > 0) {
      count = inside > start(slice);
      bytes = 0;
#pragma unroll
      for (int s = 0; s < SHARED_BY; ++s)
        bytes += inside > start(s) ? (start(s + 1) - start(s)) * 128 : s != slice;
    } else {
      const int whole_slices = K_MAJOR ? inside / SLICE * SLICE : 0;
      count = within(K_MAJOR ? min(end - mn, SLICE) : inside);
      const int slices = K_MAJOR ? (inside + SLICE - 1) / SLICE : inside > 0 ? SHARED_BY : 0;
      bytes = (whole_slices + within(inside - whole_slices) * extent) * 128 +
              (SHARED_BY - slices - (count == 0));
    }
  }
  // A slice's first row, of the tile's.
  static __device__ __forceinline__ int start(int slice) {
    return slice * SHORT + min(slice, LONGER) * 8;
  }
  static __device__ __forceinline__ const TensorMap* map_of(int slice, const TensorMap& map,
                                                            const TensorMap& shorter) {
    return LONGER > 0 && slice >= LONGER ? &shorter : &map;
  }
  // Those that begin within so many rows (columns), without a division: up to 4 of a slice (Sm90::box_rows), MOST of an MN-major tile.
  __device__ __forceinline__ int within(int rows) const {
    int boxes = (0 < rows) + (extent < rows) + (2 * extent < rows) + (3 * extent < rows);
#pragma unroll
    for (int box = 4; box < MOST; ++box) boxes += box * extent < rows;
    return boxes;
  }

  // As many as most tiles have are loaded without a loop: while a stage's data is what all wait for, so is what this thread does from
  // its release to its next loads.
  __device__ __forceinline__ bool usual() const { return count == MOST; }
  __device__ __forceinline__ void load_usual(unsigned shared, const TensorMap* map,
                                             unsigned barrier, int k, int slice,
                                             unsigned ctas) const {
#pragma unroll
    for (int box = 0; box < MOST; ++box) load_box(shared, map, barrier, box, k, slice, ctas);
  }
  __device__ __forceinline__ void load(unsigned shared, const TensorMap* map, unsigned barrier,
                                       int k, int slice, unsigned ctas) const {
#pragma unroll 1
    for (int box = 0; box < count; ++box) load_box(shared, map, barrier, box, k, slice, ctas);
  }
  __device__ __forceinline__ void load_box(unsigned shared, const TensorMap* map, unsigned barrier,
                                           int box, int k, int slice, unsigned ctas) const {
    const int along = mn + box * extent, x = K_MAJOR ? k : along,
              y = K_MAJOR ? along : k + slice * SLICE;
    shared += (K_MAJOR ? start(slice) * 128 : slice * SLICE * ROW_BYTES) + box * extent * 128;
    if constexpr (SHARED_BY == 1)
      ptx::load_box<EVICT_FIRST>(shared, map, barrier, x, y, batch);
    else
      ptx::load_box<EVICT_FIRST>(shared, map, barrier, x, y, batch,
                                 static_cast<unsigned short>(ctas));
  }
};
