//! The chip facts of a device.

use crate::driver::Device;
use crate::kernel::{DeviceFacts, Target};

impl From<&Device> for Target {
    fn from(device: &Device) -> Target {
        let attributes = &device.attributes;
        let facts = DeviceFacts {
            multiprocessors: device.multiprocessors,
            clock_khz: attributes.clock_khz,
            memory_clock_khz: attributes.memory_clock_khz,
            memory_bus_bits: attributes.memory_bus_bits,
            l2_bytes: attributes.l2_bytes,
            shared_bytes_per_cta: attributes.shared_bytes_per_cta,
            shared_bytes_per_sm: attributes.shared_bytes_per_sm,
        };
        Target::of_device(device.cc, &facts)
    }
}
