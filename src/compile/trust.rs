//! The folder of the disk cache: its place, the names in it, and whether this process trusts it.
//!
//! Programs of the cache run with the rights of this user. Checksums find damage and do not show
//! who wrote a file. So the cache is used only if its folder belongs to this user and no other user
//! may write to it. The parents of the folder are not checked.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The bits of a mode: rights of this user, of all others, of others to write, and the sticky bit,
/// which marks a folder that users share.
const OWNER: u32 = 0o700;
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Why a folder is not used as the cache, with the remedy.
#[derive(Debug, Error)]
pub enum Refusal {
    #[error(
        "the folder belongs to user {owner}, and this process runs as user {user}. If you trust \
         its files, run: chown -R {user} {path:?}"
    )]
    Owner { path: PathBuf, owner: u32, user: u32 },
    #[error("the symbolic link belongs to user {owner}, and this process runs as user {user}")]
    Link { owner: u32, user: u32 },
    #[error(
        "other users may write to the folder (mode {mode:04o}). Name a new folder inside \
         it, or run: chmod go-w {path:?}"
    )]
    Writable { path: PathBuf, mode: u32 },
}

/// The directory of the cache: `CUTLASS_API_CACHE_DIR`, else `rutlass` in the user's cache
/// directory. `None` if the system names no such directory; programs are then cached in memory
/// only.
pub fn directory() -> Option<PathBuf> {
    match std::env::var_os("CUTLASS_API_CACHE_DIR") {
        Some(path) if !path.is_empty() => Some(PathBuf::from(path)),
        _ => dirs::cache_dir().map(|base| base.join("rutlass")),
    }
}

/// The cache folder, which may be missing yet; `None` if the system names none.
///
/// # Errors
/// If other users may have written to the folder.
pub fn trusted_directory() -> Result<Option<PathBuf>, Refusal> {
    let folder = directory();
    folder.as_deref().map_or(Ok(()), check)?;
    Ok(folder)
}

/// Creates a folder of the cache, and missing parents, for this user alone.
///
/// # Errors
/// If the folder cannot be created, or other users may have written to it.
pub fn create_directory(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(OWNER).create(folder)?;
    check(folder).map_err(io::Error::other)
}

/// Reads a file that belongs to this user and that no other user may write. `None` for other files.
/// Others may have left files in the folder before its rights were reduced.
pub(super) fn read(path: &Path) -> Option<Vec<u8>> {
    let mut file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if metadata.uid() != user() || metadata.mode() & OTHERS_WRITE != 0 {
        return None;
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Checks a folder, and removes the rights of other users if the folder holds nothing but files of
/// the cache, and no sticky bit. A path that cannot be read or is no folder passes: nothing is
/// stored there.
fn check(folder: &Path) -> Result<(), Refusal> {
    let (user, path) = (user(), folder.to_owned());
    let Ok(own) = folder.symlink_metadata() else { return Ok(()) };
    if own.is_symlink() && own.uid() != user {
        return Err(Refusal::Link { owner: own.uid(), user });
    }
    let Some(mut metadata) = folder_metadata(folder) else { return Ok(()) };
    if metadata.uid() != user {
        return Err(Refusal::Owner { path, owner: metadata.uid(), user });
    }
    if metadata.mode() & OTHERS != 0 && metadata.mode() & STICKY == 0 && is_cache(folder) {
        let mode = Permissions::from_mode(metadata.mode() & OWNER);
        // Fails on a read-only file system. The rights that remain decide.
        let _ = std::fs::set_permissions(folder, mode);
        let Some(now) = folder_metadata(folder) else { return Ok(()) };
        metadata = now;
    }
    match metadata.mode() & OTHERS_WRITE {
        0 => Ok(()),
        _ => Err(Refusal::Writable { path, mode: metadata.mode() & 0o7777 }),
    }
}

fn folder_metadata(folder: &Path) -> Option<Metadata> {
    folder.metadata().ok().filter(Metadata::is_dir)
}

/// Whether each entry of a folder has a name that the cache uses. A home folder, or a folder that
/// other programs use, is not a cache.
fn is_cache(folder: &Path) -> bool {
    let Ok(mut entries) = folder.read_dir() else { return false };
    entries.all(|entry| entry.is_ok_and(|entry| is_named_by_cache(&entry.file_name())))
}

/// Whether a name is that of a folder of programs: two digits of a key.
pub(super) fn is_folder(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.len() == 2 && name.iter().all(u8::is_ascii_hexdigit)
}

pub(super) fn is_program(name: &OsStr) -> bool {
    name.as_encoded_bytes().ends_with(b".cubin")
}

/// Whether a name is that of a file that a writer has not renamed yet, as `tempfile` makes it.
pub(super) fn is_temporary(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".tmp")
}

/// Whether the cache, or the store of tuning results beside it, may have made an entry of this
/// name.
fn is_named_by_cache(name: &OsStr) -> bool {
    let is_store = name.as_encoded_bytes().starts_with(b"tuning.");
    is_store || is_folder(name) || is_program(name) || is_temporary(name)
}
