// A tile whose K is cut over the grid: how the CTAs that have a part of its sums each put them together.
//
// They store them in workspace, as float32, in pieces of 16 bytes as the threads hold them, and count themselves in at a word of the
// tile. Its columns are cut into slices, each of which one CTA adds up in the order of K, and stores: who arrives first, for it has the
// time. It fetches the parts as they arrive, but does not wait for ever: whether all CTAs of a grid run at the same time is not for it to
// say. What it gives up it notes in the word, for who arrives last to do. So no tile needs two CTAs to meet, and what a slice's sums are
// does not depend on who adds them.
//
// Workspace holds anything at first, and what an earlier launch left in the word later. Either is told from a word in use: that carries
// marks, 88 bits of them with a word beside it, and the number of parts, and not all have arrived at it.
#pragma once
#include "common/cluster.cuh"
#include "common/ptx.cuh"
#include "common/types.cuh"
#include "sm90/params.cuh"

// Gemm: the kernel, whose constants say how its sums lie.
template <class Gemm> struct Sm90Parts {
  using Word = unsigned long long;
  static constexpr int M_BLOCKS = Gemm::M_BLOCKS, PIECES = Gemm::PIECES, OWN_PIECES = Gemm::OWN_PIECES, SLICES = Gemm::OWNERS;
  static constexpr int THREADS = Gemm::CONSUMER_THREADS;
  static constexpr int PREPARED = 15, COUNTED_IN = 14;  // numbered barriers

  // From bit 0: the slices that were given up; the parts that have arrived; how many there are; a mark. Another is in the word behind it.
  static constexpr int MOST_PARTS = 16, ARRIVED_AT = 16, PARTS_AT = 32;
  static constexpr int WORD_STRIDE = 32;  // words that many look at, in lines of their own
  static constexpr Word MARK = 0xffa7fdull << 40, SECOND_MARK = 0xb5c94e1fa7d26083;
  static_assert(SLICES <= MOST_PARTS);

  const Sm90Params& params;
  const unsigned tile, part;
  Word* const word;
  bool last = false;  // to arrive

  __device__ __forceinline__ Sm90Parts(const Sm90Params& params, unsigned tile, unsigned part)
      : params(params), tile(tile), part(part), word(params.arrivals + tile * WORD_STRIDE) {}

  __device__ __forceinline__ unsigned all() const { return (1u << params.parts) - 1; }
  static __device__ __forceinline__ unsigned arrived(Word word) { return word >> ARRIVED_AT & 0xffff; }
  static __device__ __forceinline__ unsigned given_up(Word word) { return word & 0xffff; }

  // By one warp, while others multiply: makes the word one to be counted in at, unless another CTA has.
  __device__ __forceinline__ void prepare() const {
    ptx::wait_for_grids_before();
    if (threadIdx.x % 32 == 0) {
      const Word fresh = MARK | Word(params.parts) << PARTS_AT;
      for (;;) {
        const Word seen = ptx::load_acquire(word);
        // An arrival comes after the second mark: who sees one sees the other.
        const bool marked = ptx::load_acquire(word + 1) == SECOND_MARK;
        if (marked && seen >> PARTS_AT == fresh >> PARTS_AT && arrived(seen) != all()) break;
        if (ptx::replace_acquire(word, seen, fresh) != seen) continue;
        ptx::store_relaxed(word + 1, SECOND_MARK);
        break;
      }
    }
    __syncwarp();
    ptx::numbered_barrier_arrive<THREADS + 32>(PREPARED);
  }

  // By the consumers: stores the sums of this part, counts it in, and gives the slices that this CTA is to add up, a bit each.
  template <class Sums> __device__ __forceinline__ unsigned publish(const Sums& sums, unsigned char* shared) {
    float4* const own = pieces(part);
#pragma unroll
    for (int block = 0; block < M_BLOCKS; ++block)
#pragma unroll
      for (int at = 0; at < PIECES; ++at) {
        auto value = [&](int e) { return decode(Gemm::Multiply::value(sums[block], at * 4 + e)); };
        own[(block * PIECES + at) * THREADS] = {value(0), value(1), value(2), value(3)};
      }
    ptx::numbered_barrier_sync<THREADS + 32>(PREPARED);
    Word* const found = reinterpret_cast<Word*>(shared);
    if (threadIdx.x == 0) *found = ptx::add_acquire_release(word, Word(1) << (ARRIVED_AT + part));
    ptx::numbered_barrier_sync<THREADS>(COUNTED_IN);
    last = (arrived(*found) | 1u << part) == all();
    unsigned slices = last ? given_up(*found) : 0;
    for (int slice = __popc(arrived(*found)); slice < SLICES; slice += params.parts) slices |= 1u << slice;
    return slices;
  }

  // A thread's pieces of a part.
  __device__ __forceinline__ float4* pieces(unsigned part) const {
    return params.sums + (tile * static_cast<unsigned long long>(params.parts) + part) * (M_BLOCKS * PIECES * THREADS) + threadIdx.x;
  }

  // A slice's sums, over all parts in the order of K. By each warp on its own. False, if it was given up.
  __device__ __forceinline__ bool add_up(f32 (&totals)[M_BLOCKS][OWN_PIECES * 4], int slice) const {
    constexpr int AT_ONCE = Gemm::PARTS_AT_ONCE, OWN = M_BLOCKS * OWN_PIECES;
#pragma unroll
    for (int at = 0; at < OWN * 4; ++at) totals[at / (OWN_PIECES * 4)][at % (OWN_PIECES * 4)] = 0;
#pragma unroll 1
    for (int first = 0; first < params.parts; first += AT_ONCE) {
      float4 values[AT_ONCE][OWN];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
        for (int at = 0; at < OWN; ++at) values[i][at] = {0, 0, 0, 0};
      unsigned missing = all() >> first & ((1u << AT_ONCE) - 1);
#pragma unroll 1
      for (int looks = 0; missing != 0; ++looks) {
        const Word seen = look(slice, looks);
        if (!last && given_up(seen) >> slice & 1) return false;
        const unsigned here = arrived(seen) >> first & missing;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
          if (here >> i & 1) {
            const float4* const from = pieces(first + i);
#pragma unroll
            for (int at = 0; at < OWN; ++at)
              values[i][at] = ptx::load_cached_globally(from + (at / OWN_PIECES * PIECES + slice * OWN_PIECES + at % OWN_PIECES) * THREADS);
          }
        missing &= ~here;
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
        for (int at = 0; at < OWN; ++at) {
          f32* const total = &totals[at / OWN_PIECES][at % OWN_PIECES * 4];
          total[0] += values[i][at].x;
          total[1] += values[i][at].y;
          total[2] += values[i][at].z;
          total[3] += values[i][at].w;
        }
    }
    return true;
  }

  // The word, the same for all lanes. After so many looks in vain, of some 0.5 us, the first thread gives the slice up, unless all have
  // arrived.
  __device__ __forceinline__ Word look(int slice, int looks) const {
    constexpr int PATIENCE = 100;
    Word seen = 0;
    if (threadIdx.x % 32 == 0) {
      seen = ptx::load_acquire(word);
      while (threadIdx.x == 0 && looks >= PATIENCE && arrived(seen) != all() && !(given_up(seen) >> slice & 1)) {
        const Word before = seen, without = before | Word(1) << slice;
        seen = ptx::replace_acquire(word, before, without);
        if (seen == before) seen = without;
      }
    }
    __syncwarp();
    return __shfl_sync(0xffffffffu, seen, 0);
  }
};
