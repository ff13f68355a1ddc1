//! Timing of kernels on one problem: several sets of operands, together larger than the L2 cache,
//! and a recording of launches for each kernel.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::compile::Program;
use crate::driver::{Device, DriverError, Memory, Recording, Stream};
use crate::epilogue::{BoundEpilogue, Epilogue};
use crate::kernel;
use crate::launch::{LaunchError, LaunchPlan, check, check_architecture, device_of};
use crate::operand::View;
use crate::problem::Problem;

/// The operands' bytes of all sets over those of the L2 cache.
const L2_CACHES: f64 = 2.2;
/// Most sets of operands: small problems launch so often that L2 matters less than the launch.
const MOST_SETS: u64 = 100;
/// Addresses of copies agree with the originals' modulo this: a line of the L2 cache.
const LINE_BYTES: u64 = 128;

/// Copies of a problem's operands, and the stream that launches on them.
pub struct Benchmark {
    device: &'static Device,
    /// Locked while a thread captures or times launches.
    stream: Mutex<Stream>,
    sets: Vec<Operands>,
    problem: Problem,
    epilogue: Option<&'static Epilogue>,
}

/// One set of operands. The memory is freed with the set.
struct Operands {
    problem: Problem,
    epilogue: Option<BoundEpilogue>,
    _memory: Vec<Memory>,
}

/// The launches of one kernel on every set of operands, in a CUDA graph.
pub struct TimedKernel {
    recording: Mutex<Recording>,
    launches: usize,
    /// Its operands are those of the recorded launches.
    benchmark: Arc<Benchmark>,
    /// The workspace that the recorded launches use.
    _workspace: Option<Memory>,
}

impl Benchmark {
    /// Copies the operands of a problem. The user's tensors are read and not written.
    ///
    /// # Errors
    /// If the operands are not on a GPU or have no memory, if the device lacks memory for a copy of
    /// them, or during a stream capture.
    pub fn new(
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
    ) -> Result<Benchmark, LaunchError> {
        let device = device_of(problem)?;
        let views: Vec<&View> = views(problem, epilogue);
        if views.iter().any(|view| view.fake) {
            return Err(LaunchError::unsupported(
                "an operand is a FakeTensor, which has no memory; tune with real tensors",
            ));
        }
        let bytes: u64 = views.iter().map(|view| span(view)).sum();
        let wanted =
            (L2_CACHES * f64::from(device.attributes.l2_bytes) / bytes.max(1) as f64).ceil();
        let count = (wanted as u64).clamp(2, MOST_SETS);
        // The operands may still be computed on other streams.
        device.synchronize_all()?;
        let stream = Stream::new(device)?;
        let mut sets = Vec::new();
        for _ in 0..count {
            match Operands::copy(&stream, problem, epilogue) {
                Ok(operands) => sets.push(operands),
                // Continue with the sets that fit.
                Err(error) if error.means_no_memory() && !sets.is_empty() => break,
                Err(error) => return Err(error.into()),
            }
        }
        stream.synchronize()?;
        let epilogue = epilogue.map(|bound| bound.epilogue);
        Ok(Benchmark { device, stream: Mutex::new(stream), sets, problem: *problem, epilogue })
    }

    pub fn device(&self) -> &'static Device {
        self.device
    }

    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    pub fn epilogue(&self) -> Option<&'static Epilogue> {
        self.epilogue
    }

    /// Launches a kernel on every set of operands once, and records the launches. `position`: of a
    /// kernel that fuses the benchmark's epilogue.
    ///
    /// # Errors
    /// If the kernel does not serve the problem, or a launch fails.
    pub fn record(
        self: &Arc<Benchmark>,
        position: usize,
        program: &Program,
    ) -> Result<TimedKernel, LaunchError> {
        let (device, kernel) = (self.device, kernel::at(position));
        check_architecture(program, device)?;
        let bytes = kernel.workspace_bytes(&self.problem);
        let workspace = (bytes > 0).then(|| Memory::allocate(device, bytes)).transpose()?;
        let address = workspace.as_ref().map_or(0, Memory::address);
        let mut plans = Vec::with_capacity(self.sets.len());
        for Operands { problem, epilogue, .. } in &self.sets {
            check(kernel, problem, epilogue.as_ref())?;
            plans.push(LaunchPlan::new(position, problem, epilogue.as_ref(), address)?);
        }
        program.load(kernel, device)?;
        let stream = lock(&self.stream);
        let enqueue = || -> Result<(), DriverError> {
            // SAFETY: the program is the kernel's. Operands and workspace live as long as the
            // `TimedKernel`.
            plans.iter().try_for_each(|plan| unsafe { plan.enqueue(program, stream.handle()) })
        };
        // A kernel that fails fails here, not in a graph.
        enqueue()?;
        stream.synchronize()?;
        let recording = Mutex::new(Recording::of(&stream, enqueue)?);
        let benchmark = self.clone();
        Ok(TimedKernel { recording, launches: plans.len(), benchmark, _workspace: workspace })
    }
}

impl TimedKernel {
    /// Seconds of one launch: the mean of this many replays on all sets of operands.
    ///
    /// # Errors
    /// If a launch fails.
    pub fn turn(&self, replays: u32) -> Result<f64, DriverError> {
        let replays = replays.max(1);
        let (recording, stream) = (lock(&self.recording), lock(&self.benchmark.stream));
        // SAFETY: `self` holds the memory of the recorded launches.
        let seconds = unsafe { recording.seconds(&stream, replays)? };
        Ok(seconds / (f64::from(replays) * self.launches.max(1) as f64))
    }

    /// Launches of one replay.
    pub fn launches(&self) -> usize {
        self.launches
    }
}

impl Operands {
    fn copy(
        stream: &Stream,
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
    ) -> Result<Operands, DriverError> {
        let mut memory = Vec::new();
        let mut copied: Vec<((u64, u64), u64)> = Vec::new();
        for view in views(problem, epilogue).into_iter().filter(|view| view.numel() > 0) {
            // Operands of one address range are one tensor: they share a copy.
            if copied.iter().any(|(from, _)| *from == view.byte_range()) {
                continue;
            }
            let new = Memory::allocate(stream.device(), span(view) + LINE_BYTES)?;
            let address = new.address() + view.data % LINE_BYTES;
            // SAFETY: the caller holds the tensors; the new memory has the bytes of the view.
            unsafe { stream.copy(address, view.data, span(view))? };
            copied.push((view.byte_range(), address));
            memory.push(new);
        }
        let moved = |view: &View| {
            let known = copied.iter().find(|(from, _)| *from == view.byte_range());
            known.map_or(*view, |(_, to)| View { data: *to, ..*view })
        };
        let mut problem = *problem;
        problem.views_mut().into_iter().for_each(|view| *view = moved(view));
        let epilogue = epilogue.map(|bound| bound.map_views(moved));
        Ok(Operands { problem, epilogue, _memory: memory })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The views of a problem and its epilogue.
fn views<'a>(problem: &'a Problem, epilogue: Option<&'a BoundEpilogue>) -> Vec<&'a View> {
    let of_epilogue = epilogue.map(BoundEpilogue::tensors).unwrap_or_default();
    problem.views().into_iter().chain(of_epilogue.into_iter().map(|(_, view)| view)).collect()
}

/// Bytes from the first element to the end of the last one.
fn span(view: &View) -> u64 {
    let (begin, end) = view.byte_range();
    end - begin
}
