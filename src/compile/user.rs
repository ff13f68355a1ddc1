//! Programs of the user's own: a `__global__` function in a text of theirs, compiled as it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::error::Failure;
use super::headers::{Headers, toolkit_includes};
use super::nvrtc::{Compiled, Task};
use super::scan::{kernels_in, plain};
use super::signature::{self, Parameter};
use super::{Architecture, CompileError, Nvrtc, Program, UserSource, cache};

/// The program of a source for a compute capability, from memory, from disk, or compiled now; and the function's parameters.
pub fn compile_user(
    source: &UserSource,
    cc: u32,
) -> Result<(Arc<Program>, Vec<Parameter>), CompileError> {
    type Programs = HashMap<(UserSource, Architecture, Vec<u8>), Arc<Program>>;
    static MEMORY: Mutex<Option<Programs>> = Mutex::new(None);
    let nvrtc = Nvrtc::get()?;
    let architecture = nvrtc.architecture_for(cc)?;
    let mut options = architecture.common_options();
    options.extend(source.options.iter().cloned());
    options.extend(
        toolkit_includes(nvrtc.path()).iter().map(|folder| format!("-I{}", folder.display())),
    );
    let headers = Headers::of(source, &options);
    let understood = |program: &Program| {
        signature::parse(&program.signature)
            .map_err(|reason| CompileError::Signature { function: source.function.clone(), reason })
    };
    let lookup = (source.clone(), architecture, headers.digest.to_vec());
    let lock = || MEMORY.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if headers.all_seen
        && let Some(program) = lock().get_or_insert_default().get(&lookup)
    {
        return Ok((program.clone(), understood(program)?));
    }
    let program = Arc::new(compile_uncached(source, architecture, nvrtc, &options, &headers)?);
    let parameters = understood(&program)?;
    if !headers.all_seen {
        return Ok((program, parameters));
    }
    let program = lock().get_or_insert_default().entry(lookup).or_insert(program).clone();
    Ok((program, parameters))
}

fn compile_uncached(
    source: &UserSource,
    architecture: Architecture,
    nvrtc: &Nvrtc,
    options: &[String],
    headers: &Headers,
) -> Result<Program, CompileError> {
    let text = source.program();
    let function = source.function.clone();
    let identity = format!("{text}\0{function}\0{}", blake3::Hash::from(headers.digest).to_hex());
    let key = cache::key(&identity, options, nvrtc.version());
    let shared_bytes = source.shared_bytes;
    // What the entry is called there, the compiler tells.
    let empty = Program {
        key,
        shared_bytes,
        ..Program::uncompiled(function.clone(), "", text, architecture, nvrtc.version())
    };
    if headers.all_seen
        && let Some(Program { entry, signature, log, cubin, .. }) = cache::load(&empty.key)
    {
        return Ok(Program { entry, signature, log, cubin, ..empty });
    }
    let names = [function.clone(), signature::expression(&function)];
    let task = Task { text: &empty.source, file: &source.file, options, names: &names };
    let compiled = nvrtc.compile(&task).map_err(|failure| match failure {
        Failure::Program(log) => refused(source, log, &empty),
        failure => failure.of_program(&empty),
    })?;
    let Compiled { cubin, log, mut lowered } = compiled;
    let (signature, entry) = (lowered.pop().unwrap_or_default(), lowered.pop().unwrap_or_default());
    let program = Program { entry, signature, log, cubin, ..empty };
    if headers.all_seen {
        cache::store(&program);
    }
    Ok(program)
}

/// What messages begin with that are about the names that NVRTC looks up, in a text of its own, and about what stands behind the user's text.
const NAMES: &str = "__nv_name_map(";
const BEHIND: &str = "behind the source(";
const ABOUT_BEHIND: &str = "what is put behind the source, to learn the function's parameters, does not compile: it needs C++14 or later, a \
                            source that ends where a declaration does, and the name rutlass_signature for itself";

/// The compiler's messages without those about what stands behind the user's text, which mostly follow from the others.
fn users_part(log: &str) -> String {
    let users = |message: &&str| !message.starts_with(NAMES) && !message.starts_with(BEHIND);
    log.split("\n\n").filter(users).collect::<Vec<_>>().join("\n\n")
}

/// What the compiler's messages come to: the user's own errors, if there are any; else what is wrong with the name of the function.
fn refused(source: &UserSource, log: String, program: &Program) -> CompileError {
    let users = users_part(&log);
    // What the first one says whose first line begins so: further lines show the source.
    let first_error = |log: &'_ str, from: &str| {
        log.split("\n\n").filter(|message| message.starts_with(from)).find_map(|message| {
            let (_, said) = message.lines().next()?.split_once("error: ")?;
            (!said.starts_with("Error in parsing name expression")).then(|| said.to_owned())
        })
    };
    let error = |from| first_error(&log, from);
    if first_error(&users, "").is_some() {
        Failure::Program(users).of_program(program)
    } else if error(BEHIND).is_some() {
        Failure::Program(format!("{ABOUT_BEHIND}\n{log}")).of_program(program)
    } else if let Some(said) = error(NAMES) {
        no_function(source, &said)
    } else {
        Failure::Program(log).of_program(program)
    }
}

/// The refusal of a name that the compiler did not find, or could not read, for this reason.
fn no_function(source: &UserSource, reason: &str) -> CompileError {
    let text = plain(&source.text, true);
    let mut names: Vec<_> = kernels_in(&text).into_iter().map(|(name, _)| name).collect();
    names.dedup();
    let found = match names.is_empty() {
        true => "there is none in it".to_owned(),
        false => format!(
            "those in it are: {}. A template needs its arguments, as in name<float>",
            names.join(", ")
        ),
    };
    let found = format!("{found}. The compiler says: {reason}");
    CompileError::NoFunction { file: source.file.clone(), function: source.function.clone(), found }
}
