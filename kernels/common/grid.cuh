// What kernels that follow each other, and CTAs of one cluster, say to each other: one function an instruction, named by the
// section of the PTX ISA that defines it. sm_90 brought them; before it the two that order kernels do nothing, since no kernel
// starts early.
#pragma once
#include "common/ptx.cuh"

namespace ptx {

// "Control Flow Instructions: griddepcontrol". The kernel before this one on the stream may still run; beyond the wait, all it
// wrote is visible.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel's CTAs start where there is room, once every CTA of this one has said so or ended.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
// "Membar / Fence: fence.proxy": what this thread wrote to shared memory is visible to wgmma afterwards.
__device__ __forceinline__ void fence_for_async_reads() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// "Parallel Synchronization and Communication Instructions: barrier.cluster", in two halves: what any thread of the cluster wrote
// before it arrived is visible after the wait.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// "Data Movement and Conversion Instructions: mapa": the address in CTA `rank` of the cluster of what is at `shared` here.
__device__ __forceinline__ unsigned address_in(unsigned rank, unsigned shared) {
  unsigned result;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(shared), "r"(rank));
  return result;
}

// "st", to the shared memory of any CTA of the cluster.
__device__ __forceinline__ void store_cluster(unsigned address, const f32 (&values)[4]) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(values[0]), "f"(values[1]),
               "f"(values[2]), "f"(values[3]) : "memory");
}
#endif

}  // namespace ptx
