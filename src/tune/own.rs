//! Timing of a user's kernel on copies of its tensors.

use std::sync::Arc;

use super::timed::{TimedKernel, TimingStream, sets};
use crate::driver::{Device, DriverError, Memory, Recording, Stream};

/// Addresses of copies agree with the originals' modulo this: a line of the L2 cache.
const LINE_BYTES: u64 = 128;

/// Sets of copies of tensors, together larger than the L2 cache.
pub struct OwnBenchmark {
    device: &'static Device,
    stream: TimingStream,
    sets: Vec<Copies>,
}

/// A copy of each tensor.
struct Copies(Vec<Copy>);

struct Copy {
    /// The tensor's address range.
    from: (u64, u64),
    to: u64,
    _memory: Memory,
}

impl Copies {
    fn make(stream: &Stream, ranges: &[(u64, u64)]) -> Result<Copies, DriverError> {
        let mut copies: Vec<Copy> = Vec::new();
        for from @ (begin, end) in ranges.iter().copied().filter(|(begin, end)| begin < end) {
            // Tensors of one address range are one tensor.
            if copies.iter().any(|copy| copy.from == from) {
                continue;
            }
            let device = stream.device();
            let memory = Memory::allocate(device, end - begin + LINE_BYTES)?;
            let to = memory.address() + begin % LINE_BYTES;
            // SAFETY: the caller holds the tensors; the new memory has their bytes.
            unsafe { stream.copy(to, device, begin, end - begin)? };
            copies.push(Copy { from, to, _memory: memory });
        }
        Ok(Copies(copies))
    }

    fn address(&self, range: (u64, u64), address: u64) -> u64 {
        let copy = self.0.iter().find(|copy| copy.from == range);
        copy.map_or(address, |copy| copy.to + (address - range.0))
    }
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
        let mut copies = vec![Copies::make(&stream, ranges)?];
        for _ in 1..sets(device, bytes) {
            match Copies::make(&stream, ranges) {
                Ok(more) => copies.push(more),
                // Continue with the sets that fit.
                Err(error) if error.means_no_memory() => break,
                Err(error) => return Err(error),
            }
        }
        stream.synchronize()?;
        Ok(OwnBenchmark { device, stream: TimingStream::new(stream), sets: copies })
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
        let stream = self.stream.lock();
        let enqueue = || (0..self.sets()).try_for_each(|set| launch(set, stream.handle()));
        // A kernel that fails fails here, not in a graph.
        enqueue()?;
        stream.synchronize()?;
        let recording = Recording::of(&stream, enqueue)?;
        drop(stream);
        Ok(TimedKernel::new(recording, &self.stream, self.sets(), Box::new(self.clone())))
    }
}
