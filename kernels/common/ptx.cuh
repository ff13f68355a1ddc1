// The PTX instructions that C++ has no word for, one function each, named by the section of the PTX ISA that defines them.
// Shared memory is addressed by 32-bit addresses in the shared window.
#pragma once
#include "common/types.cuh"

namespace ptx {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// No instruction: hides from the compiler how an address came about. It would else turn a sum that grows in a loop into a 64-bit
// multiplication wherever the address is needed.
__device__ __forceinline__ const char* keep(const char* address) {
  asm("" : "+l"(address));
  return address;
}

// The value itself, by way of a shuffle from the own lane ("Data Movement and Conversion Instructions: shfl.sync"), once. ptxas
// would else compute it again wherever it is used, to save a register; before a load that everybody waits for, that is dear.
__device__ __forceinline__ unsigned keep(unsigned value) {
  return __shfl_sync(0xffffffffu, value, threadIdx.x % 32);
}

// "Parallel Synchronization and Communication Instructions: elect.sync": true in one lane of a warp that is together, always the same
// one. Where that guards the copy engine's instructions, ptxas knows that their operands are one thread's; behind a comparison of thread
// indices it makes a loop over lanes of each.
__device__ __forceinline__ bool elect_one() {
  unsigned chosen;
  asm volatile(
      "{ .reg .pred chosen;\nelect.sync _|chosen, 0xffffffff;\nselp.u32 %0, 1, 0, chosen; }"
      : "=r"(chosen));
  return chosen;
}

// No instruction: the value is known from here on, where the compiler would put it off until it is used.
__device__ __forceinline__ void compute_here(int& value) { asm volatile("" : "+r"(value)); }

// ---- "Asynchronous copy: cp.async" ----------------------------------------------------------------------------------

// Copies BYTES (4, 8 or 16; both addresses are multiples of that) without going through registers.
template <int BYTES>
__device__ __forceinline__ void copy_async(unsigned shared, const void* global) {
  if constexpr (BYTES == 16)  // .cg: past L1, which only 16-byte copies can do
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(BYTES)
                 : "memory");
}

// The same, but only the first `valid` bytes are read, zeros take the place of the others; with valid == 0 the global address
// is not read at all.
template <int BYTES>
__device__ __forceinline__ void copy_async(unsigned shared, const void* global, int valid) {
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global),
                 "n"(BYTES), "r"(valid)
                 : "memory");
}

// "cp.async.commit_group": the copies since the last call become one group.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// "cp.async.wait_group": waits until at most PENDING of this thread's latest groups are unfinished.
template <int PENDING> __device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- "Data Movement and Conversion Instructions: ld, st, prmt, cvt" --------------------------------------------------

struct alignas(16) Vector { unsigned words[4]; };

__device__ __forceinline__ void load_shared(unsigned (&words)[1], unsigned shared) {
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(words[0]) : "r"(shared) : "memory");
}

__device__ __forceinline__ void load_shared(unsigned (&words)[2], unsigned shared) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(words[0]), "=r"(words[1])
               : "r"(shared)
               : "memory");
}

__device__ __forceinline__ void store_shared(unsigned shared, unsigned word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(word) : "memory");
}

__device__ __forceinline__ void store_global(void* global, const Vector& vector) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(vector.words[0]),
               "r"(vector.words[1]), "r"(vector.words[2]), "r"(vector.words[3])
               : "memory");
}

// "Memory Consistency Model": between CTAs. Of a release whose value is acquired, all is visible that was written before, also by threads of
// the CTA that the releasing one had met.
__device__ __forceinline__ unsigned long long load_acquire(const unsigned long long* global) {
  unsigned long long word;
  asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(global) : "memory");
  return word;
}
__device__ __forceinline__ unsigned long long or_acquire_release(unsigned long long* global,
                                                                 unsigned long long bits) {
  unsigned long long before;
  asm volatile("atom.or.acq_rel.gpu.global.b64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(global), "l"(bits)
               : "memory");
  return before;
}
// The word before; replaced if it was as expected.
__device__ __forceinline__ unsigned long long replace_acquire(unsigned long long* global,
                                                              unsigned long long expected,
                                                              unsigned long long value) {
  unsigned long long before;
  asm volatile("atom.cas.acquire.gpu.global.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(global), "l"(expected), "l"(value)
               : "memory");
  return before;
}
__device__ __forceinline__ void store_relaxed(unsigned long long* global,
                                              unsigned long long value) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(global), "l"(value) : "memory");
}
// Four values at a time, each of which is whole by itself.
__device__ __forceinline__ void store_relaxed(float4* global, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(global), "f"(v.x),
               "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ __forceinline__ float4 load_relaxed(const float4* global) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(global)
               : "memory");
  return v;
}

// "Floating Point Instructions: rcp, ex2": to within a unit in the last place; results below 2^-126 come out as 0.
__device__ __forceinline__ f32 reciprocal(f32 x) {
  f32 y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ f32 exp2(f32 x) {
  f32 y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A word of any four of the eight bytes of high:low; each hexadecimal digit of SELECTOR names one.
template <unsigned SELECTOR>
__device__ __forceinline__ unsigned permute_bytes(unsigned low, unsigned high) {
  unsigned result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "n"(SELECTOR));
  return result;
}

// To tf32 (a float with 10 bits of mantissa), to nearest. From sm_90 on that is one instruction, with ties to even; before, it is
// three, with ties away from zero.
__device__ __forceinline__ unsigned round_to_tf32(unsigned float_bits) {
  unsigned result;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(result) : "f"(__uint_as_float(float_bits)));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(__uint_as_float(float_bits)));
#endif
  return result;
}

// ---- "Warp-level Matrix Load Instruction: ldmatrix" ------------------------------------------------------------------

// Four 8 x 8 matrices of 16-bit elements; lane 8 q + r gives the address of row r of matrix q (16 bytes, 16-byte aligned).
// Lane 4 g + j receives in word q the elements 2j and 2j+1 of row g of matrix q, or of its column g if TRANSPOSED.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned (&words)[4], unsigned shared) {
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared)
                 : "memory");
}

// ---- "Warp-level Matrix Instructions: mma" ---------------------------------------------------------------------------

// One 16 x 8 product over 32 bytes of K (16 f16 or bf16, 8 tf32, 32 s8 or u8), added to its sums. Lane 4 g + j holds
//   of A: words {row g, row g + 8} x {first, second 16 bytes of K}, a word being the j-th four bytes; rows vary fastest;
//   of B: words {first, second 16 bytes of K} of column g;
//   of the sums: rows g and g + 8, columns 2j and 2j + 1.
template <class Element, class Accumulator> struct Mma;

#define RUTLASS_MMA(ELEMENT, ACCUMULATOR, CONSTRAINT, INSTRUCTION)                              \
  template <> struct Mma<ELEMENT, ACCUMULATOR> {                                                \
    struct Sums { ACCUMULATOR values[4]; };                                                     \
    static __device__ __forceinline__ ACCUMULATOR get(const Sums& sums, int row_half,           \
                                                      int column) {                             \
      return sums.values[2 * row_half + column];                                                \
    }                                                                                           \
    static __device__ __forceinline__ void accumulate(Sums& sums, unsigned a0, unsigned a1,     \
                                                      unsigned a2, unsigned a3, unsigned b0,    \
                                                      unsigned b1) {                            \
      asm(INSTRUCTION " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"        \
          : CONSTRAINT(sums.values[0]), CONSTRAINT(sums.values[1]), CONSTRAINT(sums.values[2]), \
            CONSTRAINT(sums.values[3])                                                          \
          : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                              \
    }                                                                                           \
  };
RUTLASS_MMA(f16, f32, "+f", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
RUTLASS_MMA(bf16, f32, "+f", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
RUTLASS_MMA(f32, f32, "+f", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
RUTLASS_MMA(s8, s32, "+r", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32")
RUTLASS_MMA(u8, s32, "+r", "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32")
#undef RUTLASS_MMA

// f16 sums come two to a word: the columns 2j and 2j + 1 of one row.
template <> struct Mma<f16, f16> {
  struct Sums { unsigned values[2]; };
  static __device__ __forceinline__ f16 get(const Sums& sums, int row_half, int column) {
    return {static_cast<unsigned short>(sums.values[row_half] >> 16 * column)};
  }
  static __device__ __forceinline__ void accumulate(Sums& sums, unsigned a0, unsigned a1,
                                                    unsigned a2, unsigned a3, unsigned b0,
                                                    unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, "
        "{%0, %1};"
        : "+r"(sums.values[0]), "+r"(sums.values[1])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
};

}  // namespace ptx
