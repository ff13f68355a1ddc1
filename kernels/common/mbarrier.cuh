// Barriers in shared memory that count arrivals and bytes. PTX ISA, "Parallel Synchronization and Communication Instructions:
// mbarrier". A barrier's phases alternate between parity 0 and 1; waiting for a parity returns once that phase is complete.
#pragma once

namespace ptx {

__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialized barriers visible to the other CTAs of the cluster and to the copy engine.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the barrier that lies at the same place in the shared memory of another CTA of the cluster.
__device__ __forceinline__ void barrier_arrive(unsigned barrier, unsigned cta) {
  asm volatile(
      "{ .reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(barrier),
      "r"(cta)
      : "memory");
}

// Arrives, and makes the phase wait for so many bytes besides.
__device__ __forceinline__ void barrier_arrive_expecting(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Counts bytes toward the phase of the barrier at the same place in a CTA of the cluster, as if a copy had brought them
// ("mbarrier.complete_tx").
template <int BYTES>
__device__ __forceinline__ void barrier_count_bytes(unsigned barrier, unsigned cta) {
  asm volatile(
      "{ .reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [remote], %2; }" ::"r"(barrier),
      "r"(cta), "n"(BYTES)
      : "memory");
}

// Arrives once the thread's own copies by cp.async that it has started so far are complete ("cp.async.mbarrier.arrive").
__device__ __forceinline__ void barrier_arrive_behind_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Bytes that the copy engine counted toward the phase are visible afterwards.
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// The same for what other CTAs of the cluster stored.
__device__ __forceinline__ void barrier_wait_cluster(unsigned barrier, unsigned parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace ptx
