//! Finds NVRTC on this machine.

use std::path::{Path, PathBuf};

use libloading::Library;

use crate::process::Shared;

const BUILTINS: &str = "libnvrtc-builtins.so";

/// The folders of `sys.path`, which hold installed Python packages. The Python layer sets them.
static PACKAGES: Shared<Vec<PathBuf>> = Shared::new(Vec::new());

pub fn set_package_directories(directories: Vec<PathBuf>) {
    PACKAGES.with(|packages| *packages = directories);
}

/// Paths and names to try in order: libraries loaded in this process, the package
/// `nvidia-cuda-nvrtc`, torch's copy, the toolkit, the system's library path.
pub(super) fn candidates() -> Vec<PathBuf> {
    let mut found = loaded();
    for packages in PACKAGES.with(|packages| packages.clone()) {
        // nvidia/cu13/lib for CUDA 13, nvidia/cuda_nvrtc/lib for CUDA 12.
        let components = sorted_entries(&packages.join("nvidia")).into_iter();
        let mut packaged: Vec<_> =
            components.flat_map(|component| libraries_in(&component.join("lib"))).collect();
        packaged.sort_by_key(|library| std::cmp::Reverse(version_by_name(library)));
        found.append(&mut packaged);
        found.extend(libraries_in(&packages.join("torch").join("lib")));
    }
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(home) = std::env::var_os(variable) {
            // lib64 in a toolkit, lib in a conda environment.
            found.extend(
                ["lib64", "lib"]
                    .iter()
                    .flat_map(|folder| libraries_in(&Path::new(&home).join(folder))),
            );
        }
    }
    found.extend(["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"].map(PathBuf::from));
    found.extend(libraries_in(Path::new("/usr/local/cuda/lib64")));
    found
}

fn sorted_entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    // Newest first, by name.
    entries.sort_unstable_by(|a, b| b.cmp(a));
    entries
}

/// Whether this is libnvrtc itself, not its builtins or its low-memory variant (`.alt`).
fn is_nvrtc(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with("libnvrtc")
        && name.contains(".so")
        && !name.contains("builtins")
        && !name.contains(".alt")
}

fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    sorted_entries(folder).into_iter().filter(|path| is_nvrtc(path)).collect()
}

/// The NVRTC libraries mapped in this process (importing torch loads one).
fn loaded() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut paths: Vec<PathBuf> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])))
        .filter(|p| is_nvrtc(p))
        .collect();
    paths.dedup();
    paths
}

fn builtins_beside(nvrtc: &Path) -> impl Iterator<Item = PathBuf> {
    let beside = nvrtc.parent().map(sorted_entries).unwrap_or_default();
    beside.into_iter().filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(BUILTINS))
    })
}

/// The version in the names of the builtins beside an NVRTC (libnvrtc-builtins.so.13.0), if they
/// agree. NVRTC opens its builtins by this name.
pub(super) fn version_by_name(nvrtc: &Path) -> Option<(i32, i32)> {
    if !nvrtc.is_absolute() || !nvrtc.is_file() {
        return None;
    }
    let version_of = |path: PathBuf| {
        let mut numbers =
            path.file_name()?.to_str()?.strip_prefix(BUILTINS)?.strip_prefix('.')?.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    };
    let mut versions = builtins_beside(nvrtc).filter_map(version_of);
    let version = versions.next()?;
    versions.all(|other| other == version).then_some(version)
}

/// Loads the builtins beside an NVRTC. NVRTC opens them by name, which fails in a folder outside
/// the loader's path unless they are loaded already.
pub(super) fn preload_builtins(nvrtc: &Path) {
    for path in builtins_beside(nvrtc) {
        // SAFETY: runs the constructors of a part of NVRTC. If loading fails, NVRTC reports the
        // missing builtins when it compiles.
        if let Ok(library) = unsafe { Library::new(path) } {
            std::mem::forget(library);
        }
    }
}
