// The tensor cores of Hopper. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": 64 x N products over 32 bytes of K, both
// operands read from shared memory by the 128 threads of a warpgroup together, while those go on.
#pragma once
#include "common/ptx.cuh"
#include "common/types.cuh"

namespace ptx {

// "Matrix descriptor": how an operand lies in shared memory. Always with the 128-byte swizzle, in atoms of 8 rows of 128 bytes,
// each 1024-byte aligned:
//   K-major: a row is 128 bytes of K of one m (n); `stride` is from 8 rows to the next 8, `leading` is not used.
//   MN-major: a row is 64 elements of M (N) at one k; `stride` is from 8 k to the next 8, `leading` from 64 m (n) to the next 64.
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned shared, int leading, int stride) {
  constexpr unsigned long long SWIZZLE_128 = 1ull << 62;
  return SWIZZLE_128 | static_cast<unsigned long long>(stride >> 4) << 32 | static_cast<unsigned>(leading >> 4) << 16 |
         (shared & 0x3ffff) >> 4;  // above are bits that name the CTA of the cluster
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most PENDING of the latest groups are unfinished.
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The parts of the instruction's text that depend on the types, and on the majors where it can choose them.
template <class Element, class Accumulator> struct WgmmaTypes;
template <> struct WgmmaTypes<f16, f32> { static constexpr char text[] = "k16.f32.f16.f16"; };
template <> struct WgmmaTypes<f16, f16> { static constexpr char text[] = "k16.f16.f16.f16"; };
template <> struct WgmmaTypes<bf16, f32> { static constexpr char text[] = "k16.f32.bf16.bf16"; };
template <> struct WgmmaTypes<f32, f32> { static constexpr char text[] = "k8.f32.tf32.tf32"; };

// Operands are not negated ("1, 1"); then, for 16-bit elements, 0 for K-major and 1 for MN-major.
template <int SIZE, bool A_K_MAJOR, bool B_K_MAJOR> struct WgmmaModes;
template <> struct WgmmaModes<4, true, true> { static constexpr char text[] = "1, 1"; };
template <> struct WgmmaModes<2, true, true> { static constexpr char text[] = "1, 1, 0, 0"; };
template <> struct WgmmaModes<2, true, false> { static constexpr char text[] = "1, 1, 0, 1"; };
template <> struct WgmmaModes<2, false, true> { static constexpr char text[] = "1, 1, 1, 0"; };
template <> struct WgmmaModes<2, false, false> { static constexpr char text[] = "1, 1, 1, 1"; };

// Four instructions, 128 bytes of K, over a thread's SUMS 32-bit registers of sums: added to, or at first replaced where `accumulate` is
// 0. From one to the next the descriptors grow by A_STEP and B_STEP. All in one statement, which compiles faster than four; C++ cannot
// count its operands, hence the list.
template <int SUMS> struct WgmmaInstructions;

#define RUTLASS_WGMMA(SUMS, A, B, ACCUMULATE, N, TYPES, MODES, A_STEP, B_STEP)                                             \
  template <> struct WgmmaInstructions<SUMS> {                                                                            \
    template <int COLUMNS, class Types, class Modes, int A_GROWS, int B_GROWS>                                            \
    static __device__ __forceinline__ void issue(unsigned (&sums)[SUMS], unsigned long long a, unsigned long long b,      \
                                                 int accumulate) {                                                        \
      asm volatile("{ .reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %" #ACCUMULATE ", 0;\n"                               \
                   RUTLASS_INSTRUCTION(SUMS, N, TYPES, MODES, "%" #A, "%" #B)                                             \
                   "setp.eq.b32 p, %" #ACCUMULATE ", %" #ACCUMULATE ";\n"                                                 \
                   "add.s64 a, %" #A ", %" #A_STEP ";\nadd.s64 b, %" #B ", %" #B_STEP ";\n"                               \
                   RUTLASS_INSTRUCTION(SUMS, N, TYPES, MODES, "a", "b")                                                   \
                   "add.s64 a, a, %" #A_STEP ";\nadd.s64 b, b, %" #B_STEP ";\n"                                           \
                   RUTLASS_INSTRUCTION(SUMS, N, TYPES, MODES, "a", "b")                                                   \
                   "add.s64 a, a, %" #A_STEP ";\nadd.s64 b, b, %" #B_STEP ";\n"                                           \
                   RUTLASS_INSTRUCTION(SUMS, N, TYPES, MODES, "a", "b") "}"                                               \
                   : RUTLASS_SUMS_##SUMS                                                                                  \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(COLUMNS), "C"(Types::text), "C"(Modes::text), "n"(A_GROWS),     \
                     "n"(B_GROWS));                                                                                       \
    }                                                                                                                     \
  };
#define RUTLASS_INSTRUCTION(SUMS, N, TYPES, MODES, A, B)                                                                   \
  "wgmma.mma_async.sync.aligned.m64n%" #N "%" #TYPES " {" RUTLASS_TEXT_##SUMS "}, " A ", " B ", p, %" #MODES ";\n"
#define RUTLASS_FOUR(I, J, K, L) "+r"(sums[I]), "+r"(sums[J]), "+r"(sums[K]), "+r"(sums[L])
#define RUTLASS_TEXT_4 "%0, %1, %2, %3"
#define RUTLASS_SUMS_4 RUTLASS_FOUR(0, 1, 2, 3)
#define RUTLASS_TEXT_8 RUTLASS_TEXT_4 ", %4, %5, %6, %7"
#define RUTLASS_SUMS_8 RUTLASS_SUMS_4, RUTLASS_FOUR(4, 5, 6, 7)
#define RUTLASS_TEXT_12 RUTLASS_TEXT_8 ", %8, %9, %10, %11"
#define RUTLASS_SUMS_12 RUTLASS_SUMS_8, RUTLASS_FOUR(8, 9, 10, 11)
#define RUTLASS_TEXT_16 RUTLASS_TEXT_12 ", %12, %13, %14, %15"
#define RUTLASS_SUMS_16 RUTLASS_SUMS_12, RUTLASS_FOUR(12, 13, 14, 15)
#define RUTLASS_TEXT_20 RUTLASS_TEXT_16 ", %16, %17, %18, %19"
#define RUTLASS_SUMS_20 RUTLASS_SUMS_16, RUTLASS_FOUR(16, 17, 18, 19)
#define RUTLASS_TEXT_24 RUTLASS_TEXT_20 ", %20, %21, %22, %23"
#define RUTLASS_SUMS_24 RUTLASS_SUMS_20, RUTLASS_FOUR(20, 21, 22, 23)
#define RUTLASS_TEXT_28 RUTLASS_TEXT_24 ", %24, %25, %26, %27"
#define RUTLASS_SUMS_28 RUTLASS_SUMS_24, RUTLASS_FOUR(24, 25, 26, 27)
#define RUTLASS_TEXT_32 RUTLASS_TEXT_28 ", %28, %29, %30, %31"
#define RUTLASS_SUMS_32 RUTLASS_SUMS_28, RUTLASS_FOUR(28, 29, 30, 31)
#define RUTLASS_TEXT_36 RUTLASS_TEXT_32 ", %32, %33, %34, %35"
#define RUTLASS_SUMS_36 RUTLASS_SUMS_32, RUTLASS_FOUR(32, 33, 34, 35)
#define RUTLASS_TEXT_40 RUTLASS_TEXT_36 ", %36, %37, %38, %39"
#define RUTLASS_SUMS_40 RUTLASS_SUMS_36, RUTLASS_FOUR(36, 37, 38, 39)
#define RUTLASS_TEXT_44 RUTLASS_TEXT_40 ", %40, %41, %42, %43"
#define RUTLASS_SUMS_44 RUTLASS_SUMS_40, RUTLASS_FOUR(40, 41, 42, 43)
#define RUTLASS_TEXT_48 RUTLASS_TEXT_44 ", %44, %45, %46, %47"
#define RUTLASS_SUMS_48 RUTLASS_SUMS_44, RUTLASS_FOUR(44, 45, 46, 47)
#define RUTLASS_TEXT_52 RUTLASS_TEXT_48 ", %48, %49, %50, %51"
#define RUTLASS_SUMS_52 RUTLASS_SUMS_48, RUTLASS_FOUR(48, 49, 50, 51)
#define RUTLASS_TEXT_56 RUTLASS_TEXT_52 ", %52, %53, %54, %55"
#define RUTLASS_SUMS_56 RUTLASS_SUMS_52, RUTLASS_FOUR(52, 53, 54, 55)
#define RUTLASS_TEXT_60 RUTLASS_TEXT_56 ", %56, %57, %58, %59"
#define RUTLASS_SUMS_60 RUTLASS_SUMS_56, RUTLASS_FOUR(56, 57, 58, 59)
#define RUTLASS_TEXT_64 RUTLASS_TEXT_60 ", %60, %61, %62, %63"
#define RUTLASS_SUMS_64 RUTLASS_SUMS_60, RUTLASS_FOUR(60, 61, 62, 63)
#define RUTLASS_TEXT_68 RUTLASS_TEXT_64 ", %64, %65, %66, %67"
#define RUTLASS_SUMS_68 RUTLASS_SUMS_64, RUTLASS_FOUR(64, 65, 66, 67)
#define RUTLASS_TEXT_72 RUTLASS_TEXT_68 ", %68, %69, %70, %71"
#define RUTLASS_SUMS_72 RUTLASS_SUMS_68, RUTLASS_FOUR(68, 69, 70, 71)
#define RUTLASS_TEXT_76 RUTLASS_TEXT_72 ", %72, %73, %74, %75"
#define RUTLASS_SUMS_76 RUTLASS_SUMS_72, RUTLASS_FOUR(72, 73, 74, 75)
#define RUTLASS_TEXT_80 RUTLASS_TEXT_76 ", %76, %77, %78, %79"
#define RUTLASS_SUMS_80 RUTLASS_SUMS_76, RUTLASS_FOUR(76, 77, 78, 79)
#define RUTLASS_TEXT_84 RUTLASS_TEXT_80 ", %80, %81, %82, %83"
#define RUTLASS_SUMS_84 RUTLASS_SUMS_80, RUTLASS_FOUR(80, 81, 82, 83)
#define RUTLASS_TEXT_88 RUTLASS_TEXT_84 ", %84, %85, %86, %87"
#define RUTLASS_SUMS_88 RUTLASS_SUMS_84, RUTLASS_FOUR(84, 85, 86, 87)
#define RUTLASS_TEXT_92 RUTLASS_TEXT_88 ", %88, %89, %90, %91"
#define RUTLASS_SUMS_92 RUTLASS_SUMS_88, RUTLASS_FOUR(88, 89, 90, 91)
#define RUTLASS_TEXT_96 RUTLASS_TEXT_92 ", %92, %93, %94, %95"
#define RUTLASS_SUMS_96 RUTLASS_SUMS_92, RUTLASS_FOUR(92, 93, 94, 95)
#define RUTLASS_TEXT_100 RUTLASS_TEXT_96 ", %96, %97, %98, %99"
#define RUTLASS_SUMS_100 RUTLASS_SUMS_96, RUTLASS_FOUR(96, 97, 98, 99)
#define RUTLASS_TEXT_104 RUTLASS_TEXT_100 ", %100, %101, %102, %103"
#define RUTLASS_SUMS_104 RUTLASS_SUMS_100, RUTLASS_FOUR(100, 101, 102, 103)
#define RUTLASS_TEXT_108 RUTLASS_TEXT_104 ", %104, %105, %106, %107"
#define RUTLASS_SUMS_108 RUTLASS_SUMS_104, RUTLASS_FOUR(104, 105, 106, 107)
#define RUTLASS_TEXT_112 RUTLASS_TEXT_108 ", %108, %109, %110, %111"
#define RUTLASS_SUMS_112 RUTLASS_SUMS_108, RUTLASS_FOUR(108, 109, 110, 111)
#define RUTLASS_TEXT_116 RUTLASS_TEXT_112 ", %112, %113, %114, %115"
#define RUTLASS_SUMS_116 RUTLASS_SUMS_112, RUTLASS_FOUR(112, 113, 114, 115)
#define RUTLASS_TEXT_120 RUTLASS_TEXT_116 ", %116, %117, %118, %119"
#define RUTLASS_SUMS_120 RUTLASS_SUMS_116, RUTLASS_FOUR(116, 117, 118, 119)
#define RUTLASS_TEXT_124 RUTLASS_TEXT_120 ", %120, %121, %122, %123"
#define RUTLASS_SUMS_124 RUTLASS_SUMS_120, RUTLASS_FOUR(120, 121, 122, 123)
#define RUTLASS_TEXT_128 RUTLASS_TEXT_124 ", %124, %125, %126, %127"
#define RUTLASS_SUMS_128 RUTLASS_SUMS_124, RUTLASS_FOUR(124, 125, 126, 127)
RUTLASS_WGMMA(4, 4, 5, 6, 7, 8, 9, 10, 11)
RUTLASS_WGMMA(8, 8, 9, 10, 11, 12, 13, 14, 15)
RUTLASS_WGMMA(12, 12, 13, 14, 15, 16, 17, 18, 19)
RUTLASS_WGMMA(16, 16, 17, 18, 19, 20, 21, 22, 23)
RUTLASS_WGMMA(20, 20, 21, 22, 23, 24, 25, 26, 27)
RUTLASS_WGMMA(24, 24, 25, 26, 27, 28, 29, 30, 31)
RUTLASS_WGMMA(28, 28, 29, 30, 31, 32, 33, 34, 35)
RUTLASS_WGMMA(32, 32, 33, 34, 35, 36, 37, 38, 39)
RUTLASS_WGMMA(36, 36, 37, 38, 39, 40, 41, 42, 43)
RUTLASS_WGMMA(40, 40, 41, 42, 43, 44, 45, 46, 47)
RUTLASS_WGMMA(44, 44, 45, 46, 47, 48, 49, 50, 51)
RUTLASS_WGMMA(48, 48, 49, 50, 51, 52, 53, 54, 55)
RUTLASS_WGMMA(52, 52, 53, 54, 55, 56, 57, 58, 59)
RUTLASS_WGMMA(56, 56, 57, 58, 59, 60, 61, 62, 63)
RUTLASS_WGMMA(60, 60, 61, 62, 63, 64, 65, 66, 67)
RUTLASS_WGMMA(64, 64, 65, 66, 67, 68, 69, 70, 71)
RUTLASS_WGMMA(68, 68, 69, 70, 71, 72, 73, 74, 75)
RUTLASS_WGMMA(72, 72, 73, 74, 75, 76, 77, 78, 79)
RUTLASS_WGMMA(76, 76, 77, 78, 79, 80, 81, 82, 83)
RUTLASS_WGMMA(80, 80, 81, 82, 83, 84, 85, 86, 87)
RUTLASS_WGMMA(84, 84, 85, 86, 87, 88, 89, 90, 91)
RUTLASS_WGMMA(88, 88, 89, 90, 91, 92, 93, 94, 95)
RUTLASS_WGMMA(92, 92, 93, 94, 95, 96, 97, 98, 99)
RUTLASS_WGMMA(96, 96, 97, 98, 99, 100, 101, 102, 103)
RUTLASS_WGMMA(100, 100, 101, 102, 103, 104, 105, 106, 107)
RUTLASS_WGMMA(104, 104, 105, 106, 107, 108, 109, 110, 111)
RUTLASS_WGMMA(108, 108, 109, 110, 111, 112, 113, 114, 115)
RUTLASS_WGMMA(112, 112, 113, 114, 115, 116, 117, 118, 119)
RUTLASS_WGMMA(116, 116, 117, 118, 119, 120, 121, 122, 123)
RUTLASS_WGMMA(120, 120, 121, 122, 123, 124, 125, 126, 127)
RUTLASS_WGMMA(124, 124, 125, 126, 127, 128, 129, 130, 131)
RUTLASS_WGMMA(128, 128, 129, 130, 131, 132, 133, 134, 135)

// Two instructions on tf32, 64 bytes of K, with A in registers: 4 for each.
template <int SUMS> struct WgmmaFromRegisters;

#define RUTLASS_WGMMA_FROM_REGISTERS(SUMS, A, B, C, D, E, F, G, H, DESCRIPTOR, ACCUMULATE, N)                             \
  template <> struct WgmmaFromRegisters<SUMS> {                                                                           \
    template <int COLUMNS>                                                                                                \
    static __device__ __forceinline__ void issue(unsigned (&sums)[SUMS], const unsigned (&a)[8], unsigned long long b,    \
                                                 int accumulate) {                                                        \
      asm volatile("{ .reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %" #ACCUMULATE ", 0;\n"                                 \
                   RUTLASS_INSTRUCTION_A(SUMS, N, "{%" #A ", %" #B ", %" #C ", %" #D "}", "%" #DESCRIPTOR)                \
                   "setp.eq.b32 p, %" #ACCUMULATE ", %" #ACCUMULATE ";\nadd.s64 b, %" #DESCRIPTOR ", 2;\n"                \
                   RUTLASS_INSTRUCTION_A(SUMS, N, "{%" #E ", %" #F ", %" #G ", %" #H "}", "b") "}"                        \
                   : RUTLASS_SUMS_##SUMS                                                                                  \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "l"(b),      \
                     "r"(accumulate), "n"(COLUMNS));                                                                      \
    }                                                                                                                     \
  };
#define RUTLASS_INSTRUCTION_A(SUMS, N, A, B)                                                                               \
  "wgmma.mma_async.sync.aligned.m64n%" #N "k8.f32.tf32.tf32 {" RUTLASS_TEXT_##SUMS "}, " A ", " B ", p, 1, 1;\n"
RUTLASS_WGMMA_FROM_REGISTERS(8, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18)
RUTLASS_WGMMA_FROM_REGISTERS(32, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42)
RUTLASS_WGMMA_FROM_REGISTERS(64, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74)
RUTLASS_WGMMA_FROM_REGISTERS(96, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 106)
RUTLASS_WGMMA_FROM_REGISTERS(128, 128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138)

// Which row of the matrix is row r of the 16 that a warp gives the instruction: rows g and g + 8, which one lane holds, are neighbours.
__device__ __forceinline__ constexpr int fragment_row(int r) { return r % 8 * 2 + r / 8; }

// Loads A's elements for two instructions from an MN-major tile of tf32: M_BLOCKS times two boxes of 32 m by 32 k, swizzled.
//
// Lane 4 g + q gives an instruction rows g and g + 8 of K's elements q and q + 4 (PTX ISA, "Register Fragments for
// wgmma.mma_async.m64nNk8"), and loads the pair of rows of one element, 8 bytes, at a time. Half a warp loads at once, of 4 k and 2
// neighbouring pieces of 16 bytes. The swizzle tells 4 k apart by two bits of the piece, so that the pieces would meet in the same banks;
// the lanes at the second one therefore begin with element q + 4, which differs in the third bit.
template <int M_BLOCKS> struct WgmmaFragments {
  unsigned addresses[2];  // of the pair that is loaded first, and of the other
  bool other_first;
  __device__ __forceinline__ WgmmaFragments(unsigned tile) {
    const unsigned warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4, piece = warp % 2 * 4 + g / 2;
    other_first = g / 2 % 2;
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned k = i == other_first ? q : q + 4;
      addresses[i] = tile + warp / 2 * 4096 + k * 128 + (piece ^ k) * 16 + g % 2 * 8;
    }
  }
  // From so many bytes after the tile's first element of M on.
  __device__ __forceinline__ void load(unsigned (&a)[M_BLOCKS][8], unsigned offset) const {
#pragma unroll
    for (int i = 0; i < 2 * M_BLOCKS; ++i) {
      const int block = i / 2, instruction = i % 2;
      unsigned pairs[2][2];
#pragma unroll
      for (int p = 0; p < 2; ++p) load_shared(pairs[p], addresses[p] + offset + block * 8192 + instruction * 1024);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        a[block][4 * instruction + row] = other_first ? pairs[1][row] : pairs[0][row];
        a[block][4 * instruction + 2 + row] = other_first ? pairs[0][row] : pairs[1][row];
      }
    }
  }
};

// The 64 x N product of one warpgroup. Lane 4 g + q of warp w holds rows 16 w + g and 16 w + g + 8, of every 8 columns the
// 2 q-th and the next: as value 4 j + 2 h + c that of row half h, column 8 j + 2 q + c.
template <class Element, class Accumulator, int N, bool A_K_MAJOR, bool B_K_MAJOR> struct Wgmma {
  static constexpr int SUMS = N / 2 * sizeof(Accumulator) / 4;  // f16 sums come two to a register
  // One block of 128 bytes of K. The next 32 bytes of it lie 32 bytes on, or 16 rows of 128 bytes; descriptors count 16 bytes.
  static __device__ __forceinline__ void issue(unsigned (&sums)[SUMS], unsigned long long a, unsigned long long b, int accumulate) {
    WgmmaInstructions<SUMS>::template issue<N, WgmmaTypes<Element, Accumulator>,
                                            WgmmaModes<sizeof(Element), A_K_MAJOR, B_K_MAJOR>, A_K_MAJOR ? 2 : 128,
                                            B_K_MAJOR ? 2 : 128>(sums, a, b, accumulate);
  }
  // Half a block, with A in registers.
  static __device__ __forceinline__ void issue_half(unsigned (&sums)[SUMS], const unsigned (&a)[8], unsigned long long b,
                                                    int accumulate) {
    WgmmaFromRegisters<SUMS>::template issue<N>(sums, a, b, accumulate);
  }
  static __device__ __forceinline__ Accumulator value(const unsigned (&sums)[SUMS], int index) {
    if constexpr (sizeof(Accumulator) == 2) return {static_cast<unsigned short>(sums[index / 2] >> 16 * (index % 2))};
    else return __uint_as_float(sums[index]);
  }
};

}  // namespace ptx
