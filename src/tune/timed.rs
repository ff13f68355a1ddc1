//! Recorded launches on sets of copies, and the stream that times them.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::driver::{Device, DriverError, Recording, Stream};

/// The bytes of all sets over those of the L2 cache.
const L2_CACHES: f64 = 2.2;
/// Most sets: small problems launch so often that L2 matters less than the launch.
const MOST_SETS: u64 = 100;

/// Sets of copies that together exceed the L2 cache, or as many as the device has memory for.
/// `bytes`: of one set. `copy` makes a set.
pub fn sets<T>(
    device: &Device,
    bytes: u64,
    first: T,
    copy: impl Fn() -> Result<T, DriverError>,
) -> Result<Vec<T>, DriverError> {
    let wanted = (L2_CACHES * f64::from(device.attributes.l2_bytes) / bytes.max(1) as f64).ceil();
    let mut sets = vec![first];
    for _ in 1..(wanted as u64).clamp(2, MOST_SETS) {
        match copy() {
            Ok(more) => sets.push(more),
            Err(error) if error.means_no_memory() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sets)
}

/// A stream that one thread at a time captures, launches or times on.
#[derive(Clone)]
pub struct TimingStream(Arc<Mutex<Stream>>);

impl TimingStream {
    pub fn new(stream: Stream) -> TimingStream {
        TimingStream(Arc::new(Mutex::new(stream)))
    }

    pub fn lock(&self) -> MutexGuard<'_, Stream> {
        lock(&self.0)
    }

    /// Enqueues launches once, and records them. `enqueue`: enqueues `launches` launches on a
    /// stream. `memory`: what they use.
    pub fn record(
        &self,
        enqueue: impl Fn(u64) -> Result<(), DriverError>,
        launches: usize,
        memory: Box<dyn Any + Send + Sync>,
    ) -> Result<TimedKernel, DriverError> {
        let stream = self.lock();
        // A kernel that fails fails here, not in a graph.
        enqueue(stream.handle())?;
        stream.synchronize()?;
        let recording = Mutex::new(Recording::of(&stream, || enqueue(stream.handle()))?);
        Ok(TimedKernel { recording, stream: self.clone(), launches, _memory: memory })
    }
}

/// The launches of one kernel on every set of copies, in a CUDA graph.
pub struct TimedKernel {
    recording: Mutex<Recording>,
    stream: TimingStream,
    launches: usize,
    /// The copies and the workspace that the recorded launches use.
    _memory: Box<dyn Any + Send + Sync>,
}

impl TimedKernel {
    /// Seconds of one launch: the mean of this many replays on all sets.
    ///
    /// # Errors
    /// If a launch fails.
    pub fn turn(&self, replays: u32) -> Result<f64, DriverError> {
        let replays = replays.max(1);
        let (recording, stream) = (lock(&self.recording), self.stream.lock());
        // SAFETY: `self` holds the memory of the recorded launches.
        let seconds = unsafe { recording.seconds(&stream, replays)? };
        Ok(seconds / (f64::from(replays) * self.launches.max(1) as f64))
    }

    /// Launches of one replay.
    pub fn launches(&self) -> usize {
        self.launches
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
