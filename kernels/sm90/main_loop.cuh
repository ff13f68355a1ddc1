// The main loop of a consumer warpgroup: multiplies the stages of a tile.
#pragma once
#include "common/mbarrier.cuh"
#include "common/ptx.cuh"
#include "common/tma.cuh"
#include "common/vector.cuh"
#include "common/wgmma.cuh"
#include "sm90/config.cuh"
#include "sm90/pipeline.cuh"
#include "sm90/registers.cuh"
#include "sm90/scales.cuh"
#include "sm90/shared_memory.cuh"
#include "sm90/weight_scales.cuh"

template <class Config> struct Sm90MainLoop {
  using Memory = Sm90Memory<Config>;
  using Registers = Sm90Registers<Config>;
  using Pipeline = Sm90Pipeline<Config>;
  using Scales =
      typename Conditional<Config::MIXED, Sm90WeightScales<Config>, Sm90Scales<Config>>::Type;
  using Multiply = typename Config::Multiply;
  using Fragments = typename Conditional<
      Config::MIXED,
      typename Conditional<bits_of<typename Config::A> == 4,
                           ptx::CodeFragments<Config::M_BLOCKS, typename Config::B,
                                              typename Config::A, Config::A_ROW_BYTES>,
                           ptx::WidenedFragments<Config::M_BLOCKS, typename Config::B,
                                                 typename Config::A, Config::A_ROW_BYTES>>::Type,
      ptx::WgmmaFragments<Config::M_BLOCKS>>::Type;

  const Pipeline& pipeline;
  const unsigned rank;  // of the CTA in the cluster
  const int warpgroup;
  typename Pipeline::Slot slot;

  // Multiplies one tile. Two K blocks are in flight: block i + 1 is issued before block i is
  // complete; then the stage of block i is released.
  // `depth` and `head`: those of the tile (sm90/tile_order.cuh), if ALONG_K.
  __device__ __forceinline__ void multiply(int blocks, int depth, int head, Scales scales) {
    if constexpr (Registers::CHAINED && Registers::CHAIN == 1) {
      multiply_promoted(blocks, depth, head, scales);
      return;
    }
    // Two consumers end their chains at different K blocks: while one adds up, the other
    // multiplies.
    const int chained =
        Config::PING_PONG ? 0 : warpgroup * Registers::CHAIN / Config::CONSUMERS_PER_TILE;
    unsigned previous_stage = 0;
    if constexpr (Registers::CHAINED) ptx::clear_totals<0, Registers::SUMS>();
    if constexpr (Config::MIXED)
      previous_stage = multiply_widened(blocks, scales);
    else if constexpr (Config::A_FROM_REGISTERS)
      previous_stage = multiply_from_registers(blocks);
    else
#pragma unroll 1
      for (int block = 0; block < blocks; ++block) {
        const unsigned stage = pipeline.stage(slot);
        // This warpgroup's rows of A; all columns of B, whose MN-major boxes have 64 rows each.
        const auto a = ptx::matrix_descriptor(
            stage + (Config::PING_PONG ? 0 : warpgroup) * (Config::M_BLOCKS * Memory::BLOCK_BYTES),
            Memory::BLOCK_BYTES);
        const auto b = ptx::matrix_descriptor<Config::B_ROW_BYTES>(stage + Memory::A_BYTES,
                                                                   64 * Config::B_ROW_BYTES);
        // Wait until the stage's bytes have arrived.
        ptx::barrier_wait(pipeline.full + 8 * slot.stage, slot.phase);
        // cp.async writes through the generic proxy; wgmma reads through the async proxy.
        if constexpr (Config::A_BY_THREADS) ptx::fence_async_proxy();
        if constexpr (Config::ALONG_K)
          clear_others(stage, block == 0 ? head : 0, depth - block * Config::TILE_K);
        // The first block of a tile, or of a chain, overwrites the accumulators.
        const bool adds =
            block > 0 && (!Registers::CHAINED || (chained + block) % Registers::CHAIN > 0);
        if constexpr (Registers::CHAINED)
          if (!adds && block > 0) {
            ptx::wgmma_wait<0>();
            ptx::add_to_totals<0, Registers::SUMS>();
          }
        ptx::wgmma_fence();
        Multiply::template issue<0>(a, b, adds);
        if constexpr (Config::M_BLOCKS > 1)
          Multiply::template issue<1>(a + Memory::BLOCK_BYTES / 16, b, adds);
        ptx::wgmma_commit();
        // The previous block is complete: release its stage.
        ptx::wgmma_wait<1>();
        if (block > 0) Pipeline::release(pipeline.empty + 8 * previous_stage, rank);
        previous_stage = slot.stage;
        slot.advance();
      }
    if constexpr (Config::PING_PONG) Pipeline::pass_turn(warpgroup);
    ptx::wgmma_wait<0>();
    if constexpr (Registers::CHAINED) ptx::add_totals<0, Registers::SUMS>();
    if constexpr (Config::MIXED)
      if constexpr (Scales::REST != 1) ptx::multiply_all_sums<0, Registers::SUMS>(Scales::REST);
    Pipeline::release(pipeline.empty + 8 * previous_stage, rank);
  }

  // Overwrites the K of other groups in a block by zeros, before `first` and from `end` on: of this
  // warpgroup's rows of A, and of all columns of B. (Zeros in one operand do not suffice: the other
  // may be NaN.) Warpgroups that share a tile write the same bytes to B, and each waits for its own
  // only.
  __device__ __forceinline__ void clear_others(unsigned stage, int first, int end) const {
    if (end >= Config::TILE_K && (!Config::A_K_MAJOR || first == 0)) return;
    const unsigned a = stage +
                       (Config::PING_PONG ? 0 : warpgroup * Config::M_BLOCKS) * Memory::BLOCK_BYTES,
                   b = stage + Memory::A_BYTES;
    if constexpr (Config::A_K_MAJOR) {
      clear_bytes(a, Config::M_BLOCKS * 64, first, end);
      clear_bytes(b, Config::TILE_N, first, end);
    } else {
#pragma unroll 1
      for (int block = 0; block < Config::M_BLOCKS; ++block)
        clear_lines(a + block * Memory::BLOCK_BYTES, Config::A_ROW_BYTES, end);
#pragma unroll 1
      for (int box = 0; box < Memory::B_BYTES; box += Config::TILE_K * Config::B_ROW_BYTES)
        clear_lines(b + box, Config::B_ROW_BYTES, end);
    }
    // wgmma reads through the async proxy.
    ptx::fence_async_proxy();
    Pipeline::sync_warpgroup();
  }

  // Of an MN-major box. Each index of K is a line, so that the swizzle permutes zeros.
  static __device__ __forceinline__ void clear_lines(unsigned box, int row_bytes, int end) {
    const unsigned thread = threadIdx.x % Config::WARPGROUP;
#pragma unroll 1
    for (int at = end * row_bytes + thread * 16; at < Config::TILE_K * row_bytes;
         at += Config::WARPGROUP * 16)
      ptx::store_shared(box + at, ptx::Vector{});
  }

  // Of a K-major tile of 8-bit elements. Each index of K is a byte of a row. The 128-byte swizzle
  // moves pieces of 16 bytes. Those that also hold K of the group are read first.
  static __device__ __forceinline__ void clear_bytes(unsigned tile, int rows, int first, int end) {
    // The bytes of a word before byte `count`.
    auto before = [](int count) { return count <= 0 ? 0u : ~0u >> (32 - 8 * min(count, 4)); };
    const int thread = threadIdx.x % Config::WARPGROUP;
#pragma unroll 1
    for (int piece = 0; piece < 128; piece += 16) {
      const int from = first - piece, to = end - piece;
      if (from <= 0 && to >= 16) continue;
#pragma unroll 1
      for (int row = thread; row < rows; row += Config::WARPGROUP) {
        const unsigned at = tile + row * 128 + (piece ^ row % 8 << 4);
        ptx::Vector vector{};
        if (from < 16 && to > 0) {
          ptx::load_shared(vector.words, at);
#pragma unroll
          for (int i = 0; i < 4; ++i) vector.words[i] &= before(to - 4 * i) & ~before(from - 4 * i);
        }
        ptx::store_shared(at, vector);
      }
    }
  }

  // The same where the sums of each K block, or of each part with a factor of its own, start from
  // zero and are added to the totals. While a consumer waits and adds up, the other one multiplies.
  __device__ __forceinline__ void multiply_promoted(int blocks, int depth, int head,
                                                    Scales& scales) {
    static_assert(Config::M_BLOCKS == 1 && !Config::PING_PONG && Config::A_K_MAJOR);
    constexpr int PARTS = Scales::PARTS, SUMS = Registers::SUMS;
    constexpr int AHEAD = Scales::PRESENT ? Scales::AHEAD : 0, AT_ONCE = AHEAD > 0 ? AHEAD : 1;
    typename Scales::Factors factors[AT_ONCE], ahead[AT_ONCE];
    auto load = [&](auto& parts) {
#pragma unroll
      for (auto& part : parts) scales.load_next(part);
    };
    if constexpr (Scales::PRESENT) scales.prefetch(blocks * PARTS);
    if constexpr (AHEAD > 0) load(ahead);
    ptx::clear_totals<0, SUMS>();
    int next_part = 0, left = blocks * PARTS;
    unsigned long long a, b;
    // Not unrolled: the loads of several iterations would be live at once.
#pragma unroll 1
    while (left > 0) {
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        // The part's index in its K block: a constant, unless a K block has more than AT_ONCE.
        const int part = AT_ONCE % PARTS == 0 ? i % PARTS : next_part;
        if (part == 0) {
          const unsigned stage = pipeline.stage(slot);
          a = ptx::matrix_descriptor(stage + warpgroup * Memory::BLOCK_BYTES, 0);
          b = ptx::matrix_descriptor(stage + Memory::A_BYTES, 0);
          ptx::barrier_wait(pipeline.full + 8 * slot.stage, slot.phase);
          if constexpr (Config::ALONG_K) {
            clear_others(stage, head, depth);
            head = 0, depth -= Config::TILE_K;
          }
        }
        // Descriptors count 16 bytes: a K block has 8.
        ptx::wgmma_fence();
        Multiply::template issue<0, 4 / PARTS>(a + part * (8 / PARTS), b + part * (8 / PARTS), 0);
        ptx::wgmma_commit();
        if constexpr (AHEAD > 0) {
          if (i == 0) {
#pragma unroll
            for (int at = 0; at < AT_ONCE; ++at) factors[at] = ahead[at];
            load(ahead);
          }
        } else if constexpr (Scales::PRESENT) {
          load(factors);
        }
        ptx::wgmma_wait<0>();
        next_part = (part + 1) % PARTS;
        if (next_part == 0) {
          Pipeline::release(pipeline.empty + 8 * slot.stage, rank);
          slot.advance();
        }
        if (--left == 0) {
          factors[0] = factors[i];
          break;
        }
        if constexpr (Scales::PRESENT)
          ptx::add_scaled_to_totals<0, SUMS>(factors[i]);
        else
          ptx::add_to_totals<0, SUMS>();
      }
    }
    if constexpr (Scales::PRESENT)
      ptx::add_totals_scaled<0, SUMS>(factors[0]);
    else
      ptx::add_totals<0, SUMS>();
  }

  // Issues groups of instructions with A from registers, as one stage. Waits for the previous one,
  // whose registers are filled next. `b`: descriptor of the stage's tile of B.
  template <int GROUPS>
  static __device__ __forceinline__ void issue_groups(
      const unsigned (&a)[GROUPS][Config::M_BLOCKS][8], unsigned long long b, int group,
      bool adds) {
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < GROUPS; ++i, ++group) {
      // Descriptors count 16 bytes. A K-major row has two groups in each 128 bytes.
      const auto at = b + (!Config::B_K_MAJOR
                               ? group * (32 * Config::B_ROW_BYTES / 16)
                               : group / 2 * (Config::TILE_N * 128 / 16) + group % 2 * (64 / 16));
      Multiply::template issue_pair<0>(a[i][0], at, adds || i > 0);
      if constexpr (Config::M_BLOCKS > 1)
        Multiply::template issue_pair<1>(a[i][1], at, adds || i > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
  }

  // The same with A from registers, except for the last block, whose stage is returned unreleased.
  // A's fragments of one group of instructions are loaded while the previous group is multiplied.
  __device__ __forceinline__ unsigned multiply_from_registers(int blocks) {
    constexpr int GROUPS = Fragments::GROUPS;
    const Fragments tile_a(pipeline.stages + warpgroup * (Config::M_BLOCKS * Memory::BLOCK_BYTES));
    unsigned fragments[2][1][Config::M_BLOCKS][8];
    auto load = [&](int group) {
      tile_a.load(fragments[group % 2][0], slot.stage * Memory::STAGE_BYTES, group);
    };
    ptx::barrier_wait(pipeline.full + 8 * slot.stage, slot.phase);
    load(0);
    unsigned previous_stage = 0;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const auto b = ptx::matrix_descriptor<Config::B_ROW_BYTES>(
          pipeline.stage(slot) + Memory::A_BYTES, Config::TILE_K * Config::B_ROW_BYTES);
      auto issue = [&](int group) {
        issue_groups(fragments[group % 2], b, group, block + group > 0);
      };
      issue(0);
      if (block > 0) Pipeline::release(pipeline.empty + 8 * previous_stage, rank);
#pragma unroll
      for (int group = 1; group < GROUPS; ++group) {
        load(group);
        issue(group);
      }
      previous_stage = slot.stage;
      slot.advance();
      if (block + 1 < blocks) {
        ptx::barrier_wait(pipeline.full + 8 * slot.stage, slot.phase);
        load(0);
      }
    }
    return previous_stage;
  }

  // A of a mixed product, converted in registers, in groups of instructions. Scales and zero points
  // are loaded a span ahead (Sm90WeightScales).
  struct Converter {
    // Groups that are multiplied while as many are converted. With two, a consumer waits half as
    // often, and needs 16 more registers for fragments. Several consumers need that less: one
    // multiplies while another one waits.
    static constexpr int AT_ONCE =
        Config::CONSUMERS == 1 && Config::M_BLOCKS == 1 && Scales::PARTS == 1 ? 2 : 1;
    static_assert(Fragments::GROUPS % (2 * AT_ONCE) == 0);
    using Group = unsigned[AT_ONCE][Config::M_BLOCKS][8];

    const Fragments tile_a;
    typename Fragments::Fetched fetched[AT_ONCE];
    Group fragments[2];
    typename Scales::Factors factors;
    // The scales of the next span, and of this one. Those of rows outside of A are 0, as are all of
    // a slice of K that lies beyond K.
    typename Scales::Stored next{}, stored;
    bool is_large = false;

    __device__ __forceinline__ Converter(unsigned rows, Scales& scales, int blocks) : tile_a(rows) {
      if constexpr (Scales::PRESENT) {
        scales.load_next(next);
        scales.prefetch(blocks * (Config::TILE_K / Scales::DEPTH) - Scales::SPAN);
      }
    }

    __device__ __forceinline__ const Group& of(int group) const {
      return fragments[group / AT_ONCE % 2];
    }

    __device__ __forceinline__ void fetch(unsigned stage, int first) {
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i)
        tile_a.fetch(fetched[i], stage * Memory::STAGE_BYTES, first + i);
    }

    __device__ __forceinline__ void convert(int first, Scales& scales) {
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        auto& converted = fragments[first / AT_ONCE % 2][i];
        if constexpr (Scales::PRESENT)
          convert_scaled(converted, fetched[i], first + i, scales);
        else
          tile_a.convert(converted, fetched[i]);
      }
    }

    __device__ __forceinline__ void convert_scaled(unsigned (&converted)[Config::M_BLOCKS][8],
                                                   const typename Fragments::Fetched& codes,
                                                   int group, Scales& scales) {
#pragma unroll
      for (int part = 0; part < Scales::PARTS; ++part) {
        if (group % Scales::GROUPS == 0) {
          const int in_span = (group / Scales::GROUPS * Scales::PARTS + part) % Scales::SPAN;
          if (in_span == 0) {
            stored = next;
            if constexpr (Scales::POWERS) is_large = Scales::has_large(stored);
          }
          Scales::decode_into(factors, stored, in_span);
          if (in_span == 0) scales.load_next(next);
        }
        tile_a.template convert_scaled<Scales::PARTS>(converted, codes, factors, part);
        if constexpr (Scales::POWERS)
          Scales::multiply_rest(converted, stored, group / Scales::GROUPS % Scales::SPAN, is_large);
      }
    }
  };

  // The same for a mixed product, whose A is converted in registers. The next group is loaded
  // before the instructions of a group are issued, and converted while they multiply.
  __device__ __forceinline__ unsigned multiply_widened(int blocks, Scales& scales) {
    constexpr int GROUPS = Fragments::GROUPS, AT_ONCE = Converter::AT_ONCE;
    Converter a(pipeline.stages + warpgroup * (Config::M_BLOCKS * Memory::BLOCK_BYTES), scales,
                blocks);
    ptx::barrier_wait(pipeline.full + 8 * slot.stage, slot.phase);
    a.fetch(slot.stage, 0);
    a.convert(0, scales);
    unsigned previous_stage = 0;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const unsigned stage = slot.stage;
      const auto b = ptx::matrix_descriptor<Config::B_ROW_BYTES>(
          pipeline.stage(slot) + Memory::A_BYTES, Config::TILE_K * Config::B_ROW_BYTES);
#pragma unroll
      for (int group = 0; group + AT_ONCE < GROUPS; group += AT_ONCE) {
        a.fetch(stage, group + AT_ONCE);
        issue_groups(a.of(group), b, group, block + group > 0);
        if (group == 0 && block > 0) Pipeline::release(pipeline.empty + 8 * previous_stage, rank);
        a.convert(group + AT_ONCE, scales);
      }
      slot.advance();
      previous_stage = stage;
      if (block + 1 < blocks) {
        ptx::barrier_wait(pipeline.full + 8 * slot.stage, slot.phase);
        a.fetch(slot.stage, 0);
      }
      issue_groups(a.of(GROUPS - AT_ONCE), b, GROUPS - AT_ONCE, true);
      a.convert(0, scales);
    }
    return previous_stage;
  }

  // Replaces multiply() for a warpgroup without output rows or columns. Releases the tile's stages
  // as they fill, since other CTAs and warpgroups wait for the release. Skipping the multiplication
  // saves power, so the chip clocks higher.
  //
  // The barrier keeps the warpgroup's threads together, as wgmma does elsewhere: a thread delayed
  // by its last stores could otherwise find the stage refilled and wait for the wrong phase.
  __device__ __forceinline__ void release_stages(int blocks) {
#pragma unroll 1
    for (int block = 0; block < blocks; ++block, slot.advance()) {
      ptx::barrier_wait(pipeline.full + 8 * slot.stage, slot.phase);
      Pipeline::sync_warpgroup();
      Pipeline::release(pipeline.empty + 8 * slot.stage, rank);
    }
    if constexpr (Config::PING_PONG) Pipeline::pass_turn(warpgroup);
  }
};
