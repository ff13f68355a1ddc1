// Stores accumulators to an output whose rows lie along n (OUT_TRANSPOSED), up to `end`:
//
//   store_lines     conversion to 16 bits only: lines of 128 bytes, a warpgroup together
//   store_pairs     PAIRED_ROWS, no epilogue, whole tiles: pairs, straight from registers
//   store_elements  everything else: 16 rows of the output at a time
#pragma once
#include "common/choose.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "common/store_singly.cuh"
#include "common/types.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"
#include "sm90/pipeline.cuh"
#include "sm90/shared_memory.cuh"
#include "sm90/store_rows.cuh"

template <class Config> struct Sm90StoreTransposed {
  using Out = typename Config::Out;
  using Epilogue = typename Config::Epilogue;
  using Value = typename Config::Value;
  using Memory = Sm90Memory<Config>;
  struct alignas(2 * sizeof(Out)) Pair { Out elements[2]; };

  // stmatrix transposes 8 x 8 matrices into the warpgroup's slab, with the 128-byte swizzle of the
  // operands' tiles: neither the 8 rows of a matrix nor the 8 pieces of a row share banks. A
  // quarter warp then stores a line of 128 bytes.
  template <class Sums>
  static __device__ __forceinline__ void store_lines(const Sm90Params& params, unsigned char* slabs,
                                                     int& slab, int batch, int m, int n, int end) {
    constexpr int ROUNDS = (Config::EPILOGUE_N + Memory::LINES - 1) / Memory::LINES;
    const int thread = threadIdx.x % Config::WARPGROUP, warp = thread / 32, lane = thread % 32;
    slabs -= warp * Memory::SLAB_BYTES;  // the warpgroup's
    auto offset = [](int row, int piece) {
      return row * Memory::LINE_BYTES + (piece ^ row % 8) * 16;
    };
    const unsigned matrices =
        ptx::shared_address(slabs) + offset(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
    // This thread stores 16 bytes of every 16th row.
    const unsigned char* const own = slabs + offset(thread / 8, thread % 8);
    Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[0] * batch;
    const bool aligned =
        params.out_stride[2] == 1 && ((reinterpret_cast<unsigned long long>(out) |
                                       (params.out_stride[1] | params.m) * sizeof(Out)) &
                                      15) == 0;
    const int rows = min(Config::EPILOGUE_N, end - n);
#pragma unroll 1
    for (int strip = 0; strip < Config::M_BLOCKS; ++strip) {
      const int left = m - warp * 16 + strip * 64, column = left + thread % 8 * 8;
      Out* line = out + params.out_stride[1] * (n + thread / 8) + column;
#pragma unroll 1
      for (int first = 0; first < Config::EPILOGUE_N; first += Memory::LINES) {
        const int used = slab * (Memory::LINES * Memory::LINE_BYTES);
        slab ^= 1;
        choose<0, Config::M_BLOCKS * ROUNDS>(strip * ROUNDS + first / Memory::LINES, [&](auto at) {
          write_lines<Sums, at.value / ROUNDS, at.value % ROUNDS * Memory::LINES, 0>(matrices +
                                                                                     used);
        });
        // One barrier per round suffices: threads that arrive have read the other slab.
        Sm90Pipeline<Config>::sync_warpgroup();
        if (aligned) {
#pragma unroll
          for (int i = 0; i < Memory::LINES; i += 16) {
            if (first + i + thread / 8 < rows && column < params.m)
              ptx::store_global(
                  line, *reinterpret_cast<const ptx::Vector*>(own + used + i * Memory::LINE_BYTES));
            line += 16 * params.out_stride[1];
          }
        } else {
          store_singly<Memory::LINES, 64, Config::WARPGROUP, 8>(
              out + params.out_stride[1] * (n + first) + params.out_stride[2] * left,
              params.out_stride[1], params.out_stride[2], rows - first, params.m - left, thread,
              [&](int r, int c) {
                return *reinterpret_cast<const Out*>(slabs + used + offset(r, c / 8) + c % 8 * 2);
              });
        }
      }
    }
  }

  template <class Sums, int STRIP, int FIRST, int ROW>
  static __device__ __forceinline__ void write_lines(unsigned target) {
    Sums::template store<Out, true, STRIP, (FIRST + ROW) / 2,
                         FIRST + ROW + 8 < Config::EPILOGUE_N ? 4 : 2>(target +
                                                                       ROW * Memory::LINE_BYTES);
    if constexpr (ROW + 16 < Memory::LINES && FIRST + ROW + 16 < Config::EPILOGUE_N)
      write_lines<Sums, STRIP, FIRST, ROW + 16>(target);
  }

  // 16 rows of the output at a time pass through the warp's slab; each lane takes 8 elements
  // adjacent along m. Of a dual GEMM, the strip's first 8 sums along m belong to one product, the
  // others to the other, and each lane takes 4 of both.
  template <class Sums>
  static __device__ __forceinline__ void store_elements(const Sm90Params& params, Epilogue epilogue,
                                                        unsigned char* slab, int batch, int m,
                                                        int n, int end) {
    constexpr int ROUNDS = (Config::EPILOGUE_N + Memory::TRANSPOSED_N - 1) / Memory::TRANSPOSED_N;
    constexpr bool DUAL = Config::DUAL;
    constexpr int WIDTH = DUAL ? 4 : 8;
    const int lane = threadIdx.x % 32, columns = DUAL ? params.m / 2 : params.m;
    Value* const values = reinterpret_cast<Value*>(slab);
    Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[0] * batch;
    const bool wide =
        params.out_stride[2] == 1 &&
        ((reinterpret_cast<unsigned long long>(out) | params.out_stride[1] * sizeof(Out)) &
         (2 * WIDTH - 1)) == 0;
#pragma unroll 1
    for (int round = 0; round < Config::M_BLOCKS * ROUNDS; ++round) {
      __syncwarp();  // the slab's previous values have been read
      Value sums[Memory::TRANSPOSED_N / 2] = {};
      choose<0, Config::M_BLOCKS * ROUNDS>(round, [&](auto at) {
        constexpr int FIRST = at.value % ROUNDS * Memory::TRANSPOSED_N,
                      COUNT = Config::EPILOGUE_N - FIRST < Memory::TRANSPOSED_N
                                  ? Config::EPILOGUE_N - FIRST
                                  : Memory::TRANSPOSED_N;
        Sums::template read<at.value / ROUNDS, FIRST / 2, COUNT / 2>(sums);
      });
#pragma unroll
      for (int i = 0; i < Memory::TRANSPOSED_N / 2; ++i)
        values[(i / 4 * 8 + lane % 4 * 2 + i % 2) * Memory::TRANSPOSED_PITCH +
               strip_row<Config>(lane / 4 + i / 2 % 2 * 8)] = sums[i];
      __syncwarp();
      // Even quarter warps take rows 0, 1, 4 and 5, odd ones 2, 3, 6 and 7: the lanes of a phase
      // read from different banks.
      const int slab_row = (lane / 2 & 9) + (lane / 4 & 2) + (lane & 4),
                first = round % ROUNDS * Memory::TRANSPOSED_N + slab_row;
      const int block = m + round / ROUNDS * 64, row = n + first,
                column = (DUAL ? block / 2 : block) + lane % 2 * WIDTH;
      const bool own = first < Config::EPILOGUE_N;
      const int valid = own && row < end ? min(WIDTH, columns - column) : 0;
      if (!Epilogue::REDUCES && valid <= 0) continue;
      Value sums_of_lane[WIDTH], products[WIDTH];
#pragma unroll
      for (int e = 0; e < WIDTH; ++e) {
        const int at = slab_row * Memory::TRANSPOSED_PITCH + lane % 2 * WIDTH + e;
        if constexpr (DUAL) {
          sums_of_lane[e] = values[at + (params.reversed ? 8 : 0)];
          products[e] = values[at + (params.reversed ? 0 : 8)];
        } else {
          sums_of_lane[e] = values[at];
        }
      }
      typename Epilogue::template Operands<WIDTH, WIDTH> operands;
      epilogue.load(operands, batch, row, column, valid);
      const Place place{
          batch,      row, column, valid, n / Config::EPILOGUE_N * ROUNDS + round % ROUNDS,
          block / 16, own, WIDTH};
      if constexpr (DUAL)
        finish_dual_sums(epilogue, sums_of_lane, products, operands, place);
      else
        finish_sums<16, 2>(epilogue, sums_of_lane, operands, place);
      if (valid <= 0) continue;
      Out* const target = out + params.out_stride[1] * row + params.out_stride[2] * column;
      union {
        Out elements[WIDTH];
        ptx::Vector vectors[(sizeof(Out) + 1) / 2];
        uint2 four;  // of 16 bits
      } stored;
#pragma unroll
      for (int e = 0; e < WIDTH; ++e)
        stored.elements[e] = encode<Out>(Epilogue::result(sums_of_lane[e]));
      if constexpr (DUAL && bits_of<Out> == 16) {
        if (wide && valid == WIDTH) {
          *reinterpret_cast<uint2*>(target) = stored.four;
          continue;
        }
      }
      if (!DUAL && bits_of<Out> > 8 && wide && valid == WIDTH) {
#pragma unroll
        for (int i = 0; i < int(sizeof(Out)) / 2; ++i)
          ptx::store_global(reinterpret_cast<ptx::Vector*>(target) + i, stored.vectors[i]);
      } else {
#pragma unroll
        for (int e = 0; e < WIDTH; ++e)
          if (e < valid) target[params.out_stride[2] * e] = stored.elements[e];
      }
    }
  }

  // PAIRED_ROWS: each lane holds pairs adjacent along m, and 8 lanes hold adjacent pairs.
  // Returns false, having stored nothing, if the output is unaligned or the tile not whole.
  template <class Sums>
  static __device__ __forceinline__ bool store_pairs(const Sm90Params& params, int batch, int m,
                                                     int n, int end) {
    const int lane = threadIdx.x % 32;
    Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[0] * batch;
    // Test the output, not `target`, so that the compiler sees a uniform condition. Otherwise it
    // keeps wgmma's descriptors in per-thread registers in the main loop, and moves them to uniform
    // registers with 7 or 8 instructions for 4.
    const bool aligned =
        ((reinterpret_cast<unsigned long long>(out) | params.out_stride[1] * sizeof(Out)) &
         (sizeof(Pair) - 1)) == 0;
    Out* const target = out + params.out_stride[1] * (n + lane % 4 * 2) + m + lane / 4 * 2;
    const bool whole =
        m + (Config::M_BLOCKS - 1) * 64 + 16 <= params.m && n + Config::EPILOGUE_N <= end;
    if (params.out_stride[2] != 1 || !aligned || !whole) return false;
    store_pairs<Sums, 0>(target, params.out_stride[1]);
    return true;
  }
  template <class Sums, int OCTET>
  static __device__ __forceinline__ void store_pairs(Out* target, long long stride) {
    f32 sums[Config::M_BLOCKS][4];
    Sums::template read<0, 4 * OCTET, 4>(sums[0]);
    if constexpr (Config::M_BLOCKS > 1) Sums::template read<1, 4 * OCTET, 4>(sums[1]);
#pragma unroll
    for (int i = 0; i < 2 * Config::M_BLOCKS; ++i) {
      const int strip = i / 2, row = i % 2;
      *reinterpret_cast<Pair*>(target + stride * row + strip * 64) = {
          encode<Out>(sums[strip][row]), encode<Out>(sums[strip][2 + row])};
    }
    if constexpr (8 * OCTET + 8 < Config::EPILOGUE_N)
      store_pairs<Sums, OCTET + 1>(target + stride * 8, stride);
  }
};
