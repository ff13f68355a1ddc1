// Stores accumulators to an output whose rows lie along m: boxes of 16 rows, by TMA if it can
// address the output.
#pragma once
#include "common/choose.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "common/stmatrix.cuh"
#include "common/store_singly.cuh"
#include "common/tma.cuh"
#include "common/types.cuh"
#include "common/wgmma.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"
#include "sm90/registers.cuh"
#include "sm90/shared_memory.cuh"

// The matrix row of row r of wgmma's 16.
template <class Config> __device__ __forceinline__ constexpr int strip_row(int r) {
  return Config::PAIRED_ROWS ? ptx::fragment_row(r) : r;
}

template <class Config> struct Sm90StoreRows {
  using Out = typename Config::Out;
  using Epilogue = typename Config::Epilogue;
  using Value = typename Config::Value;
  using Memory = Sm90Memory<Config>;
  using Registers = Sm90Registers<Config>;
  using Operands = typename Registers::Operands;
  static constexpr bool ALONG_M = Config::ALONG_M, CONVERT_ONLY = Memory::CONVERT_ONLY,
                        LOAD_AHEAD = Registers::LOAD_AHEAD, LOAD_EARLY = Registers::LOAD_EARLY;
  static constexpr int M_BLOCKS = Config::M_BLOCKS, AT_A_TIME = Registers::AT_A_TIME;
  static constexpr int SLABS = Memory::SLABS, SLAB_BYTES = Memory::SLAB_BYTES,
                       BOXES = Memory::BOXES, BOX_BYTES = Memory::BOX_BYTES, BOX_N = Memory::BOX_N,
                       BOX_OCTETS = Memory::BOX_OCTETS, ROUNDS = Memory::ROUNDS,
                       MOST_OCTETS = Memory::MOST_OCTETS, ROUND_OCTETS = Memory::ROUND_OCTETS,
                       SWIZZLE = Memory::SWIZZLE;
  struct alignas(2 * sizeof(Out)) Pair { Out elements[2]; };
  static constexpr int STORE_ROUNDS = Registers::STORE_ROUNDS;

  // The operands of a tile that are loaded before its main loop: of the upper and lower 8 rows.
  struct Early { Operands rounds[LOAD_EARLY ? STORE_ROUNDS : 1][2]; };

  // A round's first row and column in the output.
  static __device__ __forceinline__ int row_of(int m, int round) {
    return m + round / (BOXES * ROUNDS) * 64;
  }
  static __device__ __forceinline__ int column_of(int n, int round) {
    return n + round / ROUNDS % BOXES * BOX_N;
  }

  // Loads the operands of one round.
  static __device__ __forceinline__ void load(Operands (&operands)[2], const Sm90Params& params,
                                              Epilogue epilogue, int round, int batch, int m, int n,
                                              int end) {
    const int lane = threadIdx.x % 32, first = column_of(n, round),
              last = min(Config::output_column(params.n), first + BOX_N),
              column = first + round % ROUNDS * (8 * MOST_OCTETS) + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(m, round) + strip_row<Config>(lane / 4 + 8 * half),
                valid = row < end ? last - column : 0;
      if (half == 0)
        epilogue.load(operands[0], batch, row, column, valid);
      else
        epilogue.load_below(operands[1], operands[0], batch, row, column, valid);
    }
  }
  static __device__ __forceinline__ void load_early(Early& early, const Sm90Params& params,
                                                    Epilogue epilogue, int batch, int m, int n,
                                                    int end) {
#pragma unroll
    for (int round = 0; round < STORE_ROUNDS; ++round)
      load(early.rounds[round], params, epilogue, round, batch, m, n, end);
  }

  template <class Sums>
  static __device__ __forceinline__ void store(const Sm90Params& params, Epilogue epilogue,
                                               const Early& early, unsigned char* slabs, int& slab,
                                               int batch, int m, int n, int end, bool last) {
    const int lane = threadIdx.x % 32, columns = Config::output_column(params.n);
    unsigned char* rows = slabs;
    Operands operands[2], next[2];  // of the upper and lower 8 rows
    if constexpr (LOAD_AHEAD) load(next, params, epilogue, 0, batch, m, n, end);
    // Rolled, for compile time: only the code that selects registers is repeated for each round.
#pragma unroll 1
    for (int round = 0; round < STORE_ROUNDS; ++round) {
      const int row = row_of(m, round), column = column_of(n, round);
      // Skip boxes outside the output, or below a group. With an epilogue, unless ALONG_M, process
      // all boxes: it may store partial results for them.
      if ((ALONG_M || CONVERT_ONLY) && row >= end) break;
      if (CONVERT_ONLY && column >= columns) continue;

      // Wait until TMA has read the slab.
      if (round % ROUNDS == 0) {
        rows = slabs + slab * SLAB_BYTES;
        slab = (slab + 1) % SLABS;
        if (lane == 0) ptx::tma_store_wait_read<SLABS - 1>();
        __syncwarp();
      }
      // Fill the slab.
      if constexpr (CONVERT_ONLY)
        write_matrices<Sums>(round, ptx::shared_address(rows));
      else {
        if constexpr (LOAD_AHEAD) {
          operands[0] = next[0];
          operands[1] = next[1];
          if (round + 1 < STORE_ROUNDS) load(next, params, epilogue, round + 1, batch, m, n, end);
        }
        if constexpr (LOAD_EARLY)
          choose<0, STORE_ROUNDS>(round, [&](auto at) {
            operands[0] = early.rounds[at.value][0];
            operands[1] = early.rounds[at.value][1];
          });
        write_octets<Sums>(params, epilogue, operands, round, rows, batch, row, column, end, last);
      }
      if (round % ROUNDS != ROUNDS - 1) continue;

      // Store the slab. TMA would also write rows below a group, which belong to the next group.
      if (params.out_by_tma && (!ALONG_M || row + 16 <= end)) {
        ptx::fence_async_proxy();
        __syncwarp();
        // The output of stacked groups is one matrix.
        const int matrix = ALONG_M ? batch & ~params.splits_or_stacked : batch;
        if (lane == 0) ptx::tma_store(&params.out, ptx::shared_address(rows), column, row, matrix);
      } else if (ALONG_M && params.out_by_tma) {
        __syncwarp();
        store_vectors(params, rows, batch, row, column, end);
      } else {
        __syncwarp();
        Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[0] * batch +
                         params.out_stride[1] * row + params.out_stride[2] * column;
        store_singly<16, BOX_N, 32, 8>(
            out, params.out_stride[1], params.out_stride[2], end - row, columns - column, lane,
            [&](int r, int c) {
              return *reinterpret_cast<const Out*>(rows + slab_offset(r, c * int(sizeof(Out))));
            });
      }
      // Without a TMA store, an empty group: one group per slab.
      if (lane == 0) ptx::tma_store_commit();
    }
  }

  // Stores a box's rows before `end` with 16-byte stores, to an output that TMA could address.
  static __device__ __forceinline__ void store_vectors(const Sm90Params& params,
                                                       const unsigned char* rows, int batch,
                                                       int row, int column, int end) {
    constexpr int VECTORS = BOX_BYTES / 16, WIDTH = 16 / int(sizeof(Out));
    static_assert(!ALONG_M || BOX_BYTES % 16 == 0);
    Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[0] * batch +
                     params.out_stride[1] * row + column;
    for (int index = threadIdx.x % 32; index < 16 * VECTORS; index += 32) {
      const int r = index / VECTORS, c = index % VECTORS * WIDTH;
      if (row + r < end && column + c < Config::output_column(params.n))
        ptx::store_global(
            out + params.out_stride[1] * r + c,
            *reinterpret_cast<const ptx::Vector*>(rows + slab_offset(r, c * int(sizeof(Out)))));
    }
  }

  // The offset of a byte of a row in a slab, with TMA's swizzle: bits 7 to 9 are XORed into bits 4
  // to 6.
  static __device__ __forceinline__ int slab_offset(int row, int byte) {
    const int offset = row * BOX_BYTES + byte;
    return offset ^ (offset >> 7 & SWIZZLE) << 4;
  }

  // ---- filling a slab: conversion to 16 bits only ----

  // stmatrix: two 8 x 8 matrices of rows 0 to 7 and two of rows 8 to 15 at a time.
  template <class Sums>
  static __device__ __forceinline__ void write_matrices(int box, unsigned rows) {
    const int lane = threadIdx.x % 32;
    const unsigned target = rows + slab_offset(strip_row<Config>(lane % 16), lane / 16 * 16);
    choose<0, M_BLOCKS * BOXES>(box, [&](auto at) {
      write_box<Sums, at.value / BOXES, at.value % BOXES * BOX_OCTETS, 0>(target);
    });
  }
  template <class Sums, int STRIP, int FIRST, int OCTET>
  static __device__ __forceinline__ void write_box(unsigned target) {
    constexpr int BYTE = OCTET * 16, MATRICES = OCTET + 1 < BOX_OCTETS ? 4 : 2;
    // The octet's bits lie above the bits in which lanes differ: adding them is XORing them.
    Sums::template store<Out, false, STRIP, 4 * (FIRST + OCTET), MATRICES>(SWIZZLE ? target ^ BYTE
                                                                                   : target + BYTE);
    if constexpr (OCTET + 2 < BOX_OCTETS) write_box<Sums, STRIP, FIRST, OCTET + 2>(target);
  }

  // ---- filling a slab: any epilogue ----

  // One round: up to 4 octets. Of each octet, a lane holds two adjacent columns of row lane / 4,
  // and of the row 8 below.
  template <class Sums>
  static __device__ __forceinline__ void write_octets(const Sm90Params& params, Epilogue epilogue,
                                                      Operands (&operands)[2], int round,
                                                      unsigned char* rows, int batch, int m, int n,
                                                      int end, bool last) {
    const int lane = threadIdx.x % 32, first = round % ROUNDS * MOST_OCTETS;  // octet of the box
    constexpr int PRODUCTS = Config::DUAL ? 2 : 1;  // of which the octets alternate
    Value sums[4 * PRODUCTS * ROUND_OCTETS] = {};
    choose<0, M_BLOCKS * BOXES * ROUNDS>(round, [&](auto at) {
      constexpr int BOX = at.value / ROUNDS, FIRST = at.value % ROUNDS * MOST_OCTETS,
                    COUNT = BOX_OCTETS - FIRST < MOST_OCTETS ? BOX_OCTETS - FIRST : ROUND_OCTETS;
      Sums::template read<BOX / BOXES, 4 * PRODUCTS*(BOX % BOXES * BOX_OCTETS + FIRST),
                          4 * PRODUCTS * COUNT>(sums);
    });
    Value values[2][2 * ROUND_OCTETS], products[2][2 * ROUND_OCTETS];
#pragma unroll
    for (int i = 0; i < 4 * ROUND_OCTETS; ++i) {
      Value &value = values[i / 2 % 2][i / 4 * 2 + i % 2],
            &product = products[i / 2 % 2][i / 4 * 2 + i % 2];
      if constexpr (Config::DUAL) {
        const Value upper = sums[i / 4 * 8 + i % 4], lower = sums[i / 4 * 8 + 4 + i % 4];
        value = params.reversed ? lower : upper;
        product = params.reversed ? upper : lower;
      } else {
        value = sums[i];
      }
    }
    const int column = n + first * 8 + lane % 4 * 2, own = n + BOX_N - column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m + strip_row<Config>(lane / 4 + 8 * half),
                valid = row < end ? min(own, Config::output_column(params.n) - column) : 0;
      if constexpr (!LOAD_AHEAD && !LOAD_EARLY) {
        if (half == 0)
          epilogue.load(operands[0], batch, row, column, valid);
        else
          epilogue.load_below(operands[1], operands[0], batch, row, column, valid);
      }
      const Place place{
          batch, row, column, valid, m / 8 + half, n / BOX_N * ROUNDS + round % ROUNDS, true, own};
      const bool at_once = AT_A_TIME < 2 * ROUND_OCTETS && last;
      if constexpr (Config::DUAL) {
        if (at_once)
          finish_dual_sums(epilogue, values[half], products[half], operands[half], place);
        else
          finish_dual_sums<AT_A_TIME>(epilogue, values[half], products[half], operands[half],
                                      place);
      } else if (at_once)
        finish_sums<8, 4>(epilogue, values[half], operands[half], place);
      else
        finish_sums<8, 4, AT_A_TIME>(epilogue, values[half], operands[half], place);
    }

    auto result = [&](int half, int i) { return Epilogue::result(values[half][i]); };
    if constexpr (bits_of<Out> == 16) {
      const unsigned target =
          ptx::shared_address(rows) + slab_offset(strip_row<Config>(lane % 16), lane / 16 * 16);
      auto pair = [&](int half, int octet) {
        return encode_pair<Out>(result(half, 2 * octet), result(half, 2 * octet + 1));
      };
#pragma unroll
      for (int octet = 0; octet < ROUND_OCTETS; octet += 2) {
        const int byte = (first + octet) * 16;
        const unsigned matrices = SWIZZLE ? target ^ byte : target + byte;  // as in write_box
        if (octet + 1 < ROUND_OCTETS && first + octet + 1 < BOX_OCTETS)
          ptx::store_matrices(matrices, pair(0, octet), pair(1, octet), pair(0, octet + 1),
                              pair(1, octet + 1));
        else if (first + octet < BOX_OCTETS)
          ptx::store_matrices(matrices, pair(0, octet), pair(1, octet));
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int octet = 0; octet < ROUND_OCTETS; ++octet)
          if (first + octet < BOX_OCTETS) {
            const int byte = ((first + octet) * 8 + lane % 4 * 2) * int(sizeof(Out));
            auto element = [&](int i) { return encode<Out>(result(half, 2 * octet + i)); };
            *reinterpret_cast<Pair*>(rows + slab_offset(strip_row<Config>(lane / 4 + 8 * half),
                                                        byte)) = {element(0), element(1)};
          }
    }
  }
};
