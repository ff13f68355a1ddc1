// mbarriers: barriers in shared memory that count arrivals and bytes. PTX ISA, "Parallel
// Synchronization and Communication Instructions: mbarrier". The phases of an mbarrier alternate
// between phase bits 0 and 1; waiting for a phase bit returns once that phase is complete.
#pragma once

namespace ptx {

// "mbarrier.init"
__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// "Membar / Fence: fence.mbarrier_init": initialized mbarriers are visible to the other CTAs of the
// cluster and to TMA.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// "mbarrier.arrive"
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the mbarrier of the same address in CTA `cta` of the cluster.
__device__ __forceinline__ void barrier_arrive(unsigned barrier, unsigned cta) {
  asm volatile(
      "{ .reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(barrier),
      "r"(cta)
      : "memory");
}

// "mbarrier.arrive.expect_tx": arrives; the phase also waits for that many bytes.
__device__ __forceinline__ void barrier_arrive_expect_tx(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// "mbarrier.complete_tx": counts bytes at the mbarrier of the same address in CTA `cta` of the
// cluster, as if a copy had delivered them.
template <int BYTES>
__device__ __forceinline__ void barrier_complete_tx(unsigned barrier, unsigned cta) {
  asm volatile(
      "{ .reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [remote], %2; }" ::"r"(barrier),
      "r"(cta), "n"(BYTES)
      : "memory");
}

// "cp.async.mbarrier.arrive": arrives once all cp.async copies that this thread has issued so far
// are complete.
__device__ __forceinline__ void barrier_arrive_after_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// "mbarrier.try_wait": waits for the phase with this phase bit. Bytes that TMA delivered in that
// phase are visible afterwards.
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned phase) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

// The same, for data that other CTAs of the cluster stored.
__device__ __forceinline__ void barrier_wait_cluster(unsigned barrier, unsigned phase) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

}  // namespace ptx

// A pipeline slot: a stage, and the phase bit of its barriers, which flips at each wrap-around.
template <int STAGES> struct PipelineSlot {
  unsigned stage = 0, phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  __device__ __forceinline__ void skip(unsigned count) {
    stage += count;
    phase ^= stage / STAGES & 1;
    stage %= STAGES;
  }
};
