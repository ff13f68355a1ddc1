// Where the tiles of a grouped GEMM lie.
//
// The rows of A and of the output are stacked group after group, and each group has a matrix B of its own. Where groups end only the
// device knows, so that the tiles are counted there: those of the first group come first, then those of the second, and so on.
#pragma once

struct GroupOffsets {
  const int* ends;  // of each group, the row after its last; ends[step * group]
  long long step;   // in elements
};

// A walk over a rising sequence of tiles. A warp has 32 groups in view, one a lane, and moves on to the next 32 where a tile lies
// behind them: all of its threads take part in every call. A strip is STRIP rows, and has as many tiles as the caller says.
//
// Whatever the offsets say, groups lie behind each other within the rows that there are: one that would end before it begins has none.
template <int STRIP> class GroupWalk {
 public:
  struct Place {
    int group, start, end;  // the group's rows
    unsigned tile;          // counted from the group's first
  };

  __device__ __forceinline__ GroupWalk(const GroupOffsets& offsets, int groups, int rows, unsigned tiles_per_strip)
      : offsets(offsets), groups(groups), rows(rows), tiles_per_strip(tiles_per_strip) {
    view();
  }

  // Whether there is a tile of this number. Brings it into view.
  __device__ __forceinline__ bool has(unsigned tile) {
    for (;;) {
      const unsigned tiles_in_view = last_of(tiles);
      if (tile < tiles_in_view) return true;
      if (base + 32 >= groups) return false;
      tiles_before = tiles_in_view;
      first_row = last_of(end);
      base += 32;
      view();
    }
  }

  // A tile that is in view.
  __device__ __forceinline__ Place operator[](unsigned tile) const {
    const int at = __ffs(__ballot_sync(ALL, tile < tiles)) - 1, left = at > 0 ? at - 1 : 0;
    const unsigned before = __shfl_sync(ALL, tiles, left);
    const int start = __shfl_sync(ALL, end, left);
    return {base + at, at > 0 ? start : first_row, __shfl_sync(ALL, end, at), tile - (at > 0 ? before : tiles_before)};
  }

 private:
  static constexpr unsigned ALL = 0xffffffff;

  template <class T> static __device__ __forceinline__ T last_of(T value) { return __shfl_sync(ALL, value, 31); }

  __device__ __forceinline__ void view() {
    const int lane = threadIdx.x % 32, group = base + lane;
    // A plain load, not __ldg: the grid before this one may have written it.
    end = group < groups ? max(first_row, min(offsets.ends[offsets.step * group], rows)) : first_row;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) end = max(end, __shfl_up_sync(ALL, end, distance));
    const int left = __shfl_up_sync(ALL, end, 1), start = lane > 0 ? left : first_row;
    tiles = (end - start + STRIP - 1) / STRIP * tiles_per_strip;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const unsigned sum = __shfl_up_sync(ALL, tiles, distance);
      if (lane >= distance) tiles += sum;
    }
    tiles += tiles_before;
  }

  const GroupOffsets offsets;
  const int groups, rows;
  const unsigned tiles_per_strip;
  int base = 0, first_row = 0;  // first group in view, and its first row
  unsigned tiles_before = 0;    // of all groups before it
  int end;                      // of this lane's group
  unsigned tiles;               // of all groups up to this lane's
};
