// The CTAs of a tile whose K is cut over the grid, as threads of a CPU: what kernels/sm90/parts.cuh agrees on through a word in memory.
//
// A warp is a thread, which is its first lane. A CTA has two warps that multiply, and one that prepares the word. So many CTAs run at
// once; the others start when those end, in a random order. Prints nothing, and returns 0, if each slice of a tile was stored once by each
// warp, with the sum in the order of the parts, whatever the memory held before.
#include <algorithm>
#include <atomic>
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
struct Sm90Params { unsigned long long* arrivals; float4* sums; int parts; };

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned long long __shfl_sync(unsigned, unsigned long long value, int) { return value; }
inline void __syncwarp() {}

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
    } else if (wait) changed.wait(lock, [&] { return round[number] != before; });
  }
};
static thread_local Barriers* barriers;
static std::atomic<long> given_up;

namespace ptx {
inline void wait_for_grids_before() {}
template <int THREADS> void numbered_barrier_sync(int number) { barriers->arrive(number, THREADS / 32, true); }
template <int THREADS> void numbered_barrier_arrive(int number) { barriers->arrive(number, THREADS / 32, false); }
inline unsigned long long load_acquire(const unsigned long long* word) {
  std::this_thread::yield();
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
inline unsigned long long add_acquire_release(unsigned long long* word, unsigned long long value) {
  return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
}
inline unsigned long long replace_acquire(unsigned long long* word, unsigned long long expected, unsigned long long value) {
  __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE);
  return expected;
}
inline void store_relaxed(unsigned long long* word, unsigned long long value) {
  std::this_thread::yield();
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
inline float4 load_cached_globally(const float4* from) { return *from; }
}  // namespace ptx
inline float decode(float x) { return x; }

#include "sm90/parts.cuh"

struct Multiply {
  static float value(const float* sums, int i) { return sums[i]; }
};
struct Gemm {
  using Multiply = ::Multiply;
  static constexpr int M_BLOCKS = 2, PIECES = 4, OWN_PIECES = 1, OWNERS = 4, CONSUMER_THREADS = 64, PARTS_AT_ONCE = 8;
};
using Parts = Sm90Parts<Gemm>;

// Of numbers so far apart, sums depend on the order.
static float number(unsigned part, unsigned warp, int block, int i) {
  const float sizes[] = {1e8f, 1, -1e8f, 3e-3f, 7e4f};
  return sizes[(part * 7 + i) % 5] * (1 + part + 10 * warp + 100 * block + i);
}

static bool launch(std::mt19937& random, std::vector<unsigned long long>& memory, unsigned tiles, int parts, unsigned at_once) {
  Sm90Params params{memory.data(), reinterpret_cast<float4*>(memory.data() + tiles * Parts::WORD_STRIDE), parts};
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
        float sums[Gemm::M_BLOCKS][16];
        for (int block = 0; block < Gemm::M_BLOCKS; ++block)
          for (int i = 0; i < 16; ++i) sums[block][i] = number(part, warp, block, i);
        Parts work(params, tile, part);
        for (unsigned slices = work.publish(sums, shared); slices != 0; slices &= slices - 1) {
          const int slice = __builtin_ctz(slices);
          float totals[Gemm::M_BLOCKS][4];
          if (!work.add_up(totals, slice)) {
            ++given_up;
            continue;
          }
          ++stored[(tile * Gemm::OWNERS + slice) * 2 + warp];
          for (int block = 0; block < Gemm::M_BLOCKS; ++block)
            for (int e = 0; e < 4; ++e) {
              volatile float expected = 0;
              for (int p = 0; p < parts; ++p) expected = expected + number(p, warp, block, slice * 4 + e);
              wrong += totals[block][e] != expected;
            }
        }
      };
      std::thread first(consumer, 0), second(consumer, 1), prepares([&] {
        threadIdx.x = 96;
        barriers = &of_cta;
        for (unsigned i = own() % 30; i > 0; --i) std::this_thread::yield();
        Parts(params, tile, part).prepare();
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
  if (wrong) std::printf("%u tiles, %d parts, %u at once: %d wrong\n", tiles, parts, at_once, int(wrong));
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
        word[0] = Parts::MARK | 1ull * parts << Parts::PARTS_AT | (random() & ((1ull << parts) - 1)) << 16;
        word[1] = 0;
      }
    if (!launch(random, memory, tiles, parts, 1 + random() % (2 * parts))) return 1;
  }
  if (given_up == 0) std::puts("no slice was given up");
  return given_up == 0;
}
