//! `Program`: a compiled kernel.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{Architecture, Resources};
use crate::driver::{Device, DriverError, Function, Library};
use crate::epilogue::Epilogue;
use crate::kernel::Kernel;

/// A compiled kernel: a cubin for one architecture, and the metadata that a launch needs.
#[derive(Serialize, Deserialize)]
pub struct Program {
    /// The cache key. Detects cache files stored under another key.
    pub(super) key: String,
    /// The kernel's name, and its name without the epilogue.
    pub kernel: String,
    pub base: String,
    pub epilogue: Option<Epilogue>,
    pub architecture: Architecture,
    pub shared_bytes: u32,
    /// The name of the kernel function.
    pub(super) entry: String,
    /// The lowered name that spells a user kernel's parameter types; empty for the kernel families.
    pub(super) signature: String,
    /// The companions: packs operands before the kernel; finishes reductions after it; computes the
    /// prologue before both.
    pub pack: Option<Arc<Program>>,
    pub reduce: Option<Arc<Program>>,
    pub prologue: Option<Arc<Program>>,
    pub nvrtc: (i32, i32),
    pub source: String,
    /// NVRTC's options.
    pub(super) options: Vec<String>,
    /// NVRTC's warnings.
    pub log: String,
    pub resources: Resources,
    pub cubin: Vec<u8>,
    #[serde(skip)]
    pub(super) library: OnceLock<Library>,
}

impl Program {
    /// Loads the program and its companions, and creates the memory pool for workspace. The first
    /// launch may then happen during stream capture.
    ///
    /// # Errors
    /// If a driver call fails.
    pub fn load(&self, kernel: &Kernel, device: &Device) -> Result<(), DriverError> {
        if kernel.takes_workspace() {
            device.prepare_to_allocate()?;
        }
        let companions = [&self.pack, &self.reduce, &self.prologue].into_iter().flatten();
        for program in companions.map(Arc::as_ref).chain([self]) {
            program.function(device)?;
        }
        Ok(())
    }

    /// The kernel's function on a device. Loads the program on first use, for all devices.
    ///
    /// # Errors
    /// If the driver cannot load the program.
    pub fn function(&self, device: &Device) -> Result<Function, DriverError> {
        if let Some(library) = self.library.get() {
            return library.function(device);
        }
        let loaded = Library::load(&self.cubin, &self.entry, self.shared_bytes, device)?;
        self.library.get_or_init(|| loaded).function(device)
    }

    /// Logs where the machine code came from, and how long that took.
    pub(super) fn log_origin(&self, origin: &str, start: Instant) {
        let milliseconds = 1e3 * start.elapsed().as_secs_f64();
        log::info!("{} for {}: {origin} in {milliseconds:.1} ms", self.kernel, self.architecture);
    }

    /// A program with its source text and without machine code.
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
            prologue: None,
            nvrtc,
            source,
            options: Vec::new(),
            log: String::new(),
            resources: Resources::default(),
            cubin: Vec::new(),
            library: OnceLock::new(),
        }
    }
}
