// A tile whose K is cut over the grid: how the CTAs that have a part of its sums each put them together.
//
// They store them in workspace, as float32, in pieces of 16 bytes as the threads hold them. The tile's columns are cut into slices, each of
// which one CTA adds up in the order of K, and stores. What a slice's sums are does not depend on who adds them.
//
// Those who add up take each sum from memory as soon as it is there, with no word said about it: before it multiplies, a CTA fills the
// place of its sums with a value that no sum has, and says at a word of the tile that it is ready. Once all parts are, their CTAs all
// run, and to wait for them is to wait for work in hand. Whether all CTAs of a grid run at the same time is not for it to say, though: who has
// waited for long enough notes in the word that the parts are apart. Then they count themselves in there, and who arrives last adds up all
// slices. So no tile needs two CTAs to meet.
//
// Workspace holds anything at first, and what an earlier launch left in the word later. Either is told from a word in use: that carries
// marks, 87 bits of them with a word beside it, and the number of parts, and says of no part that it is ready before it is.
#pragma once
#include "common/cluster.cuh"
#include "common/ptx.cuh"
#include "common/types.cuh"
#include "common/wgmma.cuh"
#include "sm90/params.cuh"

// Gemm: the kernel, whose constants say how its sums lie.
template <class Gemm> struct Sm90Parts {
  using Word = unsigned long long;
  static constexpr int M_BLOCKS = Gemm::M_BLOCKS, PIECES = Gemm::PIECES,
                       OWN_PIECES = Gemm::OWN_PIECES, SLICES = Gemm::OWNERS;
  static constexpr int THREADS = Gemm::CONSUMER_THREADS;
  static constexpr int PREPARED = 15, STORED = 14;  // numbered barriers
  static constexpr int PATIENCE = 100;              // looks, of some 0.5 us

  // From bit 0: the parts that are ready; those that have arrived, where they are apart; how many there are; whether they are apart; a
  // mark. Another is in the word behind it.
  static constexpr int MOST_PARTS = 16, ARRIVED_AT = 16, PARTS_AT = 32;
  static constexpr int WORD_STRIDE = 32;  // words that many look at, in lines of their own
  static constexpr Word APART = 1ull << 40, MARK = 0x7fa7fdull << 41,
                        SECOND_MARK = 0xb5c94e1fa7d26083;
  static constexpr unsigned MISSING = 0xffffffff;  // a NaN; arithmetic has another one
  static_assert(SLICES <= MOST_PARTS && MOST_PARTS == Gemm::MAX_SPLITS &&
                WORD_STRIDE == Gemm::WORD_STRIDE);

  const unsigned tile, parts, part;
  Word* const word;
  float4* const sums;

  // Workspace has the words of all tiles, and the sums behind them.
  __device__ __forceinline__ Sm90Parts(const Sm90Params& params, unsigned tiles, unsigned tile,
                                       unsigned part)
      : tile(tile),
        parts(params.parts),
        part(part),
        word(params.workspace + tile * WORD_STRIDE),
        sums(reinterpret_cast<float4*>(params.workspace + tiles * WORD_STRIDE)) {}

  __device__ __forceinline__ unsigned all() const { return (1u << parts) - 1; }
  static __device__ __forceinline__ unsigned ready(Word word) { return word & 0xffff; }
  static __device__ __forceinline__ unsigned arrived(Word word) {
    return word >> ARRIVED_AT & 0xffff;
  }

  // By one warp, while others multiply: clears the place of this part's sums, says so, and finds out whether all parts are together. What
  // it leaves in shared memory is the part's turn, or APART.
  __device__ __forceinline__ void prepare(unsigned char* shared) const {
    const unsigned lane = threadIdx.x % 32;
    ptx::wait_for_grids_before();
    const float missing = __uint_as_float(MISSING);
    float4* const own = pieces(part, lane);
#pragma unroll 1
    for (int at = 0; at < M_BLOCKS * PIECES * THREADS; at += 32)
      ptx::store_relaxed(own + at, {missing, missing, missing, missing});
    __syncwarp();
    if (lane == 0) {
      make_fresh();
      Word seen = ptx::or_acquire_release(word, Word(1) << part);
      const Word turn = __popc(ready(seen));
      seen |= Word(1) << part;
      for (int looks = 0; ready(seen) != all() && !(seen & APART); ++looks) {
        if (looks < PATIENCE) {
          seen = ptx::load_acquire(word);
        } else {
          const Word before = ptx::replace_acquire(word, seen, seen | APART);
          seen = before == seen ? seen | APART : before;
        }
      }
      *reinterpret_cast<Word*>(shared) = seen & APART ? APART : turn;
    }
    __syncwarp();
    ptx::numbered_barrier_arrive<THREADS + 32>(PREPARED);
  }

  // Makes the word one to say something at, unless another CTA has. What an earlier launch leaves says that this part is ready.
  __device__ __forceinline__ void make_fresh() const {
    const Word fresh = MARK | Word(parts) << PARTS_AT;
    for (;;) {
      const Word seen = ptx::load_acquire(word);
      // Parts are ready after the second mark: who sees one sees the other.
      const bool marked = ptx::load_acquire(word + 1) == SECOND_MARK;
      if (marked && (seen & ~APART) >> PARTS_AT == fresh >> PARTS_AT && !(ready(seen) >> part & 1))
        break;
      if (ptx::replace_acquire(word, seen, fresh) != seen) continue;
      ptx::store_relaxed(word + 1, SECOND_MARK);
      break;
    }
  }

  // By the consumers: stores the sums of this part, and gives the slices that this CTA is to add up, a bit each.
  __device__ __forceinline__ unsigned publish(unsigned char* shared) {
    ptx::numbered_barrier_sync<THREADS + 32>(PREPARED);
    Word* const found = reinterpret_cast<Word*>(shared);
    const Word turn = *found;
    float4* const target = pieces(part, threadIdx.x);
    f32 own[M_BLOCKS * PIECES * 4];
    Gemm::Sums::template read<0, 0, PIECES * 4>(own);
    if constexpr (M_BLOCKS > 1) Gemm::Sums::template read<1, 0, PIECES * 4>(own + PIECES * 4);
#pragma unroll
    for (int at = 0; at < M_BLOCKS * PIECES; ++at) {
      auto value = [&](int e) { return present(own[at * 4 + e]); };
      ptx::store_relaxed(target + at * THREADS, {value(0), value(1), value(2), value(3)});
    }
    if (turn == APART) return count_in(found) ? (1u << SLICES) - 1 : 0;
    unsigned slices = 0;
    for (int slice = turn; slice < SLICES; slice += parts) slices |= 1u << slice;
    return slices;
  }

  // Whether this part is the last to arrive.
  __device__ __forceinline__ bool count_in(Word* found) const {
    ptx::numbered_barrier_sync<THREADS>(STORED);
    if (threadIdx.x == 0) *found = ptx::or_acquire_release(word, Word(1) << (ARRIVED_AT + part));
    ptx::numbered_barrier_sync<THREADS>(STORED);
    return (arrived(*found) | 1u << part) == all();
  }

  // No sum is taken for a missing one.
  static __device__ __forceinline__ float present(float sum) {
    return __uint_as_float(min(__float_as_uint(sum), MISSING - 1));
  }
  static __device__ __forceinline__ bool is_missing(float sum) {
    return __float_as_uint(sum) == MISSING;
  }

  // A thread's pieces of a part.
  __device__ __forceinline__ float4* pieces(unsigned part, unsigned thread) const {
    return sums +
           (static_cast<unsigned long long>(tile) * parts + part) * (M_BLOCKS * PIECES * THREADS) +
           thread;
  }

  // A slice's sums, over all parts in the order of K. By each warp on its own.
  __device__ __forceinline__ void add_up(int slice) const {
    constexpr int AT_ONCE = Gemm::PARTS_AT_ONCE, OWN = Gemm::OWN_SUMS / 4;
    f32 totals[OWN * 4];
#pragma unroll
    for (int at = 0; at < OWN * 4; ++at) totals[at] = 0;
#pragma unroll 1
    for (int first = 0; first < parts; first += AT_ONCE) {
      float4 values[AT_ONCE][OWN];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
        for (int at = 0; at < OWN; ++at) values[i][at] = {0, 0, 0, 0};
      unsigned missing = all() >> first & ((1u << AT_ONCE) - 1);
#pragma unroll 1
      while (missing != 0) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
          if (missing >> i & 1) {
            const float4* const from = pieces(first + i, threadIdx.x);
#pragma unroll
            for (int at = 0; at < OWN; ++at)
              values[i][at] = ptx::load_relaxed(
                  from +
                  (at / OWN_PIECES * PIECES + slice * OWN_PIECES + at % OWN_PIECES) * THREADS);
          }
        unsigned still = 0;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
          for (int at = 0; at < OWN; ++at) {
            const float4& v = values[i][at];
            if (is_missing(v.x) || is_missing(v.y) || is_missing(v.z) || is_missing(v.w))
              still |= 1u << i;
          }
        missing = __reduce_or_sync(0xffffffffu, still);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
        for (int at = 0; at < OWN; ++at) {
          f32* const total = totals + at * 4;
          total[0] += values[i][at].x;
          total[1] += values[i][at].y;
          total[2] += values[i][at].z;
          total[3] += values[i][at].w;
        }
    }
    ptx::write_totals<0, OWN * 4>(totals);
  }
};
