// The shared memory of an sm90 kernel:
//
//   STAGES stages    a tile of A, then a tile of B; both swizzled. B of a mixed product, K-major:
//                    the first 64 elements of K of all columns, then the other 64
//   slabs            for each consumer warp, SLABS buffers through which it stores its accumulators
//   barriers         full[STAGES], empty[STAGES], and for split-K one more word: the mbarrier of a
//                    cluster split, or a message between the warps of a CTA of a grid split
#pragma once
#include "common/epilogue.cuh"
#include "sm90/config.cuh"

// A row with an odd number of 16-byte pieces, divided by 3 while it is longer than 128 bytes and
// divisible.
__host__ __device__ constexpr int odd_box(int row_bytes) {
  while (row_bytes > 128 && row_bytes % 48 == 0) row_bytes /= 3;
  return row_bytes;
}

template <class Config> struct Sm90Memory {
  static constexpr int MAX_BYTES = 227 * 1024;  // per CTA
  using A = typename Config::A;
  using B = typename Config::B;
  using Out = typename Config::Out;
  using Value = typename Config::Value;
  static constexpr int WARPS = Config::CONSUMER_THREADS / 32;  // of consumers
  static constexpr int OUTPUT_N = Config::OUTPUT_N;

  // ---- stages ----

  // Every row is 128 bytes, except for 64-byte rows if A_ROW_BYTES or B_ROW_BYTES says so.
  //   K-major   rows are 128 bytes of K of one m (n).
  //   MN-major  boxes of one row's length along M (N) by TILE_K rows, one k each. The last box may
  //             be partly unused.
  // Either way 64 m of A take as many bytes.
  static constexpr int BLOCK_BYTES = 64 * Config::A_ROW_BYTES;
  static constexpr int A_BYTES = Config::TILE_M * Config::A_ROW_BYTES;
  static constexpr int B_BOX = Config::B_ROW_BYTES / sizeof(B);  // columns of an MN-major box
  static constexpr int B_BYTES =
      (Config::B_K_MAJOR ? Config::TILE_N : (Config::TILE_N + B_BOX - 1) / B_BOX * B_BOX) *
      Config::TILE_K * int(sizeof(B));
  static constexpr int STAGE_BYTES = A_BYTES + B_BYTES;

  // ---- slabs of an output whose rows lie along m ----

  // A warp stores 16 rows of OUTPUT_N columns as boxes of 16 rows, one TMA store each. Rows of a
  // slab must spread over the banks: by TMA's swizzle, for rows of a power of two bytes, or because
  // a row has an odd number of 16-byte pieces.
  static constexpr int ROW_BYTES = OUTPUT_N * sizeof(Out);
  static constexpr int ROW_POWER = (ROW_BYTES & -ROW_BYTES) < 128 ? (ROW_BYTES & -ROW_BYTES) : 128;
  static constexpr int BOX_BYTES = ROW_POWER < 16 ? ROW_BYTES
                                   : ROW_POWER >= 64 || ROW_POWER == ROW_BYTES || bits_of<Out> >= 32
                                       ? ROW_POWER
                                       : odd_box(ROW_BYTES / (ROW_POWER / 16));
  // The bits of a row number, of 8, that are XORed into the index of a 16-byte piece.
  static constexpr int SWIZZLE = BOX_BYTES == ROW_POWER ? BOX_BYTES / 16 - 1 : 0;
  static constexpr int BOX_N = BOX_BYTES / sizeof(Out), BOXES = ROW_BYTES / BOX_BYTES;

  // The epilogue is a conversion to 16 bits: stmatrix stores accumulators in the order of wgmma.
  // Factors of rows and columns are applied before (sm90/factors.cuh), except to a split tile,
  // where partial sums times an infinite factor may add up to NaN, and to float16 accumulators, of
  // which a register holds two. Integer sums become float32 there.
  static constexpr bool FACTORS = Config::Epilogue::ROW_FACTORS || Config::Epilogue::COLUMN_FACTORS;
  static constexpr bool IS_INTEGER = is_same<typename Config::Accumulator, s32>;
  static constexpr bool TAKES_FACTORS =
      Config::SPLIT == 1 && (IS_INTEGER || is_same<typename Config::Accumulator, f32>);
  static constexpr bool CONVERT_ONLY = Config::Epilogue::PLAIN &&
                                       class_of<Out> == ElementClass::HALF &&
                                       (FACTORS ? TAKES_FACTORS : is_same<Value, f32>);
  // An octet is 8 columns, the unit of wgmma's accumulator fragments. Unless CONVERT_ONLY, a box is
  // processed in rounds of up to 4 octets; of a dual GEMM, 2 octets of each product.
  static constexpr int MOST_OCTETS = Config::DUAL ? 2 : 4;
  static constexpr int BOX_OCTETS = BOX_N / 8,
                       ROUND_OCTETS = BOX_OCTETS < MOST_OCTETS ? BOX_OCTETS : MOST_OCTETS;
  static constexpr int ROUNDS =  // of a box
      CONVERT_ONLY ? 1 : (BOX_OCTETS + MOST_OCTETS - 1) / MOST_OCTETS;

  // ---- slabs of an output whose rows lie along n (OUT_TRANSPOSED) ----

  // BY_LINES: a warpgroup stores 32 output rows of its 64 m (128 bytes) at a time, alternating
  // between two slabs; 16 beside 64-byte rows of A, which makes room for a stage. Otherwise a warp
  // stores 16 x 16 elements at a time: with an epilogue, for few rows, and for PAIRED_ROWS, where a
  // lane's two rows are adjacent and whole tiles are stored without a slab.
  static constexpr bool BY_LINES = CONVERT_ONLY && OUTPUT_N >= 32 && !Config::PAIRED_ROWS;
  static constexpr int LINES = Config::A_ROW_BYTES == 128 ? 32 : 16, LINE_BYTES = 128;
  static constexpr int TRANSPOSED_N = 16;
  static constexpr int TRANSPOSED_PITCH = 16 + 4;  // 4 words of padding: rows in different banks
  static constexpr int STRIP_BYTES = TRANSPOSED_N * TRANSPOSED_PITCH * int(sizeof(Value)),
                       LINES_BYTES = 2 * LINES * LINE_BYTES / 4;  // a warp's quarter of two slabs
  static constexpr int TRANSPOSED_BYTES =
      OUTPUT_N >= 32 && LINES_BYTES > STRIP_BYTES ? LINES_BYTES : STRIP_BYTES;

  // ---- the whole ----

  static constexpr int SLAB_BYTES = Config::OUT_TRANSPOSED ? TRANSPOSED_BYTES : 16 * BOX_BYTES;
  static constexpr int SLABS_AT = Config::STAGES * STAGE_BYTES;
  static constexpr int BARRIER_BYTES = (2 * Config::STAGES + (Config::SPLIT > 1)) * 8;
  // Two slabs per warp, so that one is filled while TMA reads the other. One if the second does not
  // fit: a further stage saves more time.
  static constexpr int TWO_SLABS_BYTES = SLABS_AT + WARPS * 2 * SLAB_BYTES + BARRIER_BYTES;
  static constexpr int SLABS =
      Config::OUT_TRANSPOSED || BOX_BYTES > 128 || TWO_SLABS_BYTES > MAX_BYTES ? 1 : 2;
  static constexpr int BARRIERS_AT = SLABS_AT + WARPS * SLABS * SLAB_BYTES;
  static constexpr int SPLIT_WORD_AT = BARRIERS_AT + 2 * Config::STAGES * 8;
  static constexpr int BYTES = BARRIERS_AT + BARRIER_BYTES;

  // A cluster split reuses the stages for the partial sums that a reducer CTA receives.
  static_assert(!Config::IN_CLUSTER || Config::SPLIT * Config::SHARE_BYTES <= SLABS_AT);
};
