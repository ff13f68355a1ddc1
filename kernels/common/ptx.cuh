// PTX instructions without a CUDA C++ equivalent, one function each; quoted titles are sections of
// the PTX ISA. Parameters named `shared` are 32-bit addresses in the shared window.
#pragma once
#include "common/types.cuh"

namespace ptx {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// No instruction: hides from the compiler how an address was computed. Without it, an address that
// grows by a constant in a loop becomes a 64-bit multiplication at each use.
template <class T> __device__ __forceinline__ const T* opaque(const T* address) {
  asm("" : "+l"(address));
  return address;
}

// No instruction: hides from the compiler that a value stays the same, so that it keeps no
// multiples of it in registers.
__device__ __forceinline__ void renew(int& value) { asm volatile("" : "+r"(value)); }

// The value itself, through a shuffle from this lane ("Data Movement and Conversion Instructions:
// shfl.sync"). Keeps ptxas from recomputing the value at each use, on the critical path of loads,
// in order to save a register.
__device__ __forceinline__ unsigned opaque(unsigned value) {
  return __shfl_sync(0xffffffffu, value, threadIdx.x % 32);
}

// "Parallel Synchronization and Communication Instructions: vote.sync".
__device__ __forceinline__ bool any(bool predicate) { return __any_sync(0xffffffffu, predicate); }

// "Parallel Synchronization and Communication Instructions: elect.sync": true in one lane of a
// converged warp, always the same one. As the guard of TMA instructions, it lets ptxas assume that
// their operands come from one thread; a comparison of thread indices would make ptxas emit a loop
// over lanes for each instruction.
__device__ __forceinline__ bool elect_one() {
  unsigned chosen;
  asm volatile(
      "{ .reg .pred chosen;\nelect.sync _|chosen, 0xffffffff;\nselp.u32 %0, 1, 0, chosen; }"
      : "=r"(chosen));
  return chosen;
}

// No instruction: forces the value to be computed here instead of at its first use.
__device__ __forceinline__ void compute_here(int& value) { asm volatile("" : "+r"(value)); }
template <class T> __device__ __forceinline__ void compute_here(T*& pointer) {
  asm volatile("" : "+l"(pointer));
}

// "prefetch": fetches a line into L2. Not a read: it may precede the wait for the grid that writes
// the line, since all multiprocessors share L2.
__device__ __forceinline__ void prefetch_to_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// "ld": loads `*global` into `value` if `present`; otherwise `value` is unchanged and no address is
// read. With a branch around the load, ptxas loads into another register and waits for it, in order
// to copy it.
__device__ __forceinline__ void load_if(bool present, f32& value, const f32* global) {
  asm volatile(
      "{\n"
      "  .reg .pred p;\n"
      "  setp.ne.s32 p, %2, 0;\n"
      "  @p ld.global.f32 %0, [%1];\n"
      "}"
      : "+f"(value)
      : "l"(global), "r"(int(present)));
}
// The same of the bits of an element of up to 32 bits. of_bits: the element.
template <class Element>
__device__ __forceinline__ void load_if(bool present, unsigned& bits, const Element* global) {
#define RUTLASS_LOAD_IF(TYPE)     \
  asm volatile(                   \
      "{\n"                       \
      "  .reg .pred p;\n"         \
      "  setp.ne.s32 p, %2, 0;\n" \
      "  @p ld.global." TYPE      \
      " %0, [%1];\n"              \
      "}"                         \
      : "+r"(bits)                \
      : "l"(global), "r"(int(present)))
  if constexpr (sizeof(Element) == 1)
    RUTLASS_LOAD_IF("u8");
  else if constexpr (sizeof(Element) == 2)
    RUTLASS_LOAD_IF("u16");
  else
    RUTLASS_LOAD_IF("u32");
#undef RUTLASS_LOAD_IF
}
template <class Element> __device__ __forceinline__ Element of_bits(unsigned bits) {
  if constexpr (is_same<Element, f32>)
    return __uint_as_float(bits);
  else if constexpr (is_same<Element, u8> || is_same<Element, s8> || is_same<Element, s32>)
    return static_cast<Element>(bits);
  else
    return Element{static_cast<decltype(Element::bits)>(bits)};
}

// ---- "Asynchronous copy: cp.async" -----------------------------------------------------------

// Copies BYTES (4, 8 or 16), to which both addresses are aligned, without using registers.
template <int BYTES>
__device__ __forceinline__ void copy_async(unsigned shared, const void* global) {
  if constexpr (BYTES == 16)  // .cg, which bypasses L1, exists for 16 bytes only
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(BYTES)
                 : "memory");
}

// The same, reading the first `valid` bytes and filling the others with zeros. With valid == 0, the
// global address is not read.
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
// The same of 16 bytes, if `present`; otherwise neither address is used. A branch around the copy
// would draw the computation of both addresses into it. L2 loads the whole line of 128 bytes,
// of which other copies need the rest soon (PTX ISA, "cp.async", ".level::prefetch_size").
__device__ __forceinline__ void copy_async_if(bool present, unsigned shared, const void* global,
                                              int valid) {
  asm volatile(
      "{\n"
      "  .reg .pred p;\n"
      "  setp.ne.s32 p, %3, 0;\n"
      "  @p cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n"
      "}" ::"r"(shared),
      "l"(global), "r"(valid), "r"(int(present))
      : "memory");
}

// "cp.async.commit_group": the copies since the last call form one group.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// "cp.async.wait_group": waits until at most PENDING of this thread's most recent groups are
// pending.
template <int PENDING> __device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- "Data Movement and Conversion Instructions: ld, st" -------------------------------------

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

__device__ __forceinline__ void load_shared(f64 (&values)[1], unsigned shared) {
  asm volatile("ld.shared.f64 %0, [%1];" : "=d"(values[0]) : "r"(shared) : "memory");
}

__device__ __forceinline__ void load_shared(f64 (&values)[2], unsigned shared) {
  asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];"
               : "=d"(values[0]), "=d"(values[1])
               : "r"(shared)
               : "memory");
}

// Two bytes.
__device__ __forceinline__ unsigned short load_shared_pair(unsigned shared) {
  unsigned short pair;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(pair) : "r"(shared) : "memory");
  return pair;
}

__device__ __forceinline__ void store_shared(unsigned shared, unsigned word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(word) : "memory");
}

__device__ __forceinline__ void store_global(void* global, const Vector& vector) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(vector.words[0]),
               "r"(vector.words[1]), "r"(vector.words[2]), "r"(vector.words[3])
               : "memory");
}

// ---- "Memory Consistency Model": communication between CTAs ----------------------------------

// A thread that acquires a released value sees all writes that the releasing thread made before,
// and those of threads that had synchronized with it, for example at a CTA barrier.
__device__ __forceinline__ unsigned long long load_acquire(const unsigned long long* global) {
  unsigned long long word;
  asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(global) : "memory");
  return word;
}
// The old value; "atom".
__device__ __forceinline__ unsigned long long atomic_or_acq_rel(unsigned long long* global,
                                                                unsigned long long bits) {
  unsigned long long before;
  asm volatile("atom.or.acq_rel.gpu.global.b64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(global), "l"(bits)
               : "memory");
  return before;
}
// The old value, which `value` replaces if it is `expected`.
__device__ __forceinline__ unsigned long long atomic_cas_acquire(unsigned long long* global,
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
// Four values with one instruction; each is a relaxed access of its own, never torn.
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

// ---- arithmetic and conversion ---------------------------------------------------------------

// "Floating Point Instructions: rcp, ex2": within one ulp (rcp) and two ulp (ex2); subnormal
// results are flushed to zero.
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

// "Data Movement and Conversion Instructions: prmt": a word of four of the eight bytes of high:low.
// Each hexadecimal digit of SELECTOR is the index of a byte.
template <unsigned SELECTOR>
__device__ __forceinline__ unsigned permute_bytes(unsigned low, unsigned high) {
  unsigned result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "n"(SELECTOR));
  return result;
}

// "Data Movement and Conversion Instructions: cvt": rounds to tf32 (10 mantissa bits), to nearest,
// ties to even. Before sm_90 only ties away from zero exist, as three machine instructions.
__device__ __forceinline__ unsigned round_to_tf32(unsigned float_bits) {
  unsigned result;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(result) : "f"(__uint_as_float(float_bits)));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(__uint_as_float(float_bits)));
#endif
  return result;
}

// ---- "Warp-level Matrix Load Instruction: ldmatrix" ------------------------------------------

// Loads four 8 x 8 matrices of 16-bit elements. Lane 8 q + r passes the address of row r of matrix
// q (16 bytes, 16-byte aligned). Lane 4 g + j receives, in word q, elements 2j and 2j + 1 of row g
// of matrix q, or of its column g if TRANSPOSED.
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

// ---- "Warp-level Matrix Instructions: mma" ---------------------------------------------------

// sums += A * B for a 16 x 8 tile over 32 bytes of K (16 f16 or bf16, 8 tf32, 32 s8, u8, e4m3 or
// e5m2).
// Fragments of lane 4 g + j, where a word is the j-th four bytes of 16 bytes of K:
//   A     words of {row g, row g + 8} x {first, second 16 bytes of K}, rows varying fastest
//   B     words of {first, second 16 bytes of K} of column g
//   sums  rows g and g + 8, columns 2j and 2j + 1
template <class A, class B, class Accumulator> struct Mma;

#define RUTLASS_MMA(A, B, ACCUMULATOR, CONSTRAINT, INSTRUCTION)                                 \
  template <> struct Mma<A, B, ACCUMULATOR> {                                                   \
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
RUTLASS_MMA(f16, f16, f32, "+f", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
RUTLASS_MMA(bf16, bf16, f32, "+f", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
RUTLASS_MMA(f32, f32, f32, "+f", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
RUTLASS_MMA(s8, s8, s32, "+r", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32")
RUTLASS_MMA(u8, u8, s32, "+r", "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32")
// float8: the machine instruction (QMMA) exists on 8.9 and 12.x, in PTX since ISA 8.4 (CUDA 12.4).
#if (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200) && \
    __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1204
#define RUTLASS_QMMA
RUTLASS_MMA(e4m3, e4m3, f32, "+f", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32")
RUTLASS_MMA(e4m3, e5m2, f32, "+f", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32")
RUTLASS_MMA(e5m2, e4m3, f32, "+f", "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32")
RUTLASS_MMA(e5m2, e5m2, f32, "+f", "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32")
#endif
#undef RUTLASS_MMA

#if __CUDA_ARCH__ >= 890 && !defined(RUTLASS_QMMA)
// Other chips from 9.0 on have it in PTX only. ptxas translates it to conversions and two HMMA that
// start from zero, and adds their sums in float32; it has so many in flight that kernels spill.
// Here HMMA adds the products of the converted numbers, which are exact, to the sums directly. Of
// each word, the first instruction multiplies two elements of K, the second the other two.
template <class A, class B> struct Mma<A, B, f32> : Mma<f16, f16, f32> {
  using Half = Mma<f16, f16, f32>;
  // "Data Movement and Conversion Instructions: cvt".
  template <class Element>
  static __device__ __forceinline__ void widen(unsigned (&pairs)[2], unsigned word) {
    if constexpr (is_same<Element, e4m3>)
      asm("{ .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n"
          " cvt.rn.f16x2.e4m3x2 %0, low;\n cvt.rn.f16x2.e4m3x2 %1, high; }"
          : "=r"(pairs[0]), "=r"(pairs[1])
          : "r"(word));
    else
      asm("{ .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n"
          " cvt.rn.f16x2.e5m2x2 %0, low;\n cvt.rn.f16x2.e5m2x2 %1, high; }"
          : "=r"(pairs[0]), "=r"(pairs[1])
          : "r"(word));
  }
  static __device__ __forceinline__ void accumulate(Half::Sums& sums, unsigned a0, unsigned a1,
                                                    unsigned a2, unsigned a3, unsigned b0,
                                                    unsigned b1) {
    static_assert(class_of<A> == ElementClass::FLOAT8 && class_of<B> == ElementClass::FLOAT8);
    unsigned a[4][2], b[2][2];
    widen<A>(a[0], a0);
    widen<A>(a[1], a1);
    widen<A>(a[2], a2);
    widen<A>(a[3], a3);
    widen<B>(b[0], b0);
    widen<B>(b[1], b1);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      Half::accumulate(sums, a[0][i], a[1][i], a[2][i], a[3][i], b[0][i], b[1][i]);
  }
};
#endif
#undef RUTLASS_QMMA

// f16 accumulators are packed two to a word: columns 2j and 2j + 1 of a row.
template <> struct Mma<f16, f16, f16> {
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

// f64: 8 elements of K. Fragments of lane 4 g + j:
//   A     elements of {row g, row g + 8} x {K j, j + 4}, rows varying fastest
//   B     elements {K j, j + 4} of column g
//   sums  as above
// 9.0 has an instruction of this shape. Other chips have one of 8 x 8 over 4 elements of K, whose
// fragments are parts of these; NVRTC would translate the larger shape into it.
template <> struct Mma<f64, f64, f64> {
  struct Sums { f64 values[4]; };
  static __device__ __forceinline__ f64 get(const Sums& sums, int row_half, int column) {
    return sums.values[2 * row_half + column];
  }
  static __device__ __forceinline__ void accumulate(Sums& sums, f64 a0, f64 a1, f64 a2, f64 a3,
                                                    f64 b0, f64 b1) {
#if __CUDA_ARCH__ == 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+d"(sums.values[0]), "+d"(sums.values[1]), "+d"(sums.values[2]), "+d"(sums.values[3])
        : "d"(a0), "d"(a1), "d"(a2), "d"(a3), "d"(b0), "d"(b1));
#else
    accumulate_half(sums.values[0], sums.values[1], a0, b0);
    accumulate_half(sums.values[2], sums.values[3], a1, b0);
    accumulate_half(sums.values[0], sums.values[1], a2, b1);
    accumulate_half(sums.values[2], sums.values[3], a3, b1);
#endif
  }
  // 8 rows, 4 elements of K.
  static __device__ __forceinline__ void accumulate_half(f64& first, f64& second, f64 a, f64 b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(first), "+d"(second)
        : "d"(a), "d"(b));
  }
};

}  // namespace ptx
