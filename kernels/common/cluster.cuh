// Thread block clusters, programmatic dependent launch, and other synchronization of sm_90. Before
// sm_90, the two functions for dependent launches do nothing and the others must not be called.
#pragma once
#include "common/types.cuh"

namespace ptx {

// ---- clusters --------------------------------------------------------------------------------

// PTX ISA, "Special Registers: %cluster_ctarank".
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// PTX ISA, "Parallel Synchronization and Communication Instructions: barrier.cluster". Execution
// barrier for all threads of the cluster. The relaxed arrival publishes no writes: a release at
// cluster scope would wait for all outstanding global writes. Initialized mbarriers are published
// by their own fence (barrier_init_fence).
__device__ __forceinline__ void cluster_sync_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Arrive and wait as separate steps, for converged warps. Writes to shared memory before the
// arrival are visible to the whole cluster after the wait.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- distributed shared memory ---------------------------------------------------------------

// PTX ISA, "Data Movement and Conversion Instructions: mapa". The address, in the shared::cluster
// window, of `shared` in CTA `cta` of the cluster.
__device__ __forceinline__ unsigned map_shared(unsigned shared, unsigned cta) {
  unsigned mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(shared), "r"(cta));
  return mapped;
}

// PTX ISA, "Data Movement and Conversion Instructions: st".
__device__ __forceinline__ void store_cluster(unsigned mapped, const f32 (&values)[4]) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(mapped), "f"(values[0]),
               "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
}

// PTX ISA, "Data Movement and Conversion Instructions: ld".
__device__ __forceinline__ void load_cluster(unsigned (&words)[4], unsigned mapped) {
  asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(mapped)
               : "memory");
}

// PTX ISA, "Data Movement and Conversion Instructions: st.async". Like store_cluster; the 16 bytes
// count as completed transactions (complete_tx) at an mbarrier of the destination CTA.
__device__ __forceinline__ void store_async(unsigned mapped, const unsigned (&words)[4],
                                            unsigned mapped_barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(mapped),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(mapped_barrier)
      : "memory");
}

// ---- named barriers --------------------------------------------------------------------------

// PTX ISA, "Parallel Synchronization and Communication Instructions: barrier". A CTA has named
// barriers 0 to 15; 0 is __syncthreads(). THREADS counts the threads that sync or only arrive.
template <int THREADS> __device__ __forceinline__ void named_barrier_sync(int name) {
  asm volatile("barrier.sync %0, %1;" ::"r"(name), "n"(THREADS) : "memory");
}
template <int THREADS> __device__ __forceinline__ void named_barrier_arrive(int name) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(name), "n"(THREADS) : "memory");
}

// ---- registers per thread --------------------------------------------------------------------

// PTX ISA, "Miscellaneous Instructions: setmaxnreg". All warps of a warpgroup execute it.
template <int REGISTERS> __device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// ---- programmatic dependent launch -----------------------------------------------------------

// PTX ISA, "Control Flow Instructions: griddepcontrol". If the launch attributes let this grid
// start early: waits until the preceding grids on the stream are complete and their writes are
// visible.
__device__ __forceinline__ void wait_for_prior_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Allows the next grid to start as soon as multiprocessors have resources for its CTAs.
__device__ __forceinline__ void launch_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace ptx
