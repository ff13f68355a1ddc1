//! Errors of compiling and loading programs.

use thiserror::Error;

use super::{Architecture, Program};
use crate::driver::DriverError;

#[derive(Debug, Error)]
pub enum CompileError {
    #[error("{0}")]
    NvrtcNotFound(String),
    #[error(
        "compute capability {0} is not supported; use a GPU of compute capability 80 (Ampere) \
             or later"
    )]
    TooOld(u32),
    #[error(
        "NVRTC {version} cannot compile for compute capability {cc}, only for {known:?}; update \
         the package nvidia-cuda-nvrtc"
    )]
    UnknownArchitecture { cc: u32, version: String, known: Vec<u32> },
    #[error("{file} has no __global__ function {function}; {found}")]
    NoFunction { file: String, function: String, found: String },
    #[error("{function} cannot be launched: {reason}")]
    Signature { function: String, reason: String },
    #[error("NVRTC could not compile kernel {kernel} for {architecture}:\n{log}")]
    Failed { kernel: String, architecture: Architecture, log: String },
    #[error("{call} failed with {error}")]
    Nvrtc { call: &'static str, error: String },
    #[error("kernel {kernel} does not run on compute capability {cc}; it needs {chips}")]
    WrongChip { kernel: String, cc: u32, chips: String },
    #[error("kernel {0} runs on the CPU and needs no compilation")]
    NotCompiled(String),
    #[error("the bytes are not a compiled artifact: {0}")]
    NotAnArtifact(String),
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// A failure of NVRTC: a rejected program (with the log), or a failed call (name and error).
pub(super) enum Failure {
    Program(String),
    Call(&'static str, String),
}

impl Failure {
    /// The error to report for a program.
    pub(super) fn of_program(self, program: &Program) -> CompileError {
        let Program { kernel, architecture, .. } = program;
        match self {
            Failure::Program(log) => {
                CompileError::Failed { kernel: kernel.clone(), architecture: *architecture, log }
            }
            Failure::Call(call, error) => CompileError::Nvrtc { call, error },
        }
    }
}
