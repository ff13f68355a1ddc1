// Where the tiles of a grouped GEMM lie.
//
// The rows of A and of the output are stacked group after group, and each group has a matrix B of its own. Where groups end only the
// device knows, so that the tiles are counted there: those of the first group come first, then those of the second, and so on.
#pragma once

struct GroupOffsets {
  const int* ends;  // of each group, the row after its last; ends[step * group]
  long long step;   // in elements
};

// A walk over a rising sequence of tiles. A warp has 31 groups in view, one a lane, behind a lane that stands for all groups before,
// and moves on to the next 31 where a tile lies behind them: all of its threads take part in every call. A strip is STRIP rows, and has
// as many tiles as the caller says.
//
// Whatever the offsets say, groups lie behind each other within the rows that there are: one that would end before it begins has none.
template <int STRIP> class GroupWalk {
 public:
  struct Place {
    int group, start, end;  // the group's rows
    unsigned tile;          // counted from the group's first
  };

  __device__ __forceinline__ GroupWalk(const GroupOffsets& offsets, int groups, int rows,
                                       unsigned tiles_per_strip)
      : offsets(offsets), groups(groups), rows(rows), tiles_per_strip(tiles_per_strip) {
    view(0, 0);
  }

  // Whether there is a tile of this number. Brings it into view.
  __device__ __forceinline__ bool has(unsigned tile) {
    for (;;) {
      const unsigned tiles_so_far = last_of(tiles);
      if (tile < tiles_so_far) return true;
      if (before + IN_VIEW >= groups) return false;
      before += IN_VIEW;
      view(last_of(end), tiles_so_far);
    }
  }

  // A tile that is in view.
  __device__ __forceinline__ Place operator[](unsigned tile) const {
    const int lane = __ffs(__ballot_sync(ALL, tile < tiles)) - 1;
    return {before + lane - 1, __shfl_sync(ALL, end, lane - 1), __shfl_sync(ALL, end, lane),
            tile - __shfl_sync(ALL, tiles, lane - 1)};
  }

 private:
  static constexpr unsigned ALL = 0xffffffff;
  static constexpr int IN_VIEW = 31;

  template <class T> static __device__ __forceinline__ T last_of(T value) {
    return __shfl_sync(ALL, value, 31);
  }

  __device__ __forceinline__ void view(int first_row, unsigned tiles_before) {
    const int lane = threadIdx.x % 32, group = before + lane - 1;
    end = first_row;
    // A plain load, not __ldg: the grid before this one may have written it.
    if (lane > 0 && group < groups) end = max(end, min(offsets.ends[offsets.step * group], rows));
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
      end = max(end, __shfl_up_sync(ALL, end, distance));
    const int start = __shfl_up_sync(ALL, end, 1);
    tiles = lane > 0 ? (end - start + STRIP - 1) / STRIP * tiles_per_strip : tiles_before;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const unsigned sum = __shfl_up_sync(ALL, tiles, distance);
      if (lane >= distance) tiles += sum;
    }
  }

  const GroupOffsets offsets;
  const int groups, rows;
  const unsigned tiles_per_strip;
  int before = 0;  // groups before those in view
  int end;         // of this lane's group
  unsigned tiles;  // of all groups up to this lane's
};
