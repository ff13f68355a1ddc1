//! The programs of kernels: from memory, from disk, or compiled by NVRTC.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::nvrtc::{Compiled, Task};
use super::{Architecture, CompileError, Nvrtc, Program, cache, resources};
use crate::kernel::{
    Kernel, PACK_ENTRY, PROLOGUE_ENTRY, REDUCE_ENTRY, pack_source, prologue_source, reduce_source,
    source,
};
use crate::process::Shared;

/// The name of a program's text in NVRTC's messages.
const FILE: &str = "rutlass.cu";

/// Returns the program of a kernel for a compute capability: from memory, from disk, or compiled by
/// NVRTC. Kernel and architecture determine the program, since one process uses one NVRTC.
///
/// # Errors
/// If NVRTC is missing or too old, the kernel does not run on the capability, or compilation fails.
pub fn compile(kernel: &Kernel, cc: u32) -> Result<Arc<Program>, CompileError> {
    type Programs = HashMap<(Kernel, Architecture), Arc<Program>>;
    static MEMORY: Shared<Option<Programs>> = Shared::new(None);
    let nvrtc = Nvrtc::get()?;
    let architecture = nvrtc.architecture_for(cc)?;
    if kernel.runs_on_gpu() && !kernel.runs_on(cc) {
        return Err(CompileError::WrongChip { kernel: kernel.name(), cc, chips: kernel.chips() });
    }
    let lookup = (*kernel, architecture);
    let known = MEMORY.with(|programs| programs.get_or_insert_default().get(&lookup).cloned());
    if let Some(program) = known {
        log::debug!("{} for {architecture}: from memory", kernel.name());
        return Ok(program);
    }
    // Compile without the lock. Threads that compile the same kernel at once duplicate work, but do
    // not block other threads.
    let program = Arc::new(compile_uncached(kernel, architecture, nvrtc)?);
    Ok(MEMORY
        .with(|programs| programs.get_or_insert_default().entry(lookup).or_insert(program).clone()))
}

fn compile_uncached(
    kernel: &Kernel,
    architecture: Architecture,
    nvrtc: &Nvrtc,
) -> Result<Program, CompileError> {
    let name = kernel.name();
    let Some((entry, text)) = source(kernel) else { return Err(CompileError::NotCompiled(name)) };
    let program = Program {
        base: Kernel { epilogue: None, ..*kernel }.name(),
        epilogue: kernel.epilogue.cloned(),
        shared_bytes: kernel.facts.shared_bytes,
        ..Program::uncompiled(name, &entry, text, architecture, nvrtc.version())
    };
    // Companions compile in parallel; most are already cached. No thread pool: a forked child would
    // inherit the pool without its threads.
    let companions = companions(kernel);
    let compile_companion =
        |companion: &Companion| compile_companion(companion, architecture, nvrtc);
    std::thread::scope(|scope| {
        let threads = companions.each_ref().map(|companion| {
            companion.as_ref().map(|companion| {
                let work = || compile_companion(companion);
                std::thread::Builder::new().spawn_scoped(scope, work).map_err(|_| companion)
            })
        });
        let program = compile_or_load(program, nvrtc);
        let compiled = threads.map(|thread| {
            let result = thread.map(|thread| match thread {
                Ok(thread) => {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                }
                // The system does not start a thread.
                Err(companion) => compile_companion(companion),
            });
            result.transpose()
        });
        let [pack, reduce, prologue] = compiled;
        Ok(Program { pack: pack?, reduce: reduce?, prologue: prologue?, ..program? })
    })
}

/// A companion program's name, entry and source.
type Companion = (&'static str, &'static str, String);

/// The companions of a kernel: the program that packs operands, the one that finishes reductions,
/// and the row kernel that computes the prologue.
fn companions(kernel: &Kernel) -> [Option<Companion>; 3] {
    let reductions = kernel.reductions();
    [
        kernel.facts.packs.then(|| ("pack", PACK_ENTRY, pack_source(kernel.types))),
        (!reductions.is_empty()).then(|| ("reduce", REDUCE_ENTRY, reduce_source(&reductions))),
        kernel.prologue().map(|of| ("prologue", PROLOGUE_ENTRY, prologue_source(of))),
    ]
}

fn compile_companion(
    (name, entry, text): &Companion,
    architecture: Architecture,
    nvrtc: &Nvrtc,
) -> Result<Arc<Program>, CompileError> {
    type Programs = HashMap<(String, Architecture), Arc<Program>>;
    static MEMORY: Shared<Option<Programs>> = Shared::new(None);
    let key = (text.clone(), architecture);
    let known = MEMORY.with(|programs| programs.get_or_insert_default().get(&key).cloned());
    if let Some(program) = known {
        return Ok(program);
    }
    let (name, version) = ((*name).to_owned(), nvrtc.version());
    let program = Program::uncompiled(name, entry, text.clone(), architecture, version);
    let program = Arc::new(compile_or_load(program, nvrtc)?);
    Ok(MEMORY
        .with(|programs| programs.get_or_insert_default().entry(key).or_insert(program).clone()))
}

/// Adds the machine code to a program: from disk, or compiled by NVRTC.
fn compile_or_load(program: Program, nvrtc: &Nvrtc) -> Result<Program, CompileError> {
    let start = Instant::now();
    let options = program.architecture.options(nvrtc.version());
    let key = cache::key(&program.source, &options, nvrtc.version());
    if let Some(Program { cubin, log, resources, .. }) = cache::load(&key) {
        // Kernels with the same text share a file, so the file may name another kernel.
        let program = Program { key, options, cubin, log, resources, ..program };
        program.log_origin("from the disk cache", start);
        return Ok(program);
    }
    let task = Task { text: &program.source, file: FILE, options: &options, ..Task::default() };
    let Compiled { cubin, log, .. } =
        nvrtc.compile(&task).map_err(|failure| failure.of_program(&program))?;
    let (resources, log) = resources::split(&log, &program.entry);
    let program = Program { key, options, cubin, log, resources, ..program };
    program.log_origin("compiled by NVRTC", start);
    cache::store(&program);
    Ok(program)
}

/// The PTX of a program: compiles its source once more, and the headers that it includes as they
/// are now.
///
/// # Errors
/// If NVRTC is missing, or the source does not compile.
pub fn ptx(program: &Program) -> Result<String, CompileError> {
    let task = Task {
        text: &program.source,
        file: FILE,
        options: &program.options,
        wants_ptx: true,
        ..Task::default()
    };
    let compiled = Nvrtc::get()?.compile(&task).map_err(|failure| failure.of_program(program))?;
    Ok(compiled.ptx)
}

/// Serializes a program for another process.
pub fn to_bytes(program: &Program) -> Vec<u8> {
    cache::encode(program)
}

/// Whether this build compiles the same program for a kernel: text, headers and options are equal.
/// A program of another build may declare other parameters.
pub fn is_of(program: &Program, kernel: &Kernel) -> bool {
    let key = |program: &Program, text: &str| {
        cache::key(text, &program.architecture.options(program.nvrtc), program.nvrtc)
    };
    let own = source(kernel).is_some_and(|(_, text)| key(program, &text) == program.key);
    let others = [&program.pack, &program.reduce, &program.prologue];
    let mut others = others.into_iter().zip(companions(kernel));
    let same =
        |(other, companion): (&Option<Arc<Program>>, Option<Companion>)| match (other, companion) {
            (Some(other), Some((.., text))) => key(other, &text) == other.key,
            (None, None) => true,
            _ => false,
        };
    own && others.all(same)
}

/// A hash of the text of a kernel's program and of the headers. `None` for a kernel that is not
/// compiled.
pub fn fingerprint(kernel: &Kernel) -> Option<String> {
    source(kernel).map(|(_, text)| cache::key(&text, &[], (0, 0)))
}

/// Restores a program from the bytes of [`to_bytes`].
///
/// # Errors
/// If the bytes have another format or a wrong checksum.
pub fn from_bytes(bytes: &[u8]) -> Result<Arc<Program>, CompileError> {
    cache::decode(bytes)
        .map(Arc::new)
        .map_err(|error| CompileError::NotAnArtifact(error.to_string()))
}
