// A warp's fragments of a mixed product, of 16-bit elements (Half) and 8-bit ones that become such.
//
// Of 16 bytes of a row, ldmatrix loads a word into each of four lanes j: four 8-bit elements, but
// two 16-bit ones. The sums of mma.sync do not depend on the order of K, if A and B have the same.
// In both operands, lane j has here K 4j and 4j + 1 as its first half of K, 4j + 2 and 4j + 3 as
// its second.
//
//   16 bits, K-major   loads of 8 bytes, whose words lie in adjacent registers: as mma.sync needs
//                      them of its B, which is therefore this operand
//   16 bits, else      ldmatrix with the rows of K in this order
//   8 bits             ldmatrix of four slots, and conversions
#pragma once
#include "common/operand_tile.cuh"
#include "common/widen.cuh"

template <class Element, class Half, bool K_MAJOR, int TILE_MN, int TILE_K, int WARP_MN>
struct MixedReader {
  using Tile = OperandTile<Element, K_MAJOR, TILE_MN, TILE_K, true>;
  using Places = FragmentReader<Element, K_MAJOR, TILE_MN, TILE_K, WARP_MN,
                                is_same<Element, Half> ? Adjacent::HALVES : Adjacent::SLOTS>;
  static constexpr int BITS = Tile::BITS, SLOTS = Places::SLOTS;
  static_assert(Tile::K_STEP == 16);
  using Fragments = typename Places::Fragments;

  unsigned lane_offset;
  struct Nothing {};
  typename Conditional<BITS == 8, ptx::WidenWord<Half, Element>, Nothing>::Type widen;

  static __host__ __device__ constexpr int coordinate(int slot, int group) {
    return Places::coordinate(slot, group);
  }
  static __host__ __device__ constexpr int place_of(int coordinate) {
    return Places::place_of(coordinate);
  }

  // `mn_start`: the warp's first MN in the tile.
  __device__ __forceinline__ explicit MixedReader(int mn_start) {
    const int lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
    // ldmatrix: this lane passes the address of row r of matrix q. Transposed, the row is element k
    // of K: of each four, a matrix has the first two, the next one the last two.
    const int q = lane / 8, r = lane % 8, k = q % 2 * 2 + r / 2 * 4 + r % 2;
    if constexpr (BITS == 16)
      lane_offset = K_MAJOR ? Tile::offset(mn_start + g, j / 2) + j % 2 * 8
                            : Tile::offset(k, mn_start / 8 + q / 2);
    else  // of two slots, the last two matrices repeat the first two
      lane_offset = K_MAJOR ? Tile::offset(mn_start + q % SLOTS * 8 + r, 0)
                            : Tile::offset(k, mn_start / 16 + q / 2 % (SLOTS / 2));
    lane_offset = ptx::opaque(lane_offset);
  }

  __device__ __forceinline__ void load(Fragments& fragments, unsigned tile, int step) const {
    tile += K_MAJOR ? 0 : step * Tile::K_STEP * Tile::ROW_BYTES;
    const unsigned offset = K_MAJOR ? lane_offset ^ step * Tile::K_STEP * Tile::SIZE : lane_offset;
    auto of_slot = [&](int slot) {
      return K_MAJOR ? tile + offset + slot * 8 * Tile::ROW_BYTES
                     : tile + (offset ^ slot * 8 * Tile::SIZE);
    };
    if constexpr (BITS == 16 && K_MAJOR) {
#pragma unroll
      for (int slot = 0; slot < SLOTS; ++slot)
        ptx::load_shared(fragments.words[slot], of_slot(slot));
    } else if constexpr (BITS == 16) {
#pragma unroll
      for (int slot = 0; slot < SLOTS; slot += 2) {
        unsigned words[4];
        ptx::load_matrices<true>(words, of_slot(slot));
#pragma unroll
        for (int q = 0; q < 4; ++q) fragments.words[slot + q / 2][q % 2] = words[q];
      }
    } else {
#pragma unroll
      for (int slot = 0; slot < SLOTS; slot += 4) {
        unsigned words[4];
        ptx::load_matrices<!K_MAJOR>(words, of_slot(slot));
#pragma unroll
        for (int q = 0; q < 4 && slot + q < SLOTS; q += 2) {
          unsigned first = words[q], second = words[q + 1];
          if constexpr (!K_MAJOR) {
            // The bytes of rows 2g and 2g + 1 at K 4j, 4j + 1 and at K 4j + 2, 4j + 3: sort them
            // into a word for each row.
            first = ptx::permute_bytes<0x6420>(words[q], words[q + 1]);
            second = ptx::permute_bytes<0x7531>(words[q], words[q + 1]);
          }
          widen(fragments.words[slot + q], first);
          widen(fragments.words[slot + q + 1], second);
        }
      }
    }
  }
};
