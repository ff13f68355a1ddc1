//! The size of the disk cache. The programs that were used longest ago are removed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use thiserror::Error;

use super::trust::{directory, is_folder, is_program, is_temporary, trusted_directory};

/// The environment variable of the limit, in MiB, and the limit without it.
const VARIABLE: &str = "CUTLASS_API_CACHE_LIMIT";
const DEFAULT_MIB: u64 = 1024;
/// Programs that a process stores between two looks at the size. The first one looks as well.
const STORES_BETWEEN: u32 = 64;
/// The share of the limit that remains, so that not each look removes files.
const KEPT: f64 = 0.9;
/// The age of a temporary file whose writer was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A limit that is no number.
#[derive(Debug, Error)]
#[error("{VARIABLE} is {0:?}; it must be the size of the cache in MiB, such as {DEFAULT_MIB}")]
pub struct LimitError(String);

/// Files, and the bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub files: u64,
    pub bytes: u64,
}

impl Usage {
    fn add(&mut self, file: &CacheFile) {
        self.files += 1;
        self.bytes += file.bytes;
    }
}

struct CacheFile {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
}

/// The most bytes of the cache on disk.
///
/// # Errors
/// If the environment variable is no number.
pub fn limit() -> Result<u64, LimitError> {
    match std::env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => match text.parse::<u64>() {
            Ok(mib) => Ok(mib.saturating_mul(1 << 20)),
            Err(_) => Err(LimitError(text)),
        },
        _ => Ok(DEFAULT_MIB << 20),
    }
}

/// What the cache on disk holds.
pub fn usage() -> Usage {
    let mut usage = Usage::default();
    directory().iter().flat_map(|base| files(base)).for_each(|file| usage.add(&file));
    usage
}

/// Removes the programs that were used longest ago, until the others take at most `limit` bytes,
/// and what killed writers left. Returns what was removed: nothing in a folder that is not trusted.
pub fn trim(limit: u64) -> Usage {
    let mut removed = Usage::default();
    let Ok(Some(base)) = trusted_directory() else { return removed };
    let mut files = files(&base);
    files.sort_by_key(|file| file.used);
    let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let now = SystemTime::now();
    for file in files {
        let is_program = file.path.file_name().is_some_and(is_program);
        let age = now.duration_since(file.used).unwrap_or_default();
        let goes = if is_program { bytes > limit } else { limit == 0 || age > ABANDONED };
        // Another process may have removed it.
        if goes && fs::remove_file(&file.path).is_ok() {
            bytes -= file.bytes;
            removed.add(&file);
        }
    }
    removed
}

/// Trims the cache now and then. Call after each store. A limit that is no number counts as no
/// limit: a compilation must not fail for it.
pub(super) fn trim_now_and_then() {
    static STORES: AtomicU32 = AtomicU32::new(0);
    if STORES.fetch_add(1, Ordering::Relaxed).is_multiple_of(STORES_BETWEEN) {
        let limit = limit().unwrap_or(u64::MAX);
        let exceeds = usage().bytes > limit;
        // Also removes what killed writers left.
        trim(if exceeds { (limit as f64 * KEPT) as u64 } else { limit });
    }
}

/// Records that a file was used now. A file that cannot be written keeps its time.
pub(super) fn touch(path: &Path) {
    let _ = File::options().append(true).open(path).and_then(|f| f.set_modified(SystemTime::now()));
}

/// The programs and temporary files in the folders of the cache. Links are not followed.
fn files(base: &Path) -> Vec<CacheFile> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    entries(base)
        .filter(|entry| is_folder(&entry.file_name()))
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .flat_map(|folder| entries(&folder.path()).collect::<Vec<_>>())
        .filter(|entry| is_program(&entry.file_name()) || is_temporary(&entry.file_name()))
        .filter_map(|entry| {
            let metadata = entry.metadata().ok().filter(|metadata| metadata.is_file())?;
            let (used, bytes) = (metadata.modified().ok()?, metadata.len());
            Some(CacheFile { used, bytes, path: entry.path() })
        })
        .collect()
}
