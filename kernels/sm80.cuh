// GEMM on the tensor cores of Ampere and later: mma.sync with a cp.async pipeline.
//
//   global memory --cp.async--> pipeline of STAGES tiles --ldmatrix--> registers --mma.sync-->
//     accumulators --epilogue--> global memory
//
// A CTA computes TILE_M x TILE_N of the output, each of its WARPS_M x WARPS_N warps an equal part,
// and walks K in blocks of TILE_K. While one block is multiplied, the next STAGES - 1 are in
// flight. Within a block, the fragments of a step are loaded while those of the previous step are
// multiplied.
//
// Elements      f16, bf16, s8, u8, f64, or f32 (rounded to tf32), the same for A and B; or each is
//               e4m3 or e5m2; or one is f16 or bf16, and the other, which is converted to it, s8,
//               u8 or e4m3.
// Accumulators  f32; s32 for integers; f64 for f64; f16 also for f16.
// Strides       1 along K if A_K_MAJOR (B_K_MAJOR), else along M (N). The other stride, the batch
//               stride and the base pointer are multiples of ALIGN bytes: 16, 8, 4 or the size of
//               an element, in a mixed product the narrower one. Output strides are free.
#pragma once
#include "common/cluster.cuh"
#include "common/epilogue.cuh"
#include "common/operand_tile.cuh"
#include "common/params.cuh"
#include "common/ptx.cuh"
#include "common/raster.cuh"
#include "common/store_singly.cuh"
#include "common/types.cuh"
#include "sm80/mixed_reader.cuh"
#include "sm80/scales.cuh"

template <class A, class B, class Accumulator, class Out, bool A_K_MAJOR, bool B_K_MAJOR,
          int TILE_M, int TILE_N, int TILE_K, int WARPS_M, int WARPS_N, int STAGES, int ALIGN,
          Groups GROUPS, bool FAST_SUMS, class Epilogue>
struct Sm80Gemm {
  static constexpr bool MIXED = class_of<A> != class_of<B>;
  // The 16-bit operand of a mixed product is the B of mma.sync (MixedReader). SWAPPED: this is A,
  // and the rows of mma.sync are columns of the output.
  static constexpr bool SWAPPED = MIXED && bits_of<A> == 16;
  using Half = typename Conditional<SWAPPED, A, B>::Type;  // if MIXED
  static constexpr ElementClass CLASS = MIXED ? class_of<Half> : class_of<A>;
  static_assert(MIXED ? CLASS == ElementClass::HALF && bits_of<A> + bits_of<B> == 24
                      : is_same<A, B> || CLASS == ElementClass::FLOAT8,
                "mma.sync multiplies operands of one type, or any two of float8");
  static constexpr bool GROUPED = GROUPS != Groups::NONE, ALONG_M = GROUPS == Groups::ALONG_M;
  static_assert(8 * ALIGN == bits_of<A> || !ALONG_M || A_K_MAJOR, "a group may begin at any row");
  static_assert(8 * ALIGN == bits_of<A> || GROUPS != Groups::ALONG_K || !(A_K_MAJOR || B_K_MAJOR),
                "a group may begin anywhere along K");
  static constexpr bool ASYNC = ALIGN >= 4;  // cp.async copies at least 4 bytes
  static_assert(ASYNC ? STAGES >= 2 : STAGES == 2, "copies through registers are double-buffered");

  static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
  static constexpr int THREADS = 32 * WARPS_M * WARPS_N;

  using TileA = OperandTile<A, A_K_MAJOR, TILE_M, TILE_K, MIXED>;
  using TileB = OperandTile<B, B_K_MAJOR, TILE_N, TILE_K, MIXED>;
  template <class Element>
  static constexpr int ALIGN_OF = ALIGN > int(sizeof(Element)) ? ALIGN : sizeof(Element);
  using CopierA = TileCopier<A, A_K_MAJOR, TILE_M, TILE_K, THREADS, ALIGN_OF<A>, MIXED>;
  using CopierB = TileCopier<B, B_K_MAJOR, TILE_N, TILE_K, THREADS, ALIGN_OF<B>, MIXED>;
  using ReaderA = typename Conditional<
      MIXED, MixedReader<A, Half, A_K_MAJOR, TILE_M, TILE_K, WARP_M>,
      FragmentReader<A, A_K_MAJOR, TILE_M, TILE_K, WARP_M, Adjacent::SLOTS>>::Type;
  using ReaderB = typename Conditional<
      MIXED, MixedReader<B, Half, B_K_MAJOR, TILE_N, TILE_K, WARP_N>,
      FragmentReader<B, B_K_MAJOR, TILE_N, TILE_K, WARP_N, Adjacent::HALVES>>::Type;
  template <class Element> using Multiplied = typename Conditional<MIXED, Half, Element>::Type;
  using Mma = ptx::Mma<Multiplied<A>, Multiplied<B>, Accumulator>;
  // The rows and columns of mma.sync that a warp has.
  static constexpr int WARP_ROWS = SWAPPED ? WARP_N : WARP_M,
                       WARP_COLUMNS = SWAPPED ? WARP_M : WARP_N;
  using Sums = typename Mma::Sums[WARP_ROWS / 16][WARP_COLUMNS / 8];
  using Value = EpilogueValue<Accumulator>;

  // Tensor cores truncate when they add the products of a step (32 bytes of K) to an accumulator.
  // With f32 output, where this would be visible, each step starts from zero and is added to the
  // accumulator with rounding.
  static constexpr bool ROUNDS_STEPS =
      is_same<Accumulator, f32> && is_same<Out, f32> && CLASS == ElementClass::HALF;

  // Of float8 products, tensor cores keep 14 bits of a sum (docs/design/accuracy.md). Chains of 128
  // products start from zero and are added to totals with rounding; of 512 where the output's
  // rounding is larger: bfloat16 and float8. Block scales multiply the sums of a part of a K block.
  // FAST_SUMS: all products form one chain.
  static constexpr bool CHAINED = CLASS == ElementClass::FLOAT8 && !FAST_SUMS;
  static_assert(CHAINED || !FAST_SUMS || CLASS == ElementClass::FLOAT8);
  using Scales = Sm80Scales<Epilogue, TILE_M, TILE_N, TILE_K, THREADS>;
  static_assert(CHAINED || !Scales::PRESENT, "scales apply to the sums of a chain");
  static constexpr bool ROUGH_OUTPUT = is_same<Out, bf16> || class_of<Out> == ElementClass::FLOAT8;
  // A chain: CHAIN K blocks, or CHAIN_STEPS steps of one.
  static constexpr int CHAIN = Scales::PRESENT ? 1 : (ROUGH_OUTPUT ? 512 : 128) / TILE_K;
  static constexpr int CHAIN_STEPS = TILE_K / Scales::PARTS / TileA::K_STEP;
  static_assert(!CHAINED || (CHAIN > 0 && is_power_of_two(CHAIN)));

  // ptxas moves mma.sync across a barrier but not across a branch. An mma.sync of f64 takes so long
  // that ptxas would issue all of a block before the barrier: none would remain to hide the latency
  // of the loads after the barrier.
  static constexpr bool BRANCHES_AT_BARRIER = is_same<A, f64>;

  static constexpr int STEPS = TILE_K / TileA::K_STEP;  // of mma.sync in a K block
  static_assert(STEPS % 2 == 0, "fragments are double-buffered");

  // With ROUNDS_STEPS, ptxas multiplies so far ahead of the additions that the sums of a block's
  // steps do not fit the registers. A branch splits the block in two: after the store, or before
  // the copies of ragged blocks (sm_90 has the registers for these).
#if __CUDA_ARCH__ == 900
  static constexpr bool DIVIDES_BLOCK = ROUNDS_STEPS && !ASYNC;
#else
  static constexpr bool DIVIDES_BLOCK = ROUNDS_STEPS && (STEPS > 2 || !ASYNC);
#endif
  // The steps that copy A and B: before the last one, which follows the barrier.
  static constexpr int COPY_A_STEP = DIVIDES_BLOCK && ASYNC ? STEPS / 2 : 0;
  static constexpr int COPY_B_STEP = COPY_A_STEP + 2 < STEPS ? COPY_A_STEP + 1 : COPY_A_STEP;

  static constexpr int STAGE_BYTES = TileA::BYTES + TileB::BYTES;

  // The epilogue moves 16 rows of a warp's accumulators at a time through a slab of shared memory.
  // Eight values of padding: the four rows that one phase of 8-byte stores touches (f64: the two
  // rows of 16-byte stores) lie in different banks. SWAPPED: four, for the four rows 2j that a
  // 4-byte store touches.
  static constexpr int SLAB_PITCH = WARP_N + (SWAPPED ? 4 : 8);
  static constexpr int SLAB_BYTES = 16 * SLAB_PITCH * int(sizeof(Value));

  static constexpr int ALL_SLABS_BYTES = WARPS_M * WARPS_N * SLAB_BYTES;

  static constexpr int SMEM_BYTES =
      STAGES * STAGE_BYTES > ALL_SLABS_BYTES ? STAGES * STAGE_BYTES : ALL_SLABS_BYTES;
  static_assert(SMEM_BYTES + Scales::BYTES <= 99 * 1024, "what a CTA has on every chip");
  // A multiprocessor has 65536 registers. 128 accumulators per thread need up to 255 registers (256
  // threads), 64 need 168 (384 threads), fewer need 128 (512 threads). Copies of less than 16 bytes
  // need about as many registers again, and so do separate sums of steps, except on sm_90. f64 has
  // two registers per accumulator, and fragments need as many. Chains have totals beside the sums,
  // and single elements of 8 bits take a register each.
  static constexpr int SUMS = TILE_M * TILE_N / THREADS *
                              (is_same<Value, f64>                         ? 4
                               : CHAINED && !ASYNC                         ? 8
                               : ALIGN == 16 && !DIVIDES_BLOCK && !CHAINED ? 1
                                                                           : 2);
  static constexpr int THREADS_PER_SM = SUMS >= 128 ? 256 : SUMS >= 64 ? 384 : 512;
  static constexpr int MIN_CTAS = THREADS_PER_SM > THREADS ? THREADS_PER_SM / THREADS : 1;

  static __device__ __forceinline__ void run(const GemmParams& params, Epilogue epilogue) {
    ptx::launch_dependent_grids();
    if constexpr (GROUPED) ptx::wait_for_prior_grids();  // before the offsets are read
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const unsigned shared = ptx::shared_address(shared_memory);
    const int warp = threadIdx.x / 32;
    const int warp_m = warp % WARPS_M * WARP_M, warp_n = warp / WARPS_M * WARP_N;  // in the tile

    const TilePosition position = tile_position<TILE_M, TILE_N, GROUPS>(params);
    const int tile_m = position.m, tile_n = position.n;
    if (ALONG_M && tile_m >= position.end) return;
    CopierA copier_a(params.a,
                     params.a_stride[0] * position.batch + params.a_stride[2] * position.start_k,
                     params.a_stride[1], params.a_stride[2], tile_m, position.end);
    CopierB copier_b(params.b,
                     params.b_stride[0] * position.batch + params.b_stride[1] * position.start_k,
                     params.b_stride[2], params.b_stride[1], tile_n, params.n);
    const ReaderA reader_a(warp_m);
    const ReaderB reader_b(warp_n);

    Sums sums = {}, totals = {};  // totals: if CHAINED
    typename ReaderA::Fragments a[2];
    typename ReaderB::Fragments b[2];
    typename CopierA::Staged staged_a;  // if not ASYNC
    typename CopierB::Staged staged_b;

    const int blocks = position.k / TILE_K + (position.k % TILE_K != 0);
    int k_left = position.k;                  // from the next block to be copied on
    unsigned filled = shared, read = shared;  // the stage to fill next, the stage to read next
    auto advance = [&](unsigned stage) {
      stage += STAGE_BYTES;
      return stage == shared + STAGES * STAGE_BYTES ? shared : stage;
    };
    // A block's copies are issued in three parts: ragged blocks, which branch; whole pieces of A;
    // of B.
    auto copy_ragged = [&] {
      if (k_left > 0 && copier_a.is_ragged(k_left)) copier_a.copy_ragged(filled, k_left);
      if (k_left > 0 && copier_b.is_ragged(k_left))
        copier_b.copy_ragged(filled + TileA::BYTES, k_left);
    };
    auto copy_a = [&] { copier_a.copy_whole(filled, k_left); };
    auto copy_b = [&] {
      copier_b.copy_whole(filled + TileA::BYTES, k_left);
      ptx::copy_async_commit();  // an empty group beyond the last block: one group per iteration
    };
    auto fetch = [&] {
      copier_a.fetch(staged_a, k_left);
      copier_b.fetch(staged_b, k_left);
    };
    auto store = [&] {
      copier_a.store(staged_a, filled);
      copier_b.store(staged_b, filled + TileA::BYTES);
    };
    auto next_block = [&] {
      k_left -= TILE_K;
      filled = advance(filled);
    };
    Scales scales{epilogue, position.batch, tile_m, tile_n, position.end, params.n, position.k};
    // Adds the sums of a chain, which ends in this block, to the totals. `part`: of the block.
    auto add_chain = [&](int block, int part) {
      if constexpr (CHAINED) {
#pragma unroll
        for (int i = 0; i < WARP_M / 16; ++i)
#pragma unroll
          for (int j = 0; j < WARP_N / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              f32& total = totals[i][j].values[e];
              if constexpr (Scales::PRESENT) {
                const f32* factors = scales.of(block, part);
                const int row = ReaderA::coordinate(2 * i + e / 2, threadIdx.x % 32 / 4),
                          column = ReaderB::coordinate(j, threadIdx.x % 4 * 2 + e % 2);
                total += sums[i][j].values[e] *
                         (factors[warp_m + row] * factors[TILE_M + warp_n + column]);
              } else {
                total += sums[i][j].values[e];
              }
            }
            sums[i][j] = {};
          }
      }
    };
    auto load_fragments = [&](int step) {
      reader_a.load(a[step % 2], read, step);
      reader_b.load(b[step % 2], read + TileA::BYTES, step);
    };

    if constexpr (!GROUPED) ptx::wait_for_prior_grids();
    if (blocks > 0) {
      if constexpr (ASYNC) {
#pragma unroll 1
        for (int stage = 0; stage < STAGES - 1; ++stage) {
          copy_ragged();
          copy_a();
          copy_b();
          next_block();
        }
        ptx::copy_async_wait<STAGES - 2>();
      } else {
        fetch();
        store();
        next_block();
      }
      if constexpr (Scales::PRESENT)
#pragma unroll
        for (int step = 0; step < STEPS - 1; ++step) {
          scales.fetch(0, step);
          scales.store(0, step);
        }
      __syncthreads();
      load_fragments(0);
      if constexpr (BRANCHES_AT_BARRIER) copy_ragged();
    }

    // Between the calls of copy_ragged, there are no branches, so that the compiler can interleave
    // loads and copies with mma.sync.
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if (ASYNC && !BRANCHES_AT_BARRIER && step == COPY_A_STEP) copy_ragged();
        if constexpr (Scales::PRESENT) {
          if (step > 0) scales.store(block + 1, step - 1);
          if (step < STEPS - 1) scales.fetch((block + 1) * TILE_K, step);
        }
        if (step == STEPS - 1) {
          // The block's last fragments are in registers. After the barrier, the next block has
          // arrived and this block's stage may be filled. (After the last block, the fragments
          // loaded below are not used.)
          if constexpr (ASYNC)
            ptx::copy_async_wait<STAGES - 2>();
          else if (!DIVIDES_BLOCK || k_left > 0)
            store();
          next_block();
          __syncthreads();
          read = advance(read);
          if constexpr (BRANCHES_AT_BARRIER) copy_ragged();  // of the next iteration
        }
        load_fragments((step + 1) % STEPS);
        if constexpr (ASYNC) {
          if (step == COPY_A_STEP) copy_a();
          if (step == COPY_B_STEP) copy_b();
        } else {
          if (step == 0) fetch();  // beyond the last block, reads nothing and yields zeros
        }
        if constexpr (SWAPPED)
          multiply(sums, b[step % 2].words, a[step % 2].words);
        else
          multiply(sums, a[step % 2].words, b[step % 2].words);
        if (CHAINED && step % CHAIN_STEPS == CHAIN_STEPS - 1 && block % CHAIN == CHAIN - 1)
          add_chain(block, step / CHAIN_STEPS);
      }
    }
    if constexpr (CHAINED && CHAIN > 1) add_chain(0, 0);  // the rest

    if constexpr (ASYNC) ptx::copy_async_wait<0>();
    __syncthreads();  // the stages may be overwritten by the slabs
    Value* slab = reinterpret_cast<Value*>(shared_memory + warp * SLAB_BYTES);
    store_sums(params, epilogue, CHAINED ? totals : sums, slab, position.batch, tile_m + warp_m,
               tile_n + warp_n, position.end);
  }

  // Adds the products of a step. `rows`, `columns`: fragments, of mma.sync's A and B.
  template <class Words>
  static __device__ __forceinline__ void multiply(Sums& sums, const Words (&rows)[WARP_ROWS / 8][2],
                                                  const Words (&columns)[WARP_COLUMNS / 8][2]) {
#pragma unroll
    for (int i = 0; i < WARP_ROWS / 16; ++i)
#pragma unroll
      for (int index = 0; index < WARP_COLUMNS / 8; ++index) {
        // Serpentine order: each mma.sync shares a fragment with the previous one.
        const int j = i % 2 ? WARP_COLUMNS / 8 - 1 - index : index;
        typename Mma::Sums step_sums = {};
        Mma::accumulate(ROUNDS_STEPS ? step_sums : sums[i][j], rows[2 * i][0], rows[2 * i + 1][0],
                        rows[2 * i][1], rows[2 * i + 1][1], columns[j][0], columns[j][1]);
        if constexpr (ROUNDS_STEPS) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][j].values[e] += step_sums.values[e];
        }
      }
  }

  // Stores a warp's accumulators, 16 rows at a time, through the warp's slab of shared memory, so
  // that lanes get adjacent elements along N. `start_m`, `start_n`: the warp's first row and column
  // of the output. Rows from `end` on are not stored.
  static __device__ __forceinline__ void store_sums(const GemmParams& params, Epilogue epilogue,
                                                    const Sums& sums, Value* slab, int batch,
                                                    int start_m, int start_n, int end) {
    constexpr int WIDTH = 16 / sizeof(Out);  // elements of a 16-byte store
    constexpr int LANES = WARP_N / WIDTH;    // per row
    static_assert(32 / LANES <= 16, "the lanes of a warp have no more rows than a slab");
    const int lane = threadIdx.x % 32;
    const int group = lane / 4, pair = lane % 4 * 2;
    Out* out = static_cast<Out*>(params.out) + params.out_stride[0] * batch;
    const long long stride_m = params.out_stride[1], stride_n = params.out_stride[2];
    const bool aligned =
        stride_n == 1 &&
        ((reinterpret_cast<unsigned long long>(out) | stride_m * sizeof(Out)) & 15) == 0;
    const bool wide = Epilogue::REDUCES || aligned;

    auto write_slab = [&](int i) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < WARP_N / 8; ++j)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int row = SWAPPED ? pair + c : group, column = SWAPPED ? group : pair + c;
            Value& value = slab[(half * 8 + row) * SLAB_PITCH + ReaderB::coordinate(j, column)];
            if constexpr (SWAPPED)
              value = decode(Mma::get(sums[j / 2][2 * i + half], j % 2, c));
            else
              value = decode(Mma::get(sums[i][j], half, c));
          }
    };
    // Rolled, for compile time: only the code that selects registers is repeated for each i.
#pragma unroll 1
    for (int i = 0; i < WARP_M / 16; ++i) {
      __syncwarp();  // the slab's previous rows have been read
#pragma unroll
      for (int at = 0; at < WARP_M / 16; ++at)
        if (at == i) write_slab(at);
      __syncwarp();
      auto row_of = [&](int row) {
        return start_m + ReaderA::coordinate(2 * i + row / 8, row % 8);
      };

      if (wide) {
#pragma unroll 1
        for (int row = lane / LANES; row < 16; row += 32 / LANES) {
          const int m = row_of(row), n = start_n + lane % LANES * WIDTH;
          const int valid = m < end ? min(WIDTH, params.n - n) : 0;
          if (!Epilogue::REDUCES && valid <= 0) continue;
          const Value* sums_of_row = slab + row * SLAB_PITCH + lane % LANES * WIDTH;
          Value values[WIDTH];
#pragma unroll
          for (int e = 0; e < WIDTH; ++e) values[e] = sums_of_row[e];
          typename Epilogue::template Operands<WIDTH, WIDTH> operands;
          epilogue.load(operands, batch, m, n, valid);
          constexpr int ROWS = 32 / LANES;
          const Place place{
              batch, m, n, valid, (start_m + 16 * i + row) / ROWS, start_n / WARP_N, true, WIDTH};
          finish_sums<ROWS, LANES>(epilogue, values, operands, place);
          if (valid <= 0) continue;
          Out* target = out + stride_m * m + stride_n * n;
          union {
            ptx::Vector vector;
            Out elements[WIDTH];
          } stored;
#pragma unroll
          for (int e = 0; e < WIDTH; ++e)
            stored.elements[e] = encode<Out>(Epilogue::result(values[e]));
          if (aligned && valid == WIDTH) {
            ptx::store_global(target, stored.vector);
          } else {
#pragma unroll
            for (int e = 0; e < WIDTH; ++e)
              if (e < valid) target[stride_n * e] = stored.elements[e];
          }
        }
      } else {
        const int first_m = start_m + 16 * i;
        store_singly<16, WARP_N, 32, 4>(
            out + stride_m * first_m + stride_n * start_n, stride_m, stride_n, end - first_m,
            params.n - start_n, lane, [&](int row, int column) {
              const int m = first_m + row, n = start_n + column, valid = m < end;
              Value values[] = {slab[ReaderA::place_of(row) * SLAB_PITCH + column]};
              typename Epilogue::template Operands<1, 1> operands;
              epilogue.load(operands, batch, m, n, valid);
              finish_sums<1, 1>(epilogue, values, operands, {batch, m, n, valid});
              return encode<Out>(Epilogue::result(values[0]));
            });
      }
    }
  }
};
