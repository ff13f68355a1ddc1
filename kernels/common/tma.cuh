// TMA: copies boxes of a tensor, which a tensor map describes, between global and shared memory.
// PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk.tensor". Elements outside the
// tensor read as zero and are not written. The host encodes the tensor maps.
#pragma once
#include "common/ptx.cuh"

struct alignas(64) TensorMap { unsigned char opaque[128]; };  // CUtensorMap
static_assert(sizeof(TensorMap) == 128);
#define RUTLASS_HAS_TENSOR_MAP true  // the name is not a user's (src/compile/signature.rs)

namespace ptx {

// "prefetch.tensormap"
__device__ __forceinline__ void prefetch_tensor_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// "createpolicy": the L2 policy for data that is read once. L2 evicts it before other data.
__device__ __forceinline__ unsigned long long evict_first() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

// Loads the box whose first element has these coordinates, contiguous dimension first. Its bytes
// count at the mbarrier (complete_tx).
template <bool EVICT_FIRST = false>
__device__ __forceinline__ void tma_load(unsigned shared, const TensorMap* map, unsigned barrier,
                                         int x, int y, int z) {
#define RUTLASS_TMA_LOAD \
  "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
#define RUTLASS_BOX "r"(shared), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
  if constexpr (EVICT_FIRST)
    asm volatile(RUTLASS_TMA_LOAD
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::RUTLASS_BOX,
                 "l"(evict_first())
                 : "memory");
  else
    asm volatile(RUTLASS_TMA_LOAD " [%0], [%1, {%3, %4, %5}], [%2];" ::RUTLASS_BOX : "memory");
}

// "cp.async.bulk.prefetch.tensor": fetches the box into L2. Not a read (see prefetch_to_l2).
__device__ __forceinline__ void tma_prefetch(const TensorMap* map, int x, int y, int z) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map),
               "r"(x), "r"(y), "r"(z)
               : "memory");
}

// Multicast: loads the box to the same shared address in every CTA of the cluster whose bit in
// `ctas` is set. The bytes count at the mbarrier of the same address in each of those CTAs.
template <bool EVICT_FIRST = false>
__device__ __forceinline__ void tma_load(unsigned shared, const TensorMap* map, unsigned barrier,
                                         int x, int y, int z, unsigned short ctas) {
  if constexpr (EVICT_FIRST)
    asm volatile(
        RUTLASS_TMA_LOAD
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::RUTLASS_BOX,
        "h"(ctas), "l"(evict_first())
        : "memory");
  else
    asm volatile(RUTLASS_TMA_LOAD
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::RUTLASS_BOX,
                 "h"(ctas)
                 : "memory");
#undef RUTLASS_BOX
#undef RUTLASS_TMA_LOAD
}

// The same for a tensor map of two dimensions, without and with multicast.
#define RUTLASS_TMA_LOAD_2D \
  "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
__device__ __forceinline__ void tma_load_2d(unsigned shared, const TensorMap* map, unsigned barrier,
                                            int x, int y) {
  asm volatile(RUTLASS_TMA_LOAD_2D " [%0], [%1, {%3, %4}], [%2];" ::"r"(shared), "l"(map),
               "r"(barrier), "r"(x), "r"(y)
               : "memory");
}
__device__ __forceinline__ void tma_load_2d(unsigned shared, const TensorMap* map, unsigned barrier,
                                            int x, int y, unsigned short ctas) {
  asm volatile(RUTLASS_TMA_LOAD_2D
               ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared),
               "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(ctas)
               : "memory");
}
#undef RUTLASS_TMA_LOAD_2D

// The same for two K-major matrices in one tensor map of five dimensions: along K, 8 rows, the
// matrices, blocks of 8 rows, batch. The box begins at a block.
template <bool MULTICAST>
__device__ __forceinline__ void tma_load_dual(unsigned shared, const TensorMap* map,
                                              unsigned barrier, int k, int block, int batch,
                                              unsigned short ctas) {
#define RUTLASS_TMA_LOAD_DUAL \
  "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
  if constexpr (MULTICAST)
    asm volatile(RUTLASS_TMA_LOAD_DUAL
                 ".multicast::cluster [%0], [%1, {%3, %6, %6, %4, %5}], [%2], %7;" ::"r"(shared),
                 "l"(map), "r"(barrier), "r"(k), "r"(block), "r"(batch), "r"(0), "h"(ctas)
                 : "memory");
  else
    asm volatile(RUTLASS_TMA_LOAD_DUAL " [%0], [%1, {%3, %6, %6, %4, %5}], [%2];" ::"r"(shared),
                 "l"(map), "r"(barrier), "r"(k), "r"(block), "r"(batch), "r"(0)
                 : "memory");
#undef RUTLASS_TMA_LOAD_DUAL
}

__device__ __forceinline__ void tma_store(const TensorMap* map, unsigned shared, int x, int y,
                                          int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
          map),
      "r"(shared), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// "cp.async.bulk.commit_group": the stores since the last call form one group.
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// "cp.async.bulk.wait_group.read": waits until at most PENDING of this thread's most recent groups
// still have to read shared memory.
template <int PENDING> __device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// "Membar / Fence: fence.proxy.async": this thread's writes to shared memory are visible to the
// async proxy afterwards, that is to TMA and wgmma.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace ptx
