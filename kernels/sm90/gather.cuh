// The rows of A of one tile by an index: row i of the tile is row index[tile.m + i] of A.
//
// The 128 threads of the producer copy them with cp.async, 8 threads a row of 128 bytes. TMA of
// compute capability 9.0 copies rows in any order by an instruction each, which takes longer
// (docs/design/sm90.md).
#pragma once
#include "common/mbarrier.cuh"
#include "common/ptx.cuh"
#include "common/tma.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"
#include "sm90/pipeline.cuh"

template <class Config> struct Sm90GatheredRows {
  using A = typename Config::A;
  using Pipeline = Sm90Pipeline<Config>;
  // AT_ONCE: rows that a warp copies by one instruction.
  static constexpr int WARPS = Config::WARPGROUP / 32, AT_ONCE = 4;
  // Rows of each warp in a tile. Lane i holds the indices of rows i, i + 32, and so on.
  static constexpr int ROWS = Config::TILE_M / WARPS, PER_LANE = (ROWS + 31) / 32;
  // A stage is published when its copies have arrived, LAG stages later, so that consumers need no
  // fence. They release a stage when they issue the products of the next: LAG is at most two less
  // than the stages.
  static constexpr int LAG = Config::STAGES - 2;

  int index[PER_LANE];              // -1 for none
  int pending = 0;                  // stages that are not published
  typename Pipeline::Slot landing;  // the first of them

  // Reads the index for the rows of a tile.
  __device__ __forceinline__ void find(const Sm90Params& params, int first, int end) {
    const int lane = threadIdx.x % 32;
    first += threadIdx.x / 32 % WARPS * ROWS;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
      const int row = i * 32 + lane;
      index[i] = -1;
      // A plain load: the preceding grid may have written the index.
      if (row < ROWS && first + row < end)
        index[i] = params.index[params.a_stride[0] * (first + row)];
    }
  }

  // Loads the K block from `k` on into a stage, with the 128-byte swizzle. Rows of no index, or of
  // one that A does not have, become zeros.
  __device__ __forceinline__ void load(const Sm90Params& params, unsigned stage, int k,
                                       const Pipeline& pipeline) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % WARPS * ROWS, piece = lane % 8;
    const int column = k + piece * (16 / int(sizeof(A)));
    const int bytes = min(max(params.k - column, 0) * int(sizeof(A)), 16);
#pragma unroll
    for (int i = 0; i < ROWS / AT_ONCE; ++i) {
      const int in_warp = i * AT_ONCE + lane / 8, row = first + in_warp;
      const int from = __shfl_sync(0xffffffffu, index[i * AT_ONCE / 32], in_warp % 32);
      const bool present = unsigned(from) < unsigned(params.a_rows) && bytes > 0;
      const A* address = static_cast<const A*>(params.a_pointer) +
                         (present ? params.a_stride[1] * from + column : 0);
      ptx::copy_async<16>(stage + row * 128 + ((piece ^ row % 8) << 4), address,
                          present ? bytes : 0);
    }
    ptx::copy_async_commit();
    if (++pending > LAG) {
      ptx::copy_async_wait<LAG>();
      publish(pipeline);
    }
  }

  // Publishes the last stages.
  __device__ __forceinline__ void finish(const Pipeline& pipeline) {
    ptx::copy_async_wait<0>();
    while (pending > 0) publish(pipeline);
  }

 private:
  // cp.async writes through the generic proxy; wgmma reads through the async proxy.
  __device__ __forceinline__ void publish(const Pipeline& pipeline) {
    ptx::fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::barrier_arrive(pipeline.full + 8 * landing.stage);
    landing.advance();
    --pending;
  }
};
