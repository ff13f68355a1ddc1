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
        let text = plain(&self.text, true);
        // The last one: a declaration in front may leave the names out.
        let found = kernels_in(&text).into_iter().rfind(|(name, _)| *name == base);
        let parameters = found.map(|(_, parameters)| parameters).unwrap_or_default();
        split_at_commas(parameters)
            .into_iter()
            .map(|parameter| last_word(parameter).to_owned())
            .collect()
    }

    /// The program as NVRTC gets it.
    fn program(&self) -> String {
        let file = self.file.replace('\\', "\\\\").replace('"', "\\\"");
        format!("#line {} \"{file}\"\n{}{}", self.line, self.text, signature::TEMPLATE)
    }
}

/// The program of a source for a compute capability, from memory, from disk, or compiled now; and the function's parameters.
pub fn compile_user(
    source: &UserSource,
    cc: u32,
) -> Result<(Arc<Program>, Vec<Parameter>), CompileError> {
    type Programs = HashMap<(UserSource, Architecture, Vec<u8>), Arc<Program>>;
    static MEMORY: Mutex<Option<Programs>> = Mutex::new(None);
    let nvrtc = Nvrtc::get()?;
    let architecture = Architecture::for_cc(cc, nvrtc)?;
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
    let empty =
        Program { key, shared_bytes, ..empty(function.clone(), "", text, architecture, nvrtc) };
    if headers.all_seen
        && let Some(Program { entry, signature, log, cubin, .. }) = cache::load(&empty.key)
    {
        return Ok(Program { entry, signature, log, cubin, ..empty });
    }
    let names = [function.clone(), signature::expression(&function)];
    let task = Task { text: &empty.source, file: &source.file, options, names: &names };
    let compiled = nvrtc.compile(&task).map_err(|failure| match failure {
        Failure::Program(log) => refused(source, log, &empty),
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
        failed(Failure::Program(users), program)
    } else if error(BEHIND).is_some() {
        failed(Failure::Program(format!("{ABOUT_BEHIND}\n{log}")), program)
    } else if let Some(said) = error(NAMES) {
        no_function(source, &said)
    } else {
        failed(Failure::Program(log), program)
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
        let mut folders: Vec<PathBuf> =
            vec![Path::new(&source.file).parent().unwrap_or(Path::new("")).to_owned()];
        let (mut previous, mut text) = ("", String::new());
        for option in options {
            let folder = match previous {
                "-I" | "--include-path" => Some(option.as_str()),
                _ => option.strip_prefix("-I").or_else(|| option.strip_prefix("--include-path=")),
            };
            folders.extend(folder.filter(|folder| !folder.is_empty()).map(PathBuf::from));
            let included = match previous {
                "-include" | "--pre-include" => Some(option.as_str()),
                _ => option
                    .strip_prefix("-include=")
                    .or_else(|| option.strip_prefix("--pre-include=")),
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

    fn visit(
        &mut self,
        text: &str,
        folders: &[PathBuf],
        seen: &mut HashSet<Place>,
        hasher: &mut blake3::Hasher,
    ) {
        for line in plain(text, false).lines() {
            if let Some(included) = included(line) {
                match quoted(included) {
                    Some(name) => self.visit_named(name, folders, seen, hasher),
                    None => self.all_seen = false,
                }
            }
            // What may be there at another time. (Those that name a macro are mostly a library's, about files of its own.)
            for asked in line.split("__has_include").skip(1) {
                if let Some(name) = asked.trim_start().strip_prefix('(').and_then(quoted) {
                    self.visit_named(name, folders, seen, hasher);
                }
            }
        }
    }

    fn visit_named(
        &mut self,
        name: &str,
        folders: &[PathBuf],
        seen: &mut HashSet<Place>,
        hasher: &mut blake3::Hasher,
    ) {
        for path in folders.iter().map(|folder| folder.join(name)) {
            let Ok(real) = path.canonicalize() else { continue };
            let parent = path.parent().unwrap_or(Path::new("")).to_owned();
            let real_parent = parent.canonicalize().unwrap_or_else(|_| parent.clone());
            if !seen.insert((real, real_parent)) {
                continue;
            }
            let Ok(content) = std::fs::read(&path) else { continue };
            hasher.update(path.as_os_str().as_encoded_bytes());
            hasher.update(&(content.len() as u64).to_le_bytes());
            hasher.update(&content);
            let mut inner = folders.to_vec();
            inner[0] = parent;
            self.visit(&String::from_utf8_lossy(&content), &inner, seen, hasher);
        }
    }
}

/// A file that was read, and the folder in which what it names itself is looked for: the same ones have many names (`a/../b/../a`).
type Place = (PathBuf, PathBuf);

/// The name in quotes or angle brackets that a text begins with.
fn quoted(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let close = match text.chars().next()? {
        '"' => '"',
        '<' => '>',
        _ => return None,
    };
    text[1..].split_once(close).map(|(name, _)| name)
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
        Some(folder) => {
            [folder.join("cccl"), folder].into_iter().filter(|folder| folder.exists()).collect()
        }
        None => Vec::new(),
    }
}

// ---- the text, as far as includes and messages want it ---------------------------------------------------------------

/// The text without its comments, with each line that goes on behind a backslash in one; and, if asked for, with nothing in its literals.
fn plain(text: &str, empty_literals: bool) -> String {
    let text = text.replace("\\\r\n", "").replace("\\\n", "");
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text.as_str());
    while let Some(letter) = rest.chars().next() {
        // How much of the text is a piece, and what is left of that.
        let line = || &plain[plain.rfind('\n').map_or(0, |end| end + 1)..];
        let (length, kept) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), "")
        } else if let Some(inside) = rest.strip_prefix("/*") {
            let length = inside.find("*/").map_or(rest.len(), |end| end + 4);
            // For NVRTC, another line has begun.
            (length, if rest[..length].contains('\n') { "\n" } else { " " })
        } else if letter == '<' && included(line()).is_some() {
            let length = rest.find(['>', '\n']).unwrap_or(rest.len());
            (length, &rest[..length])
        } else if letter == '"' || letter == '\'' && !separates_digits(line()) {
            let raw = ["R", "u8R", "uR", "UR", "LR"]
                .contains(&word_before(line()))
                .then(|| raw_literal(rest))
                .flatten();
            let length = raw.unwrap_or_else(|| literal(rest, letter));
            (length, if empty_literals { "\"\"" } else { &rest[..length] })
        } else {
            (letter.len_utf8(), &rest[..letter.len_utf8()])
        };
        plain.push_str(kept);
        rest = &rest[length..];
    }
    plain
}

/// What stands behind `#include` in a line without comments.
fn included(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let directive = line.strip_prefix('#').or_else(|| line.strip_prefix("%:"))?;
    directive.trim_start().strip_prefix("include")
}

/// The name or number that a line ends with.
fn word_before(line: &str) -> &str {
    line.rsplit(|letter: char| !letter.is_alphanumeric() && !"_'".contains(letter))
        .next()
        .unwrap_or_default()
}

/// Whether an apostrophe behind a line is one within a number.
fn separates_digits(line: &str) -> bool {
    word_before(line).starts_with(|letter: char| letter.is_ascii_digit())
}

/// The length of the literal that a text begins with; it ends with its line if not before.
fn literal(text: &str, quote: char) -> usize {
    let mut letters = text.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            '\n' => return at,
            _ if letter == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The same of `"mark( ... )mark"`; None of what is no such literal.
fn raw_literal(text: &str) -> Option<usize> {
    let close = format!("){}\"", &text[1..text.find('(')?]);
    Some(text.find(&close)? + close.len())
}

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
    text.rsplit(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .next()
        .unwrap_or_default()
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
        let named = |text: &str| {
            UserSource { text: text.to_owned(), function: "f".to_owned(), ..source.clone() }
                .parameter_names()
        };
        let commented = "__global__ void f(float*);  // f(int old)\n/* __global__ void f(int old) {} */\n\
                         __global__ void f(float* x /* in, row-major */, // the first\n char c = ')', int n)";
        assert_eq!(named(commented), ["x", "c", "n"]);
    }

    #[test]
    fn comments_and_splices_go() {
        let text = "a /* b\n */ c // d\n\"// e\" f\\\ng 1'000 '\\'' \"\\\"\" h";
        assert_eq!(plain(text, false), "a \n c \n\"// e\" fg 1'000 '\\'' \"\\\"\" h");
        assert_eq!(plain(text, true), "a \n c \n\"\" fg 1'000 \"\" \"\" h");
        assert_eq!(plain("U'\"' /* a */ b'/*'", false), "U'\"'   b'/*'");
        assert_eq!(plain("R\"x(a \" /* b)\" )x\" // c", false), "R\"x(a \" /* b)\" )x\" ");
        assert_eq!(plain("PTR\"a\" // (", false), "PTR\"a\" ");
        assert_eq!(plain("R\"a\" // b", false), "R\"a\" ");
        assert_eq!(plain("#include <a//b> // c\n1 < 2 // d", false), "#include <a//b> \n1 < 2 ");
        assert_eq!(quoted("<a"), None);
        assert_eq!(quoted(" \"x.h\" // y"), Some("x.h"));
        assert_eq!(quoted("<x.h>"), Some("x.h"));
        assert_eq!(quoted("NAME"), None);
    }
}
