//! Launch errors, and the checks before a launch.

use thiserror::Error;

use crate::compile::{Architecture, Program};
use crate::driver::{Device, DriverError};
use crate::epilogue::BoundEpilogue;
use crate::kernel::Kernel;
use crate::operand;
use crate::problem::{GroupsError, Problem};

#[derive(Debug, Error)]
pub enum LaunchError {
    #[error("Kernel does not support the provided arguments: {0}")]
    Unsupported(String),
    #[error(
        "compiled_artifact is for {architecture}, which does not run on cuda:{ordinal} \
         of compute capability {}.{}",
        cc / 10,
        cc % 10
    )]
    WrongArchitecture { architecture: Architecture, ordinal: i32, cc: u32 },
    #[error("workspace {0}")]
    Workspace(String),
    #[error(transparent)]
    Groups(#[from] GroupsError),
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl LaunchError {
    #[cold]
    pub fn unsupported(reason: impl ToString) -> LaunchError {
        LaunchError::Unsupported(reason.to_string())
    }
}

/// Checks that a kernel can address the operands of a problem and that it fuses the epilogue.
pub fn check(
    kernel: &Kernel,
    problem: &Problem,
    epilogue: Option<&BoundEpilogue>,
) -> Result<(), LaunchError> {
    let product = problem.of_activations(epilogue.map(|bound| bound.epilogue));
    let product = product.as_ref().unwrap_or(problem);
    kernel.check_addresses(product).map_err(LaunchError::unsupported)?;
    check_epilogue(kernel, problem, epilogue)
}

/// Checks that a kernel fuses the epilogue.
pub(super) fn check_epilogue(
    kernel: &Kernel,
    problem: &Problem,
    epilogue: Option<&BoundEpilogue>,
) -> Result<(), LaunchError> {
    kernel.fuses(problem, epilogue).map_err(LaunchError::unsupported)
}

/// Checks that a program runs on a device.
pub fn check_architecture(program: &Program, device: &Device) -> Result<(), LaunchError> {
    let (architecture, ordinal, cc) = (program.architecture, device.ordinal, device.cc);
    match architecture.runs_on(cc) {
        true => Ok(()),
        false => Err(LaunchError::WrongArchitecture { architecture, ordinal, cc }),
    }
}

/// The GPU that holds the operands of a problem.
pub fn device_of(problem: &Problem) -> Result<&'static Device, LaunchError> {
    match problem.device() {
        operand::DeviceId::Cuda(ordinal) => Ok(Device::get(ordinal)?),
        operand::DeviceId::Cpu => Err(LaunchError::unsupported(
            "the operands are on the CPU, the kernel runs on a CUDA device",
        )),
    }
}
