//! Compiles a user's own `__global__` function.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::error::Failure;
use super::headers::{Headers, toolkit_includes};
use super::nvrtc::{Compiled, Task};
use super::scan::{kernels_in, strip_comments};
use super::signature::{self, Parameter};
use super::{Architecture, CompileError, Nvrtc, Program, UserSource, cache, resources};
use crate::process::Shared;

/// Returns the program of a user's source for a compute capability, and the function's parameters.
/// Each call reads the headers that the source may include, as their digest is part of the cache's
/// key. A source whose `#include` names a macro is not cached.
///
/// # Errors
/// If NVRTC is missing or too old, the source does not compile, or a parameter type is unsupported.
pub fn compile_user(
    source: &UserSource,
    cc: u32,
) -> Result<(Arc<Program>, Vec<Parameter>), CompileError> {
    type Programs = HashMap<(UserSource, Architecture, Vec<u8>), Arc<Program>>;
    static MEMORY: Shared<Option<Programs>> = Shared::new(None);
    let nvrtc = Nvrtc::get()?;
    let architecture = nvrtc.architecture_for(cc)?;
    let mut options = architecture.common_options();
    options.extend(source.options.iter().cloned());
    options.extend(
        toolkit_includes(nvrtc.path()).iter().map(|folder| format!("-I{}", folder.display())),
    );
    let headers = Headers::of(source, &options);
    let parameters_of = |program: &Program| {
        signature::parse(&program.signature)
            .map_err(|reason| CompileError::Signature { function: source.function.clone(), reason })
    };
    let lookup = (source.clone(), architecture, headers.digest.to_vec());
    let known = || MEMORY.with(|programs| programs.get_or_insert_default().get(&lookup).cloned());
    if headers.all_seen
        && let Some(program) = known()
    {
        let parameters = parameters_of(&program)?;
        return Ok((program, parameters));
    }
    let program = Arc::new(compile_uncached(source, architecture, nvrtc, &options, &headers)?);
    let parameters = parameters_of(&program)?;
    if !headers.all_seen {
        return Ok((program, parameters));
    }
    let program = MEMORY
        .with(|programs| programs.get_or_insert_default().entry(lookup).or_insert(program).clone());
    Ok((program, parameters))
}

fn compile_uncached(
    source: &UserSource,
    architecture: Architecture,
    nvrtc: &Nvrtc,
    options: &[String],
    headers: &Headers,
) -> Result<Program, CompileError> {
    let start = Instant::now();
    let text = source.program();
    let function = source.function.clone();
    let identity = format!("{text}\0{function}\0{}", blake3::Hash::from(headers.digest).to_hex());
    let key = cache::key(&identity, options, nvrtc.version());
    let shared_bytes = source.shared_bytes;
    // NVRTC returns the lowered name of the entry.
    let uncompiled = Program {
        key,
        shared_bytes,
        options: options.to_vec(),
        ..Program::uncompiled(function.clone(), "", text, architecture, nvrtc.version())
    };
    if headers.all_seen
        && let Some(Program { entry, signature, log, resources, cubin, .. }) =
            cache::load(&uncompiled.key)
    {
        let program = Program { entry, signature, log, resources, cubin, ..uncompiled };
        program.log_origin("from the disk cache", start);
        return Ok(program);
    }
    let names = [function.clone(), signature::expression(&function)];
    let (text, file) = (&uncompiled.source, &source.file);
    let task = Task { text, file, options, names: &names, ..Task::default() };
    let compiled = nvrtc.compile(&task).map_err(|failure| match failure {
        Failure::Program(log) => explain_rejection(source, log, &uncompiled),
        failure => failure.of_program(&uncompiled),
    })?;
    let Compiled { cubin, log, mut lowered, .. } = compiled;
    let (signature, entry) = (lowered.pop().unwrap_or_default(), lowered.pop().unwrap_or_default());
    let (resources, log) = resources::split(&log, &entry);
    let program = Program { entry, signature, log, resources, cubin, ..uncompiled };
    program.log_origin("compiled by NVRTC", start);
    if headers.all_seen {
        cache::store(&program);
    }
    Ok(program)
}

/// Prefixes of NVRTC's messages about name expressions, and about the text appended to the source.
const NAME_LOOKUP: &str = "__nv_name_map(";
const APPENDED: &str = "appended to the source(";
const ABOUT_APPENDED: &str = "the declaration appended to the source, which reveals the \
                              function's parameters, does not compile; use C++14 or later, end the \
                              source after a declaration, and leave the name rutlass_signature \
                              unused";

/// The compiler's messages about the user's text. Most other messages follow from these errors.
fn user_messages(log: &str) -> String {
    let users =
        |message: &&str| !message.starts_with(NAME_LOOKUP) && !message.starts_with(APPENDED);
    log.split("\n\n").filter(users).collect::<Vec<_>>().join("\n\n")
}

/// Reduces NVRTC's log to the cause: the user's own errors if any, else an error in the function's
/// name.
fn explain_rejection(source: &UserSource, log: String, program: &Program) -> CompileError {
    let users = user_messages(&log);
    // The first message that starts with `from`. Its further lines quote the source.
    let first_error = |log: &'_ str, from: &str| {
        log.split("\n\n").filter(|message| message.starts_with(from)).find_map(|message| {
            let (_, message) = message.lines().next()?.split_once("error: ")?;
            (!message.starts_with("Error in parsing name expression")).then(|| message.to_owned())
        })
    };
    let error = |from| first_error(&log, from);
    if first_error(&users, "").is_some() {
        Failure::Program(users).of_program(program)
    } else if error(APPENDED).is_some() {
        Failure::Program(format!("{ABOUT_APPENDED}\n{log}")).of_program(program)
    } else if let Some(message) = error(NAME_LOOKUP) {
        no_function(source, &message)
    } else {
        Failure::Program(log).of_program(program)
    }
}

/// The error for a function name that the compiler cannot find or parse.
fn no_function(source: &UserSource, reason: &str) -> CompileError {
    let text = strip_comments(&source.text, true);
    let mut names: Vec<_> = kernels_in(&text).into_iter().map(|(name, _)| name).collect();
    names.dedup();
    let found = match names.is_empty() {
        true => "the source has none".to_owned(),
        false => format!(
            "the source has: {}. A template needs its arguments, as in name<float>",
            names.join(", ")
        ),
    };
    let found = format!("{found}. NVRTC's message: {reason}");
    CompileError::NoFunction { file: source.file.clone(), function: source.function.clone(), found }
}
