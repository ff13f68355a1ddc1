//! Compilation: program text, NVRTC, and the cache of cubins in memory and on disk.

mod architecture;
mod cache;
mod nvrtc;
mod signature;
mod source;
mod target;
mod user;

pub use crate::kernel::source;
pub use architecture::Architecture;
pub use cache::directory;
pub use nvrtc::{Nvrtc, set_package_directories};
pub use signature::{Number, Parameter, Pointee};
pub use user::{UserSource, compile_user};

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use nvrtc::{Compiled, Failure, Task};

use crate::driver::{Device, DriverError, Function, Library};
use crate::epilogue::Epilogue;
use crate::kernel::{ENTRY, Kernel, PACK_ENTRY, REDUCE_ENTRY, pack_source, reduce_source};

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
    #[error("{file} has no __global__ function {function}; {found}")]
    NoFunction { file: String, function: String, found: String },
    #[error("{function} cannot be launched from here: {reason}")]
    Signature { function: String, reason: String },
    #[error("NVRTC could not compile kernel {kernel} for {architecture}:\n{log}")]
    Failed { kernel: String, architecture: Architecture, log: String },
    #[error("{call} failed with {error}")]
    Nvrtc { call: &'static str, error: String },
    #[error("kernel {kernel} does not run on compute capability {cc}: it is for {chips}")]
    WrongChip { kernel: String, cc: u32, chips: String },
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
    /// The name of the kernel function.
    entry: String,
    /// The parameters of a kernel of the user's own, as the compiler names their types; empty for ours.
    signature: String,
    /// The program that copies operands for this one, and runs first; and the one that finishes its reductions, and runs last.
    pub first: Option<Arc<Program>>,
    pub last: Option<Arc<Program>>,
    pub nvrtc: (i32, i32),
    pub source: String,
    /// NVRTC's messages: warnings, if there were any.
    pub log: String,
    pub cubin: Vec<u8>,
    #[serde(skip)]
    library: OnceLock<Library>,
}

impl Program {
    /// Loads all of a kernel's program, and makes what its launches allocate from: nothing is left for a first launch to do, which may be
    /// under capture.
    pub fn load(&self, kernel: &Kernel, device: &Device) -> Result<(), DriverError> {
        if kernel.takes_workspace() {
            device.prepare_to_allocate()?;
        }
        for program in self.first.iter().chain(&self.last).map(Arc::as_ref).chain([self]) {
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
}

/// The program of a kernel for a compute capability: from memory, from disk, or compiled now.
pub fn compile(kernel: &Kernel, cc: u32) -> Result<Arc<Program>, CompileError> {
    type Programs = HashMap<(Kernel, Architecture), Arc<Program>>;
    static MEMORY: Mutex<Option<Programs>> = Mutex::new(None);
    let nvrtc = Nvrtc::get()?;
    let architecture = Architecture::for_cc(cc, nvrtc)?;
    if kernel.runs_on_gpu() && !kernel.runs_on(cc) {
        return Err(CompileError::WrongChip { kernel: kernel.name(), cc, chips: kernel.chips() });
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

fn compile_uncached(
    kernel: &Kernel,
    architecture: Architecture,
    nvrtc: &Nvrtc,
) -> Result<Program, CompileError> {
    let name = kernel.name();
    let Some(text) = source(kernel) else { return Err(CompileError::NotCompiled(name)) };
    let program = Program {
        base: Kernel { epilogue: None, ..*kernel }.name(),
        epilogue: kernel.epilogue.cloned(),
        shared_bytes: kernel.shared_bytes(),
        ..empty(name, ENTRY, text, architecture, nvrtc)
    };
    // Programs that go with it are compiled at its side. They depend on little, and so are mostly there already.
    // (Threads of their own, not of a pool: a forked child has the pool, and none of its threads.)
    let [first, last] = companions(kernel);
    std::thread::scope(|scope| {
        let others = [first, last]
            .map(|text| text.map(|text| scope.spawn(|| companion(text, architecture, nvrtc))));
        let program = filled(program, nvrtc);
        let joined = others.map(|thread| {
            thread
                .map(|thread| {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .transpose()
        });
        let [first, last] = joined;
        Ok(Program { first: first?, last: last?, ..program? })
    })
}

/// A program before it is compiled.
fn empty(
    kernel: String,
    entry: &str,
    source: String,
    architecture: Architecture,
    nvrtc: &Nvrtc,
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
        first: None,
        last: None,
        nvrtc: nvrtc.version(),
        source,
        log: String::new(),
        cubin: Vec::new(),
        library: OnceLock::new(),
    }
}

/// The name, the entry and the text of a program that goes with a kernel's.
type Companion = (&'static str, &'static str, String);

/// The programs that run before and after a kernel's.
fn companions(kernel: &Kernel) -> [Option<Companion>; 2] {
    let reductions = kernel.reductions();
    [
        kernel.packs().then(|| ("pack", PACK_ENTRY, pack_source(kernel.types.a.bytes()))),
        (!reductions.is_empty()).then(|| ("reduce", REDUCE_ENTRY, reduce_source(&reductions))),
    ]
}

fn companion(
    (name, entry, text): Companion,
    architecture: Architecture,
    nvrtc: &Nvrtc,
) -> Result<Arc<Program>, CompileError> {
    type Programs = HashMap<(String, Architecture), Arc<Program>>;
    static MEMORY: Mutex<Option<Programs>> = Mutex::new(None);
    let lock = || MEMORY.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let key = (text, architecture);
    if let Some(program) = lock().get_or_insert_default().get(&key) {
        return Ok(program.clone());
    }
    let program = empty(name.to_owned(), entry, key.0.clone(), architecture, nvrtc);
    let program = Arc::new(filled(program, nvrtc)?);
    Ok(lock().get_or_insert_default().entry(key).or_insert(program).clone())
}

/// A program with its machine code: from disk, or compiled now.
fn filled(program: Program, nvrtc: &Nvrtc) -> Result<Program, CompileError> {
    let options = program.architecture.options(nvrtc.version());
    let key = cache::key(&program.source, &options, nvrtc.version());
    if let Some(Program { cubin, log, .. }) = cache::load(&key) {
        // Kernels of one text share the file, whichever of them wrote it.
        return Ok(Program { key, cubin, log, ..program });
    }
    let task = Task { text: &program.source, file: "rutlass.cu", options: &options, names: &[] };
    let Compiled { cubin, log, .. } =
        nvrtc.compile(&task).map_err(|failure| failed(failure, &program))?;
    let program = Program { key, cubin, log, ..program };
    cache::store(&program);
    Ok(program)
}

fn failed(failure: Failure, program: &Program) -> CompileError {
    let Program { kernel, architecture, .. } = program;
    match failure {
        Failure::Program(log) => {
            CompileError::Failed { kernel: kernel.clone(), architecture: *architecture, log }
        }
        Failure::Call(call, error) => CompileError::Nvrtc { call, error },
    }
}

/// A program as bytes that another process can restore.
pub fn to_bytes(program: &Program) -> Vec<u8> {
    cache::seal(program)
}

/// Whether a program is what this build would make of a kernel: same text, headers and options. Another build's may read its
/// parameters otherwise.
pub fn is_of(program: &Program, kernel: &Kernel) -> bool {
    let key = |program: &Program, text: &str| {
        cache::key(text, &program.architecture.options(program.nvrtc), program.nvrtc)
    };
    let own = source(kernel).is_some_and(|text| key(program, &text) == program.key);
    let mut others = [&program.first, &program.last].into_iter().zip(companions(kernel));
    let same =
        |(other, companion): (&Option<Arc<Program>>, Option<Companion>)| match (other, companion) {
            (Some(other), Some((.., text))) => key(other, &text) == other.key,
            (None, None) => true,
            _ => false,
        };
    own && others.all(same)
}

/// The program in bytes that [`to_bytes`] made. Anything else is refused.
pub fn from_bytes(bytes: &[u8]) -> Result<Arc<Program>, CompileError> {
    cache::unseal(bytes).map(Arc::new).map_err(|error| CompileError::Foreign(error.to_string()))
}
