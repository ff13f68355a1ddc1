// The groups of a grouped GEMM. Only the device knows where groups end.
//
//   ALONG_M  The rows of A and of the output are the rows of all groups, stacked; each group has a
//            matrix B of its own. Tiles are numbered on the device (GroupWalk): the tiles of the
//            first group, then those of the second, and so on.
//   masked   As ALONG_M, by the same kernels: A and the output have a matrix for each group, of
//            whose rows the first ones exist, as many as `ends` counts.
//   ALONG_K  K of A and of B is that of all groups, one after the other; each group has a matrix of
//            the output. Tiles are those of a batch, each with the K of its group (GroupDepths).
#pragma once
#include "common/field.cuh"

// What the groups of a product divide. Mirrored in the Rust core (src/kernel/operation.rs).
enum class Groups { NONE, ALONG_M, ALONG_K };

// Mirrored in the Rust core (src/kernel/params.rs).
struct GroupOffsets {
  const int* ends;  // ends[step * group]: the row (index of K) after the group's last
  long long step;   // in elements

  // A plain load, not __ldg: the preceding grid may still have been writing when this one started.
  __device__ __forceinline__ int operator[](int group) const { return ends[step * group]; }
};
static_assert(sizeof(GroupOffsets) == 16);
RUTLASS_FIELD(GroupOffsets, step, 8);

// Locates tiles of increasing number. The warp keeps 31 groups in view, one per lane; lane 0
// represents all groups before them. If a tile lies beyond the view, the warp advances to the next
// 31 groups. All lanes take part in every call. A strip is STRIP rows and has `tiles_per_strip`
// tiles.
//
// Any content of `ends` is safe: ends are clamped to the stacked rows and made monotonic, so a
// group that would end before it begins is empty. Counts of masked groups are clamped to the rows
// of a matrix. The bits of `stacked` select, since branches take registers that the consumers of
// ping-pong kernels lack, and so does a value that the kernel computes.
template <int STRIP> class GroupWalk {
 public:
  struct Place {
    int group, start, end;  // the group's rows; from 0 on if masked
    unsigned tile;          // counted from the group's first
  };

  // `stacked`: -1; 0 if masked.
  __device__ __forceinline__ GroupWalk(const GroupOffsets& offsets, int stacked, int groups,
                                       int rows, unsigned tiles_per_strip)
      : offsets(offsets),
        stacked(stacked),
        groups(groups),
        rows(rows),
        tiles_per_strip(tiles_per_strip) {
    view(0, 0);
  }

  // Whether a tile of this number exists. Brings its group into view.
  __device__ __forceinline__ bool has(unsigned tile) {
    for (;;) {
      const unsigned tiles_so_far = last_of(tiles);
      if (tile < tiles_so_far) return true;
      if (before + IN_VIEW >= groups) return false;
      before += IN_VIEW;
      view(last_of(end), tiles_so_far);
    }
  }

  // The place of a tile whose group is in view.
  __device__ __forceinline__ Place operator[](unsigned tile) const {
    const int lane = __ffs(__ballot_sync(ALL, tile < tiles)) - 1;
    return {before + lane - 1, __shfl_sync(ALL, end, lane - 1) & stacked,
            __shfl_sync(ALL, end, lane), tile - __shfl_sync(ALL, tiles, lane - 1)};
  }

 private:
  static constexpr unsigned ALL = 0xffffffff;
  static constexpr int IN_VIEW = 31;

  template <class T> static __device__ __forceinline__ T last_of(T value) {
    return __shfl_sync(ALL, value, 31);
  }

  // Reads the ends of the groups in view; prefix maximum of ends, prefix sum of tiles.
  __device__ __forceinline__ void view(int first_row, unsigned tiles_before) {
    const int lane = threadIdx.x % 32, group = before + lane - 1;
    end = first_row & stacked;
    if (lane > 0 && group < groups) end = max(end, min(offsets[group], rows));
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
      end = max(end, __shfl_up_sync(ALL, end, distance) & stacked);
    const int start = __shfl_up_sync(ALL, end, 1) & stacked;
    tiles = lane > 0 ? (end - start + STRIP - 1) / STRIP * tiles_per_strip : tiles_before;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const unsigned sum = __shfl_up_sync(ALL, tiles, distance);
      if (lane >= distance) tiles += sum;
    }
  }

  const GroupOffsets offsets;
  const int stacked;
  const int groups, rows;  // rows: of all groups; of each matrix if masked
  const unsigned tiles_per_strip;
  int before = 0;  // groups before those in view
  int end;         // of this lane's group
  unsigned tiles;  // of all groups up to this lane's
};

// Where groups along K begin and end. A warp keeps the ends of 31 groups in view, one per lane from
// lane 1 on; lane 0 has the end of all groups before them. All lanes take part in every call, and
// the groups of successive calls do not decrease.
//
// Any content of `ends` is safe, as in GroupWalk: a group begins at the largest end before it, and
// ends are clamped to the extent of K.
class GroupDepths {
 public:
  struct Depth { int start, length; };  // along K

  __device__ __forceinline__ GroupDepths(const GroupOffsets& offsets, int groups, int k)
      : offsets(offsets), groups(groups), k(k) {}

  __device__ __forceinline__ Depth operator[](int group) {
    if (group - first >= IN_VIEW) view(group);
    const int lane = group - first, start = __shfl_sync(ALL, end, lane);
    return {start, __shfl_sync(ALL, end, lane + 1) - start};
  }

 private:
  static constexpr unsigned ALL = 0xffffffff;
  static constexpr int IN_VIEW = 31;

  // Views the groups from this one on. The loads do not depend on each other, so that a CTA of one
  // tile waits for memory once.
  __device__ __forceinline__ void view(int group) {
    const int lane = threadIdx.x % 32;
    first = group;
    int before = 0;
#pragma unroll 1
    for (int i = lane; i < group; i += 32) before = max(before, end_of(i));
    end = lane > 0 && group + lane <= groups ? end_of(group + lane - 1) : 0;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      before = max(before, __shfl_xor_sync(ALL, before, distance));
    end = max(end, before);
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
      end = max(end, __shfl_up_sync(ALL, end, distance));
  }

  __device__ __forceinline__ int end_of(int group) const { return min(offsets[group], k); }

  const GroupOffsets offsets;
  const int groups, k;
  int first = -IN_VIEW;  // the first group in view
  int end;               // of this lane's group
};
