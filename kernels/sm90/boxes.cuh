// The TMA boxes of one operand's tile.
//
// The tile has TILE rows (columns) along M (N), from `first` on. SHARED_BY CTAs of the cluster
// compute tiles that need it: each loads one slice and multicasts it to all of them. A slice is
// some rows of a K-major tile, or some rows of each box of an MN-major tile. Slices are whole
// swizzle atoms of 8 rows. If the CTAs do not divide the atoms of a K-major tile, the first LONGER
// slices have one atom more than the others; each slice is then one box, and the shorter ones have
// a tensor map of their own.
//
// Boxes that begin at or beyond `end` are not loaded. TMA would fill them with zeros, which takes
// as long as a load. The stale data multiplied instead only affects accumulators that are not
// stored.
//
// Invariant: a full stage implies that all CTAs that share a slice of it had released it. Hence a
// CTA whose slice lies outside the operand reports this to each sharing CTA as one byte
// (complete_tx), which the others expect. Without the report, a CTA could be one wrap-around ahead
// of a peer from which it expects no bytes. Its second release of a stage would then count, at the
// peer's `empty` barrier, as the release of a third CTA that still reads the stage.
#pragma once
#include "common/tma.cuh"

// DUAL: rows of two matrices alternate in blocks of 8, in the tile and in the box.
template <class Element, int TILE_K, bool K_MAJOR, int TILE, int ROW_BYTES, int SHARED_BY,
          bool EVICT_FIRST, bool DUAL>
struct Sm90Boxes {
  // Bytes of a K block of one row (column). If K-major and longer than a row of shared memory, it
  // has several parts, a box each; the second parts follow the first parts of the whole tile.
  static constexpr int K_BYTES = bytes_of<Element>(TILE_K);
  static constexpr int PARTS = K_MAJOR ? K_BYTES / ROW_BYTES : 1;
  static constexpr int BOX_MN = 8 * ROW_BYTES / bits_of<Element>;  // of an MN-major tile
  // TMA copies bytes where a byte has several elements.
  static constexpr int PACKING = packing_of<Element>;
  static constexpr int ATOMS = (K_MAJOR ? TILE : TILE_K) / 8;
  static constexpr int LONGER = ATOMS % SHARED_BY;  // the number of longer slices
  // Rows of a shorter slice, and of the longest slice.
  static constexpr int SHORT = ATOMS / SHARED_BY * 8, SLICE = SHORT + (LONGER > 0 ? 8 : 0);
  static_assert(SHORT > 0 && (K_MAJOR || LONGER == 0));
  static_assert(!DUAL || (K_MAJOR && LONGER == 0 && SLICE % 16 == 0));
  // Boxes of a slice: of an MN-major tile inside the operand; of a K-major tile in most launches.
  static constexpr int ALL = K_MAJOR ? 1 : (TILE + BOX_MN - 1) / BOX_MN;

  int mn, extent, batch;  // the first box: its place along M (N), its extent, its matrix
  int count;              // boxes of this CTA's slice
  int bytes;              // of a stage, from all CTAs, including one per reported slice

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
        bytes += inside > start(s) ? (start(s + 1) - start(s)) * K_BYTES : s != slice;
    } else {
      const int whole_slices = K_MAJOR ? inside / SLICE * SLICE : 0;  // in rows
      count = boxes_within(K_MAJOR ? min(end - mn, SLICE) : inside);
      const int slices = K_MAJOR ? (inside + SLICE - 1) / SLICE : inside > 0 ? SHARED_BY : 0;
      bytes = (whole_slices + boxes_within(inside - whole_slices) * extent) * K_BYTES +
              (SHARED_BY - slices - (count == 0));
    }
  }

  // A slice's first row in the tile.
  static __device__ __forceinline__ int start(int slice) {
    return slice * SHORT + min(slice, LONGER) * 8;
  }
  static __device__ __forceinline__ const TensorMap* map_of(int slice, const TensorMap& map,
                                                            const TensorMap& shorter) {
    return LONGER > 0 && slice >= LONGER ? &shorter : &map;
  }

  // The number of boxes that begin within this many rows (columns), computed without a division: at
  // most 4 of a K-major slice (the host's limit), at most ALL of an MN-major tile.
  __device__ __forceinline__ int boxes_within(int rows) const {
    int boxes = (0 < rows) + (extent < rows) + (2 * extent < rows) + (3 * extent < rows);
#pragma unroll
    for (int box = 4; box < ALL; ++box) boxes += box * extent < rows;
    return boxes;
  }

  // Most tiles have ALL boxes, which are loaded without a loop (HAS_ALL): the time from a stage's
  // release to its next loads is on the critical path.
  __device__ __forceinline__ bool has_all() const { return count == ALL; }
  template <bool HAS_ALL>
  __device__ __forceinline__ void load(unsigned shared, const TensorMap* map, unsigned barrier,
                                       int k, int slice, unsigned ctas) const {
#pragma unroll(HAS_ALL ? ALL : 1)
    for (int box = 0; box < (HAS_ALL ? ALL : count); ++box)
      load_box(shared, map, barrier, box, k, slice, ctas);
  }
  // Fetches the boxes into L2. For a K-major tile with one box of K.
  __device__ __forceinline__ void prefetch(const TensorMap* map, int k) const {
    static_assert(K_MAJOR && PARTS == 1);
#pragma unroll 1
    for (int box = 0; box < count; ++box)
      ptx::tma_prefetch(map, k / PACKING, mn + box * extent, batch);
  }
  // `shared`: the tile's address. `ctas`: the multicast mask.
  __device__ __forceinline__ void load_box(unsigned shared, const TensorMap* map, unsigned barrier,
                                           int box, int k, int slice, unsigned ctas) const {
    const int along = mn + box * extent, x = K_MAJOR ? k / PACKING : along,
              y = K_MAJOR ? along : k + slice * SLICE;
    shared += K_MAJOR ? (start(slice) + box * extent) * ROW_BYTES
                      : slice * SLICE * ROW_BYTES + box * extent * K_BYTES;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      const unsigned to = shared + part * (TILE * ROW_BYTES);
      const int from = x + part * (8 * ROW_BYTES / bits_of<Element> / PACKING);
      if constexpr (DUAL)
        ptx::tma_load_dual<(SHARED_BY > 1)>(to, map, barrier, from, y / 16, batch,
                                            static_cast<unsigned short>(ctas));
      else if constexpr (SHARED_BY == 1)
        ptx::tma_load<EVICT_FIRST>(to, map, barrier, from, y, batch);
      else
        ptx::tma_load<EVICT_FIRST>(to, map, barrier, from, y, batch,
                                   static_cast<unsigned short>(ctas));
    }
  }
};
