// The copy engine: boxes of a tensor, described by a tensor map that the host encodes, to and from shared memory. PTX ISA, "Data
// Movement and Conversion Instructions: cp.async.bulk.tensor". What lies outside the tensor reads as zero and is not written.
#pragma once
#include "common/ptx.cuh"

struct alignas(64) TensorMap { unsigned char opaque[128]; };  // CUtensorMap

namespace ptx {

__device__ __forceinline__ void prefetch_tensor_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// "createpolicy": for what is read once. The L2 cache drops it before what was there.
__device__ __forceinline__ unsigned long long evict_first() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

// Reads the box whose first element has the given coordinates (fastest first); its bytes count toward the barrier.
template <bool EVICT_FIRST = false>
__device__ __forceinline__ void load_box(unsigned shared, const TensorMap* map, unsigned barrier,
                                         int x, int y, int z) {
#define RUTLASS_LOAD_BOX \
  "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
#define RUTLASS_BOX "r"(shared), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
  if constexpr (EVICT_FIRST)
    asm volatile(RUTLASS_LOAD_BOX
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::RUTLASS_BOX,
                 "l"(evict_first())
                 : "memory");
  else
    asm volatile(RUTLASS_LOAD_BOX " [%0], [%1, {%3, %4, %5}], [%2];" ::RUTLASS_BOX : "memory");
}

// The same into every CTA of the cluster that `ctas` has a bit for, at the same place, each CTA's own barrier counting.
template <bool EVICT_FIRST = false>
__device__ __forceinline__ void load_box(unsigned shared, const TensorMap* map, unsigned barrier,
                                         int x, int y, int z, unsigned short ctas) {
  if constexpr (EVICT_FIRST)
    asm volatile(
        RUTLASS_LOAD_BOX
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::RUTLASS_BOX,
        "h"(ctas), "l"(evict_first())
        : "memory");
  else
    asm volatile(RUTLASS_LOAD_BOX
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::RUTLASS_BOX,
                 "h"(ctas)
                 : "memory");
#undef RUTLASS_BOX
#undef RUTLASS_LOAD_BOX
}

__device__ __forceinline__ void store_box(const TensorMap* map, unsigned shared, int x, int y,
                                          int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
          map),
      "r"(shared), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// The stores since the last call become one group.
__device__ __forceinline__ void store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most PENDING of this thread's latest groups still have to read shared memory.
template <int PENDING> __device__ __forceinline__ void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// "Membar / Fence: fence.proxy": what this thread wrote to shared memory is visible to the copy engine afterwards.
__device__ __forceinline__ void fence_for_copy_engine() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace ptx
