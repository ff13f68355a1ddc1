// An operand's tile in shared memory, for the skinny and sm80 families: its layout (OperandTile),
// the copy from global memory (TileCopier), and the reads of a warp for mma.sync (FragmentReader).
//
// "MN" is M for A and N for B. Both operands have the same code, since the fragments of both
// consist of matrices of 8 MN by 16 bytes of K (f64: 32 bytes). A tile keeps the order of global
// memory: TILE_MN rows of TILE_K elements if K_MAJOR, else TILE_K rows of TILE_MN elements.
//
// Swizzle: row r stores its 16-byte chunk c at position c ^ swizzle(r), so that the eight chunks
// that one phase of a shared-memory access touches lie in different banks. Tile sides are powers of
// two: row, chunk and loop counters occupy disjoint bits of an offset, and a counter can be added
// or XORed as a constant to the lane's offset.
#pragma once
#include "common/ptx.cuh"

__host__ __device__ constexpr bool is_power_of_two(int x) { return x > 0 && (x & (x - 1)) == 0; }

// IN_FOURS: the tile is of a mixed product. A lane reads four elements adjacent along K, of 16 bits
// as of 8 (sm80/mixed_reader.cuh).
template <class Element, bool K_MAJOR, int TILE_MN, int TILE_K, bool IN_FOURS = false>
struct OperandTile {
  static constexpr int BITS = bits_of<Element>, SIZE = BITS / 8;
  static constexpr int ROWS = K_MAJOR ? TILE_MN : TILE_K;
  static constexpr int ROW_BYTES = bytes_of<Element>(K_MAJOR ? TILE_K : TILE_MN);
  static constexpr int BYTES = ROWS * ROW_BYTES;
  // Elements of K that one mma.sync consumes: two matrices. A mixed product has 16-bit elements.
  static constexpr int K_STEP = BITS == 64 ? 8 : IN_FOURS ? 16 : 256 / BITS;
  static_assert(is_power_of_two(TILE_MN) && is_power_of_two(TILE_K) && ROW_BYTES >= 64);

  // Linear over XOR: swizzle(r ^ s) == swizzle(r) ^ swizzle(s). Two rows of 64 bytes share the 128
  // bytes of all banks, and the row's last bit selects the half.
  //
  // f64: ldmatrix cannot load it, and a phase of a load serves 128 bytes: 16 lanes of 8 bytes, or 8
  // of 16. Lane 4 g + j reads K index j and MN index g. With K along the rows of the tile, a phase
  // reads 4 elements (2 chunks) of each of 4 rows g; with MN along the rows, 4 elements g, or 2
  // chunks of UNIT elements, of each of 4 rows j. Rows have at least 128 bytes, all banks, so these
  // rows must displace their 2 chunks by 0, 2, 4 and 6. So must those of four 16-bit elements.
  static constexpr bool IN_8_BYTES = BITS == 64 || (IN_FOURS && K_MAJOR && BITS == 16);
  static_assert(!IN_8_BYTES || ROW_BYTES >= 128);
  static __host__ __device__ constexpr int swizzle(int row) {
    if (IN_8_BYTES || (!K_MAJOR && BITS == 32))
      return (row & 3) << 1;                  // read: 2 chunks of 4 consecutive rows
    if (!K_MAJOR && (BITS == 8 || IN_FOURS))  // read: rows 0, 1, 4, 5, 8, 9, 12, 13
      return ROW_BYTES >= 128 ? (row & 1) | (row >> 1 & 6) : row >> 2 & 3;
    return ROW_BYTES >= 128 ? row & 7 : row >> 1 & 3;  // read: 8 consecutive rows
  }
  static __host__ __device__ constexpr int offset(int row, int chunk) {
    return row * ROW_BYTES + ((chunk ^ swizzle(row)) << 4);
  }
};

// ---- global to shared memory -----------------------------------------------------------------

// One thread's share in copying an operand's tiles, one K block after the other. A tile consists of
// pieces of the largest size that cp.async can copy at the operand's alignment. Each thread copies
// every THREADS-th piece; its pieces lie in one column of the tile. cp.async copies at least 4
// bytes: below that alignment, elements are fetched to registers and stored as words.
template <class Element, bool K_MAJOR, int TILE_MN, int TILE_K, int THREADS, int ALIGN,
          bool IN_FOURS = false>
struct TileCopier {
  using Tile = OperandTile<Element, K_MAJOR, TILE_MN, TILE_K, IN_FOURS>;
  static constexpr int BITS = Tile::BITS, SIZE = Tile::SIZE;
  static constexpr int PIECE = ALIGN >= 4 ? ALIGN : 4;  // bytes
  static constexpr int PIECES_PER_ROW = Tile::ROW_BYTES / PIECE;
  static constexpr int ROW_STEP = THREADS / PIECES_PER_ROW;  // between adjacent rows of a thread
  static constexpr int COUNT = Tile::ROWS / ROW_STEP;        // pieces of a thread
  static constexpr int PER_PIECE = 8 * PIECE / BITS;         // elements of a piece
  static_assert(ALIGN == 16 || (BITS >= 8 && (ALIGN == 8 || ALIGN == 4 || ALIGN == SIZE)));
  static_assert(is_power_of_two(THREADS) && THREADS % PIECES_PER_ROW == 0 &&
                Tile::ROWS % ROW_STEP == 0);

  const char* source;    // this thread's first piece of the next K block to copy
  long long row_bytes;   // between adjacent rows of this thread
  int row, column;       // of this thread's first piece: row of the tile, byte of the row
  int mn_left;           // extent of the operand along MN, from the tile's start
  unsigned destination;  // swizzled offset of the first piece in the tile

  // mn_stride and k_stride are in elements; the stride along the tile's rows is 1 and ignored.
  __device__ __forceinline__ TileCopier(const void* operand, long long batch_offset,
                                        long long mn_stride, long long k_stride, int mn_start,
                                        int mn_extent) {
    row = threadIdx.x / PIECES_PER_ROW;
    column = threadIdx.x % PIECES_PER_ROW * PIECE;
    mn_left = mn_extent - mn_start;
    destination = Tile::offset(row, column / 16) + column % 16;
    long long row_stride = bytes_of<Element>(K_MAJOR ? mn_stride : k_stride);
    long long start = K_MAJOR ? row_stride * mn_start : static_cast<long long>(mn_start) * SIZE;
    source = static_cast<const char*>(operand) + bytes_of<Element>(batch_offset) + start +
             row_stride * row + column;
    row_bytes = row_stride * ROW_STEP;
  }

  // Bytes of each of this thread's pieces that lie inside the operand, if the piece's row does.
  // `k_left`: extent along K from the block's start.
  __device__ __forceinline__ int valid_bytes(int k_left) const {
    int along_row = K_MAJOR ? min(k_left, TILE_K) : min(mn_left, TILE_MN);
    return max(0, min(PIECE, bytes_of<Element>(along_row) - column));
  }
  __device__ __forceinline__ int rows_left(int k_left) const {
    return (K_MAJOR ? mn_left : k_left) - row;
  }

  static __device__ __forceinline__ constexpr unsigned displace(unsigned destination, int i) {
    // ROW_STEP is a power of two above this thread's first row: the row is added, the swizzle
    // XORed.
    return (destination ^ (Tile::swizzle(i * ROW_STEP) << 4)) + i * ROW_STEP * Tile::ROW_BYTES;
  }

  // Elements beyond the end of K must be zero in A and in B: a stale NaN times zero would be NaN.
  // Elements beyond the end of MN may be anything, since their accumulators are not stored. Hence
  // most blocks are copied in whole pieces. A ragged block ends inside the tile's K, or inside a
  // piece.
  __device__ __forceinline__ bool is_ragged(int k_left) const {
    return k_left < TILE_K || (!K_MAJOR && mn_left < TILE_MN && mn_left % PER_PIECE != 0);
  }

  // Copies nothing of a ragged block, so that callers need no branch around it. Moves on to the
  // next block: where K is strided, it begins where this block's rows end.
  __device__ __forceinline__ void copy_whole(unsigned tile, int k_left) {
    int limit = K_MAJOR ? mn_left - row : column / SIZE < mn_left ? Tile::ROWS : 0;
    if (is_ragged(k_left)) limit = 0;
    const char* address = source;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (i * ROW_STEP < limit) ptx::copy_async<PIECE>(tile + displace(destination, i), address);
      address = ptx::opaque(address + row_bytes);
    }
    source = K_MAJOR ? ptx::opaque(source + bytes_of<Element>(TILE_K)) : address;
  }

  // Rolled loop: ragged blocks are rare, and small code keeps them out of the main loop's way.
  __device__ __forceinline__ void copy_ragged(unsigned tile, int k_left) const {
    int valid = valid_bytes(k_left), rows = rows_left(k_left);
    const char* address = source;
#pragma unroll 1
    for (int i = 0; i < COUNT; ++i) {
      unsigned target = tile + displace(destination, i);
      int bytes = i * ROW_STEP < rows ? valid : 0;
      if (bytes % PIECE == 0)
        ptx::copy_async<PIECE>(target, address, bytes);
      else
#pragma unroll 1
        for (int word = 0; word < PIECE / 4; ++word)  // reads no byte beyond the operand's end
          ptx::store_shared(target + 4 * word, word_of(address + 4 * word, bytes - 4 * word));
      address += row_bytes;
    }
  }

  // Plain loads, not __ldg: with dependent launches, the preceding grid may write the operands
  // while this grid runs, so they are not constant for its lifetime.
  static __device__ __forceinline__ unsigned element_of(const char* address) {
    if constexpr (BITS == 8)
      return *reinterpret_cast<const unsigned char*>(address);
    else if constexpr (BITS == 16)
      return *reinterpret_cast<const unsigned short*>(address);
    else
      return *reinterpret_cast<const unsigned*>(address);
  }
  // A word of which `valid` bytes are read and the others are zero.
  static __device__ __forceinline__ unsigned word_of(const char* address, int valid) {
    unsigned word = 0;
#pragma unroll
    for (int byte = 0; byte < 4; byte += SIZE)
      if (byte < valid) word |= element_of(address + byte) << 8 * byte;
    return word;
  }

  struct Staged { unsigned elements[COUNT][PER_PIECE]; };

  // The copy through registers: fetch() issues the loads and moves on to the next block, store()
  // writes the tile.
  __device__ __forceinline__ void fetch(Staged& staged, int k_left) {
    int valid = valid_bytes(k_left), rows = rows_left(k_left);
    const char* address = source;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
#pragma unroll
      for (int e = 0; e < PER_PIECE; ++e) {
        staged.elements[i][e] =
            i * ROW_STEP < rows && e * SIZE < valid ? element_of(address + e * SIZE) : 0;
      }
      address += row_bytes;
    }
    source = ptx::opaque(K_MAJOR ? source + TILE_K * SIZE : address);
  }

  __device__ __forceinline__ void store(const Staged& staged, unsigned tile) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      unsigned word = 0;
#pragma unroll
      for (int e = 0; e < PER_PIECE; ++e) word |= staged.elements[i][e] << 8 * SIZE * e;
      ptx::store_shared(tile + displace(destination, i), word);
    }
  }
};

// ---- shared memory to registers --------------------------------------------------------------

// Which fragments mma.sync needs in adjacent registers: of A, the two slots of one half of K; of B,
// the two halves of one slot. The order of the matrices in an ldmatrix decides, since moving
// registers afterwards would cost an instruction each.
enum class Adjacent { SLOTS, HALVES };

// Reads a warp's fragments of one step of K: WARP_MN / 8 slots, each with one word (f64: element)
// per lane for the first and for the second half of K. Lane 4 g + j holds, in slot s, MN
// coordinate(s, g). That is 8 s + g, except where K is strided and elements are not 16 bits wide:
// ldmatrix cannot transpose them, so a lane reads UNIT elements adjacent along MN, which go to
// different slots. This permutes the rows or columns of the product, and the epilogue stores by
// coordinate().
template <class Element, bool K_MAJOR, int TILE_MN, int TILE_K, int WARP_MN, Adjacent ADJACENT>
struct FragmentReader {
  using Tile = OperandTile<Element, K_MAJOR, TILE_MN, TILE_K>;
  static constexpr int BITS = Tile::BITS, SIZE = Tile::SIZE;
  static constexpr int UNIT = K_MAJOR || BITS == 16                      ? 1
                              : BITS == 8 || ADJACENT == Adjacent::SLOTS ? 2
                                                                         : 1;
  static constexpr int SLOTS = WARP_MN / 8;
  static_assert(is_power_of_two(WARP_MN) && WARP_MN >= 16 && SLOTS % UNIT == 0);

  using Word = typename Conditional<is_same<Element, f64>, f64, unsigned>::Type;
  struct Fragments { Word words[SLOTS][2]; };  // [slot][first or second half of K]

  unsigned lane_offset;

  static __host__ __device__ constexpr int coordinate(int slot, int group) {
    return slot / UNIT * (8 * UNIT) + group * UNIT + slot % UNIT;
  }
  // The inverse, for the 16 coordinates of two slots: 8 slot + group.
  static __host__ __device__ constexpr int place_of(int coordinate) {
    return coordinate % UNIT * 8 + coordinate / UNIT;
  }

  // `mn_start`: the warp's first MN in the tile.
  __device__ __forceinline__ explicit FragmentReader(int mn_start) {
    int lane = threadIdx.x % 32;
    int q = lane / 8, r = lane % 8;  // ldmatrix: this lane passes the address of row r of matrix q
    int slot = ADJACENT == Adjacent::SLOTS ? q & 1 : q >> 1;
    int half = ADJACENT == Adjacent::SLOTS ? q >> 1 : q & 1;
    if constexpr (BITS == 64) {
      int g = lane / 4 * UNIT, j = lane % 4;
      lane_offset = K_MAJOR ? Tile::offset(mn_start + g, j / 2) + j % 2 * 8
                            : Tile::offset(j, (mn_start + g) / 2) + g % 2 * 8;
    } else if constexpr (K_MAJOR)
      lane_offset = Tile::offset(mn_start + slot * 8 + r, half);
    else if constexpr (BITS == 16)
      lane_offset = Tile::offset(half * 8 + r, mn_start / 8 + slot);
    else if constexpr (BITS == 8)
      // ldmatrix transposes pairs of bytes. Of each four K, matrix 0 holds the first two and matrix
      // 1 the last two; likewise matrices 2 and 3.
      lane_offset = Tile::offset((q >> 1) * 16 + (q & 1) * 2 + r / 2 * 4 + r % 2, mn_start / 16);
    else
      lane_offset =
          Tile::offset(lane % 4, (mn_start + lane / 4 * UNIT) / 4) + lane / 4 * UNIT % 4 * 4;
    lane_offset = ptx::opaque(lane_offset);
  }

  __device__ __forceinline__ void load(Fragments& fragments, unsigned tile, int step) const {
    if constexpr (BITS == 64 || (!K_MAJOR && BITS == 32)) {
#pragma unroll
      for (int slot = 0; slot < SLOTS; slot += UNIT) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = step * Tile::K_STEP + half * 4;
          Word words[UNIT];
          ptx::load_shared(
              words, tile + (K_MAJOR ? (lane_offset ^ k * SIZE) + slot * 8 * Tile::ROW_BYTES
                                     : (lane_offset ^ slot * 8 * SIZE) + k * Tile::ROW_BYTES));
#pragma unroll
          for (int i = 0; i < UNIT; ++i) fragments.words[slot + i][half] = words[i];
        }
      }
    } else {
#pragma unroll
      for (int slot = 0; slot < SLOTS; slot += 2) {  // an ldmatrix: 2 slots, 32 bytes of K
        unsigned words[4];
        if constexpr (K_MAJOR)
          ptx::load_matrices<false>(words,
                                    tile + (lane_offset ^ step * 32) + slot * 8 * Tile::ROW_BYTES);
        else
          ptx::load_matrices<true>(words, tile + (lane_offset ^ slot * 8 * SIZE) +
                                              step * Tile::K_STEP * Tile::ROW_BYTES);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if constexpr (UNIT == 2) {
            // The bytes of rows 2g and 2g + 1 at K 4j, 4j + 1 and at K 4j + 2, 4j + 3: sort them
            // into a word for each row.
            fragments.words[slot][half] =
                ptx::permute_bytes<0x6420>(words[2 * half], words[2 * half + 1]);
            fragments.words[slot + 1][half] =
                ptx::permute_bytes<0x7531>(words[2 * half], words[2 * half + 1]);
          } else {
            fragments.words[slot][half] = words[ADJACENT == Adjacent::SLOTS ? 2 * half : half];
            fragments.words[slot + 1][half] =
                words[ADJACENT == Adjacent::SLOTS ? 2 * half + 1 : 2 + half];
          }
        }
      }
    }
    if constexpr (is_same<Element, f32>) {
#pragma unroll
      for (int slot = 0; slot < SLOTS; ++slot) {
        fragments.words[slot][0] = ptx::round_to_tf32(fragments.words[slot][0]);
        fragments.words[slot][1] = ptx::round_to_tf32(fragments.words[slot][1]);
      }
    }
  }
};
