// Stores a warp's accumulators through the epilogue. They pass through slabs of shared memory,
// because lanes hold fragments of wgmma, and memory needs contiguous lines.
#pragma once
#include "common/epilogue.cuh"
#include "common/types.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"
#include "sm90/shared_memory.cuh"
#include "sm90/store_rows.cuh"
#include "sm90/store_transposed.cuh"

template <class Config> struct Sm90Store {
  using Epilogue = typename Config::Epilogue;
  using Transposed = Sm90StoreTransposed<Config>;
  using Rows = Sm90StoreRows<Config>;
  using Early = typename Rows::Early;

  // A warp's accumulators: M_BLOCKS strips of 16 rows, 64 rows apart, of EPILOGUE_N columns. The
  // first is at row m, column n. The output's rows from `end` on are not stored.
  //   Sums     ptx::Results: the accumulators, or the totals of a split tile
  //   early    the epilogue's operands, if they are loaded before the main loop
  //   slabs    the warp's; `slab` is the one to fill next
  //   last     no other warpgroup of this CTA multiplies meanwhile
  template <class Sums>
  static __device__ __forceinline__ void store(const Sm90Params& params, Epilogue epilogue,
                                               const Early& early, unsigned char* slabs, int& slab,
                                               int batch, int m, int n, int end, bool last) {
    if constexpr (Config::PAIRED_ROWS && Config::OUT_TRANSPOSED && is_same<Epilogue, Identity>)
      if (Transposed::template store_pairs<Sums>(params, batch, m, n, end)) return;
    if constexpr (Config::OUT_TRANSPOSED && Sm90Memory<Config>::BY_LINES)
      Transposed::template store_lines<Sums>(params, slabs, slab, batch, m, n, end);
    else if constexpr (Config::OUT_TRANSPOSED)
      Transposed::template store_elements<Sums>(params, epilogue, slabs, batch, m, n, end);
    else
      Rows::template store<Sums>(params, epilogue, early, slabs, slab, batch, m, n, end, last);
  }
};
