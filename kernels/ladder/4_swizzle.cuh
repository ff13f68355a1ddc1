// Step 4 of the ladder: swizzled tiles in shared memory.
//
// Adds     Row r of a tile stores its 16-byte chunk c at position c ^ (r % 8). The rest is step 3.
// Relieves shared memory. The 8 pieces that ldmatrix reads at a time are one chunk of 8 consecutive
//          rows. The swizzle moves them to 8 positions, that is to all 32 banks: 1 clock instead of
//          8. A block of K takes 192 x 4 = 768 clocks for its loads instead of 6144, less than the
//          1024 clocks of its products. The stores of a warp, 4 whole rows, have no conflicts
//          either way. Padding each row to 144 bytes would do as well, but takes 12 % more memory,
//          and TMA and wgmma (step 6) know the swizzle only.
// Limit    Latency. The CTA loads a block of K, waits for global memory, about 600 clocks, stores
//          the tiles, waits at a barrier, and only then multiplies. Tensor cores idle while no
//          other CTA of the multiprocessor is multiplying.
#pragma once
#include "common/operand_tile.cuh"
#include "ladder/3_tensor_cores.cuh"

// The kernel is tensor_cores<Swizzled>. OperandTile is the library's layout of a tile, here of rows
// of 64 elements of K; it has the same function as RowMajor, offset(row, chunk).
using Swizzled = OperandTile<f16, true, TILE, TILE_K>;
static_assert(Swizzled::offset(0, 1) == 16 && Swizzled::offset(1, 1) == 128 &&
              Swizzled::offset(9, 4) == 9 * 128 + (4 ^ 1) * 16);
