//! The last launch of a program, which the next launch reuses.

use std::sync::{Arc, Mutex, TryLockError};

use super::error::{LaunchError, check, check_epilogue, device_of};
use super::workspace::{allocate, check_workspace};
use super::{Host, PreparedLaunch};
use crate::compile::Program;
use crate::epilogue::{BoundEpilogue, Epilogue};
use crate::kernel::at;
use crate::operand::View;
use crate::problem::Problem;

/// The last launch of a program. A launch of a problem that differs only in its addresses moves it.
/// This speeds up generated code that creates new arguments at each call.
///
/// The lock is held while a launch blocks in the driver without the interpreter's lock. To avoid a
/// deadlock, a thread that holds the interpreter's lock never waits for this lock: it prepares its
/// own launch.
#[derive(Default)]
pub struct LastLaunch(Mutex<Option<Box<PreparedLaunch>>>);

impl LastLaunch {
    /// Moves the last launch to a problem without an epilogue, and enqueues it. Returns the
    /// kernel's position, or None if the launch does not fit the problem or another thread holds
    /// it.
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn enqueue_like(
        &self,
        host: &impl Host,
        problem: &Problem,
        stream: u64,
    ) -> Result<Option<usize>, LaunchError> {
        let Ok(mut last) = self.0.try_lock() else { return Ok(None) };
        let serves =
            |launch: &&mut PreparedLaunch| launch.has_operands_only() && launch.fits(problem);
        let Some(launch) = last.as_deref_mut().filter(serves) else { return Ok(None) };
        if let Err(error) = launch.move_to(problem, 0, None) {
            *last = None;
            return Err(error.into());
        }
        launch.enqueue(host, stream)?;
        Ok(Some(launch.position()))
    }
}

/// A launch to make: a kernel, a problem, its epilogue, and the kernel's program with its last
/// launch.
pub struct LaunchRequest<'a> {
    /// The kernel's position, as `kernel::at` counts.
    pub position: usize,
    pub problem: &'a Problem,
    pub epilogue: Option<&'a BoundEpilogue>,
    pub program: &'a Arc<Program>,
    pub last: &'a LastLaunch,
    /// Whether problem and epilogue have passed [`check`].
    pub is_checked: bool,
}

impl LaunchRequest<'_> {
    /// Enqueues the launch. If the kernel needs a workspace and `workspace` is None, memory is
    /// allocated and freed in stream order. Returns the prepared launch if `keep` is set and the
    /// launch has no workspace.
    ///
    /// # Errors
    /// If the kernel does not serve the problem, the workspace does not fit, or a driver call
    /// fails.
    pub fn enqueue(
        &self,
        host: &impl Host,
        stream: u64,
        workspace: Option<&View>,
        keep: bool,
    ) -> Result<Option<Box<PreparedLaunch>>, LaunchError> {
        let bytes = at(self.position).workspace_bytes(self.problem);
        if bytes == 0 {
            return self.enqueue_with(host, stream, 0, keep);
        }
        self.check()?;
        if let Some(workspace) = workspace {
            let address = check_workspace(workspace, bytes, self.problem, self.epilogue)?;
            return self.enqueue_with(host, stream, address, false);
        }
        let device = device_of(self.problem)?;
        let memory = allocate(host, device, stream, bytes)?;
        let enqueued = self.enqueue_with(host, stream, memory.address(), false);
        let freed = host.unlocked(|| memory.free());
        enqueued?;
        freed?;
        Ok(None)
    }

    fn enqueue_with(
        &self,
        host: &impl Host,
        stream: u64,
        workspace: u64,
        keep: bool,
    ) -> Result<Option<Box<PreparedLaunch>>, LaunchError> {
        let mut last = match self.last.0.try_lock() {
            Ok(last) => Some(last),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let mut own = None;
        let launch = self.prepare(last.as_deref_mut().unwrap_or(&mut own), workspace)?;
        launch.enqueue(host, stream)?;
        Ok(keep.then(|| Box::new(launch.clone())))
    }

    /// Prepares the launch: moves the last launch if it fits, else replaces it.
    fn prepare<'a>(
        &self,
        last: &'a mut Option<Box<PreparedLaunch>>,
        workspace: u64,
    ) -> Result<&'a PreparedLaunch, LaunchError> {
        let launch = match last.take() {
            Some(mut launch) if launch.fits(self.problem) && launch.fits_panels(self.epilogue) => {
                check_epilogue(at(self.position), self.problem, self.epilogue)?;
                launch.move_to(self.problem, workspace, self.epilogue)?;
                launch
            }
            _ => {
                self.check()?;
                let LaunchRequest { position, problem, epilogue, program, .. } = *self;
                Box::new(PreparedLaunch::new(
                    position,
                    problem,
                    epilogue,
                    workspace,
                    program.clone(),
                )?)
            }
        };
        Ok(last.insert(launch))
    }

    fn check(&self) -> Result<(), LaunchError> {
        match self.is_checked {
            // The distance between two matrices B never changes the kernel, so only the epilogue is
            // checked.
            true if at(self.position).epilogue.is_some_and(Epilogue::is_dual) => {
                check_epilogue(at(self.position), self.problem, self.epilogue)
            }
            true => Ok(()),
            false => check(at(self.position), self.problem, self.epilogue),
        }
    }
}
