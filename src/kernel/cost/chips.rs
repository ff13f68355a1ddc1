//! Chip facts: the driver's attributes of a device, or this table if there is no device. What
//! kernels reach of them: [`Rates`].

use super::factors::factors;

/// The chip for which kernels are ranked and launched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Compute capability, ten times major plus minor.
    pub cc: u32,
    pub multiprocessors: u32,
    /// The highest clock of the multiprocessors.
    pub clock_hz: f64,
    pub memory_bytes_per_second: f64,
    pub l2_bytes: f64,
    /// Dense 16-bit FLOP per clock of one multiprocessor's tensor cores.
    pub tensor_flop_per_clock: f64,
    /// Dense 16-bit FLOP per clock of one multiprocessor through `mma.sync`: the full rate before
    /// Hopper. Hopper reaches its full rate through `wgmma`, Blackwell through `tcgen05`.
    pub mma_sync_flop_per_clock: f64,
    /// float32 FLOP per clock of one multiprocessor. A multiply-add counts as two.
    pub fma_flop_per_clock: f64,
    /// float64 FLOP per clock of one multiprocessor, by FMA and through `mma.sync`.
    pub float64_fma_flop_per_clock: f64,
    pub float64_mma_flop_per_clock: f64,
    /// Most shared memory of a CTA and of an SM. The hardware reserves 1 KiB for each CTA (CUDA C++
    /// Programming Guide, "Technical Specifications per Compute Capability").
    pub shared_bytes_per_cta: u32,
    pub shared_bytes_per_sm: u32,
}

/// 32-bit registers of an SM, on every chip. A thread has a multiple of 8.
pub const REGISTERS_PER_SM: u32 = 65536;

/// CTAs of at least 128 threads that an SM holds at once (CUDA C++ Programming Guide, "Technical
/// Specifications per Compute Capability"). `registers`: of a thread. `shared_bytes`: of a CTA.
pub fn ctas_per_sm(cc: u32, threads: u32, registers: u32, shared_bytes: u32) -> u32 {
    let threads_per_sm = if matches!(cc, 86 | 87 | 89 | 120..) { 1536 } else { 2048 };
    let by_registers = REGISTERS_PER_SM / (threads * registers.max(1).next_multiple_of(8));
    let by_shared = Target::typical(cc).shared_bytes_per_sm / (shared_bytes + 1024);
    (threads_per_sm / threads).min(by_registers).min(by_shared)
}

/// Facts that all chips of a compute capability share.
struct ArchitectureFacts {
    tensor_flop_per_clock: f64,
    mma_sync_flop_per_clock: f64,
    fma_flop_per_clock: f64,
    float64_fma_flop_per_clock: f64,
    float64_mma_flop_per_clock: f64,
    shared_kib_per_cta: u32,
    shared_kib_per_sm: u32,
}

impl ArchitectureFacts {
    const fn of(cc: u32) -> ArchitectureFacts {
        let (tensor, mma_sync, fma, cta, sm) = match cc {
            80 => (2048.0, 2048.0, 128.0, 163, 164),
            87 => (2048.0, 2048.0, 256.0, 163, 164),
            90 => (4096.0, 2048.0, 256.0, 227, 228),
            100..=119 => (8192.0, 2048.0, 256.0, 227, 228),
            120.. => (1024.0, 1024.0, 256.0, 99, 100),
            _ => (1024.0, 1024.0, 256.0, 99, 100),
        };
        // CUDA C++ Programming Guide, "Arithmetic Instructions", and the whitepapers of A100, H100
        // and B200. Other chips have two float64 units per multiprocessor, on which `mma.sync` is
        // the slower way: half the rate is the model's assumption.
        let (float64_fma, float64_mma) = match cc {
            80 => (64.0, 128.0),
            90 => (128.0, 256.0),
            100 => (128.0, 128.0),
            _ => (4.0, 2.0),
        };
        ArchitectureFacts {
            tensor_flop_per_clock: tensor,
            mma_sync_flop_per_clock: mma_sync,
            fma_flop_per_clock: fma,
            float64_fma_flop_per_clock: float64_fma,
            float64_mma_flop_per_clock: float64_mma,
            shared_kib_per_cta: cta,
            shared_kib_per_sm: sm,
        }
    }
}

/// A row of the table: compute capability, multiprocessors, clock and memory clock in MHz, memory
/// bus in bits, L2 cache in MiB.
const fn chip(
    cc: u32,
    multiprocessors: u32,
    clock_mhz: u32,
    memory_mhz: u32,
    bus_bits: u32,
    l2_mib: u32,
) -> Target {
    let architecture = ArchitectureFacts::of(cc);
    Target {
        cc,
        multiprocessors,
        clock_hz: clock_mhz as f64 * 1e6,
        memory_bytes_per_second: memory_rate(1000 * memory_mhz, bus_bits),
        l2_bytes: (l2_mib << 20) as f64,
        tensor_flop_per_clock: architecture.tensor_flop_per_clock,
        mma_sync_flop_per_clock: architecture.mma_sync_flop_per_clock,
        fma_flop_per_clock: architecture.fma_flop_per_clock,
        float64_fma_flop_per_clock: architecture.float64_fma_flop_per_clock,
        float64_mma_flop_per_clock: architecture.float64_mma_flop_per_clock,
        shared_bytes_per_cta: architecture.shared_kib_per_cta << 10,
        shared_bytes_per_sm: architecture.shared_kib_per_sm << 10,
    }
}

/// Bytes per second of memory with two transfers per clock.
const fn memory_rate(clock_khz: u32, bus_bits: u32) -> f64 {
    2.0 * 1e3 * clock_khz as f64 * bus_bits as f64 / 8.0
}

impl Target {
    // The table holds attributes as the driver reports them.
    /// A100 SXM, 80 GB.
    pub const A100: Target = chip(80, 108, 1410, 1593, 5120, 40);
    pub const L40S: Target = chip(89, 142, 2520, 9001, 384, 96);
    /// H100 SXM.
    pub const H100: Target = chip(90, 132, 1980, 2619, 5120, 50);
    pub const H200: Target = chip(90, 132, 1980, 3201, 6016, 60);
    const RTX_A6000: Target = chip(86, 84, 1800, 8001, 384, 6);
    const ORIN: Target = chip(87, 16, 1300, 3200, 256, 4);
    const B200: Target = chip(100, 148, 1965, 3996, 8192, 126);
    const THOR: Target = chip(110, 20, 1575, 4266, 256, 32);
    const RTX_5090: Target = chip(120, 170, 2407, 14001, 512, 96);

    /// The chip assumed for a compute capability if there is no device.
    pub fn typical(cc: u32) -> Target {
        let chip = match cc {
            86 => Target::RTX_A6000,
            87 => Target::ORIN,
            89 => Target::L40S,
            #[cfg(feature = "fit")]
            90 => *super::factors::fit::chip(),
            #[cfg(not(feature = "fit"))]
            90 => Target::H100,
            100..=109 => Target::B200,
            110..=119 => Target::THOR,
            120.. => Target::RTX_5090,
            _ => Target::A100,
        };
        Target { cc, ..chip }
    }

    /// The chip facts of a device: the driver's attributes and the facts of its compute capability.
    /// The typical chip replaces attributes that the driver reports as 0.
    pub fn of_device(cc: u32, facts: &DeviceFacts) -> Target {
        let typical = Target::typical(cc);
        let reported = |value: f64, otherwise: f64| if value > 0.0 { value } else { otherwise };
        let memory = memory_rate(facts.memory_clock_khz, facts.memory_bus_bits);
        let shared = |value: u32, otherwise: u32| if value > 0 { value } else { otherwise };
        Target {
            cc,
            multiprocessors: facts.multiprocessors,
            clock_hz: reported(1e3 * f64::from(facts.clock_khz), typical.clock_hz),
            memory_bytes_per_second: reported(memory, typical.memory_bytes_per_second),
            l2_bytes: reported(f64::from(facts.l2_bytes), typical.l2_bytes),
            shared_bytes_per_cta: shared(facts.shared_bytes_per_cta, typical.shared_bytes_per_cta),
            shared_bytes_per_sm: shared(facts.shared_bytes_per_sm, typical.shared_bytes_per_sm),
            ..typical
        }
    }

    /// Dense 16-bit FLOP per second of one multiprocessor's tensor cores.
    pub fn tensor_rate(&self) -> f64 {
        self.tensor_flop_per_clock * self.clock_hz
    }

    /// As [`Target::tensor_rate`], through `mma.sync`.
    pub fn mma_sync_rate(&self) -> f64 {
        self.mma_sync_flop_per_clock * self.clock_hz
    }

    /// float32 FLOP per second of one multiprocessor.
    pub fn fma_rate(&self) -> f64 {
        self.fma_flop_per_clock * self.clock_hz
    }

    /// float64 FLOP per second of one multiprocessor.
    pub fn float64_fma_rate(&self) -> f64 {
        self.float64_fma_flop_per_clock * self.clock_hz
    }

    /// Clusters of 1 to 8 CTAs, one CTA to a multiprocessor, that run at once. A cluster lies
    /// within a GPC, whose multiprocessors need not be a multiple of the cluster's.
    pub fn active_clusters(&self, size: u32) -> u32 {
        match self.cc {
            90 => hopper::active_clusters(size, self.multiprocessors),
            // Assumed, not measured: GPCs of 16 multiprocessors, as Hopper's.
            _ => (self.multiprocessors * (hopper::SMS_PER_GPC / size) / hopper::SMS_PER_GPC).max(1),
        }
    }
}

factors! {
    /// Seconds from the end of a grid to the start of one that does not overlap it.
    fitted_launch = 0.75e-6;
    /// The share of the tensor cores' highest rate that `wgmma` reaches on 16-bit elements, and of
    /// theirs that `mma.sync` reaches. Power limits the clock.
    fitted_tensor_share = 0.678;
    fitted_mma_sync_share = 0.592;
    /// Bytes per clock that the L2 cache delivers to one multiprocessor while all load, and to the
    /// whole chip if it is an H100.
    fitted_l2_bytes_per_clock = 42.0;
    fitted_l2_bytes_per_clock_of_chip = 11400.0;
}

/// What kernels reach of a chip: the terms that all cost models share. Fitted on an H100, and
/// expected of other chips in proportion to their attributes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Seconds from the end of a grid to the start of one that does not overlap it.
    pub launch: f64,
    /// 16-bit FLOP per second of one multiprocessor, by `wgmma` and by `mma.sync`.
    pub tensor: f64,
    pub mma_sync: f64,
    /// FLOP per second of one multiprocessor's FMA, in float32 and in float64.
    pub fma: f64,
    pub float64_fma: f64,
    /// Bytes per second of device memory.
    pub memory: f64,
    /// Bytes per second of the L2 cache, to one multiprocessor and to all.
    pub l2: f64,
    pub l2_of_chip: f64,
    /// The clock over that of an H100.
    pub clock: f64,
}

impl Rates {
    pub fn of(target: &Target) -> Rates {
        let fitted_on = Target::H100;
        Rates {
            launch: fitted_launch(),
            tensor: target.tensor_rate() * fitted_tensor_share(),
            mma_sync: target.mma_sync_rate() * fitted_mma_sync_share(),
            fma: target.fma_rate(),
            float64_fma: target.float64_fma_rate(),
            memory: target.memory_bytes_per_second,
            l2: target.clock_hz * fitted_l2_bytes_per_clock(),
            l2_of_chip: target.clock_hz * fitted_l2_bytes_per_clock_of_chip(),
            clock: target.clock_hz / fitted_on.clock_hz,
        }
    }
}

/// Attributes of a device, as the driver reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceFacts {
    pub multiprocessors: u32,
    pub clock_khz: u32,
    pub memory_clock_khz: u32,
    pub memory_bus_bits: u32,
    pub l2_bytes: u32,
    pub shared_bytes_per_cta: u32,
    pub shared_bytes_per_sm: u32,
}

/// Most shared memory of a CTA, in bytes, on chips of a compute capability.
pub fn max_shared_bytes_per_cta(cc: u32) -> u32 {
    ArchitectureFacts::of(cc).shared_kib_per_cta << 10
}

/// Shared memory in bytes that a CTA can have on every supported chip.
pub fn min_shared_bytes_per_cta() -> u32 {
    max_shared_bytes_per_cta(86)
}

/// How the multiprocessors of a Hopper chip form GPCs. The driver does not report this; it varies
/// with the chip's yield.
pub mod hopper {
    /// Multiprocessors of most GPCs.
    pub const SMS_PER_GPC: u32 = 16;
    /// Clusters of 1 to 8 CTAs, one CTA to a multiprocessor, that run at once on an H100
    /// (`cuOccupancyMaxActiveClusters`).
    const ACTIVE_CLUSTERS: [u32; 9] = [0, 132, 66, 39, 30, 22, 17, 15, 15];

    /// Clusters of a size that run at once. `slots`: CTAs of size 1 that run at once.
    pub fn active_clusters(size: u32, slots: u32) -> u32 {
        (slots * ACTIVE_CLUSTERS[size.min(8) as usize] / ACTIVE_CLUSTERS[1]).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_its_own_memory_bandwidth() {
        let facts = DeviceFacts {
            multiprocessors: 132,
            clock_khz: 1_980_000,
            memory_clock_khz: 2_619_000,
            memory_bus_bits: 5120,
            l2_bytes: 50 << 20,
            shared_bytes_per_cta: 227 << 10,
            shared_bytes_per_sm: 228 << 10,
        };
        assert_eq!(Target::of_device(90, &facts), Target::H100);
        let h200 = DeviceFacts {
            memory_clock_khz: 3_201_000,
            memory_bus_bits: 6016,
            l2_bytes: 60 << 20,
            ..facts
        };
        assert_eq!(Target::of_device(90, &h200), Target::H200);
    }

    #[test]
    fn missing_attributes_are_those_of_a_typical_chip() {
        let facts = DeviceFacts { multiprocessors: 114, ..DeviceFacts::default() };
        let target = Target::of_device(90, &facts);
        assert_eq!(target, Target { multiprocessors: 114, ..Target::H100 });
    }
}
