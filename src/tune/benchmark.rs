//! Timing of kernels on one problem: several sets of operands, together larger than the L2 cache,
//! and a recording of launches for each kernel.

use std::sync::{Arc, Mutex, MutexGuard};

use super::check::{Check, TuneError};
use super::operands::{Operands, span, views};
use crate::compile::Program;
use crate::driver::{Device, DriverError, Memory, Recording, Stream};
use crate::epilogue::{BoundEpilogue, Epilogue};
use crate::kernel;
use crate::launch::{LaunchError, LaunchPlan, check, check_architecture, device_of};
use crate::problem::Problem;

/// The operands' bytes of all sets over those of the L2 cache.
const L2_CACHES: f64 = 2.2;
/// Most sets of operands: small problems launch so often that L2 matters less than the launch.
const MOST_SETS: u64 = 100;

/// Copies of a problem's operands, and the stream that launches on them.
pub struct Benchmark {
    device: &'static Device,
    /// Locked while a thread captures or times launches.
    stream: Mutex<Stream>,
    sets: Vec<Operands<Memory>>,
    problem: Problem,
    epilogue: Option<&'static Epilogue>,
    /// What kernels are compared with before they are timed.
    check: Option<Check>,
}

/// How kernels are compared with the CPU reference.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// As of [`Tolerance::relative`](crate::reference::Tolerance::relative); `None`: by types
    /// and K.
    pub tolerance: Option<f64>,
    /// Whether kernels may round float32 inputs to tf32.
    pub allows_tf32: bool,
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
    /// Copies the operands of a problem to a device; `None`: to their own. The user's tensors are
    /// read and not written. `check`: whether and how [`record`](Benchmark::record) compares
    /// kernels with the CPU reference.
    ///
    /// # Errors
    /// If the operands are not on a GPU or have no memory, if the device lacks memory for a copy of
    /// them, if the reference does not compute the problem, or during a stream capture.
    pub fn new(
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
        device: Option<&'static Device>,
        check: Option<CheckOptions>,
    ) -> Result<Benchmark, TuneError> {
        let source = device_of(problem)?;
        let device = device.unwrap_or(source);
        let views = views(problem, epilogue);
        if views.iter().any(|view| view.fake) {
            return Err(TuneError::Launch(LaunchError::unsupported(
                "an operand is a FakeTensor, which has no memory; tune with real tensors",
            )));
        }
        let bytes: u64 = views.iter().map(|view| span(view)).sum();
        let wanted =
            (L2_CACHES * f64::from(device.attributes.l2_bytes) / bytes.max(1) as f64).ceil();
        let count = (wanted as u64).clamp(2, MOST_SETS);
        // The operands may still be computed on other streams.
        source.synchronize_all()?;
        let stream = Stream::new(device)?;
        let first = Operands::copy(&stream, source, problem, epilogue)?;
        let check = check
            .map(|CheckOptions { tolerance, allows_tf32 }| {
                let Operands { problem, epilogue, .. } = &first;
                Check::new(&stream, problem, epilogue.as_ref(), tolerance, allows_tf32)
            })
            .transpose()?;
        let mut sets = vec![first];
        for _ in 1..count {
            match Operands::copy(&stream, source, problem, epilogue) {
                Ok(operands) => sets.push(operands),
                // Continue with the sets that fit.
                Err(error) if error.means_no_memory() => break,
                Err(error) => return Err(error.into()),
            }
        }
        stream.synchronize()?;
        let (problem, epilogue) = (sets[0].problem, epilogue.map(|bound| bound.epilogue));
        Ok(Benchmark { device, stream: Mutex::new(stream), sets, problem, epilogue, check })
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
    /// If the kernel does not serve the problem, a launch fails, or an output differs from the
    /// reference's.
    pub fn record(
        self: &Arc<Benchmark>,
        position: usize,
        program: &Program,
    ) -> Result<TimedKernel, TuneError> {
        let (device, kernel) = (self.device, kernel::at(position));
        check_architecture(program, device)?;
        let bytes = kernel.workspace_bytes(&self.problem);
        let workspace = (bytes > 0).then(|| Memory::allocate(device, bytes)).transpose()?;
        let address = workspace.as_ref().map_or(0, Memory::address);
        let plan = |operands: &Operands<Memory>| -> Result<LaunchPlan, LaunchError> {
            let (problem, epilogue) = (&operands.problem, operands.epilogue.as_ref());
            check(kernel, problem, epilogue)?;
            LaunchPlan::new(position, problem, epilogue, address)
        };
        let plans = self.sets.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
        program.load(kernel, device)?;
        let stream = lock(&self.stream);
        let enqueue = |plans: &[LaunchPlan]| -> Result<(), DriverError> {
            // SAFETY: the program is the kernel's. Operands and workspace live as long as the
            // `TimedKernel`; `Check::run` holds its own until the launch has completed.
            plans.iter().try_for_each(|plan| unsafe { plan.enqueue(program, stream.handle()) })
        };
        if let Some(check) = &self.check {
            check.run(&stream, |operands| Ok(enqueue(&[plan(operands)?])?))?;
        }
        // A kernel that fails fails here, not in a graph.
        enqueue(&plans)?;
        stream.synchronize()?;
        let recording = Recording::of(&stream, || enqueue(&plans))?;
        let (recording, benchmark) = (Mutex::new(recording), self.clone());
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
