// The register budget of an sm90 kernel: registers of a consumer thread, CTAs per multiprocessor,
// and whether the producer releases registers to the consumers.
#pragma once
#include "common/wgmma.cuh"
#include "sm90/config.cuh"
#include "sm90/scales.cuh"
#include "sm90/shared_memory.cuh"
#include "sm90/weight_scales.cuh"

template <class Config> struct Sm90Registers {
  using Memory = Sm90Memory<Config>;
  using Scales = Sm90Scales<Config>;
  using Accumulator = typename Config::Accumulator;
  static constexpr int M_BLOCKS = Config::M_BLOCKS;
  static constexpr bool SPLIT_K = Config::SPLIT > 1;

  // ---- accumulators and totals (common/wgmma.cuh) ----

  static constexpr int SUMS = M_BLOCKS * Config::Multiply::SUMS;
  static constexpr int SHARE_SUMS = M_BLOCKS * Config::SHARE_VECTORS * 4;  // of a share (split-K)
  using Sums = ptx::Results<Accumulator, Config::TILE_N / 2, false>;
  using Totals = ptx::Results<typename Config::Value, Config::SHARE_VECTORS * 4, true>;
  // Where the sums of a tile that is not split are after the main loop. Factors made integers
  // float32 (sm90/factors.cuh).
  static constexpr bool CONVERTED =
      Memory::IS_INTEGER && Memory::FACTORS &&
      (Config::OUT_TRANSPOSED ? Memory::BY_LINES : Memory::CONVERT_ONLY);
  using OfTile = ptx::Results<typename Conditional<CONVERTED, f32, Accumulator>::Type,
                              Config::TILE_N / 2, false>;

  // Tensor cores truncate each accumulation toward zero. Where this would be visible, CHAIN K
  // blocks form a chain, and chains are added with rounding:
  //   float8   Sums keep 14 bits (docs/design/accuracy.md). 128 elements; 512 where the output's
  //            rounding is larger: bfloat16 and float8. Block scales differ for each K block.
  //   16-bit   1024 elements, with f32 output. Large tiles leave no registers for the totals.
  static constexpr ElementClass CLASS = class_of<typename Config::Multiplied>;
  using Out = typename Config::Out;
  static constexpr bool CHAINED =
      is_same<Accumulator, f32> && !Config::MIXED && !Config::FAST_SUMS &&
      (CLASS == ElementClass::FLOAT8 ||
       (CLASS == ElementClass::HALF && is_same<Out, f32> && SUMS <= 80));
  static constexpr bool ROUGH_OUTPUT = is_same<Out, bf16> || class_of<Out> == ElementClass::FLOAT8;
  static constexpr int CHAIN = CLASS != ElementClass::FLOAT8      ? 16
                               : ROUGH_OUTPUT && !Scales::PRESENT ? 4
                                                                  : 1;
  static_assert(CHAINED || !Scales::PRESENT, "scales apply to the sums of a chain");
  static constexpr int CHAIN_TOTALS = CHAINED ? SUMS : 0;
  static constexpr int TOTALS = CHAINED ? SUMS : SPLIT_K ? SHARE_SUMS : 0;  // to declare

  // ---- the budget ----

  // A from registers: the fragments of two groups of instructions, one being loaded, one being
  // multiplied. A mixed product: also the weights from which the former are converted.
  static constexpr int FRAGMENTS =
      Config::A_FROM_REGISTERS ? (Config::MIXED ? 3 : 2) * M_BLOCKS * 8 : 0;
  // Split-K: the sums of a share and, over the grid, the partial sums that are loaded at once. Not
  // live at the same time as CHAIN_TOTALS.
  static constexpr int SPLITS_AT_ONCE = 8;
  static constexpr int REDUCTION =
      SPLIT_K ? SHARE_SUMS * (Config::OVER_GRID ? 1 + SPLITS_AT_ONCE : 1) : 0;
  // Addresses, counters, the epilogue. A mixed product's weights are dead in the epilogue.
  static constexpr int OTHERS = Config::MIXED ? 20 : 48;
  static constexpr int WITHOUT_OPERANDS = SUMS + FRAGMENTS +
                                          (REDUCTION > CHAIN_TOTALS ? REDUCTION : CHAIN_TOTALS) +
                                          Scales::REGISTERS + OTHERS;

  // Not live in the epilogue, as the weights that they scale.
  static constexpr int INTEGER_SCALES = Config::MIXED ? Sm90WeightScales<Config>::REGISTERS : 0;

  static constexpr int PER_MULTIPROCESSOR = 65536, PER_THREAD_LIMIT = 255;

  // The epilogue's operands of one round of stores, for one half of its rows.
  using Operands = typename Config::Epilogue::template Operands<2 * Memory::ROUND_OCTETS, 2>;
  // C++: an empty struct has one byte. A conversion reads no operands.
  static constexpr bool HAS_OPERANDS = sizeof(Operands) > 1 && !Memory::CONVERT_ONLY;
  static constexpr int STORE_ROUNDS = M_BLOCKS * Memory::BOXES * Memory::ROUNDS;
  static constexpr int TILE_OPERANDS = STORE_ROUNDS * 2 * (int(sizeof(Operands)) + 3) / 4;
  // Where registers allow, the operands of the whole tile are loaded before its main loop, which
  // hides their latency. In ping-pong, the other consumer hides it.
  static constexpr bool LOAD_EARLY =
      HAS_OPERANDS && !Config::PING_PONG && !Config::OUT_TRANSPOSED && !Config::GROUPED &&
      !SPLIT_K && WITHOUT_OPERANDS + INTEGER_SCALES + TILE_OPERANDS <= PER_THREAD_LIMIT &&
      (WITHOUT_OPERANDS + INTEGER_SCALES + TILE_OPERANDS) * Config::THREADS <= PER_MULTIPROCESSOR;
  static constexpr int PER_THREAD = WITHOUT_OPERANDS + (LOAD_EARLY ? TILE_OPERANDS : 0);

  static constexpr int CTAS = PER_MULTIPROCESSOR / (Config::THREADS * PER_THREAD);
  // The stages of a mixed product leave shared memory for two CTAs at most. With groups, a long
  // epilogue of a dual GEMM spills if small tiles get the registers for more CTAs than fit.
  static constexpr bool BY_MEMORY = Config::MIXED || (Config::DUAL && Config::GROUPED);
  static constexpr int MOST = BY_MEMORY ? 228 * 1024 / (Memory::BYTES + 1024) : CTAS;
  static constexpr int MIN_CTAS = CTAS < 1 || MOST < 1 ? 1 : CTAS < MOST ? CTAS : MOST;
  // If an equal share per thread does not suffice, the producer releases registers to the
  // consumers. Mixed products of 224 and 240 columns spill unless SPARE registers are left (ptxas
  // 13.2).
  static constexpr int SPARE = 16;
  static constexpr bool REDISTRIBUTE =
      CTAS == 0 || (Config::MIXED && CTAS == 1 && Config::CONSUMERS == 2 &&
                    (PER_THREAD + INTEGER_SCALES + SPARE) * Config::THREADS > PER_MULTIPROCESSOR);
  static constexpr int PRODUCER = Config::CONSUMERS == 2 ? 40 : 32;
  static constexpr int CONSUMER = Config::CONSUMERS == 2 ? 232 : 160;
  static_assert(!REDISTRIBUTE ||
                MIN_CTAS * (PRODUCER + Config::CONSUMERS * CONSUMER) * 128 <= PER_MULTIPROCESSOR);

  // ---- the epilogue ----

  // The operands of one round of stores are loaded a round ahead where registers allow. They are
  // held for two row halves in two rounds: 4 times sizeof / 4 registers.
  static constexpr bool LOAD_AHEAD =
      REDISTRIBUTE && !Memory::CONVERT_ONLY && SUMS + sizeof(Operands) + 64 <= CONSUMER;

  // Elements that the epilogue computes at once. In ping-pong, the other consumer multiplies
  // meanwhile: four independent chains of FMAs, one issued per cycle, would keep the tensor cores
  // from the register file; two chains do not.
  static constexpr int AT_A_TIME =
      Config::PING_PONG && is_same<typename Config::Value, f32> ? 2 : 2 * Memory::ROUND_OCTETS;
};
