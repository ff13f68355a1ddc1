// wgmma: asynchronous 64 x N products over 32 bytes of K, issued by a warpgroup of 128 threads. B
// comes from shared memory, A from shared memory or registers. PTX ISA, "Asynchronous Warpgroup
// Level Matrix Instructions"; quoted titles are its subsections.
#pragma once
#include "common/ptx.cuh"
#include "common/types.cuh"
#include "common/widen.cuh"

namespace ptx {

// "Matrix Descriptor Format": the layout of an operand in shared memory. The 128-byte or 64-byte
// swizzle applies, in atoms of 8 rows, each aligned to its size. Distances are in bytes:
//   K-major   a row is 128 bytes of K of one m (n). `stride`: from 8 rows to the next 8. `leading`
//             is not used.
//   MN-major  a row is ROW_BYTES of M (N) at one k. `stride`: from 8 k to the next 8. `leading`:
//             from one box of ROW_BYTES along M (N) to the next.
template <int ROW_BYTES = 128>
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned shared, int leading,
                                                                int stride = 8 * ROW_BYTES) {
  static_assert(ROW_BYTES == 128 || ROW_BYTES == 64);
  constexpr unsigned long long SWIZZLE = ROW_BYTES == 128 ? 1 : 2;
  // The mask drops the address bits that hold the CTA's rank in the cluster.
  return SWIZZLE << 62 | static_cast<unsigned long long>(stride >> 4) << 32 |
         static_cast<unsigned>(leading >> 4) << 16 | (shared & 0x3ffff) >> 4;
}

// "wgmma.fence": orders accesses to registers and shared memory before the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// "wgmma.commit_group": the wgmma since the last call form one group.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// "wgmma.wait_group": waits until at most PENDING of the most recent groups are pending.
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The types of the accumulators, A and B in the text of the instruction.
template <class A, class B, class Accumulator> struct WgmmaTypes;
#define RUTLASS_WGMMA_TYPES(A, B, ACCUMULATOR, TEXT) \
  template <> struct WgmmaTypes<A, B, ACCUMULATOR> { static constexpr char text[] = TEXT; };
RUTLASS_WGMMA_TYPES(f16, f16, f32, "k16.f32.f16.f16")
RUTLASS_WGMMA_TYPES(f16, f16, f16, "k16.f16.f16.f16")
RUTLASS_WGMMA_TYPES(bf16, bf16, f32, "k16.f32.bf16.bf16")
RUTLASS_WGMMA_TYPES(f32, f32, f32, "k8.f32.tf32.tf32")
RUTLASS_WGMMA_TYPES(e4m3, e4m3, f32, "k32.f32.e4m3.e4m3")
RUTLASS_WGMMA_TYPES(e4m3, e5m2, f32, "k32.f32.e4m3.e5m2")
RUTLASS_WGMMA_TYPES(e5m2, e4m3, f32, "k32.f32.e5m2.e4m3")
RUTLASS_WGMMA_TYPES(e5m2, e5m2, f32, "k32.f32.e5m2.e5m2")
RUTLASS_WGMMA_TYPES(s8, s8, s32, "k32.s32.s8.s8")
RUTLASS_WGMMA_TYPES(u8, u8, s32, "k32.s32.u8.u8")
#undef RUTLASS_WGMMA_TYPES

// The immediates at the end of the instruction. Floating-point: the signs of A and B (1: not
// negated). 16-bit elements: also their majors, 0 for K-major, 1 for MN-major; others are K-major
// only.
template <class Accumulator, int BITS, bool A_K_MAJOR, bool B_K_MAJOR> struct WgmmaModes {
  static constexpr char text[] = ", 1, 1";
};
template <> struct WgmmaModes<s32, 8, true, true> { static constexpr char text[] = ""; };
#define RUTLASS_WGMMA_MODES(A_K_MAJOR, B_K_MAJOR, TEXT)                                   \
  template <class Accumulator> struct WgmmaModes<Accumulator, 16, A_K_MAJOR, B_K_MAJOR> { \
    static constexpr char text[] = TEXT;                                                  \
  };
RUTLASS_WGMMA_MODES(true, true, ", 1, 1, 0, 0")
RUTLASS_WGMMA_MODES(true, false, ", 1, 1, 0, 1")
RUTLASS_WGMMA_MODES(false, true, ", 1, 1, 1, 0")
RUTLASS_WGMMA_MODES(false, false, ", 1, 1, 1, 1")
#undef RUTLASS_WGMMA_MODES
// The same with A in registers: 16-bit elements have B's major only.
template <int BITS, bool B_K_MAJOR> struct WgmmaRegisterModes {
  static constexpr char text[] = ", 1, 1";
};
template <> struct WgmmaRegisterModes<16, true> { static constexpr char text[] = ", 1, 1, 0"; };
template <> struct WgmmaRegisterModes<16, false> { static constexpr char text[] = ", 1, 1, 1"; };

// A thread's accumulators are PTX registers with names: s0, s1 and so on. As C++ variables, up to
// 128 of them would be operands of every asm statement, which costs up to a fifth of the compile
// time.
//
// SumNames<BLOCK>::text lists the registers of a block of 64 rows as the instruction needs them
// ("s0, s1, s2, s3"). The generated program defines it (src/kernel/sm90/source.rs), since building
// the text with templates compiles slowly.
template <int BLOCK> struct SumNames;

template <int COUNT> __device__ __forceinline__ void declare_sums() {
  asm volatile(".reg .b32 s<%0>;" ::"n"(COUNT));
}

// Further registers t0, t1 and so on: totals over chains of products, or over the splits of K.
// The tensor cores truncate each accumulation toward zero, so the error grows with the length of a
// chain; adding chains up here rounds to nearest.
template <int COUNT> __device__ __forceinline__ void declare_totals() {
  asm volatile(".reg .f32 t<%0>;" ::"n"(COUNT));
}
template <int FIRST, int END> __device__ __forceinline__ void clear_totals() {
  asm volatile("mov.f32 t%0, 0f00000000;" ::"n"(FIRST));
  if constexpr (FIRST + 1 < END) clear_totals<FIRST + 1, END>();
}
// Copies variables of 32 bits to the totals, where `Results` reads them.
template <int FIRST, int END, class Value>
__device__ __forceinline__ void write_totals(const Value* totals) {
  static_assert((END - FIRST) % 4 == 0);
  auto bits = [&](int i) { return __builtin_bit_cast(unsigned, totals[i]); };
  asm volatile(
      "mov.b32 t%4, %0;\nmov.b32 t%5, %1;\nmov.b32 t%6, %2;\nmov.b32 t%7, %3;" ::"r"(bits(0)),
      "r"(bits(1)), "r"(bits(2)), "r"(bits(3)), "n"(FIRST), "n"(FIRST + 1), "n"(FIRST + 2),
      "n"(FIRST + 3));
  if constexpr (FIRST + 4 < END) write_totals<FIRST + 4, END>(totals + 4);
}
// totals += sums, after each chain but the last.
template <int FIRST, int END> __device__ __forceinline__ void add_to_totals() {
  asm volatile("add.f32 t%0, t%0, s%0;" ::"n"(FIRST));
  if constexpr (FIRST + 1 < END) add_to_totals<FIRST + 1, END>();
}
// sums += totals, after the last chain.
template <int FIRST, int END> __device__ __forceinline__ void add_totals() {
  asm volatile("add.f32 s%0, t%0, s%0;" ::"n"(FIRST));
  if constexpr (FIRST + 1 < END) add_totals<FIRST + 1, END>();
}

// The same with a factor for each sum: `factors.of<VALUE>()`.
template <int FIRST, int END, class Factors>
__device__ __forceinline__ void add_scaled_to_totals(const Factors& factors) {
  asm volatile("fma.rn.f32 t%0, s%0, %1, t%0;" ::"n"(FIRST), "f"(factors.template of<FIRST>()));
  if constexpr (FIRST + 1 < END) add_scaled_to_totals<FIRST + 1, END>(factors);
}
template <int FIRST, int END, class Factors>
__device__ __forceinline__ void add_totals_scaled(const Factors& factors) {
  asm volatile("fma.rn.f32 s%0, s%0, %1, t%0;" ::"n"(FIRST), "f"(factors.template of<FIRST>()));
  if constexpr (FIRST + 1 < END) add_totals_scaled<FIRST + 1, END>(factors);
}

// Multiplies four sums by factors.
template <int FIRST>
__device__ __forceinline__ void multiply_sums(f32 first, f32 second, f32 third, f32 fourth) {
  asm volatile(
      "mul.f32 s%4, s%4, %0;\nmul.f32 s%5, s%5, %1;\nmul.f32 s%6, s%6, %2;\nmul.f32 s%7, s%7, "
      "%3;" ::"f"(first),
      "f"(second), "f"(third), "f"(fourth), "n"(FIRST), "n"(FIRST + 1), "n"(FIRST + 2),
      "n"(FIRST + 3));
}

// Converts four sums from integers to float32.
template <int FIRST> __device__ __forceinline__ void convert_sums() {
  asm volatile(
      "cvt.rn.f32.s32 s%0, s%0;\ncvt.rn.f32.s32 s%1, s%1;\ncvt.rn.f32.s32 s%2, s%2;\n"
      "cvt.rn.f32.s32 s%3, s%3;" ::"n"(FIRST),
      "n"(FIRST + 1), "n"(FIRST + 2), "n"(FIRST + 3));
}

template <int FIRST, int END> __device__ __forceinline__ void multiply_all_sums(f32 factor) {
  multiply_sums<FIRST>(factor, factor, factor, factor);
  if constexpr (FIRST + 4 < END) multiply_all_sums<FIRST + 4, END>(factor);
}

// PTX ISA, "Data Movement and Conversion Instructions: cvt": two accumulators as a pair of 16-bit
// elements, the first source operand in the upper half.
template <class Out> struct PairConversion;
template <> struct PairConversion<f16> { static constexpr char text[] = "cvt.rn.f16x2.f32"; };
template <> struct PairConversion<bf16> { static constexpr char text[] = "cvt.rn.bf16x2.f32"; };
// "stmatrix": the modifier that transposes the matrices.
template <bool TRANSPOSED> struct MatrixMode { static constexpr char text[] = ""; };
template <> struct MatrixMode<true> { static constexpr char text[] = ".trans"; };

// A thread's results, BLOCK_VALUES for each block of 64 rows, in the accumulators (s) or the totals
// (t, which hold the bits of integers, too). Code reads each one by register name at its use, after
// waiting for the wgmma that write it. Copying all of them to C++ variables takes a fifth of the
// compile time.
template <class Accumulator, int BLOCK_VALUES, bool IN_TOTALS> struct Results {
  static_assert(bits_of<Accumulator> == 32 || !IN_TOTALS);
  using Value = decltype(decode(Accumulator{}));
  static constexpr char NAME[] = {IN_TOTALS ? 't' : 's', 0};
  static constexpr int VALUES_PER_REGISTER = 32 / bits_of<Accumulator>;

  // Reads COUNT consecutive values of a block.
  template <int BLOCK, int FIRST, int COUNT>
  static __device__ __forceinline__ void read(Value* values) {
    static_assert(COUNT % 4 == 0 && FIRST + COUNT <= BLOCK_VALUES);
    constexpr int AT = (BLOCK * BLOCK_VALUES + FIRST) / VALUES_PER_REGISTER;
    if constexpr (is_same<Accumulator, f32>) {
      asm volatile("mov.b32 %0, %4%5;\nmov.b32 %1, %4%6;\nmov.b32 %2, %4%7;\nmov.b32 %3, %4%8;"
                   : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
                   : "C"(NAME), "n"(AT), "n"(AT + 1), "n"(AT + 2), "n"(AT + 3));
    } else if constexpr (is_same<Accumulator, s32>) {
      asm volatile("mov.b32 %0, %4%5;\nmov.b32 %1, %4%6;\nmov.b32 %2, %4%7;\nmov.b32 %3, %4%8;"
                   : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                   : "C"(NAME), "n"(AT), "n"(AT + 1), "n"(AT + 2), "n"(AT + 3));
    } else {
      unsigned pairs[2];
      asm volatile("mov.b32 %0, %2%3;\nmov.b32 %1, %2%4;"
                   : "=r"(pairs[0]), "=r"(pairs[1])
                   : "C"(NAME), "n"(AT), "n"(AT + 1));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        values[i] = decode(f16{static_cast<unsigned short>(pairs[i / 2] >> 16 * (i % 2))});
    }
    if constexpr (COUNT > 4) read<BLOCK, FIRST + 4, COUNT - 4>(values + 4);
  }

  // Stores 2 * MATRICES values, converted to a 16-bit type, as two or four 8 x 8 matrices to shared
  // memory (see store_matrices), transposed if TRANSPOSED.
  template <class Out, bool TRANSPOSED, int BLOCK, int FIRST, int MATRICES>
  static __device__ __forceinline__ void store(unsigned shared) {
    static_assert(FIRST + 2 * MATRICES <= BLOCK_VALUES);
    constexpr int AT = (BLOCK * BLOCK_VALUES + FIRST) / VALUES_PER_REGISTER;
    using Mode = MatrixMode<TRANSPOSED>;
    if constexpr (is_same<Accumulator, Out>) {
      if constexpr (MATRICES == 4)
        asm volatile(
            "stmatrix.sync.aligned.m8n8.x4%1.shared.b16 [%0], {%2%3, %2%4, %2%5, %2%6};" ::"r"(
                shared),
            "C"(Mode::text), "C"(NAME), "n"(AT), "n"(AT + 1), "n"(AT + 2), "n"(AT + 3)
            : "memory");
      else
        asm volatile("stmatrix.sync.aligned.m8n8.x2%1.shared.b16 [%0], {%2%3, %2%4};" ::"r"(shared),
                     "C"(Mode::text), "C"(NAME), "n"(AT), "n"(AT + 1)
                     : "memory");
    } else {
      static_assert(is_same<Accumulator, f32>);
      using Pair = PairConversion<Out>;
      if constexpr (MATRICES == 4)
        asm volatile(
            "{ .reg .b32 a, b, c, d;\n%3 a, %2%5, %2%4;\n%3 b, %2%7, %2%6;\n%3 c, %2%9, %2%8;\n"
            "%3 d, %2%11, %2%10;\n"
            "stmatrix.sync.aligned.m8n8.x4%1.shared.b16 [%0], {a, b, c, d}; }" ::"r"(shared),
            "C"(Mode::text), "C"(NAME), "C"(Pair::text), "n"(AT), "n"(AT + 1), "n"(AT + 2),
            "n"(AT + 3), "n"(AT + 4), "n"(AT + 5), "n"(AT + 6), "n"(AT + 7)
            : "memory");
      else
        asm volatile(
            "{ .reg .b32 a, b;\n%3 a, %2%5, %2%4;\n%3 b, %2%7, %2%6;\n"
            "stmatrix.sync.aligned.m8n8.x2%1.shared.b16 [%0], {a, b}; }" ::"r"(shared),
            "C"(Mode::text), "C"(NAME), "C"(Pair::text), "n"(AT), "n"(AT + 1), "n"(AT + 2),
            "n"(AT + 3)
            : "memory");
    }
  }
};

// The 64 x N product of one warpgroup. "Register Fragments": lane 4 g + q of warp w holds, as value
// 4 j + 2 h + c, the element of row 16 w + 8 h + g and column 8 j + 2 q + c.
template <class A, class B, class Accumulator, int N, bool A_K_MAJOR, bool B_K_MAJOR,
          int B_ROW_BYTES>
struct Wgmma {
  static_assert(!is_same<Accumulator, s32> || N % 16 == 0 || N == 8 || N == 24);
  // Registers; f16 is packed in pairs.
  static constexpr int SUMS = N / 2 * bits_of<Accumulator> / 32;
  using Types = WgmmaTypes<A, B, Accumulator>;
  using Modes = WgmmaModes<Accumulator, bits_of<A>, A_K_MAJOR, B_K_MAJOR>;

  // 32 * STEPS bytes of K, STEPS instructions. Adds to the accumulators of a block of 64 rows; if
  // `accumulate` is 0, the first instruction overwrites them. The next 32 bytes of K lie 32 bytes
  // further (K-major) or 16 rows further (MN-major); descriptors count in units of 16 bytes.
  template <int BLOCK, int STEPS = 4>
  static __device__ __forceinline__ void issue(unsigned long long a, unsigned long long b,
                                               int accumulate) {
    static_assert(STEPS == 1 || STEPS == 2 || STEPS == 4);
#define RUTLASS_WGMMA "wgmma.mma_async.sync.aligned.m64n%6%7 {%3}, a, b, p%8;\n"
#define RUTLASS_NEXT "add.s64 a, a, %4;\nadd.s64 b, b, %5;\n" RUTLASS_WGMMA
#define RUTLASS_ISSUE(NEXT)                                                                 \
  asm volatile(                                                                             \
      "{ .reg .pred p;\n.reg .b64 a, b;\nmov.b64 a, %0;\nmov.b64 b, %1;\n"                  \
      "setp.ne.b32 p, %2, 0;\n" RUTLASS_WGMMA "setp.eq.b32 p, %2, %2;\n" NEXT "}" ::"l"(a), \
      "l"(b), "r"(accumulate), "C"(SumNames<BLOCK>::text), "n"(A_K_MAJOR ? 2 : 128),        \
      "n"(B_K_MAJOR ? 2 : B_ROW_BYTES), "n"(N), "C"(Types::text), "C"(Modes::text))
    if constexpr (STEPS == 1)
      RUTLASS_ISSUE("");
    else if constexpr (STEPS == 2)
      RUTLASS_ISSUE(RUTLASS_NEXT);
    else
      RUTLASS_ISSUE(RUTLASS_NEXT RUTLASS_NEXT RUTLASS_NEXT);
#undef RUTLASS_ISSUE
  }

  // 64 bytes of K of B, two instructions, with A in registers, four for each instruction.
  template <int BLOCK>
  static __device__ __forceinline__ void issue_pair(const unsigned (&a)[8], unsigned long long b,
                                                    int accumulate) {
    using FromRegisters = WgmmaRegisterModes<bits_of<A>, B_K_MAJOR>;
#define RUTLASS_WGMMA_FROM_REGISTERS(A, B) \
  "wgmma.mma_async.sync.aligned.m64n%11%12 {%10}, {" A "}, " B ", p%13;\n"
    // clang-format off
    asm volatile("{ .reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %9, 0;\n"
                 RUTLASS_WGMMA_FROM_REGISTERS("%0, %1, %2, %3", "%8")
                 "setp.eq.b32 p, %9, %9;\nadd.s64 b, %8, %14;\n"
                 RUTLASS_WGMMA_FROM_REGISTERS("%4, %5, %6, %7", "b") "}"
                 ::"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]),
                   "r"(a[7]), "l"(b), "r"(accumulate), "C"(SumNames<BLOCK>::text), "n"(N),
                   "C"(Types::text), "C"(FromRegisters::text), "n"(B_K_MAJOR ? 2 : B_ROW_BYTES));
    // clang-format on
  }
};

// With an f32 A from registers, the matrix row that a warp passes as row r of its 16: rows g and
// g + 8, which one lane holds, are adjacent rows of the matrix.
__device__ __forceinline__ constexpr int fragment_row(int r) { return r % 8 * 2 + r / 8; }

// Loads A's fragments for two instructions from an MN-major tile of tf32: M_BLOCKS times two
// swizzled boxes of 32 m by 32 k.
//
// Lane 4 g + q passes rows g and g + 8 at K elements q and q + 4 ("Register Fragments for
// wgmma.mma_async.m64nNk8"). It loads the pair of adjacent rows at one k, 8 bytes, per instruction.
// Half a warp loads per phase: 4 k by 2 adjacent pieces of 16 bytes. The swizzle maps 4 consecutive
// k to pieces that differ in two bits, so both pieces would use the same banks. The lanes of the
// second piece therefore start with k = q + 4, which differs in the third bit.
template <int M_BLOCKS> struct WgmmaFragments {
  unsigned addresses[2];  // of the pair that is loaded first, and of the second pair
  bool other_first;
  __device__ __forceinline__ WgmmaFragments(unsigned tile) {
    const unsigned warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4,
                   piece = warp % 2 * 4 + g / 2;
    other_first = g / 2 % 2;
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned k = i == other_first ? q : q + 4;
      addresses[i] = tile + warp / 2 * 4096 + k * 128 + (piece ^ k) * 16 + g % 2 * 8;
    }
  }
  static constexpr int GROUPS = 2;  // of a K block: 16 k, rows of 128 bytes
  // `offset`: of the stage, in bytes.
  __device__ __forceinline__ void load(unsigned (&a)[M_BLOCKS][8], unsigned offset,
                                       int group) const {
#pragma unroll
    for (int i = 0; i < 2 * M_BLOCKS; ++i) {
      const int block = i / 2, instruction = i % 2;
      unsigned pairs[2][2];
#pragma unroll
      for (int p = 0; p < 2; ++p)
        load_shared(pairs[p],
                    addresses[p] + offset + group * 2048 + block * 8192 + instruction * 1024);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        a[block][4 * instruction + row] = other_first ? pairs[1][row] : pairs[0][row];
        a[block][4 * instruction + 2 + row] = other_first ? pairs[0][row] : pairs[1][row];
      }
    }
  }
};

// What the integers of a lane's rows are multiplied by, after a zero point is subtracted.
template <int M_BLOCKS, class Narrow, bool FRACTIONS_> struct RowFactors {
  static constexpr f32 REST = 1.0f;
  static constexpr bool POWERS = false;
  static constexpr bool FRACTIONS = FRACTIONS_;  // whether a zero point can have a fraction
  f32 scales[M_BLOCKS][2], zeros[M_BLOCKS][2];
  __device__ __forceinline__ void set(int i, f32 scale, f32 zero) {
    scales[i / 2][i % 2] = scale;
    zeros[i / 2][i % 2] = FRACTIONS ? zero : FLOAT_BASE<Narrow> + zero;
  }
};

// The swizzle of rows of 128 or 64 bytes: the index of a 16-byte piece of row g of 8 is XORed with
// this. The pieces of one index of 8 rows then lie in different banks. PTX ISA, "Tensor Swizzling
// Modes".
template <int ROW_BYTES> __device__ __forceinline__ unsigned swizzle_of_row(unsigned g) {
  static_assert(ROW_BYTES == 128 || ROW_BYTES == 64);
  return ROW_BYTES == 128 ? g : g / 2;
}

// Loads A's fragments for two instructions from a K-major tile of 8-bit integers, of rows of 128 or
// 64 bytes with the swizzle of that size, and converts them to a 16-bit type.
//
// Lane 4 g + q passes rows g and g + 8 at K elements 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 ("Register
// Fragments for wgmma.mma_async.m64nNk16"): two loads of a pair for each row. An instruction's 16 k
// are one 16-byte piece of a row. The swizzle puts this piece of 8 rows to different banks.
template <int M_BLOCKS, class Wide, class Narrow, int ROW_BYTES> struct WidenedFragments {
  static constexpr int GROUPS = ROW_BYTES / 32;  // of a K block: 32 k
  struct Fetched { unsigned short pairs[M_BLOCKS][8]; };
  unsigned address;  // of the lane's first pair
  __device__ __forceinline__ WidenedFragments(unsigned tile) {
    const unsigned warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    address = tile + (warp * 16 + g) * ROW_BYTES + swizzle_of_row<ROW_BYTES>(g) * 16 + q * 2;
  }
  // `offset`: of the stage, in bytes.
  __device__ __forceinline__ void fetch(Fetched& fetched, unsigned offset, int group) const {
#pragma unroll
    for (int i = 0; i < 8 * M_BLOCKS; ++i) {
      const int block = i / 8, instruction = i / 4 % 2, half = i / 2 % 2, row = i % 2;
      const unsigned piece = (address + offset) ^ (2 * group + instruction) * 16;
      fetched.pairs[block][i % 8] =
          load_shared_pair(piece + ((block * 64 + row * 8) * ROW_BYTES + half * 8));
    }
  }
  static __device__ __forceinline__ void convert(unsigned (&a)[M_BLOCKS][8],
                                                 const Fetched& fetched) {
#pragma unroll
    for (int i = 0; i < 8 * M_BLOCKS; ++i)
      a[i / 8][i % 8] = widen_pair<Wide, Narrow>(fetched.pairs[i / 8][i % 8]);
  }
  // Converts both instructions' fragments, or those of one instruction, `part`, if PARTS is 2.
  template <int PARTS, class Factors>
  static __device__ __forceinline__ void convert_scaled(unsigned (&a)[M_BLOCKS][8],
                                                        const Fetched& fetched,
                                                        const Factors& factors, int part) {
#pragma unroll
    for (int i = 0; i < 8 * M_BLOCKS; ++i) {
      if (PARTS > 1 && i / 4 % 2 != part) continue;
      const int block = i / 8, row = i % 2;
      const f32 zero = factors.zeros[block][row];
      a[block][i % 8] = widen_pair_scaled<Wide, Narrow, Factors::FRACTIONS>(
          fetched.pairs[block][i % 8], Factors::FRACTIONS ? FLOAT_BASE<Narrow> : zero, zero,
          factors.scales[block][row]);
    }
  }
};

// The same for codes of 4 bits. An instruction's 32 k of a row are a piece of 16 bytes, of which a
// lane has a word: two pairs for each instruction.
template <int M_BLOCKS, class Wide, class Narrow, int ROW_BYTES> struct CodeFragments {
  static constexpr int GROUPS = ROW_BYTES / 16;  // of a K block: 32 k
  struct Fetched { unsigned words[M_BLOCKS][2]; };
  unsigned address;  // of the lane's first word
  CodeMasks masks;
  __device__ __forceinline__ CodeFragments(unsigned tile) {
    const unsigned warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    address = tile + (warp * 16 + g) * ROW_BYTES + swizzle_of_row<ROW_BYTES>(g) * 16 + q * 4;
  }
  __device__ __forceinline__ void fetch(Fetched& fetched, unsigned offset, int group) const {
#pragma unroll
    for (int i = 0; i < 2 * M_BLOCKS; ++i) {
      unsigned word[1];
      load_shared(word, ((address + offset) ^ group * 16) + (i / 2 * 64 + i % 2 * 8) * ROW_BYTES);
      fetched.words[i / 2][i % 2] = word[0];
    }
  }
  __device__ __forceinline__ void convert(unsigned (&a)[M_BLOCKS][8],
                                          const Fetched& fetched) const {
    convert_with<1>(a, fetched, 0, [](int, int) { return CodeNumbers<Wide, Narrow>(); });
  }
  template <int PARTS, class Factors>
  __device__ __forceinline__ void convert_scaled(unsigned (&a)[M_BLOCKS][8], const Fetched& fetched,
                                                 const Factors& factors, int part) const {
    convert_with<PARTS>(a, fetched, part, [&](int block, int row) -> const auto& {
      return factors.rows[block][row];
    });
  }

 private:
  // `of_row`: what converts the pairs of a row.
  template <int PARTS, class OfRow>
  __device__ __forceinline__ void convert_with(unsigned (&a)[M_BLOCKS][8], const Fetched& fetched,
                                               int part, const OfRow& of_row) const {
#pragma unroll
    for (int block = 0; block < M_BLOCKS; ++block)
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const unsigned word = fetched.words[block][row];
        const auto& numbers = of_row(block, row);
        if (PARTS == 1 || part == 0) {
          a[block][row] = numbers.template pair<0>(word, masks);
          a[block][2 + row] = numbers.template pair<1>(word, masks);
        }
        if (PARTS == 1 || part == 1) {
          a[block][4 + row] = numbers.template pair<2>(word, masks);
          a[block][6 + row] = numbers.template pair<3>(word, masks);
        }
      }
  }
};

// The factors of a lane's rows of codes.
template <int M_BLOCKS, class Factor> struct CodeFactors {
  static constexpr f32 REST = Factor::REST;
  static constexpr bool POWERS = Factor::POWERS;
  Factor rows[M_BLOCKS][2];
  static __device__ __forceinline__ bool is_large(unsigned scales) {
    return Factor::is_large(scales);
  }
  // Multiplies row i of fragments by what a large scale leaves.
  template <class Scale>
  static __device__ __forceinline__ void multiply_rest(unsigned (&a)[M_BLOCKS][8], int i,
                                                       Scale large) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair)
      a[i / 2][2 * pair + i % 2] =
          multiply_pair<bf16>(a[i / 2][2 * pair + i % 2], Factor::rest(large));
  }
};

}  // namespace ptx
