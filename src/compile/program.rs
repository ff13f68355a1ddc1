//! `Program`: a compiled kernel.

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::Architecture;
use crate::driver::{Device, DriverError, Function, Library};
use crate::epilogue::Epilogue;
use crate::kernel::Kernel;

/// The name of the kernel function in a program, in one that copies operands for another, and in one that finishes its reductions.
pub(super) const ENTRY: &str = "rutlass_gemm";
pub(super) const PACK_ENTRY: &str = "rutlass_pack";
pub(super) const REDUCE_ENTRY: &str = "rutlass_reduce";

/// A compiled kernel: a cubin for one architecture, and what is needed to launch it.
#[derive(Serialize, Deserialize)]
pub struct Program {
    /// What the cache knows it by; a file under another's name is found out by it.
    pub(super) key: String,
    /// The kernel's name; that of the kernel without its epilogue, if it has one.
    pub kernel: String,
    pub base: String,
    pub epilogue: Option<Epilogue>,
    pub architecture: Architecture,
    pub shared_bytes: u32,
    /// The name of the kernel function.
    pub(super) entry: String,
    /// The parameters of a kernel of the user's own, as the compiler names their types; empty for ours.
    pub(super) signature: String,
    /// The program that copies operands for this one, and runs first; and the one that finishes its reductions, and runs last.
    pub pack: Option<Arc<Program>>,
    pub reduce: Option<Arc<Program>>,
    pub nvrtc: (i32, i32),
    pub source: String,
    /// NVRTC's messages: warnings, if there were any.
    pub log: String,
    pub cubin: Vec<u8>,
    #[serde(skip)]
    pub(super) library: OnceLock<Library>,
}

impl Program {
    /// Loads all of a kernel's program, and makes what its launches allocate from: nothing is left for a first launch to do, which may be
    /// under capture.
    pub fn load(&self, kernel: &Kernel, device: &Device) -> Result<(), DriverError> {
        if kernel.takes_workspace() {
            device.prepare_to_allocate()?;
        }
        for program in self.pack.iter().chain(&self.reduce).map(Arc::as_ref).chain([self]) {
            program.function(device)?;
        }
        Ok(())
    }

    /// The kernel on this device, where the program is loaded on first use.
    pub fn function(&self, device: &Device) -> Result<Function, DriverError> {
        if let Some(library) = self.library.get() {
            return library.function(device);
        }
        let loaded = Library::load(&self.cubin, &self.entry, self.shared_bytes, device)?;
        self.library.get_or_init(|| loaded).function(device)
    }

    /// A program that holds its source text and no machine code.
    pub(super) fn uncompiled(
        kernel: String,
        entry: &str,
        source: String,
        architecture: Architecture,
        nvrtc: (i32, i32),
    ) -> Program {
        Program {
            key: String::new(),
            kernel,
            base: String::new(),
            epilogue: None,
            architecture,
            shared_bytes: 0,
            entry: entry.to_owned(),
            signature: String::new(),
            pack: None,
            reduce: None,
            nvrtc,
            source,
            log: String::new(),
            cubin: Vec::new(),
            library: OnceLock::new(),
        }
    }
}
