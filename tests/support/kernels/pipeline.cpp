// The pipeline of a cluster on the CPU: a model of kernels/sm90/producer.cuh and consumer.cuh
// around the boxes of kernels/sm90/boxes.cuh, whose slices are multicast between CTAs.
//
// Producers and consumers take steps in random order, some rarely; messages between CTAs arrive in
// random order. Prints nothing and returns 0 if no stage is filled while a consumer reads it, no
// stage is read before it is full, no message arrives at a CTA that has exited, and all CTAs exit;
// and if some run fails without the reports of slices that lie outside the operand.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#define __device__
#define __forceinline__ inline
using std::max;
using std::min;
struct TensorMap {};
// Elements of whole bytes.
template <class T> constexpr int bits_of = 8 * sizeof(T);
template <class T> constexpr int packing_of = 1;
template <class T> constexpr int bytes_of(int elements) { return elements * sizeof(T); }

static int boxes_loaded;
namespace ptx {
template <bool> void tma_load(unsigned, const TensorMap*, unsigned, int, int, int) {
  ++boxes_loaded;
}
template <bool> void tma_load(unsigned, const TensorMap*, unsigned, int, int, int, unsigned short) {
  ++boxes_loaded;
}
// Not part of the model.
template <bool>
void tma_load_dual(unsigned, const TensorMap*, unsigned, int, int, int, unsigned short) {
  std::abort();
}
inline void tma_prefetch(const TensorMap*, int, int, int) { std::abort(); }
}  // namespace ptx

#include "sm90/boxes.cuh"

// One operand's tile, which begins at `first` of an operand that ends at `end`: the bytes that the
// CTA of a slice multicasts (sent), and the bytes that it expects of the tile (expected).
template <bool K_MAJOR, int TILE_, int ROW_BYTES, int SHARED_BY_> struct Operand {
  static constexpr int TILE = TILE_, SHARED_BY = SHARED_BY_;
  using Boxes = Sm90Boxes<short, 64, K_MAJOR, TILE, ROW_BYTES, SHARED_BY, false, false>;
  // Boxes of half a slice where possible, as the host may choose.
  static constexpr int BOX_ROWS =
      Boxes::LONGER == 0 && Boxes::SLICE % 16 == 0 ? Boxes::SLICE / 2 : Boxes::SLICE;
  static long sent(int first, int end, int slice) {
    const Boxes boxes(first, end, BOX_ROWS, 0, slice);
    const TensorMap map, shorter;
    const TensorMap* const from = Boxes::map_of(slice, map, shorter);
    boxes_loaded = 0;
    if (boxes.has_all())
      boxes.template load<true>(0, from, 0, 0, slice, 0);
    else
      boxes.template load<false>(0, from, 0, 0, slice, 0);
    return boxes_loaded * (K_MAJOR ? (from == &shorter ? Boxes::SHORT : BOX_ROWS) * 128l
                                   : long(ROW_BYTES) * Boxes::SLICE);
  }
  static long expected(int first, int end, int slice) {
    return Boxes(first, end, BOX_ROWS, 0, slice).bytes;
  }
};

// An mbarrier: pending arrivals and bytes.
struct Barrier {
  int arrivals, pending = arrivals;
  long bytes = 0;
  unsigned phase = 0;
  bool is_complete(unsigned parity) const { return (phase & 1) != parity; }
  void count(int arrived, long more) {
    pending -= arrived;
    bytes += more;
    if (pending == 0 && bytes == 0) pending = arrivals, ++phase;
  }
};

template <class A, class B> struct Cluster {
  static constexpr int CLUSTER_M = B::SHARED_BY, CLUSTER_N = A::SHARED_BY,
                       CTAS = CLUSTER_M * CLUSTER_N, STAGES = 3;
  struct Tile { int m, n; };  // rows and columns of the output, from the cluster's first
  struct Consumer {
    int next = 0;               // block
    bool holds = false;         // the previous block is not released yet
    std::vector<int> released;  // by stage, the last block
  };
  struct Cta {
    std::vector<Barrier> full, empty;
    std::vector<Consumer> consumers;
    std::vector<long> arrived;  // bytes of slices, by block
    int loads = 0;              // the next block
    bool exited = false;
  };
  std::mt19937& random;
  const int blocks;  // of each tile
  const std::vector<Tile> tiles;
  const bool reports;  // of slices outside the operand
  const int total = blocks * int(tiles.size());
  std::vector<Cta> ctas{CTAS};
  std::vector<std::function<void()>> messages;  // in flight
  const char* wrong = nullptr;

  Cluster(std::mt19937& random, int consumers, int blocks, std::vector<Tile> tiles, bool reports)
      : random(random), blocks(blocks), tiles(std::move(tiles)), reports(reports) {
    Consumer consumer;
    for (int stage = 0; stage < STAGES; ++stage) consumer.released.push_back(stage - STAGES);
    for (Cta& cta : ctas) {
      cta.full.assign(STAGES, Barrier{1});
      cta.empty.assign(STAGES, Barrier{consumers * (CLUSTER_M + CLUSTER_N - 1)});
      cta.consumers.assign(consumers, consumer);
      cta.arrived.assign(total, 0);
    }
  }

  // Multicasts one operand's slice: its boxes, or the report, a byte to each other CTA.
  template <class Operand>
  void send(int cta, int block, int first, int end, int slice, auto shares) {
    const long bytes = Operand::sent(first, end, slice);
    const int stage = block % STAGES;
    for (int to = 0; to < CTAS; ++to)
      if (shares(to) && bytes > 0)
        messages.push_back([=, this] {
          Cta& target = ctas[to];
          if (target.exited) wrong = "bytes for a CTA that has exited";
          for (const Consumer& consumer : target.consumers)
            if (consumer.released[stage] < block - STAGES)
              wrong = "a stage is filled while a consumer reads it";
          target.arrived[block] += bytes;
          target.full[stage].count(0, -bytes);
        });
      else if (shares(to) && to != cta && reports)
        messages.push_back([=, this] {
          if (ctas[to].exited) wrong = "a report to a CTA that has exited";
          ctas[to].full[stage].count(0, -1);
        });
  }
  template <class Operand> static long all_sent(int first, int end) {
    long bytes = 0;
    for (int slice = 0; slice < Operand::SHARED_BY; ++slice)
      bytes += Operand::sent(first, end, slice);
    return bytes;
  }
  long filled(int cta, int block) const {
    const Tile tile = tiles[block / blocks];
    return all_sent<A>(cta % CLUSTER_M * A::TILE, tile.m) +
           all_sent<B>(cta / CLUSTER_M * B::TILE, tile.n);
  }

  // A step of a producer, if it can take one.
  bool load(int cta) {
    Cta& own = ctas[cta];
    const int block = own.loads, stage = block % STAGES;
    if (block == total + STAGES || !own.empty[stage].is_complete((block / STAGES & 1) ^ 1))
      return false;
    ++own.loads;
    if (block >= total) return true;  // at the end, only waits
    const Tile tile = tiles[block / blocks];
    const int m = cta % CLUSTER_M, n = cta / CLUSTER_M, row = m * A::TILE, column = n * B::TILE;
    const long expected = A::expected(row, tile.m, n) + B::expected(column, tile.n, m);
    own.full[stage].count(1, reports ? expected : filled(cta, block));
    send<A>(cta, block, row, tile.m, n, [=](int to) { return to % CLUSTER_M == m; });
    send<B>(cta, block, column, tile.n, m, [=](int to) { return to / CLUSTER_M == n; });
    return true;
  }

  void release(int cta, Consumer& consumer, int block) {
    consumer.released[block % STAGES] = block;
    for (int to = 0; to < CTAS; ++to)
      if (to % CLUSTER_M == cta % CLUSTER_M || to / CLUSTER_M == cta / CLUSTER_M)
        messages.push_back([=, this] {
          if (ctas[to].exited) wrong = "an arrival at a CTA that has exited";
          ctas[to].empty[block % STAGES].count(1, 0);
        });
  }

  // Whether a consumer has output rows and columns. Consumers share a tile's rows equally.
  bool multiplies(int cta, int index, int block) const {
    const Tile tile = tiles[block / blocks];
    const int row = cta % CLUSTER_M * A::TILE + index * A::TILE / int(ctas[cta].consumers.size());
    return row < tile.m && cta / CLUSTER_M * B::TILE < tile.n;
  }

  // A step of a consumer. It releases a block after it has issued the tile's next one, or at the
  // tile's end; immediately if it does not multiply.
  bool read(int cta, int index) {
    Cta& own = ctas[cta];
    Consumer& consumer = own.consumers[index];
    const int block = consumer.next, stage = block % STAGES;
    const bool ends = consumer.holds && block % blocks == 0;
    if (!ends) {
      if (block == total || !own.full[stage].is_complete(block / STAGES & 1)) return false;
      if (own.arrived[block] != filled(cta, block)) wrong = "a stage is read before it is full";
      ++consumer.next;
    }
    if (consumer.holds) release(cta, consumer, block - 1);
    consumer.holds = !ends && multiplies(cta, index, block);
    if (!ends && !consumer.holds) release(cta, consumer, block);
    return true;
  }

  // The first error, or null.
  const char* run() {
    // A CTA takes a step in one of pace[cta] turns.
    std::vector<unsigned> pace(CTAS);
    for (unsigned& one : pace) one = random() % 3 == 0 ? 40 : 1;
    for (int idle = 0; !wrong; ++idle) {
      if (!messages.empty() && random() % 2) {
        const unsigned at = random() % messages.size();
        std::swap(messages[at], messages.back());
        const auto message = messages.back();
        messages.pop_back();
        message();
        idle = 0;
      }
      const int cta = random() % CTAS;
      if (random() % pace[cta]) continue;
      Cta& own = ctas[cta];
      bool done = own.loads == total + STAGES;
      if (load(cta)) idle = 0;
      for (int index = 0; index < int(own.consumers.size()); ++index) {
        if (random() % 2 && read(cta, index)) idle = 0;
        done = done && own.consumers[index].next == total && !own.consumers[index].holds;
      }
      own.exited = own.exited || done;
      const bool all_exited =
          std::all_of(ctas.begin(), ctas.end(), [](const Cta& one) { return one.exited; });
      if (all_exited)
        return messages.empty() ? nullptr : "messages in flight to CTAs that have exited";
      if (idle > 100000) return "deadlock";
    }
    return wrong;
  }
};

// Runs clusters with tiles inside the output, across its edge, and outside. Exits on an error;
// returns how many runs without reports failed.
template <class A, class B> int clusters(std::mt19937& random, int rounds) {
  int failures = 0;
  for (int round = 0; round < rounds; ++round)
    for (const bool reports : {true, false}) {
      using Tried = Cluster<A, B>;
      std::vector<typename Tried::Tile> tiles(1 + random() % 3);
      for (auto& tile : tiles)
        tile = {int(1 + random() % (Tried::CLUSTER_M * A::TILE)),
                int(1 + random() % (Tried::CLUSTER_N * B::TILE))};
      const int consumers = 1 + random() % 3, blocks = 1 + random() % 12;
      const char* const wrong = Tried(random, consumers, blocks, tiles, reports).run();
      failures += wrong != nullptr;
      if (!wrong || !reports) continue;
      std::printf("%s: clusters of %dx%d, tiles of %dx%d, %d blocks, %d consumers, of", wrong,
                  Tried::CLUSTER_M, Tried::CLUSTER_N, A::TILE, B::TILE, blocks, consumers);
      for (const auto& tile : tiles) std::printf(" %dx%d", tile.m, tile.n);
      std::printf("\n");
      std::exit(1);
    }
  return failures;
}

int main(int, char** arguments) {
  std::mt19937 random(1);
  const int rounds = std::atoi(arguments[1]);
  int failures = clusters<Operand<true, 64, 128, 2>, Operand<false, 72, 64, 4>>(random, rounds);
  // Unequal slices of B.
  failures += clusters<Operand<true, 128, 128, 4>, Operand<true, 120, 128, 2>>(random, rounds);
  failures += clusters<Operand<false, 64, 128, 2>, Operand<true, 64, 128, 2>>(random, rounds);
  failures += clusters<Operand<true, 192, 128, 1>, Operand<true, 136, 128, 2>>(random, rounds);
  failures += clusters<Operand<true, 128, 128, 4>, Operand<false, 128, 128, 2>>(random, rounds);
  if (failures == 0) std::printf("no run without reports failed\n");
  return failures == 0;
}
