//! Programs of the user's own: a `__global__` function in a text of theirs, compiled as it is.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::nvrtc::{Compiled, Failure, Task};
use super::signature::{self, Parameter};
use super::{Architecture, CompileError, Nvrtc, Program, cache, empty, failed};

/// CUDA C++ of the user's own, and the function in it that is launched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UserSource {
    pub text: String,
    /// Where the text is from: a file, and the line of it that the text begins on. Messages of the compiler say so.
    pub file: String,
    pub line: usize,
    /// The function in the words of C++: `square`, `mine::square`, `square<float, 4>`.
    pub function: String,
    /// Further options of NVRTC.
    pub options: Vec<String>,
    /// Dynamic shared memory of a launch.
    pub shared_bytes: u32,
}

impl UserSource {
    /// The names of the function's parameters, as far as the text shows them. They are for messages; what decides is the
    /// signature that the compiler tells.
    pub fn parameter_names(&self) -> Vec<String> {
        let base = self.function.split('<').next().unwrap_or_default();
        let base = base.rsplit("::").next().unwrap_or_default().trim();
        let found = kernels_in(&self.text).into_iter().find(|(name, _)| *name == base);
        let parameters = found.map(|(_, parameters)| parameters).unwrap_or_default();
        split_at_commas(parameters).into_iter().map(|parameter| last_word(parameter).to_owned()).collect()
    }

    /// The program as NVRTC gets it.
    fn program(&self) -> String {
        let file = self.file.replace('\\', "\\\\").replace('"', "\\\"");
        format!("#line {} \"{file}\"\n{}{}", self.line, self.text, signature::TEMPLATE)
    }
}

/// The program of a source for a compute capability, from memory, from disk, or compiled now; and the function's parameters.
pub fn compile_user(source: &UserSource, cc: u32) -> Result<(Arc<Program>, Vec<Parameter>), CompileError> {
    type Programs = HashMap<(UserSource, Architecture, Vec<u8>), Arc<Program>>;
    static MEMORY: Mutex<Option<Programs>> = Mutex::new(None);
    let nvrtc = Nvrtc::get()?;
    let architecture = Architecture::for_cc(cc, nvrtc)?;
    let mut options = architecture.common_options();
    options.extend(source.options.iter().cloned());
    options.extend(toolkit_includes(nvrtc.path()).iter().map(|folder| format!("-I{}", folder.display())));
    let headers = Headers::of(source, &options);
    let understood = |program: &Program| {
        signature::parse(&program.signature)
            .map_err(|reason| CompileError::Signature { function: source.function.clone(), reason })
    };
    let lookup = (source.clone(), architecture, headers.digest.to_vec());
    let lock = || MEMORY.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(program) = lock().get_or_insert_default().get(&lookup) {
        return Ok((program.clone(), understood(program)?));
    }
    let program = Arc::new(compile_uncached(source, architecture, nvrtc, &options, &headers)?);
    let parameters = understood(&program)?;
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
    let empty = Program { key, shared_bytes, ..empty(function.clone(), "", text, architecture, nvrtc) };
    if headers.all_seen
        && let Some(Program { entry, signature, log, cubin, .. }) = cache::load(&empty.key)
    {
        return Ok(Program { entry, signature, log, cubin, ..empty });
    }
    let names = [function.clone(), signature::expression(&function)];
    let task = Task { text: &empty.source, file: &source.file, options, names: &names };
    let compiled = nvrtc.compile(&task).map_err(|failure| match failure {
        // NVRTC looks the names up in a text of its own, behind the user's.
        Failure::Program(log) if log.starts_with("__nv_name_map") => {
            let found: Vec<_> = kernels_in(&source.text).into_iter().map(|(name, _)| name).collect();
            let found = match found.is_empty() {
                true => "there is none in it".to_owned(),
                false => {
                    format!("those in it are: {}. A template needs its arguments, as in name<float>", found.join(", "))
                }
            };
            CompileError::NoFunction { file: source.file.clone(), function, found }
        }
        Failure::Program(log) => failed(Failure::Program(users_part(&log)), &empty),
        failure => failed(failure, &empty),
    })?;
    let Compiled { cubin, log, mut lowered } = compiled;
    let (signature, entry) = (lowered.pop().unwrap_or_default(), lowered.pop().unwrap_or_default());
    let program = Program { entry, signature, log, cubin, ..empty };
    if headers.all_seen {
        cache::store(&program);
    }
    Ok(program)
}

/// The compiler's messages without those about what stands behind the user's text, which only follow from the others.
fn users_part(log: &str) -> String {
    let ours = |message: &&str| !message.starts_with("__nv_name_map(") && !message.starts_with("behind the source(");
    log.split("\n\n").filter(ours).collect::<Vec<_>>().join("\n\n")
}

// ---- headers on disk --------------------------------------------------------------------------------------------------

/// What a source includes from disk, which decides about the machine code as its own text does.
struct Headers {
    digest: [u8; blake3::OUT_LEN],
    /// False where an `#include` names a macro, so that some header may have gone unseen: nothing is then kept on disk.
    all_seen: bool,
}

impl Headers {
    /// Everything that includes could mean, under whatever conditions: rather one too many than one too few.
    fn of(source: &UserSource, options: &[String]) -> Headers {
        let mut folders: Vec<PathBuf> = vec![Path::new(&source.file).parent().unwrap_or(Path::new("")).to_owned()];
        let (mut previous, mut text) = ("", String::new());
        for option in options {
            let folder = match previous {
                "-I" | "--include-path" => Some(option.as_str()),
                _ => option.strip_prefix("-I").or_else(|| option.strip_prefix("--include-path=")),
            };
            folders.extend(folder.filter(|folder| !folder.is_empty()).map(PathBuf::from));
            let included = match previous {
                "-include" | "--pre-include" => Some(option.as_str()),
                _ => option.strip_prefix("-include=").or_else(|| option.strip_prefix("--pre-include=")),
            };
            text.extend(included.map(|file| format!("#include \"{file}\"\n")));
            previous = option;
        }
        // Those are looked for where the process is, too.
        folders.push(PathBuf::new());
        text.push_str(&source.text);
        let mut headers = Headers { digest: [0; blake3::OUT_LEN], all_seen: true };
        let (mut hasher, mut seen) = (blake3::Hasher::new(), HashSet::new());
        headers.visit(&text, &folders, &mut seen, &mut hasher);
        headers.digest = *hasher.finalize().as_bytes();
        headers
    }

    fn visit(&mut self, text: &str, folders: &[PathBuf], seen: &mut HashSet<PathBuf>, hasher: &mut blake3::Hasher) {
        for line in text.lines() {
            let Some(directive) = line.trim_start().strip_prefix('#').map(str::trim_start) else { continue };
            let Some(named) = directive.strip_prefix("include").map(str::trim_start) else { continue };
            let close = match named.chars().next() {
                Some('"') => '"',
                Some('<') => '>',
                _ => {
                    self.all_seen = false;
                    continue;
                }
            };
            let name = named[1..].split(close).next().unwrap_or_default();
            for path in folders.iter().map(|folder| folder.join(name)) {
                if seen.contains(&path) {
                    continue;
                }
                let Ok(content) = std::fs::read(&path) else { continue };
                hasher.update(path.as_os_str().as_encoded_bytes());
                hasher.update(&(content.len() as u64).to_le_bytes());
                hasher.update(&content);
                let mut inner = folders.to_vec();
                inner[0] = path.parent().unwrap_or(Path::new("")).to_owned();
                seen.insert(path);
                self.visit(&String::from_utf8_lossy(&content), &inner, seen, hasher);
            }
        }
    }
}

/// The folders of CUDA's own headers (`cuda_fp16.h`, and the C++ library since CUDA 13) that belong to an NVRTC: those beside it, as
/// the toolkit and NVIDIA's packages have them. None where they are not installed.
fn toolkit_includes(nvrtc: &Path) -> Vec<PathBuf> {
    let real = nvrtc.canonicalize().unwrap_or_else(|_| nvrtc.to_owned());
    let beside = real.ancestors().skip(2).take(3).flat_map(|folder| {
        // A toolkit; NVIDIA's packages until CUDA 12.
        [folder.join("include"), folder.join("cuda_runtime").join("include")]
    });
    let home = std::env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("include"));
    let mut places = beside.chain(home).chain([PathBuf::from("/usr/local/cuda/include")]);
    match places.find(|folder| folder.join("cuda_fp16.h").exists()) {
        Some(folder) => [folder.join("cccl"), folder].into_iter().filter(|folder| folder.exists()).collect(),
        None => Vec::new(),
    }
}

// ---- the text, as far as messages want it ---------------------------------------------------------------------------

/// The `__global__` functions of a text, each with what stands between its parentheses.
fn kernels_in(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for (at, mark) in text.match_indices("__global__") {
        let mut rest = &text[at + mark.len()..];
        // The name is what stands before the first parenthesis, unless that is an attribute's.
        while let Some(open) = rest.find('(') {
            let name = last_word(&rest[..open]);
            let Some(inside) = balanced(&rest[open..]) else { break };
            if !name.starts_with("__") {
                found.push((name, inside));
                break;
            }
            rest = &rest[open + inside.len() + 2..];
        }
    }
    found
}

/// What stands between the parenthesis that a text begins with and its counterpart.
fn balanced(text: &str) -> Option<&str> {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        depth += match letter {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        if depth == 0 {
            return Some(&text[1..at]);
        }
    }
    None
}

fn split_at_commas(parameters: &str) -> Vec<&str> {
    let (mut pieces, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, letter) in parameters.char_indices() {
        match letter {
            '(' | '<' | '[' | '{' => depth += 1,
            ')' | '>' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                pieces.push(&parameters[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(&parameters[start..]);
    pieces.retain(|piece| !piece.trim().is_empty());
    pieces
}

fn last_word(text: &str) -> &str {
    let text = text.split('=').next().unwrap_or_default().trim_end_matches([']', '[']).trim_end();
    text.rsplit(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_and_their_parameters_are_found_in_the_text() {
        let text = "template <class T> __global__ void __launch_bounds__(256, 2) scale(const T* __restrict__ x,\n  T *out, \
                    const int n = 3) { f(x); }\nextern \"C\" __global__ void empty() {}";
        let kernels = kernels_in(text);
        assert_eq!(kernels.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["scale", "empty"]);
        let source = UserSource {
            text: text.to_owned(),
            file: "a.cu".to_owned(),
            line: 1,
            function: "scale<float>".to_owned(),
            options: Vec::new(),
            shared_bytes: 0,
        };
        assert_eq!(source.parameter_names(), ["x", "out", "n"]);
        assert!(kernels_in("__global__ void broken(").is_empty());
    }
}
