// Split-K over the grid on the CPU: runs kernels/sm90/grid_split.cuh with threads as warps.
//
// A warp is one thread: its first lane, with that lane's accumulators and vectors of partial sums.
// A CTA has two warps that multiply and one that prepares the workspace. A limited number of CTAs
// run concurrently; the others start in random order as those end.
//
// Prints nothing and returns 0 if each warp stored each share of each tile once, summed in the
// order of the splits, whatever the workspace held before; and if both ways of reduction occurred.
#include <algorithm>
#include <atomic>
#include <bit>
#include <climits>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
using f32 = float;
using s32 = int;
template <class A, class B> constexpr bool is_same = std::is_same_v<A, B>;
struct float4 { float x, y, z, w; };
struct Index { unsigned x; };
static thread_local Index threadIdx;
struct Sm90Params {
  unsigned long long* workspace;
  int splits;
};

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __reduce_or_sync(unsigned, unsigned value) { return value; }
inline void __syncwarp() {}
inline float add_sums(float a, float b) { return a + b; }
inline int add_sums(int a, int b) { return unsigned(a) + unsigned(b); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
using std::min;

// A CTA's named barriers.
struct Barriers {
  std::mutex mutex;
  std::condition_variable changed;
  int arrived[16] = {}, round[16] = {};
  void arrive(int number, int warps, bool wait) {
    std::unique_lock<std::mutex> lock(mutex);
    const int before = round[number];
    if (++arrived[number] == warps) {
      arrived[number] = 0;
      ++round[number];
      changed.notify_all();
    } else if (wait)
      changed.wait(lock, [&] { return round[number] != before; });
  }
};
static thread_local Barriers* barriers;
// Warps that reduced, by the way of reduction.
template <class Value> static std::atomic<long> polled;
template <class Value> static std::atomic<long> last_reduced;

namespace ptx {
inline void wait_for_prior_grids() {}
template <int THREADS> void named_barrier_sync(int number) {
  barriers->arrive(number, THREADS / 32, true);
}
template <int THREADS> void named_barrier_arrive(int number) {
  barriers->arrive(number, THREADS / 32, false);
}
inline unsigned long long load_acquire(const unsigned long long* word) {
  std::this_thread::yield();
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
inline unsigned long long atomic_or_acq_rel(unsigned long long* word, unsigned long long bits) {
  return __atomic_fetch_or(word, bits, __ATOMIC_ACQ_REL);
}
inline unsigned long long atomic_cas_acquire(unsigned long long* word, unsigned long long expected,
                                             unsigned long long value) {
  __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE);
  return expected;
}
inline void store_relaxed(unsigned long long* word, unsigned long long value) {
  std::this_thread::yield();
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
inline void store_relaxed(float4* to, float4 v) {
  const float values[] = {v.x, v.y, v.z, v.w};
  for (int i = 0; i < 4; ++i)
    __atomic_store_n(reinterpret_cast<unsigned*>(to) + i, __float_as_uint(values[i]),
                     __ATOMIC_RELAXED);
}
inline float4 load_relaxed(const float4* from) {
  float values[4];
  for (int i = 0; i < 4; ++i)
    values[i] = __uint_as_float(
        __atomic_load_n(reinterpret_cast<const unsigned*>(from) + i, __ATOMIC_RELAXED));
  return {values[0], values[1], values[2], values[3]};
}
}  // namespace ptx

// A thread's registers: accumulators and totals.
template <class Value> static thread_local Value sums[2 * 16];
template <class Value> static thread_local Value totals[2 * 4];
namespace ptx {
template <int FIRST, int END, class Value> void write_totals(const Value* values) {
  std::copy(values, values + END - FIRST, ::totals<Value> + FIRST);
}
}  // namespace ptx

template <class Value> struct Results {
  template <int BLOCK, int FIRST, int COUNT> static void read(Value* values) {
    std::copy(sums<Value> + BLOCK * 16 + FIRST, sums<Value> + BLOCK * 16 + FIRST + COUNT, values);
  }
};
template <class T> struct Config {
  using Value = T;
  static constexpr int M_BLOCKS = 2, TILE_VECTORS = 4, SHARE_VECTORS = 1, SHARES = 4,
                       CONSUMER_THREADS = 64;
};
template <class Config> struct Sm90Registers {
  using Sums = Results<typename Config::Value>;
  static constexpr int SHARE_SUMS = 8, SPLITS_AT_ONCE = 8;
};

#include "sm90/grid_split.cuh"

// Partial sums that differ between launches. Floats have such different magnitudes that the total
// depends on the order; among them are infinities and the NaN that marks a partial sum as missing.
// Integers are never the least one, which marks one as missing; among them are that NaN's bits.
template <class Value>
static Value number(unsigned launch, unsigned split, unsigned warp, int block, int i) {
  const bool special = (launch + warp * 7 + i) % 16 == 3;
  if constexpr (std::is_same_v<Value, int>) {
    if (special) return split % 2 == 0 ? INT_MAX : -1;
    return int((launch + split * 7 + warp * 5 + block * 3 + i) * 0x9e3779b9u) | 1;
  } else {
    if (special) return split % 2 == 0 ? INFINITY : std::bit_cast<float>(0xffffffffu);
    const float sizes[] = {1e8f, 1, -1e8f, 3e-3f, 7e4f};
    return sizes[(split * 7 + i) % 5] *
           (1 + split + 10 * warp + 100 * block + i + launch % 1000 * 0.001f);
  }
}

template <class Value>
static bool launch(std::mt19937& random, std::vector<unsigned long long>& memory, unsigned tiles,
                   int splits, unsigned at_once) {
  using Config = ::Config<Value>;
  using GridSplit = Sm90GridSplit<Config>;
  Sm90Params params{memory.data(), splits};
  std::vector<std::atomic<int>> stored(tiles * Config::SHARES * 2);
  std::atomic<int> wrong(0);
  std::vector<unsigned> order(tiles * splits);
  for (unsigned i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  std::atomic<unsigned> next(0);
  const unsigned seed = random();
  auto slot = [&](unsigned number_of_slot) {
    std::mt19937 own(seed + number_of_slot);
    for (unsigned index; (index = next++) < order.size();) {
      const unsigned tile = order[index] % tiles, split = order[index] / tiles;
      Barriers of_cta;
      alignas(8) unsigned char shared[8];
      const unsigned pause = own() % 40;
      auto consumer = [&](unsigned warp) {
        threadIdx.x = warp * 32;
        barriers = &of_cta;
        for (unsigned i = 0; i < pause * (warp + 1); ++i) std::this_thread::yield();
        for (int block = 0; block < Config::M_BLOCKS; ++block)
          for (int i = 0; i < 16; ++i)
            sums<Value>[block * 16 + i] = number<Value>(seed, split, warp, block, i);
        GridSplit work(params, tiles, tile, split);
        unsigned shares = work.publish(shared);
        (*work.word & GridSplit::LAST_REDUCES ? last_reduced<Value> : polled<Value>) += shares != 0;
        for (; shares != 0; shares &= shares - 1) {
          const int share = __builtin_ctz(shares);
          work.add_up(share);
          ++stored[(tile * Config::SHARES + share) * 2 + warp];
          for (int block = 0; block < Config::M_BLOCKS; ++block)
            for (int e = 0; e < 4; ++e) {
              volatile Value expected = 0;
              for (int s = 0; s < splits; ++s)
                expected = add_sums(expected, number<Value>(seed, s, warp, block, share * 4 + e));
              const Value total = totals<Value>[block * 4 + e];
              wrong += !(total == expected || (total != total && expected != expected));
            }
        }
      };
      std::thread first(consumer, 0), second(consumer, 1), prepares([&] {
        threadIdx.x = 96;
        barriers = &of_cta;
        for (unsigned i = own() % 30; i > 0; --i) std::this_thread::yield();
        GridSplit(params, tiles, tile, split).prepare(shared);
      });
      first.join();
      second.join();
      prepares.join();
    }
  };
  std::vector<std::thread> slots;
  for (unsigned i = 0; i < at_once; ++i) slots.emplace_back(slot, i);
  for (auto& thread : slots) thread.join();
  for (auto& count : stored) wrong += count != 1;
  if (wrong)
    std::printf("%u tiles, %d splits, %u at once: %d wrong\n", tiles, splits, at_once, int(wrong));
  return wrong == 0;
}

template <class Value> static bool both_ways() {
  const long by_polling = polled<Value>, by_last = last_reduced<Value>;
  if (by_polling == 0 || by_last == 0)
    std::printf("one way of reduction never occurred: %ld polled, %ld by the last CTA\n",
                by_polling, by_last);
  return by_polling > 0 && by_last > 0;
}

int main(int, char** arguments) {
  std::mt19937 random(1);
  std::vector<unsigned long long> memory(1 << 16);
  for (int round = std::atoi(arguments[1]); round > 0; --round) {
    // The workspace before the launch: random (0), words that look in use (1), or what the previous
    // launch left, which may have had other numbers of splits and tiles.
    const unsigned tiles = 1 + random() % 3;
    const int splits = 1 + random() % 16, kind = random() % 4;
    if (kind == 0)
      for (auto& word : memory) word = random() * 0x100000001ull;
    if (kind == 1)
      for (unsigned tile = 0; tile < tiles; ++tile) {
        unsigned long long* const word = memory.data() + tile * GridSplitWord::WORD_STRIDE;
        word[0] = GridSplitWord::MARK | 1ull * splits << GridSplitWord::SPLITS_AT |
                  (random() & ((1ull << splits) - 1)) * 0x10001;
        word[1] = 0;
      }
    const unsigned at_once = 1 + random() % (2 * splits);
    const auto each = round % 4 == 0 ? launch<int> : launch<float>;
    if (!each(random, memory, tiles, splits, at_once)) return 1;
  }
  return !both_ways<float>() + !both_ways<int>();
}
