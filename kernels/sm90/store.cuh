// The end of an sm90 tile: what a warp does with its sums. They go through the epilogue and through shared memory (slabs), for lanes hold
// them as wgmma leaves them and memory wants lines.
//
//   Output rows along m      store_rows: a box of 16 rows at a time, by the copy engine where that can address the output.
//   Output rows along n      store_lines: 16 bits, converted and no more, in lines of 128 bytes, a warpgroup together;
//   (OUT_TRANSPOSED)         store_pairs: of an A from registers, whole tiles in pairs, straight from the sums;
//                            store_transposed: all else, 16 rows at a time.
#pragma once
#include "common/choose.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "common/stmatrix.cuh"
#include "common/tma.cuh"
#include "common/types.cuh"
#include "common/wgmma.cuh"
#include "sm90/params.cuh"

// Gemm: the kernel, whose constants say how its shared memory and its registers are laid out.
template <class Gemm, class Out, class Epilogue, int CONSUMERS, bool OUT_TRANSPOSED, bool GROUPED>
struct Sm90Store {
  using Value = typename Gemm::Value;
  using Operands = typename Gemm::Operands;
  static constexpr int WARPGROUP = Gemm::WARPGROUP, M_BLOCKS = Gemm::M_BLOCKS,
                       EPILOGUE_N = Gemm::EPILOGUE_N;
  static constexpr int BOX_BYTES = Gemm::BOX_BYTES, BOX_N = Gemm::BOX_N, BOXES = Gemm::BOXES,
                       SWIZZLE = Gemm::SWIZZLE;
  static constexpr int GROUPS = Gemm::GROUPS, ROUND_GROUPS = Gemm::ROUND_GROUPS,
                       ROUNDS = Gemm::ROUNDS, AT_A_TIME = Gemm::AT_A_TIME;
  static constexpr int SLAB_BYTES = Gemm::SLAB_BYTES, SLABS = Gemm::SLABS, LINES = Gemm::LINES,
                       LINE_BYTES = Gemm::LINE_BYTES;
  static constexpr int TRANSPOSED_N = Gemm::TRANSPOSED_N, TRANSPOSED_PITCH = Gemm::TRANSPOSED_PITCH;
  static constexpr bool CONVERT_ONLY = Gemm::CONVERT_ONLY, BY_LINES = Gemm::BY_LINES,
                        LOAD_AHEAD = Gemm::LOAD_AHEAD;
  static constexpr bool A_FROM_REGISTERS = Gemm::A_FROM_REGISTERS;
  struct alignas(2 * sizeof(Out)) Pair { Out elements[2]; };

  // Waits until all threads of this warpgroup are here. Barriers up to CONSUMERS are for taking turns.
  static __device__ __forceinline__ void meet_warpgroup() {
    ptx::numbered_barrier_sync<WARPGROUP>(1 + CONSUMERS + threadIdx.x / WARPGROUP);
  }

  // A warp's sums: M_BLOCKS strips of 16 rows, 64 rows apart, EPILOGUE_N columns wide, from (m, n) on. Sums: ptx::Results, which names them
  // by their strip and their index there. Of the rows, only those before `end` are stored. `last`: nobody in this CTA multiplies meanwhile.
  template <class Sums>
  static __device__ __forceinline__ void store(const Sm90Params& params, Epilogue epilogue,
                                               unsigned char* slabs, int& slab, int batch, int m,
                                               int n, int end, bool last) {
    if constexpr (A_FROM_REGISTERS && OUT_TRANSPOSED && is_same<Epilogue, Identity>)
      if (store_pairs<Sums>(params, batch, m, n)) return;
    if constexpr (OUT_TRANSPOSED && BY_LINES)
      store_lines<Sums>(params, slabs, slab, batch, m, n);
    else if constexpr (OUT_TRANSPOSED)
      store_transposed<Sums>(params, epilogue, slabs, batch, m, n);
    else
      store_rows<Sums>(params, epilogue, slabs, slab, batch, m, n, end, last);
  }

  template <class Sums>
  static __device__ __forceinline__ void store_rows(const Sm90Params& params, Epilogue epilogue,
                                                    unsigned char* slabs, int& slab, int batch,
                                                    int m, int n, int end, bool last) {
    const int lane = threadIdx.x % 32;
    unsigned char* rows = slabs;
    Operands operands[2], next[2];  // of the two row halves
    auto row_of = [&](int round) { return m + round / (BOXES * ROUNDS) * 64; };
    auto column_of = [&](int round) { return n + round / ROUNDS % BOXES * BOX_N; };
    auto load = [&](int round) {
      const int last = min(params.n, column_of(round) + BOX_N),
                column = column_of(round) + round % ROUNDS * 32 + lane % 4 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(round) + strip_row(lane / 4 + 8 * half),
                  valid = row < end ? last - column : 0;
        if (half == 0)
          epilogue.load(next[0], batch, row, column, valid);
        else
          epilogue.load_below(next[1], next[0], batch, row, column, valid);
      }
    };
    if constexpr (LOAD_AHEAD) load(0);
    // Rolled, for the sake of compile time: only what picks registers is there once for each round.
#pragma unroll 1
    for (int round = 0; round < M_BLOCKS * BOXES * ROUNDS; ++round) {
      const int row = row_of(round), column = column_of(round);
      // What lies outside the output, or below a group's rows, is not stored. Behind another epilogue, unless grouped, all boxes are gone
      // through, for what else it gives.
      if ((GROUPED || CONVERT_ONLY) && row >= end) break;
      if (CONVERT_ONLY && column >= params.n) continue;
      if (round % ROUNDS == 0) {
        rows = slabs + slab * SLAB_BYTES;
        slab = (slab + 1) % SLABS;
        if (lane == 0) ptx::store_wait_read<SLABS - 1>();
        __syncwarp();
      }
      if constexpr (CONVERT_ONLY)
        write_matrices<Sums>(round, ptx::shared_address(rows));
      else {
        if constexpr (LOAD_AHEAD) {
          operands[0] = next[0];
          operands[1] = next[1];
          if (round + 1 < M_BLOCKS * BOXES * ROUNDS) load(round + 1);
        }
        write_groups<Sums>(params, epilogue, operands, round, rows, batch, row, column, end, last);
      }
      if (round % ROUNDS != ROUNDS - 1) continue;

      if (params.out_by_tma && (!GROUPED || row + 16 <= end)) {
        ptx::fence_for_copy_engine();
        __syncwarp();
        if (lane == 0) ptx::store_box(&params.out, ptx::shared_address(rows), column, row, batch);
      } else if (
          GROUPED &&
          params
              .out_by_tma) {  // below a group's last rows are the next one's, which the copy engine would write
        __syncwarp();
        store_vectors(params, rows, row, column, end);
      } else {
        __syncwarp();
        Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[0] * batch;
#pragma unroll 2
        for (int index = lane; index < 16 * BOX_N; index += 32) {
          const int r = index / BOX_N, c = index % BOX_N;
          if (row + r < end && column + c < params.n)
            out[params.out_stride[1] * (row + r) + params.out_stride[2] * (column + c)] =
                *reinterpret_cast<const Out*>(rows + slab_offset(r, c * int(sizeof(Out))));
        }
      }
      if (lane == 0)
        ptx::store_commit();  // without a store, an empty group: to count groups is to count slabs
    }
  }

  // A box's rows before `end`, 16 bytes at a time, of an output that the copy engine could address.
  static __device__ __forceinline__ void store_vectors(const Sm90Params& params,
                                                       const unsigned char* rows, int row,
                                                       int column, int end) {
    constexpr int VECTORS = BOX_BYTES / 16, WIDTH = 16 / int(sizeof(Out));
    static_assert(!GROUPED || BOX_BYTES % 16 == 0);
    Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[1] * row + column;
    for (int index = threadIdx.x % 32; index < 16 * VECTORS; index += 32) {
      const int r = index / VECTORS, c = index % VECTORS * WIDTH;
      if (row + r < end && column + c < params.n)
        ptx::store_global(
            out + params.out_stride[1] * r + c,
            *reinterpret_cast<const ptx::Vector*>(rows + slab_offset(r, c * int(sizeof(Out)))));
    }
  }

  // The row of a strip that is wgmma's row r of 16.
  static __device__ __forceinline__ constexpr int strip_row(int r) {
    return A_FROM_REGISTERS ? ptx::fragment_row(r) : r;
  }

  // Where a byte of a row lies in a slab, with the copy engine's swizzle: bits 7 to 9 of an offset change its bits 4 to 6.
  static __device__ __forceinline__ int slab_offset(int row, int byte) {
    const int offset = row * BOX_BYTES + byte;
    return offset ^ (offset >> 7 & SWIZZLE) << 4;
  }

  // Sums that need no more than a conversion to 16 bits: two 8 x 8 matrices of rows 0 to 7, two of rows 8 to 15 at a time.
  template <class Sums>
  static __device__ __forceinline__ void write_matrices(int box, unsigned rows) {
    const int lane = threadIdx.x % 32;
    const unsigned target = rows + slab_offset(strip_row(lane % 16), lane / 16 * 16);
    choose<0, M_BLOCKS * BOXES>(box, [&](auto at) {
      write_box<Sums, at.value / BOXES, at.value % BOXES * GROUPS, 0>(target);
    });
  }
  template <class Sums, int STRIP, int FIRST, int GROUP>
  static __device__ __forceinline__ void write_box(unsigned target) {
    constexpr int BYTE = GROUP * 16, MATRICES = GROUP + 1 < GROUPS ? 4 : 2;
    // The group's bits are above those that lanes differ in: to add is to XOR.
    Sums::template store<Out, false, STRIP, 4 * (FIRST + GROUP), MATRICES>(SWIZZLE ? target ^ BYTE
                                                                                   : target + BYTE);
    if constexpr (GROUP + 2 < GROUPS) write_box<Sums, STRIP, FIRST, GROUP + 2>(target);
  }

  // Any sums and any epilogue, 4 groups of 8 columns a round, as lanes hold them: two neighbours of each group in row lane / 4, and two
  // eight rows below.
  template <class Sums>
  static __device__ __forceinline__ void write_groups(const Sm90Params& params, Epilogue epilogue,
                                                      Operands (&operands)[2], int round,
                                                      unsigned char* rows, int batch, int m, int n,
                                                      int end, bool last) {
    const int lane = threadIdx.x % 32, first = round % ROUNDS * 4;  // group
    f32 sums[4 * ROUND_GROUPS] = {};
    choose<0, M_BLOCKS * BOXES * ROUNDS>(round, [&](auto at) {
      constexpr int BOX = at.value / ROUNDS, FIRST = at.value % ROUNDS * 4,
                    COUNT = GROUPS - FIRST < 4 ? GROUPS - FIRST : ROUND_GROUPS;
      Sums::template read<BOX / BOXES, 4 * (BOX % BOXES * GROUPS + FIRST), 4 * COUNT>(sums);
    });
    Value values[2][2 * ROUND_GROUPS];
#pragma unroll
    for (int i = 0; i < 4 * ROUND_GROUPS; ++i) values[i / 2 % 2][i / 4 * 2 + i % 2] = sums[i];
    const int column = n + first * 8 + lane % 4 * 2, own = n + BOX_N - column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m + strip_row(lane / 4 + 8 * half),
                valid = row < end ? min(own, params.n - column) : 0;
      if constexpr (!LOAD_AHEAD) {
        if (half == 0)
          epilogue.load(operands[0], batch, row, column, valid);
        else
          epilogue.load_below(operands[1], operands[0], batch, row, column, valid);
      }
      const Place place{
          batch, row, column, valid, m / 8 + half, n / BOX_N * ROUNDS + round % ROUNDS, true, own};
      if (AT_A_TIME < 2 * ROUND_GROUPS && last)
        finish_sums<8, 4>(epilogue, values[half], operands[half], place);
      else
        finish_sums<8, 4, AT_A_TIME>(epilogue, values[half], operands[half], place);
    }

    auto result = [&](int half, int i) { return Epilogue::result(values[half][i]); };
    if constexpr (sizeof(Out) == 2) {
      const unsigned target =
          ptx::shared_address(rows) + slab_offset(strip_row(lane % 16), lane / 16 * 16);
      auto pair = [&](int half, int group) {
        return encode_pair<Out>(result(half, 2 * group), result(half, 2 * group + 1));
      };
#pragma unroll
      for (int group = 0; group < ROUND_GROUPS; group += 2) {
        const int byte = (first + group) * 16;
        const unsigned matrices = SWIZZLE ? target ^ byte : target + byte;  // as in write_matrices
        if (group + 1 < ROUND_GROUPS && first + group + 1 < GROUPS)
          ptx::store_matrices(matrices, pair(0, group), pair(1, group), pair(0, group + 1),
                              pair(1, group + 1));
        else if (first + group < GROUPS)
          ptx::store_matrices(matrices, pair(0, group), pair(1, group));
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int group = 0; group < ROUND_GROUPS; ++group)
          if (first + group < GROUPS) {
            const int byte = ((first + group) * 8 + lane % 4 * 2) * int(sizeof(Out));
            auto element = [&](int i) { return encode<Out>(result(half, 2 * group + i)); };
            *reinterpret_cast<Pair*>(rows + slab_offset(strip_row(lane / 4 + 8 * half), byte)) = {
                element(0), element(1)};
          }
    }
  }

  // Sums that need no more than a conversion to 16 bits, for an output whose rows are the sums' columns. 8 x 8 matrices are transposed on
  // their way into the warpgroup's slab, whose pieces of 16 bytes lie as in the operands' tiles: neither the 8 rows of a matrix nor a
  // row's 8 pieces meet in a bank. A quarter warp then stores a whole line of 128 bytes.
  template <class Sums>
  static __device__ __forceinline__ void store_lines(const Sm90Params& params, unsigned char* slabs,
                                                     int& slab, int batch, int m, int n) {
    constexpr int ROUNDS = (EPILOGUE_N + LINES - 1) / LINES;
    const int thread = threadIdx.x % WARPGROUP, warp = thread / 32, lane = thread % 32;
    slabs -= warp * SLAB_BYTES;  // the warpgroup's
    auto offset = [](int row, int piece) { return row * LINE_BYTES + (piece ^ row % 8) * 16; };
    const unsigned matrices =
        ptx::shared_address(slabs) + offset(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
    const unsigned char* const own =
        slabs + offset(thread / 8, thread % 8);  // this thread stores 16 bytes of each 16th row
    Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[0] * batch;
    const bool aligned =
        params.out_stride[2] == 1 && ((reinterpret_cast<unsigned long long>(out) |
                                       (params.out_stride[1] | params.m) * sizeof(Out)) &
                                      15) == 0;
    const int rows = min(EPILOGUE_N, params.n - n);
#pragma unroll 1
    for (int strip = 0; strip < M_BLOCKS; ++strip) {
      const int left = m - warp * 16 + strip * 64, column = left + thread % 8 * 8;
      Out* line = out + params.out_stride[1] * (n + thread / 8) + column;
#pragma unroll 1
      for (int first = 0; first < EPILOGUE_N; first += LINES) {
        const int used = slab * (LINES * LINE_BYTES);
        slab ^= 1;
        choose<0, M_BLOCKS * ROUNDS>(strip * ROUNDS + first / LINES, [&](auto at) {
          write_lines<Sums, at.value / ROUNDS, at.value % ROUNDS * LINES, 0>(matrices + used);
        });
        meet_warpgroup();  // whoever arrives has read the other slab
        if (aligned) {
#pragma unroll
          for (int i = 0; i < LINES; i += 16) {
            if (first + i + thread / 8 < rows && column < params.m)
              ptx::store_global(line,
                                *reinterpret_cast<const ptx::Vector*>(own + used + i * LINE_BYTES));
            line += 16 * params.out_stride[1];
          }
        } else {
#pragma unroll 2
          for (int index = thread; index < LINES * 64; index += WARPGROUP) {
            const int r = index / 64, c = index % 64;
            if (first + r < rows && left + c < params.m)
              out[params.out_stride[1] * (n + first + r) + params.out_stride[2] * (left + c)] =
                  *reinterpret_cast<const Out*>(slabs + used + offset(r, c / 8) + c % 8 * 2);
          }
        }
      }
    }
  }

  template <class Sums, int STRIP, int FIRST, int ROW>
  static __device__ __forceinline__ void write_lines(unsigned target) {
    Sums::template store<Out, true, STRIP, (FIRST + ROW) / 2, FIRST + ROW + 8 < EPILOGUE_N ? 4 : 2>(
        target + ROW * LINE_BYTES);
    if constexpr (ROW + 16 < LINES && FIRST + ROW + 16 < EPILOGUE_N)
      write_lines<Sums, STRIP, FIRST, ROW + 16>(target);
  }

  // Any sums and any epilogue, for such an output: 16 rows at a time through a warp's slab, where each lane picks up 8 neighbours along m.
  template <class Sums>
  static __device__ __forceinline__ void store_transposed(const Sm90Params& params,
                                                          Epilogue epilogue, unsigned char* slab,
                                                          int batch, int m, int n) {
    constexpr int ROUNDS = (EPILOGUE_N + TRANSPOSED_N - 1) / TRANSPOSED_N;
    const int lane = threadIdx.x % 32;
    Value* const values = reinterpret_cast<Value*>(slab);
    Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[0] * batch;
    const bool wide =
        params.out_stride[2] == 1 &&
        ((reinterpret_cast<unsigned long long>(out) | params.out_stride[1] * sizeof(Out)) & 15) ==
            0;
#pragma unroll 1
    for (int round = 0; round < M_BLOCKS * ROUNDS; ++round) {
      __syncwarp();  // the slab's former values have been read
      f32 sums[TRANSPOSED_N / 2] = {};
      choose<0, M_BLOCKS * ROUNDS>(round, [&](auto at) {
        constexpr int FIRST = at.value % ROUNDS * TRANSPOSED_N,
                      COUNT = EPILOGUE_N - FIRST < TRANSPOSED_N ? EPILOGUE_N - FIRST : TRANSPOSED_N;
        Sums::template read<at.value / ROUNDS, FIRST / 2, COUNT / 2>(sums);
      });
#pragma unroll
      for (int i = 0; i < TRANSPOSED_N / 2; ++i)
        values[(i / 4 * 8 + lane % 4 * 2 + i % 2) * TRANSPOSED_PITCH +
               strip_row(lane / 4 + i / 2 % 2 * 8)] = sums[i];
      __syncwarp();
      // A quarter warp has rows 0, 1, 4 and 5, the next one 2, 3, 6 and 7: what its lanes read at once then lies in banks of its own.
      const int slab_row = (lane / 2 & 9) + (lane / 4 & 2) + (lane & 4),
                first = round % ROUNDS * TRANSPOSED_N + slab_row;
      const int block = m + round / ROUNDS * 64, row = n + first, column = block + lane % 2 * 8;
      const bool own = first < EPILOGUE_N;
      const int valid = own && row < params.n ? min(8, params.m - column) : 0;
      if (!Epilogue::REDUCES && valid <= 0) continue;
      Value eight[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) eight[e] = values[slab_row * TRANSPOSED_PITCH + lane % 2 * 8 + e];
      typename Epilogue::template Operands<8, 8> operands;
      epilogue.load(operands, batch, row, column, valid);
      const Place place{batch,      row, column, valid, n / EPILOGUE_N * ROUNDS + round % ROUNDS,
                        block / 16, own, 8};
      finish_sums<16, 2>(epilogue, eight, operands, place);
      if (valid <= 0) continue;
      Out* const target = out + params.out_stride[1] * row + params.out_stride[2] * column;
      union {
        Out elements[8];
        ptx::Vector vectors[(sizeof(Out) + 1) / 2];
      } packed;
#pragma unroll
      for (int e = 0; e < 8; ++e) packed.elements[e] = encode<Out>(Epilogue::result(eight[e]));
      if (sizeof(Out) > 1 && wide && valid == 8) {
#pragma unroll
        for (int i = 0; i < int(sizeof(Out)) / 2; ++i)
          ptx::store_global(reinterpret_cast<ptx::Vector*>(target) + i, packed.vectors[i]);
      } else {
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (e < valid) target[params.out_stride[2] * e] = packed.elements[e];
      }
    }
  }

  // The same for whole tiles of which each lane has pairs along m: 8 lanes' lie side by side. False, if that cannot be.
  template <class Sums> static __device__ __forceinline__ bool store_pairs(const Sm90Params& params,
                                                                           int batch, int m,
                                                                           int n) {
    const int lane = threadIdx.x % 32;
    Out* const out = static_cast<Out*>(params.out_pointer) + params.out_stride[0] * batch;
    // The same for all threads, and asked so that the compiler knows: in the main loop it would else keep wgmma's descriptors in registers
    // of each thread, and move them to where wgmma takes them, 7 or 8 instructions for 4.
    const bool aligned =
        ((reinterpret_cast<unsigned long long>(out) | params.out_stride[1] * sizeof(Out)) &
         (sizeof(Pair) - 1)) == 0;
    Out* const target = out + params.out_stride[1] * (n + lane % 4 * 2) + m + lane / 4 * 2;
    const bool whole = m + (M_BLOCKS - 1) * 64 + 16 <= params.m && n + EPILOGUE_N <= params.n;
    if (params.out_stride[2] != 1 || !aligned || !whole) return false;
    store_pairs<Sums, 0>(target, params.out_stride[1]);
    return true;
  }
  template <class Sums, int GROUP>
  static __device__ __forceinline__ void store_pairs(Out* target, long long stride) {
    f32 sums[M_BLOCKS][4];
    Sums::template read<0, 4 * GROUP, 4>(sums[0]);
    if constexpr (M_BLOCKS > 1) Sums::template read<1, 4 * GROUP, 4>(sums[1]);
#pragma unroll
    for (int i = 0; i < 2 * M_BLOCKS; ++i) {
      const int strip = i / 2, row = i % 2;
      *reinterpret_cast<Pair*>(target + stride * row + strip * 64) = {
          encode<Out>(sums[strip][row]), encode<Out>(sums[strip][2 + row])};
    }
    if constexpr (8 * GROUP + 8 < EPILOGUE_N)
      store_pairs<Sums, GROUP + 1>(target + stride * 8, stride);
  }
};
