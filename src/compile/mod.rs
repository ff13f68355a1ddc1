//! Compilation: program text, NVRTC, and the cache of cubins in memory and on disk.

mod architecture;
mod cache;
mod nvrtc;
mod source;

pub use architecture::Architecture;
pub use cache::directory;
pub use nvrtc::{Nvrtc, set_package_directories};
pub use source::source;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::driver::{Device, DriverError, Library};
use crate::epilogue::Epilogue;
use crate::kernel::Kernel;

/// The name of the kernel function in every program.
pub const ENTRY: &str = "rutlass_gemm";
/// That of the kernel which copies operands first, in the programs that do.
const PACK_ENTRY: &str = "rutlass_pack";

#[derive(Debug, Error)]
pub enum CompileError {
    #[error("{0}")]
    NvrtcNotFound(String),
    #[error("compute capability {0} is not served: kernels need 80 (Ampere) or later")]
    TooOld(u32),
    #[error(
        "NVRTC {version} cannot compile for compute capability {cc}; it knows {known:?}. Update the package nvidia-cuda-nvrtc"
    )]
    UnknownArchitecture { cc: u32, version: String, known: Vec<u32> },
    #[error("NVRTC could not compile kernel {kernel} for {architecture}:\n{log}")]
    Failed { kernel: String, architecture: Architecture, log: String },
    #[error("{call} failed with {error}")]
    Nvrtc { call: &'static str, error: String },
    #[error("kernel {kernel} does not run on compute capability {cc}: it is for {only} alone")]
    WrongChip { kernel: String, cc: u32, only: u32 },
    #[error("kernel {0} runs on the CPU and has no program to compile")]
    NotCompiled(String),
    #[error("these bytes are no compiled artifact: {0}")]
    Foreign(String),
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// A compiled kernel: a cubin for one architecture, and what is needed to launch it.
#[derive(Serialize, Deserialize)]
pub struct Program {
    /// What the cache knows it by; a file under another's name is found out by it.
    key: String,
    /// The kernel's name; that of the kernel without its epilogue, if it has one.
    pub kernel: String,
    pub base: String,
    pub epilogue: Option<Epilogue>,
    pub architecture: Architecture,
    pub shared_bytes: u32,
    /// CTAs of a cluster.
    cluster: u32,
    /// Whether it copies operands first.
    packs: bool,
    pub nvrtc: (i32, i32),
    pub source: String,
    /// NVRTC's messages: warnings, if there were any.
    pub log: String,
    pub cubin: Vec<u8>,
    #[serde(skip)]
    library: OnceLock<Library>,
}

impl Program {
    /// The program in the driver, loaded on first use and prepared for this device.
    pub fn library(&self, device: &Device) -> Result<&Library, DriverError> {
        if let Some(library) = self.library.get() {
            library.prepare(device)?;
            return Ok(library);
        }
        let first = self.packs.then_some(PACK_ENTRY);
        let loaded = Library::load(&self.cubin, ENTRY, first, self.shared_bytes, self.cluster, device)?;
        let library = self.library.get_or_init(|| loaded);
        library.prepare(device)?;
        Ok(library)
    }
}

/// The program of a kernel for a compute capability: from memory, from disk, or compiled now.
pub fn compile(kernel: &Kernel, cc: u32) -> Result<Arc<Program>, CompileError> {
    type Programs = HashMap<(Kernel, Architecture), Arc<Program>>;
    static MEMORY: Mutex<Option<Programs>> = Mutex::new(None);
    let nvrtc = Nvrtc::get()?;
    let architecture = Architecture::for_cc(cc, nvrtc)?;
    if kernel.runs_on_gpu() && !kernel.runs_on(cc) {
        return Err(CompileError::WrongChip { kernel: kernel.name(), cc, only: kernel.min_cc() });
    }
    let lookup = (*kernel, architecture);
    let lock = || MEMORY.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(program) = lock().get_or_insert_default().get(&lookup) {
        return Ok(program.clone());
    }
    // Not under the lock: two threads that compile the same kernel at once waste a compilation, and block nobody.
    let program = Arc::new(compile_uncached(kernel, architecture, nvrtc)?);
    Ok(lock().get_or_insert_default().entry(lookup).or_insert(program).clone())
}

fn compile_uncached(kernel: &Kernel, architecture: Architecture, nvrtc: &Nvrtc) -> Result<Program, CompileError> {
    let name = kernel.name();
    let Some(text) = source(kernel) else { return Err(CompileError::NotCompiled(name)) };
    let base = Kernel { epilogue: None, ..*kernel }.name();
    let epilogue = kernel.epilogue.cloned();
    let options = architecture.options();
    let key = cache::key(&text, &options, nvrtc.version());
    if let Some(program) = cache::load(&key) {
        // Kernels of one text share the file, whichever of them wrote it.
        return Ok(Program { kernel: name, base, epilogue, ..program });
    }
    let (cubin, log) = nvrtc.compile(&text, &options).map_err(|error| match error {
        nvrtc::Failure::Program(log) => CompileError::Failed { kernel: name.clone(), architecture, log },
        nvrtc::Failure::Call(call, error) => CompileError::Nvrtc { call, error },
    })?;
    let program = Program {
        key,
        kernel: name,
        base,
        epilogue,
        architecture,
        shared_bytes: kernel.shared_bytes(),
        cluster: kernel.cluster_size(),
        packs: kernel.packs(),
        nvrtc: nvrtc.version(),
        source: text,
        log,
        cubin,
        library: OnceLock::new(),
    };
    cache::store(&program);
    Ok(program)
}

/// A program as bytes that another process can restore.
pub fn to_bytes(program: &Program) -> Vec<u8> {
    cache::seal(program)
}

/// The program in bytes that [`to_bytes`] made. Anything else is refused.
pub fn from_bytes(bytes: &[u8]) -> Result<Arc<Program>, CompileError> {
    cache::unseal(bytes).map(Arc::new).map_err(|error| CompileError::Foreign(error.to_string()))
}
