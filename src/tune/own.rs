//! Timing of a user's kernel on copies of its tensors.

use std::sync::Arc;

use super::operands::Copies;
use super::timed::{TimedKernel, TimingStream, sets};
use crate::driver::{Device, DeviceMemory, DriverError, Stream};

/// Sets of copies of tensors, together larger than the L2 cache.
pub struct OwnBenchmark {
    device: &'static Device,
    stream: TimingStream,
    sets: Vec<Copies<DeviceMemory>>,
}

impl OwnBenchmark {
    /// Copies tensors, by their address ranges. The tensors are read and not written.
    ///
    /// # Errors
    /// If the device lacks memory for a copy of them, or during a stream capture.
    pub fn new(
        device: &'static Device,
        ranges: &[(u64, u64)],
    ) -> Result<OwnBenchmark, DriverError> {
        let bytes = ranges.iter().map(|(begin, end)| end - begin).sum();
        // The tensors may still be computed on other streams.
        device.synchronize_all()?;
        let stream = Stream::new(device)?;
        let copy = || Copies::on_device(&stream, device, ranges.iter().copied());
        let sets = sets(device, bytes, copy()?, copy)?;
        stream.synchronize()?;
        let stream = TimingStream::new(stream);
        Ok(OwnBenchmark { device, stream, sets })
    }

    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// How many sets of copies there are.
    pub fn sets(&self) -> usize {
        self.sets.len()
    }

    /// The address in a set's copy of the tensor with this address range.
    pub fn address(&self, set: usize, range: (u64, u64), address: u64) -> u64 {
        self.sets.get(set).map_or(address, |copies| copies.address(range, address))
    }

    /// Launches once on every set, and records the launches. `launch`: enqueues the launch on one
    /// set's copies, on a stream.
    ///
    /// # Errors
    /// If a launch fails.
    pub fn record(
        self: &Arc<OwnBenchmark>,
        launch: impl Fn(usize, u64) -> Result<(), DriverError>,
    ) -> Result<TimedKernel, DriverError> {
        let enqueue = |stream| (0..self.sets()).try_for_each(|set| launch(set, stream));
        self.stream.record(enqueue, self.sets(), Box::new(self.clone()))
    }
}
