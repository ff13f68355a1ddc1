//! Recorded launches on sets of copies, and the stream that times them.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::driver::{Device, DriverError, Recording, Stream};

/// The bytes of all sets over those of the L2 cache.
const L2_CACHES: f64 = 2.2;
/// Most sets: small problems launch so often that L2 matters less than the launch.
const MOST_SETS: u64 = 100;

/// How many sets of copies exceed the L2 cache. `bytes`: of one set.
pub fn sets(device: &Device, bytes: u64) -> u64 {
    let wanted = (L2_CACHES * f64::from(device.attributes.l2_bytes) / bytes.max(1) as f64).ceil();
    (wanted as u64).clamp(2, MOST_SETS)
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
    /// `launches`: how many are recorded. `memory`: what they use.
    pub fn new(
        recording: Recording,
        stream: &TimingStream,
        launches: usize,
        memory: Box<dyn Any + Send + Sync>,
    ) -> TimedKernel {
        let (recording, stream) = (Mutex::new(recording), stream.clone());
        TimedKernel { recording, stream, launches, _memory: memory }
    }

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
