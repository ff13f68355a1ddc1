//! Timing of kernels on one problem: several sets of operands, together larger than the L2 cache,
//! and a recording of launches for each kernel.

use std::sync::Arc;

use super::check::Check;
use super::error::TuneError;
use super::operands::{Operands, span, views};
use super::timed::{TimedKernel, TimingStream, sets};
use crate::compile::Program;
use crate::driver::{Device, DeviceMemory, Stream};
use crate::epilogue::{BoundEpilogue, Epilogue};
use crate::kernel;
use crate::launch::{LaunchError, PreparedLaunch, check, check_architecture, device_of};
use crate::problem::Problem;

/// Copies of a problem's operands, and the stream that launches on them.
pub struct Benchmark {
    device: &'static Device,
    stream: TimingStream,
    sets: Vec<Operands<DeviceMemory>>,
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
        let bytes = views.iter().map(|view| span(view)).sum();
        // The operands may still be computed on other streams.
        source.synchronize_all()?;
        let stream = Stream::new(device)?;
        let copy = || Operands::copy(&stream, source, problem, epilogue);
        let first = copy()?;
        let check = check
            .map(|CheckOptions { tolerance, allows_tf32 }| {
                let Operands { problem, epilogue, .. } = &first;
                Check::new(&stream, problem, epilogue.as_ref(), tolerance, allows_tf32)
            })
            .transpose()?;
        let sets = sets(device, bytes, first, copy)?;
        stream.synchronize()?;
        let (problem, epilogue) = (sets[0].problem, epilogue.map(|bound| bound.epilogue));
        let stream = TimingStream::new(stream);
        Ok(Benchmark { device, stream, sets, problem, epilogue, check })
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
        program: &Arc<Program>,
    ) -> Result<TimedKernel, TuneError> {
        let (device, kernel) = (self.device, kernel::at(position));
        check_architecture(program, device)?;
        let bytes = kernel.workspace_bytes(&self.problem);
        let workspace = (bytes > 0).then(|| DeviceMemory::allocate(device, bytes)).transpose()?;
        let address = workspace.as_ref().map_or(0, DeviceMemory::address);
        let prepare = |operands: &Operands<DeviceMemory>| -> Result<PreparedLaunch, LaunchError> {
            let (problem, epilogue) = (&operands.problem, operands.epilogue.as_ref());
            check(kernel, problem, epilogue)?;
            PreparedLaunch::new(position, problem, epilogue, address, program.clone())
        };
        let launches = self.sets.iter().map(prepare).collect::<Result<Vec<_>, _>>()?;
        program.load(kernel, device)?;
        if let Some(check) = &self.check {
            let stream = self.stream.lock();
            // SAFETY: `Check::run` holds the operands until the launch has completed.
            let launch =
                |operands: &_| unsafe { Ok(prepare(operands)?.enqueue_kernels(stream.handle())?) };
            check.run(&stream, launch)?;
        }
        // SAFETY: operands and workspace live as long as the `TimedKernel`.
        let enqueue = |stream| {
            launches.iter().try_for_each(|launch| unsafe { launch.enqueue_kernels(stream) })
        };
        let memory = Box::new((self.clone(), workspace));
        Ok(self.stream.record(enqueue, launches.len(), memory)?)
    }
}
