// The configuration of an sm90 kernel: its parameters, and what follows from them for tiles,
// clusters and splits. Other headers take it as their one template parameter `Config`.
#pragma once
#include "common/epilogue.cuh"
#include "common/groups.cuh"
#include "common/types.cuh"
#include "common/wgmma.cuh"

// COOPERATIVE: the consumer warpgroups share a tile. PING_PONG: each has a tile of its own.
enum class Schedule { COOPERATIVE, PING_PONG };

// Columns of a tile that each reducer CTA adds up, if SPLIT CTAs share the tile: the smallest
// multiple of `unit` that divides the tile and needs at most SPLIT reducers.
__host__ __device__ constexpr int reducer_columns(int tile_n, int split, int unit) {
  int columns = unit;
  while (columns * split < tile_n || tile_n % columns != 0) columns += unit;
  return columns;
}

// `Parameters`: constants of a program, by the names below (src/kernel/sm90/source.rs).
template <class Parameters, class Epilogue_> struct Sm90Config : Parameters {
  using Epilogue = Epilogue_;
  using Parameters::A_K_MAJOR, Parameters::B_K_MAJOR;
  using Parameters::TILE_M, Parameters::TILE_N, Parameters::STAGES;
  using typename Parameters::A, typename Parameters::B, typename Parameters::Accumulator,
      typename Parameters::Out;
  // Of a row in shared memory: 128, or 64 for the A of a mixed product, whose K blocks then have
  // half the length, and for a box of a B that is not K-major.
  using Parameters::A_ALIGN;  // bytes: 16, or 8 or 4 for an A that TMA cannot address
  using Parameters::A_ROW_BYTES, Parameters::B_ROW_BYTES;
  using Parameters::CLUSTER_M, Parameters::CLUSTER_N;  // tiles of a cluster
  using Parameters::CONSUMERS;                         // warpgroups
  using Parameters::FAST_SUMS;  // float8: one chain of products (registers.cuh)
  using Parameters::OVER_GRID, Parameters::OUT_TRANSPOSED;
  using Parameters::SPLIT;  // CTAs that share a tile; if OVER_GRID, its reducer CTAs
  static constexpr bool PING_PONG = Parameters::SCHEDULE == Schedule::PING_PONG;
  static constexpr bool GROUPED = Parameters::GROUPS != Groups::NONE,
                        ALONG_M = Parameters::GROUPS == Groups::ALONG_M,
                        ALONG_K = Parameters::GROUPS == Groups::ALONG_K;

  // ---- dual GEMM ----

  // Rows of A (columns of B) of two matrices alternate in blocks of 8: the first matrix's rows 0 to
  // 7, the second's, the first's rows 8 to 15, and so on. Each thread then holds both sums of an
  // output. `m` (`n`) counts the rows (columns) of both, as do tiles.
  static constexpr bool DUAL = Epilogue::DUAL, DUAL_ROWS = DUAL && OUT_TRANSPOSED,
                        DUAL_COLUMNS = DUAL && !OUT_TRANSPOSED;
  static_assert(!DUAL || (class_of<A> == ElementClass::HALF && class_of<B> == ElementClass::HALF &&
                          is_same<Accumulator, f32> && !OVER_GRID && !ALONG_K && A_ALIGN == 16));
  // A column of the output, and the output's number of them, as columns of both matrices.
  static __host__ __device__ constexpr int output_column(int n) { return DUAL_COLUMNS ? n / 2 : n; }

  // ---- joint GEMM ----

  // The columns of MATRICES matrices B lie side by side in the output. A tile lies in one of them,
  // each of which has a tensor map. The matrices are on the side of the program's A if
  // MATRICES_ARE_A.
  using Parameters::MATRICES, Parameters::MATRICES_ARE_A;
  static_assert(MATRICES == 1 || (class_of<A> == ElementClass::HALF && !DUAL && !GROUPED &&
                                  (MATRICES_ARE_A ? A_K_MAJOR : B_K_MAJOR) && A_ALIGN == 16));

  // ---- threads and tiles ----

  static constexpr int WARPGROUP = 128;
  static constexpr int CONSUMER_THREADS = CONSUMERS * WARPGROUP;
  static constexpr int THREADS = CONSUMER_THREADS + WARPGROUP;
  static constexpr int TILE_K = 8 * A_ROW_BYTES / bits_of<A>;  // one row of the swizzle
  static constexpr int CONSUMERS_PER_TILE = PING_PONG ? 1 : CONSUMERS;
  static constexpr int M_BLOCKS = TILE_M / CONSUMERS_PER_TILE / 64;  // of 64 rows, per consumer
  static_assert(TILE_M == CONSUMERS_PER_TILE * M_BLOCKS * 64 && M_BLOCKS <= 2 && TILE_N % 8 == 0 &&
                TILE_N <= 256);
  static_assert(!GROUPED || SPLIT == 1);
  // Consumers clear lines of MN-major tiles, and bytes of K-major ones.
  static_assert(!ALONG_K || (A_K_MAJOR ? bits_of<A> == 8 && bits_of<B> == 8 && B_K_MAJOR
                                       : bits_of<A> == 16 && bits_of<B> == 16 && !B_K_MAJOR));

  // ---- operands ----

  // MIXED: A is converted to B's type, of 16 bits, on its way to registers.
  static constexpr bool MIXED = is_widened<A> && class_of<B> == ElementClass::HALF;
  static_assert(MIXED || class_of<A> == class_of<B>);
  using Multiplied = typename Conditional<MIXED, B, A>::Type;
  // wgmma reads shared memory MN-major for 16-bit elements only. A can come from registers instead,
  // in any order.
  static_assert(bits_of<B> == 16 || B_K_MAJOR, "wgmma reads B from shared memory only");
  static_assert(!B_K_MAJOR || B_ROW_BYTES == 128);
  static constexpr bool A_FROM_REGISTERS = MIXED || (bits_of<A> == 32 && !A_K_MAJOR);
  static_assert(!MIXED || A_K_MAJOR);
  // Groups of rows lie along n where the weights are A.
  static_assert(!GROUPED || OUT_TRANSPOSED == MIXED);
  static_assert(MIXED || A_ROW_BYTES == 128);
  // Whether rows r and r + 8 of wgmma's 16 rows are adjacent rows of the matrix (fragment_row).
  static constexpr bool PAIRED_ROWS = A_FROM_REGISTERS && !MIXED;
  static_assert(!A_FROM_REGISTERS || !PING_PONG, "one consumer cannot hide its register loads");
  // The producer's threads load A with cp.async. TMA also rounds f32 to tf32; cp.async would not.
  static constexpr bool A_BY_THREADS = A_ALIGN < 16;
  static_assert(!A_BY_THREADS ||
                (A_K_MAJOR && class_of<A> == ElementClass::HALF && CLUSTER_N == 1 && !GROUPED));
  // Whether a launch may name the row of A for each row of the output (sm90/gather.cuh). The
  // producer's threads then load A, each CTA all rows of its tiles. cp.async would not round f32 to
  // tf32, and scaled float8 kernels spill with it.
  static constexpr bool GATHERS = ALONG_M && !OUT_TRANSPOSED && A_K_MAJOR &&
                                  class_of<A> == ElementClass::HALF && CLUSTER_N == 1;

  using Multiply =
      ptx::Wgmma<Multiplied, B, Accumulator, TILE_N, A_K_MAJOR, B_K_MAJOR, B_ROW_BYTES>;
  using Value = EpilogueValue<Accumulator>;  // what the epilogue computes with

  // ---- clusters and split-K ----

  static constexpr bool IN_CLUSTER = SPLIT > 1 && !OVER_GRID;  // a cluster split
  static constexpr int TILES_PER_CLUSTER = CLUSTER_M * CLUSTER_N;
  static constexpr int CLUSTER = TILES_PER_CLUSTER * (IN_CLUSTER ? SPLIT : 1);  // CTAs
  static_assert(SPLIT == 1 || !PING_PONG, "the consumers share a split tile");

  // A tile's columns are divided into shares. A reducer CTA adds up the partial sums of a share and
  // stores it. Partial sums travel in the threads' order, in vectors of 16 bytes: a thread's 2 x 2
  // accumulators of 8 columns.
  static constexpr int EPILOGUE_N =
      reducer_columns(TILE_N, SPLIT, DUAL_COLUMNS ? 16 : 8);  // columns of a share
  static constexpr int OUTPUT_N = output_column(EPILOGUE_N);  // of the output
  static constexpr int TILE_VECTORS = TILE_N / 8, SHARE_VECTORS = EPILOGUE_N / 8;  // of 64 rows
  static constexpr int SHARES = TILE_VECTORS / SHARE_VECTORS;
  // Bytes of one CTA's partial sums of a share.
  static constexpr int SHARE_BYTES = M_BLOCKS * SHARE_VECTORS * CONSUMER_THREADS * 16;

  // Whether a warpgroup without output rows or columns releases its pipeline stages unread. Only a
  // tile of an overhanging cluster, or the part of a tile that consumers share, can lie outside the
  // output. False for a grid split: its tiles are few and short, and compute-sanitizer's racecheck
  // misreads the named barriers of a grid split if warpgroups have passed different numbers of
  // barriers before.
  static constexpr bool RELEASES_STAGES =
      (TILES_PER_CLUSTER > 1 || CONSUMERS_PER_TILE > 1) && !OVER_GRID;
};
