// PTX ISA, "Warp-level Matrix Store Instruction: stmatrix". sm_90 and later.
#pragma once

namespace ptx {

// The inverse of ldmatrix for 8 x 8 matrices of 16-bit elements: lane 8 i + r passes the address of
// row r of matrix i; lane 4 g + q passes elements 2q and 2q + 1 of row g of each matrix.
__device__ __forceinline__ void store_matrices(unsigned shared, unsigned a, unsigned b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(shared), "r"(a),
               "r"(b)
               : "memory");
}
__device__ __forceinline__ void store_matrices(unsigned shared, unsigned a, unsigned b, unsigned c,
                                               unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

}  // namespace ptx
