// Split-K over the grid on the CPU: runs kernels/sm90/grid_split.cuh with coroutines as warps.
//
// A warp is one coroutine: its first lane, with that lane's accumulators and vectors of partial
// sums. A CTA has two warps that multiply and one that prepares the workspace. A limited number of
// CTAs run concurrently; the others start in random order as those end. Before each access to
// memory that other warps see, another warp may go on: which one is random, and some go on rarely.
//
// Prints nothing and returns 0 if each warp stored each share of each tile once, summed in the
// order of the splits, whatever the workspace held before; and if both ways of reduction occurred.
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#define __device__
#define __forceinline__ inline
using f32 = float;
using s32 = int;
template <class A, class B> constexpr bool is_same = std::is_same_v<A, B>;
struct float4 { float x, y, z, w; };
struct Index { unsigned x; };
struct Sm90Params {
  unsigned long long* workspace;
  int splits_or_stacked;
};

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __reduce_or_sync(unsigned, unsigned value) { return value; }
inline void __syncwarp() {}
inline float add_sums(float a, float b) { return a + b; }
inline int add_sums(int a, int b) { return unsigned(a) + unsigned(b); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
using std::min;

// A CTA: its shared memory, and the warps that arrived at its named barriers.
struct Cta {
  alignas(8) unsigned char shared[8];
  int arrived[16] = {}, round[16] = {};
};

// A warp, suspended in `context`. `laziness`: it goes on in one of so many of its turns.
template <class Value> struct Registers { Value sums[2 * 16], totals[2 * 4]; };
struct Warp {
  Index index;
  Cta* cta;
  unsigned laziness;
  std::function<void()> code;
  Registers<float> floats;
  Registers<int> integers;
  ucontext_t context;
  bool done = false;
  std::vector<char> stack = std::vector<char>(1 << 16);
  template <class Value> auto& registers() {
    if constexpr (std::is_same_v<Value, int>)
      return integers;
    else
      return floats;
  }
};
static Warp* warp;  // the one that runs
static ucontext_t scheduler;
#define threadIdx (warp->index)

static void run_warp() {
  warp->code();
  warp->done = true;
  swapcontext(&warp->context, &scheduler);
}
static std::unique_ptr<Warp> start(unsigned number, Cta* cta, unsigned laziness,
                                   std::function<void()> code) {
  auto warp = std::make_unique<Warp>(Index{number * 32}, cta, laziness, std::move(code));
  getcontext(&warp->context);
  warp->context.uc_stack.ss_sp = warp->stack.data();
  warp->context.uc_stack.ss_size = warp->stack.size();
  makecontext(&warp->context, run_warp, 0);
  return warp;
}
static void let_others_run() { swapcontext(&warp->context, &scheduler); }

// Warps that reduced, by the way of reduction.
template <class Value> static long polled;
template <class Value> static long last_reduced;

namespace ptx {
inline void wait_for_prior_grids() {}
template <int THREADS> void named_barrier_arrive(int number) {
  if (++warp->cta->arrived[number] == THREADS / 32) {
    warp->cta->arrived[number] = 0;
    ++warp->cta->round[number];
  }
}
template <int THREADS> void named_barrier_sync(int number) {
  const int before = warp->cta->round[number];
  named_barrier_arrive<THREADS>(number);
  while (warp->cta->round[number] == before) let_others_run();
}
using Word = unsigned long long;
inline Word load_acquire(const Word* word) { return let_others_run(), *word; }
inline Word atomic_or_acq_rel(Word* word, Word bits) {
  let_others_run();
  return std::exchange(*word, *word | bits);
}
inline Word atomic_cas_acquire(Word* word, Word expected, Word value) {
  let_others_run();
  return *word == expected ? std::exchange(*word, value) : *word;
}
inline void store_relaxed(Word* word, Word value) { let_others_run(), *word = value; }
// Elements of a vector may become visible one by one.
inline void store_relaxed(float4* to, float4 from) {
  for (float float4::* element : {&float4::x, &float4::y, &float4::z, &float4::w}) {
    if (warp->laziness % 2) let_others_run();
    to->*element = from.*element;
  }
}
inline float4 load_relaxed(const float4* from) { return let_others_run(), *from; }
}  // namespace ptx

namespace ptx {
template <int FIRST, int END, class Value> void write_totals(const Value* values) {
  std::copy(values, values + END - FIRST, warp->registers<Value>().totals + FIRST);
}
}  // namespace ptx

template <class Value> struct Results {
  template <int BLOCK, int FIRST, int COUNT> static void read(Value* values) {
    std::copy_n(warp->registers<Value>().sums + BLOCK * 16 + FIRST, COUNT, values);
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
  std::vector<int> stored(tiles * Config::SHARES * 2);
  int wrong = 0;
  std::vector<unsigned> order(tiles * splits);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  const unsigned seed = random();
  auto consume = [&](unsigned tile, unsigned split) {
    const unsigned number_of_warp = warp->index.x / 32;
    auto& [sums, totals] = warp->registers<Value>();
    for (int block = 0; block < Config::M_BLOCKS; ++block)
      for (int i = 0; i < 16; ++i)
        sums[block * 16 + i] = number<Value>(seed, split, number_of_warp, block, i);
    GridSplit work(params, tiles, tile, split);
    unsigned shares = work.publish(warp->cta->shared);
    (*work.word & GridSplit::LAST_REDUCES ? last_reduced<Value> : polled<Value>) += shares != 0;
    for (; shares != 0; shares &= shares - 1) {
      const int share = __builtin_ctz(shares);
      work.add_up(share);
      ++stored[(tile * Config::SHARES + share) * 2 + number_of_warp];
      for (int block = 0; block < Config::M_BLOCKS; ++block)
        for (int e = 0; e < 4; ++e) {
          volatile Value expected = 0;
          for (int s = 0; s < splits; ++s) {
            const auto partial = number<Value>(seed, s, number_of_warp, block, share * 4 + e);
            expected = add_sums(expected, partial);
          }
          const Value total = totals[block * 4 + e];
          wrong += !(total == expected || (total != total && expected != expected));
        }
    }
  };
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<std::unique_ptr<Cta>> ctas;
  while (!order.empty() || !warps.empty()) {
    if (!order.empty() && warps.size() <= 3 * (at_once - 1)) {
      const unsigned tile = order.back() % tiles, split = order.back() / tiles;
      order.pop_back();
      ctas.push_back(std::make_unique<Cta>());
      Cta* const cta = ctas.back().get();
      for (unsigned number : {0, 1})
        warps.push_back(
            start(number, cta, 1 + random() % 4, [=, &consume] { consume(tile, split); }));
      warps.push_back(start(3, cta, 1 + random() % 4, [=, &params] {
        GridSplit(params, tiles, tile, split).prepare(cta->shared);
      }));
      continue;
    }
    const size_t at = random() % warps.size();
    if (random() % warps[at]->laziness) continue;
    warp = warps[at].get();
    swapcontext(&scheduler, &warp->context);
    if (warp->done) std::swap(warps[at], warps.back()), warps.pop_back();
  }
  wrong += std::count_if(stored.begin(), stored.end(), [](int count) { return count != 1; });
  if (wrong)
    std::printf("%u tiles, %d splits, %u at once: %d wrong\n", tiles, splits, at_once, wrong);
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
