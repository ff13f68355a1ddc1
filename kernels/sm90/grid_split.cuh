// Split-K over the grid: the CTAs that share a tile combine their partial sums through workspace.
//
// Each CTA multiplies one split of K and stores its partial sums in workspace, as float32 or int32,
// in the threads' order. The tile's columns are divided into shares. A reducer CTA adds up the
// splits of a share in the order of K and stores the output; the result does not depend on which
// CTA reduces it.
//
// Reducer CTAs poll the workspace for each partial sum; no flag is exchanged.
//   1. While the consumers multiply, one warp of each CTA fills the place of the CTA's partial sums
//      with a bit pattern that no partial sum has (MISSING), and sets the split's ready bit in the
//      tile's word.
//   2. If all splits become ready, their CTAs run at the same time, and reducers wait only for work
//      in progress. The first CTAs to become ready reduce the shares.
//   3. CTAs of a grid need not run at the same time. A CTA that has polled the word PATIENCE times
//      in vain sets LAST_REDUCES. Each CTA then sets its split's arrived bit after it has stored
//      its partial sums, and the CTA that arrives last reduces all shares.
// So no CTA waits for a CTA that may not be running.
//
// Workspace is uninitialized or holds data of earlier launches. A word belongs to this launch if it
// has MARK and the number of splits, if the next word has SECOND_MARK (87 bits of marks in all),
// and if each CTA finds its own ready bit clear. A finished launch leaves all ready bits set, so a
// clear bit means this launch.
#pragma once
#include "common/cluster.cuh"
#include "common/ptx.cuh"
#include "common/types.cuh"
#include "common/wgmma.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"
#include "sm90/registers.cuh"

// A tile's word in workspace, from bit 0: ready bits, arrived bits, the number of splits,
// LAST_REDUCES, MARK. The next word holds SECOND_MARK.
struct GridSplitWord {
  using Word = unsigned long long;
  static constexpr int MAX_SPLITS = 16, ARRIVED_AT = 16, SPLITS_AT = 32;
  static constexpr Word LAST_REDUCES = 1ull << 40, MARK = 0x7fa7fdull << 41,
                        SECOND_MARK = 0xb5c94e1fa7d26083;
  static constexpr int WORD_STRIDE = 32;  // between tiles, in words: 256 bytes, lines of their own
};

template <class Config> struct Sm90GridSplit : GridSplitWord {
  using Sums = typename Sm90Registers<Config>::Sums;
  using Value = typename Config::Value;
  static constexpr int M_BLOCKS = Config::M_BLOCKS, TILE_VECTORS = Config::TILE_VECTORS,
                       SHARE_VECTORS = Config::SHARE_VECTORS, SHARES = Config::SHARES;
  static constexpr int THREADS = Config::CONSUMER_THREADS;
  static constexpr int PREPARED = 15, STORED = 14;  // named barriers
  static constexpr int PATIENCE = 100;              // polls of the word, at about 0.5 us each
  // The bits of a missing partial sum. float32: a NaN other than 0x7fffffff, the NaN that
  // arithmetic produces. int32: the least integer, which the host's limit of K
  // (`MOST_K_OF_INTEGERS`) keeps out of reach.
  static constexpr bool INTEGERS = is_same<Value, s32>;
  static constexpr unsigned MISSING = INTEGERS ? 0x80000000 : 0xffffffff;

  static_assert(SHARES <= MAX_SPLITS);

  const unsigned tile, splits, split;
  Word* const word;
  float4* const sums;

  // Workspace holds the words of all tiles, then the partial sums.
  __device__ __forceinline__ Sm90GridSplit(const Sm90Params& params, unsigned tiles, unsigned tile,
                                           unsigned split)
      : tile(tile),
        splits(params.splits_or_stacked),
        split(split),
        word(params.workspace + tile * WORD_STRIDE),
        sums(reinterpret_cast<float4*>(params.workspace + tiles * WORD_STRIDE)) {}

  __device__ __forceinline__ unsigned all() const { return (1u << splits) - 1; }
  static __device__ __forceinline__ unsigned ready(Word word) { return word & 0xffff; }
  static __device__ __forceinline__ unsigned arrived(Word word) {
    return word >> ARRIVED_AT & 0xffff;
  }

  // ---- before the reduction ----

  // By one warp, while others multiply: marks this split's partial sums as missing, sets its ready
  // bit, and finds out whether all splits become ready. Leaves in `shared`, for publish(), how many
  // splits were ready before this one, or LAST_REDUCES.
  __device__ __forceinline__ void prepare(unsigned char* shared) const {
    const unsigned lane = threadIdx.x % 32;
    ptx::wait_for_prior_grids();
    const float missing = __uint_as_float(MISSING);
    float4* const own = partials(split, lane);
#pragma unroll 1
    for (int at = 0; at < M_BLOCKS * TILE_VECTORS * THREADS; at += 32)
      ptx::store_relaxed(own + at, {missing, missing, missing, missing});
    __syncwarp();
    if (lane == 0) {
      init_word();
      Word seen = ptx::atomic_or_acq_rel(word, Word(1) << split);
      const Word turn = __popc(ready(seen));
      seen |= Word(1) << split;
      for (int polls = 0; ready(seen) != all() && !(seen & LAST_REDUCES); ++polls) {
        if (polls < PATIENCE) {
          seen = ptx::load_acquire(word);
        } else {
          const Word before = ptx::atomic_cas_acquire(word, seen, seen | LAST_REDUCES);
          seen = before == seen ? seen | LAST_REDUCES : before;
        }
      }
      *reinterpret_cast<Word*>(shared) = seen & LAST_REDUCES ? LAST_REDUCES : turn;
    }
    __syncwarp();
    ptx::named_barrier_arrive<THREADS + 32>(PREPARED);
  }

  // Initializes the tile's word, unless another CTA of this launch has.
  __device__ __forceinline__ void init_word() const {
    const Word fresh = MARK | Word(splits) << SPLITS_AT;
    for (;;) {
      const Word seen = ptx::load_acquire(word);
      // SECOND_MARK is written before any ready bit: a CTA that sees a ready bit sees the mark.
      const bool marked = ptx::load_acquire(word + 1) == SECOND_MARK;
      if (marked && (seen & ~LAST_REDUCES) >> SPLITS_AT == fresh >> SPLITS_AT &&
          !(ready(seen) >> split & 1))
        break;
      if (ptx::atomic_cas_acquire(word, seen, fresh) != seen) continue;
      ptx::store_relaxed(word + 1, SECOND_MARK);
      break;
    }
  }

  // ---- partial sums ----

  // By the consumers: stores the partial sums of this split. Returns the shares that this CTA
  // reduces, one bit each.
  __device__ __forceinline__ unsigned publish(unsigned char* shared) {
    ptx::named_barrier_sync<THREADS + 32>(PREPARED);
    Word* const found = reinterpret_cast<Word*>(shared);
    const Word turn = *found;
    float4* const target = partials(split, threadIdx.x);
    Value own[M_BLOCKS * TILE_VECTORS * 4];
    Sums::template read<0, 0, TILE_VECTORS * 4>(own);
    if constexpr (M_BLOCKS > 1) Sums::template read<1, 0, TILE_VECTORS * 4>(own + TILE_VECTORS * 4);
#pragma unroll
    for (int at = 0; at < M_BLOCKS * TILE_VECTORS; ++at) {
      auto value = [&](int e) { return present(own[at * 4 + e]); };
      ptx::store_relaxed(target + at * THREADS, {value(0), value(1), value(2), value(3)});
    }
    if (turn == LAST_REDUCES) return arrives_last(found) ? (1u << SHARES) - 1 : 0;
    unsigned shares = 0;
    for (int share = turn; share < SHARES; share += splits) shares |= 1u << share;
    return shares;
  }

  // Sets this split's arrived bit. Returns whether this split is the last to arrive.
  __device__ __forceinline__ bool arrives_last(Word* found) const {
    ptx::named_barrier_sync<THREADS>(STORED);
    if (threadIdx.x == 0) *found = ptx::atomic_or_acq_rel(word, Word(1) << (ARRIVED_AT + split));
    ptx::named_barrier_sync<THREADS>(STORED);
    return (arrived(*found) | 1u << split) == all();
  }

  // The bits of a partial sum. Replaces a NaN equal to MISSING by another NaN.
  static __device__ __forceinline__ float present(Value sum) {
    const unsigned bits = __builtin_bit_cast(unsigned, sum);
    return __uint_as_float(INTEGERS ? bits : min(bits, MISSING - 1));
  }
  static __device__ __forceinline__ bool is_missing(float sum) {
    return __float_as_uint(sum) == MISSING;
  }

  // A thread's first vector of a split's partial sums; the next ones are THREADS vectors apart.
  __device__ __forceinline__ float4* partials(unsigned split, unsigned thread) const {
    return sums +
           (static_cast<unsigned long long>(tile) * splits + split) *
               (M_BLOCKS * TILE_VECTORS * THREADS) +
           thread;
  }

  // ---- the reduction ----

  // By each consumer warp on its own: adds up a share over all splits, in the order of K, and
  // leaves it in the totals. Polls SPLITS_AT_ONCE splits at a time until none is missing.
  __device__ __forceinline__ void add_up(int share) const {
    constexpr int AT_ONCE = Sm90Registers<Config>::SPLITS_AT_ONCE,
                  VECTORS = Sm90Registers<Config>::SHARE_SUMS / 4;
    Value totals[VECTORS * 4];
    auto value = [](float bits) { return __builtin_bit_cast(Value, bits); };
#pragma unroll
    for (int at = 0; at < VECTORS * 4; ++at) totals[at] = 0;
#pragma unroll 1
    for (int first = 0; first < splits; first += AT_ONCE) {
      float4 values[AT_ONCE][VECTORS];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
        for (int at = 0; at < VECTORS; ++at) values[i][at] = {0, 0, 0, 0};
      unsigned missing = all() >> first & ((1u << AT_ONCE) - 1);  // splits, one bit each
#pragma unroll 1
      while (missing != 0) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
          if (missing >> i & 1) {
            const float4* const from = partials(first + i, threadIdx.x);
#pragma unroll
            for (int at = 0; at < VECTORS; ++at)
              values[i][at] =
                  ptx::load_relaxed(from + (at / SHARE_VECTORS * TILE_VECTORS +
                                            share * SHARE_VECTORS + at % SHARE_VECTORS) *
                                               THREADS);
          }
        unsigned still = 0;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
          for (int at = 0; at < VECTORS; ++at) {
            const float4& v = values[i][at];
            if (is_missing(v.x) || is_missing(v.y) || is_missing(v.z) || is_missing(v.w))
              still |= 1u << i;
          }
        missing = __reduce_or_sync(0xffffffffu, still);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
        for (int at = 0; at < VECTORS; ++at) {
          Value* const total = totals + at * 4;
          total[0] = add_sums(total[0], value(values[i][at].x));
          total[1] = add_sums(total[1], value(values[i][at].y));
          total[2] = add_sums(total[2], value(values[i][at].z));
          total[3] = add_sums(total[3], value(values[i][at].w));
        }
    }
    ptx::write_totals<0, VECTORS * 4>(totals);
  }
};
