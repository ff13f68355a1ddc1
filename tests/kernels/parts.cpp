// The CTAs of a tile whose K is cut over the grid, as threads of a CPU: what kernels/sm90/parts.cuh agrees on through memory.
//
// A warp is a thread, which is its first lane, with that lane's share of the sums and of what is cleared for them. A CTA has two warps that
// multiply, and one that prepares. So many CTAs run at once; the others start when those end, in a random order. Prints nothing, and returns 0, if each
// slice of a tile was stored once by each warp, with the sum in the order of the parts, whatever the memory held before, and if tiles met
// both ways.
#include <algorithm>
#include <atomic>
#include <bit>
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
struct float4 { float x, y, z, w; };
struct Index { unsigned x; };
static thread_local Index threadIdx;
struct Sm90Params {
  unsigned long long* workspace;
  int parts;
};

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __reduce_or_sync(unsigned, unsigned value) { return value; }
inline void __syncwarp() {}
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
using std::min;

// A CTA's numbered barriers.
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
static std::atomic<long> together, apart;

namespace ptx {
inline void wait_for_grids_before() {}
template <int THREADS> void numbered_barrier_sync(int number) {
  barriers->arrive(number, THREADS / 32, true);
}
template <int THREADS> void numbered_barrier_arrive(int number) {
  barriers->arrive(number, THREADS / 32, false);
}
inline unsigned long long load_acquire(const unsigned long long* word) {
  std::this_thread::yield();
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
inline unsigned long long or_acquire_release(unsigned long long* word, unsigned long long bits) {
  return __atomic_fetch_or(word, bits, __ATOMIC_ACQ_REL);
}
inline unsigned long long replace_acquire(unsigned long long* word, unsigned long long expected,
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

// A thread's registers.
static thread_local float sums[2 * 16], totals[2 * 4];
namespace ptx {
template <int FIRST, int END> void write_totals(const float* values) {
  std::copy(values, values + END - FIRST, totals + FIRST);
}
}  // namespace ptx

#include "sm90/parts.cuh"

struct Results {
  template <int BLOCK, int FIRST, int COUNT> static void read(float* values) {
    std::copy(sums + BLOCK * 16 + FIRST, sums + BLOCK * 16 + FIRST + COUNT, values);
  }
};
struct Gemm {
  using Sums = Results;
  static constexpr int M_BLOCKS = 2, PIECES = 4, OWN_PIECES = 1, OWNERS = 4, OWN_SUMS = 8,
                       CONSUMER_THREADS = 64, PARTS_AT_ONCE = 8;
};
using Parts = Sm90Parts<Gemm>;

// Of numbers so far apart, sums depend on the order. Another launch has others.
static float number(unsigned launch, unsigned part, unsigned warp, int block, int i) {
  // Not numbers, too: an infinity, and the NaN that stands for a sum that is missing.
  if ((launch + warp * 7 + i) % 16 == 3)
    return part % 2 == 0 ? INFINITY : std::bit_cast<float>(0xffffffffu);
  const float sizes[] = {1e8f, 1, -1e8f, 3e-3f, 7e4f};
  return sizes[(part * 7 + i) % 5] *
         (1 + part + 10 * warp + 100 * block + i + launch % 1000 * 0.001f);
}

static bool launch(std::mt19937& random, std::vector<unsigned long long>& memory, unsigned tiles,
                   int parts, unsigned at_once) {
  Sm90Params params{memory.data(), parts};
  std::vector<std::atomic<int>> stored(tiles * Gemm::OWNERS * 2);
  std::atomic<int> wrong(0);
  std::vector<unsigned> order(tiles * parts);
  for (unsigned i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  std::atomic<unsigned> next(0);
  const unsigned seed = random();
  auto slot = [&](unsigned number_of_slot) {
    std::mt19937 own(seed + number_of_slot);
    for (unsigned index; (index = next++) < order.size();) {
      const unsigned tile = order[index] % tiles, part = order[index] / tiles;
      Barriers of_cta;
      alignas(8) unsigned char shared[8];
      const unsigned pause = own() % 40;
      auto consumer = [&](unsigned warp) {
        threadIdx.x = warp * 32;
        barriers = &of_cta;
        for (unsigned i = 0; i < pause * (warp + 1); ++i) std::this_thread::yield();
        for (int block = 0; block < Gemm::M_BLOCKS; ++block)
          for (int i = 0; i < 16; ++i) sums[block * 16 + i] = number(seed, part, warp, block, i);
        Parts work(params, tiles, tile, part);
        unsigned slices = work.publish(shared);
        (*work.word & Parts::APART ? apart : together) += slices != 0;
        for (; slices != 0; slices &= slices - 1) {
          const int slice = __builtin_ctz(slices);
          work.add_up(slice);
          ++stored[(tile * Gemm::OWNERS + slice) * 2 + warp];
          for (int block = 0; block < Gemm::M_BLOCKS; ++block)
            for (int e = 0; e < 4; ++e) {
              volatile float expected = 0;
              for (int p = 0; p < parts; ++p)
                expected = expected + number(seed, p, warp, block, slice * 4 + e);
              const float total = totals[block * 4 + e];
              wrong += !(total == expected || (total != total && expected != expected));
            }
        }
      };
      std::thread first(consumer, 0), second(consumer, 1), prepares([&] {
        threadIdx.x = 96;
        barriers = &of_cta;
        for (unsigned i = own() % 30; i > 0; --i) std::this_thread::yield();
        Parts(params, tiles, tile, part).prepare(shared);
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
    std::printf("%u tiles, %d parts, %u at once: %d wrong\n", tiles, parts, at_once, int(wrong));
  return wrong == 0;
}

int main(int, char** arguments) {
  std::mt19937 random(1);
  std::vector<unsigned long long> memory(1 << 16);
  for (int round = std::atoi(arguments[1]); round > 0; --round) {
    // What was there: anything; a word that seems to be in use; or what the last launch left, which may have had other parts and other tiles.
    const unsigned tiles = 1 + random() % 3;
    const int parts = 1 + random() % 16, kind = random() % 4;
    if (kind == 0)
      for (auto& word : memory) word = random() * 0x100000001ull;
    if (kind == 1)
      for (unsigned tile = 0; tile < tiles; ++tile) {
        unsigned long long* const word = memory.data() + tile * Parts::WORD_STRIDE;
        word[0] = Parts::MARK | 1ull * parts << Parts::PARTS_AT |
                  (random() & ((1ull << parts) - 1)) * 0x10001;
        word[1] = 0;
      }
    if (!launch(random, memory, tiles, parts, 1 + random() % (2 * parts))) return 1;
  }
  if (together == 0 || apart == 0)
    std::printf("tiles met one way only: %ld together, %ld apart\n", long(together), long(apart));
  return together == 0 || apart == 0;
}
