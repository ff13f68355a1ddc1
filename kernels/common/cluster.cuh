// What CTAs of one cluster, and grids that follow each other, say to each other. sm_90 brought both; before it, the two that order
// grids do nothing, since none starts early, and the others must not be called.
#pragma once
#include "common/types.cuh"

namespace ptx {

// "Special Registers: %cluster_ctarank"
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// "Parallel Synchronization and Communication Instructions: barrier.cluster". All threads of all CTAs of the cluster meet. Nothing that
// they wrote before is made visible by that (barriers are by their own fence): to release it is to wait for the whole device, 0.6 us.
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// In two halves, for warps whose threads are together; other work goes between. What any of them wrote to shared memory before is
// visible to all of them afterwards.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// "Data Movement and Conversion Instructions: mapa": where a shared address lies in another CTA of the cluster.
__device__ __forceinline__ unsigned map_shared(unsigned shared, unsigned cta) {
  unsigned mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(shared), "r"(cta));
  return mapped;
}

__device__ __forceinline__ void store_cluster(unsigned mapped, const f32 (&values)[4]) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(mapped), "f"(values[0]),
               "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
}

// "Data Movement and Conversion Instructions: st.async": as store_cluster, and the 16 bytes count toward a barrier of the same CTA, at
// which they are waited for.
__device__ __forceinline__ void store_async(unsigned mapped, const f32 (&values)[4],
                                            unsigned mapped_barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(mapped),
      "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(mapped_barrier)
      : "memory");
}

// "Parallel Synchronization and Communication Instructions: barrier": one of the CTA's 15 numbered barriers, for THREADS threads, of
// which some may only arrive and go on.
template <int THREADS> __device__ __forceinline__ void numbered_barrier_sync(int number) {
  asm volatile("barrier.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}
template <int THREADS> __device__ __forceinline__ void numbered_barrier_arrive(int number) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

// "Miscellaneous Instructions: setmaxnreg": a warpgroup hands registers back, or takes them.
template <int REGISTERS> __device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// "Control Flow Instructions: griddepcontrol". If the launch allowed it to start early: waits until the grids before this one on
// the stream are complete and what they wrote is visible.
__device__ __forceinline__ void wait_for_grids_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next grid start as soon as there is room for it.
__device__ __forceinline__ void let_next_grid_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace ptx
