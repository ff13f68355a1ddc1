// One operand's tile in shared memory: where its bytes lie, how a CTA copies it there, how a warp reads it for mma.sync.
//
// "MN" is the operand's own direction, M of A or N of B; the other one is K. Both operands are treated alike, since mma.sync
// wants the same eight MN by 16 bytes of K of either. A tile is stored as it comes from global memory: if K_MAJOR, as TILE_MN
// rows of TILE_K elements, else as TILE_K rows of TILE_MN elements.
//
// Rows are cut into chunks of 16 bytes, and row r keeps its chunk c at position c ^ swizzle(r). The eight rows of 16 bytes
// that one phase of a shared-memory access touches then fall into different banks. All tile sides are powers of two, so the
// bits of an offset that belong to the row, the chunk and the loop counters are disjoint: a counter can be added, or XORed, as
// a constant after the lane's own part has been computed once.
#pragma once
#include "common/ptx.cuh"

__host__ __device__ constexpr bool is_power_of_two(int x) { return x > 0 && (x & (x - 1)) == 0; }

template <class Element, bool K_MAJOR, int TILE_MN, int TILE_K> struct OperandTile {
  static constexpr int SIZE = sizeof(Element);
  static constexpr int ROWS = K_MAJOR ? TILE_MN : TILE_K;
  static constexpr int ROW_BYTES = (K_MAJOR ? TILE_K : TILE_MN) * SIZE;
  static constexpr int BYTES = ROWS * ROW_BYTES;
  static constexpr int K_STEP = 32 / SIZE;  // elements of K that one mma.sync consumes
  static_assert(is_power_of_two(TILE_MN) && is_power_of_two(TILE_K) && ROW_BYTES >= 64);

  // Linear over XOR: swizzle(r ^ s) == swizzle(r) ^ swizzle(s). Rows of 64 bytes share the 128 bytes of all banks by two, so
  // that the row's last bit already decides between the halves.
  static __host__ __device__ constexpr int swizzle(int row) {
    if (!K_MAJOR && SIZE == 4) return (row & 3) << 1;  // read: 2 chunks of 4 consecutive rows
    if (!K_MAJOR && SIZE == 1)                         // read: rows 0, 1, 4, 5, 8, 9, 12, 13
      return ROW_BYTES >= 128 ? (row & 1) | (row >> 1 & 6) : row >> 2 & 3;
    return ROW_BYTES >= 128 ? row & 7 : row >> 1 & 3;  // read: 8 consecutive rows
  }
  static __host__ __device__ constexpr int offset(int row, int chunk) {
    return row * ROW_BYTES + ((chunk ^ swizzle(row)) << 4);
  }
};

// ---- global to shared memory ----------------------------------------------------------------------------------------

// One thread's share of copying an operand's tiles, K block after K block. The tile is cut into pieces of as many bytes as
// the operand's alignment lets cp.async move; each thread copies every THREADS-th piece, which keeps to one column of pieces.
// Below 4 bytes cp.async cannot serve: elements are fetched into registers, and stored a word at a time.
template <class Element, bool K_MAJOR, int TILE_MN, int TILE_K, int THREADS, int ALIGN>
struct TileCopier {
  using Tile = OperandTile<Element, K_MAJOR, TILE_MN, TILE_K>;
  static constexpr int SIZE = Tile::SIZE;
  static constexpr int PIECE = ALIGN >= 4 ? ALIGN : 4;  // bytes
  static constexpr int PIECES_PER_ROW = Tile::ROW_BYTES / PIECE;
  static constexpr int ROW_STEP =
      THREADS / PIECES_PER_ROW;                        // from one of a thread's rows to its next
  static constexpr int COUNT = Tile::ROWS / ROW_STEP;  // pieces a thread
  static constexpr int PER_PIECE = PIECE / SIZE;       // elements a piece
  static_assert(ALIGN == 16 || ALIGN == 8 || ALIGN == 4 || ALIGN == SIZE);
  static_assert(is_power_of_two(THREADS) && THREADS % PIECES_PER_ROW == 0 &&
                Tile::ROWS % ROW_STEP == 0);

  const char* source;     // this thread's first piece of the next K block
  long long row_bytes;    // from one of this thread's rows to its next
  long long block_bytes;  // from one K block to the next
  int row, column;        // of this thread's first piece: row in the tile, bytes into the row
  int mn_left;            // how much of MN the operand has from the tile's start on
  unsigned destination;   // offset of the first piece in the tile, as swizzled

  // mn_stride and k_stride count elements; the one along the tile's rows is 1 and not looked at.
  __device__ __forceinline__ TileCopier(const void* operand, long long batch_offset,
                                        long long mn_stride, long long k_stride, int mn_start,
                                        int mn_extent) {
    row = threadIdx.x / PIECES_PER_ROW;
    column = threadIdx.x % PIECES_PER_ROW * PIECE;
    mn_left = mn_extent - mn_start;
    destination = Tile::offset(row, column / 16) + column % 16;
    long long row_stride = (K_MAJOR ? mn_stride : k_stride) * SIZE;
    long long start = K_MAJOR ? row_stride * mn_start : static_cast<long long>(mn_start) * SIZE;
    source =
        static_cast<const char*>(operand) + batch_offset * SIZE + start + row_stride * row + column;
    row_bytes = row_stride * ROW_STEP;
    block_bytes = K_MAJOR ? TILE_K * SIZE : row_stride * TILE_K;
  }

  // How many bytes of this thread's pieces exist, if their row does; `k_left` counts from the block's start.
  __device__ __forceinline__ int valid_bytes(int k_left) const {
    int along_row = K_MAJOR ? min(k_left, TILE_K) : min(mn_left, TILE_MN);
    return max(0, min(PIECE, along_row * SIZE - column));
  }
  __device__ __forceinline__ int rows_left(int k_left) const {
    return (K_MAJOR ? mn_left : k_left) - row;
  }

  static __device__ __forceinline__ constexpr unsigned displace(unsigned destination, int i) {
    // Rows advance by a power of two above this thread's first row: the row's part is added, the swizzle's XORed.
    return (destination ^ (Tile::swizzle(i * ROW_STEP) << 4)) + i * ROW_STEP * Tile::ROW_BYTES;
  }

  // Copying a block. What lies beyond the end of K becomes zero, in A and in B, lest a NaN left in shared memory meet a zero.
  // What lies beyond the end of MN may be anything: it ends up in sums that nobody stores. So most blocks can be copied in whole
  // pieces; the others, `ragged` ones, end inside a piece or inside the tile's K.
  __device__ __forceinline__ bool is_ragged(int k_left) const {
    return k_left < TILE_K || (!K_MAJOR && mn_left < TILE_MN && mn_left % PER_PIECE != 0);
  }

  // Does nothing for a ragged block. A caller may so have this among other work, with no branch in between.
  __device__ __forceinline__ void copy_whole(unsigned tile, int k_left) const {
    int limit = K_MAJOR ? mn_left - row : column / SIZE < mn_left ? Tile::ROWS : 0;
    if (is_ragged(k_left)) limit = 0;
    const char* address = source;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (i * ROW_STEP < limit) ptx::copy_async<PIECE>(tile + displace(destination, i), address);
      address = ptx::keep(address + row_bytes);
    }
  }

  // The loop stays rolled: ragged blocks are few, and kept out of the way of the others.
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
        for (int word = 0; word < PIECE / 4;
             ++word)  // never touching, even in part, what lies behind the operand's last element
          ptx::store_shared(target + 4 * word, word_of(address + 4 * word, bytes - 4 * word));
      address += row_bytes;
    }
  }

  __device__ __forceinline__ void advance() { source = ptx::keep(source + block_bytes); }

  // Plain loads, not __ldg: a grid that begins while the one before it still writes may not call its operands constant.
  static __device__ __forceinline__ unsigned element_of(const char* address) {
    if constexpr (SIZE == 1)
      return *reinterpret_cast<const unsigned char*>(address);
    else if constexpr (SIZE == 2)
      return *reinterpret_cast<const unsigned short*>(address);
    else
      return *reinterpret_cast<const unsigned*>(address);
  }
  static __device__ __forceinline__ unsigned word_of(const char* address,
                                                     int valid) {  // missing bytes are zero
    unsigned word = 0;
#pragma unroll
    for (int byte = 0; byte < 4; byte += SIZE)
      if (byte < valid) word |= element_of(address + byte) << 8 * byte;
    return word;
  }

  struct Staged { unsigned elements[COUNT][PER_PIECE]; };

  // The same by way of registers, in two halves with other work between them.
  __device__ __forceinline__ void fetch(Staged& staged, int k_left) const {
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

// ---- shared memory to registers --------------------------------------------------------------------------------------

// Reads what a warp needs of a tile for one step of K: WARP_MN / 8 slots, each one word a lane for either 16 bytes of K.
// Slot s and lane 4 g + j hold the MN coordinate coordinate(s, g). For most layouts that is 8 s + g. Where K is strided and
// elements are not 16 bits wide, ldmatrix cannot transpose them. A lane then reads UNIT neighbours along MN at once, which go to
// different slots; that only permutes the rows or columns of the product, and the epilogue asks coordinate().
//
// mma.sync wants neighbouring registers: of A the two slots of one half of K, of B the two halves of one slot. The order of the
// matrices in an ldmatrix decides which they are, since moving them afterwards would cost an instruction a register.
enum class Neighbours { SLOTS, HALVES };

template <class Element, bool K_MAJOR, int TILE_MN, int TILE_K, int WARP_MN, Neighbours NEIGHBOURS>
struct FragmentReader {
  using Tile = OperandTile<Element, K_MAJOR, TILE_MN, TILE_K>;
  static constexpr int SIZE = Tile::SIZE;
  static constexpr int UNIT = K_MAJOR || SIZE == 2                           ? 1
                              : SIZE == 1 || NEIGHBOURS == Neighbours::SLOTS ? 2
                                                                             : 1;
  static constexpr int SLOTS = WARP_MN / 8;
  static_assert(is_power_of_two(WARP_MN) && WARP_MN >= 16 && SLOTS % UNIT == 0);

  struct Fragments { unsigned words[SLOTS][2]; };  // [slot][first or second 16 bytes of K]

  unsigned lane_offset;

  static __host__ __device__ constexpr int coordinate(int slot, int group) {
    return slot / UNIT * (8 * UNIT) + group * UNIT + slot % UNIT;
  }

  __device__ __forceinline__ explicit FragmentReader(int mn_start) {  // of the warp, in the tile
    int lane = threadIdx.x % 32;
    int q = lane / 8, r = lane % 8;  // ldmatrix: this lane gives the address of row r of matrix q
    int slot = NEIGHBOURS == Neighbours::SLOTS ? q & 1 : q >> 1;
    int half = NEIGHBOURS == Neighbours::SLOTS ? q >> 1 : q & 1;
    if constexpr (K_MAJOR)
      lane_offset = Tile::offset(mn_start + slot * 8 + r, half);
    else if constexpr (SIZE == 2)
      lane_offset = Tile::offset(half * 8 + r, mn_start / 8 + slot);
    else if constexpr (SIZE == 1)
      // Transposing pairs of bytes, matrix 0 holds of each four K the first two, matrix 1 the others; likewise 2 and 3.
      lane_offset = Tile::offset((q >> 1) * 16 + (q & 1) * 2 + r / 2 * 4 + r % 2, mn_start / 16);
    else
      lane_offset =
          Tile::offset(lane % 4, (mn_start + lane / 4 * UNIT) / 4) + lane / 4 * UNIT % 4 * 4;
    lane_offset = ptx::keep(lane_offset);
  }

  __device__ __forceinline__ void load(Fragments& fragments, unsigned tile, int step) const {
    if constexpr (!K_MAJOR && SIZE == 4) {
#pragma unroll
      for (int slot = 0; slot < SLOTS; slot += UNIT) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          unsigned words[UNIT];
          ptx::load_shared(words, tile + (lane_offset ^ slot * 32) +
                                      (step * Tile::K_STEP + half * 4) * Tile::ROW_BYTES);
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
            // Bytes: (row 2g, row 2g+1) x (K 4j, 4j+1) and x (K 4j+2, 4j+3), to be sorted into a word for either row.
            fragments.words[slot][half] =
                ptx::permute_bytes<0x6420>(words[2 * half], words[2 * half + 1]);
            fragments.words[slot + 1][half] =
                ptx::permute_bytes<0x7531>(words[2 * half], words[2 * half + 1]);
          } else {
            fragments.words[slot][half] = words[NEIGHBOURS == Neighbours::SLOTS ? 2 * half : half];
            fragments.words[slot + 1][half] =
                words[NEIGHBOURS == Neighbours::SLOTS ? 2 * half + 1 : 2 + half];
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
