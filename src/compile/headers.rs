//! The headers on disk that a user's source includes.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::UserSource;
use super::scan::{header_name, include_target, strip_comments};

/// A digest of the headers that a source includes, which is part of the cache key.
pub(super) struct Headers {
    pub(super) digest: [u8; blake3::OUT_LEN],
    /// False if an `#include` names a macro, so that a header may be missing from the digest. The
    /// program is then not cached.
    pub(super) all_seen: bool,
}

impl Headers {
    /// Digests every header that an `#include` may name, even inside a false `#if`: a superfluous
    /// header only causes a recompilation.
    pub(super) fn of(source: &UserSource, options: &[String]) -> Headers {
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
        // NVRTC also searches the working directory for these.
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
        for line in strip_comments(text, false).lines() {
            if let Some(included) = include_target(line) {
                match header_name(included) {
                    Some(name) => self.visit_named(name, folders, seen, hasher),
                    None => self.all_seen = false,
                }
            }
            // `__has_include` names a header that may exist later. Macros as names are ignored:
            // most belong to libraries.
            for query in line.split("__has_include").skip(1) {
                if let Some(name) = query.trim_start().strip_prefix('(').and_then(header_name) {
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

/// A file, and the folder that its own includes are relative to. Both paths are canonical, since a
/// file has many paths (`a/../b/../a`).
type Place = (PathBuf, PathBuf);

/// The include folders of the CUDA toolkit for this NVRTC (`cuda_fp16.h`, and from CUDA 13 on the
/// C++ library): beside the NVRTC library, else in `CUDA_HOME` or /usr/local/cuda. Empty if none
/// has `cuda_fp16.h`.
pub(super) fn toolkit_includes(nvrtc: &Path) -> Vec<PathBuf> {
    let real = nvrtc.canonicalize().unwrap_or_else(|_| nvrtc.to_owned());
    let beside = real.ancestors().skip(2).take(3).flat_map(|folder| {
        // The layout of a toolkit; the layout of NVIDIA's Python packages until CUDA 12.
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
