//! Compiled programs on disk: one file a program, named by its key, written whole or not at all, checked when read.

use std::io::Write;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{Program, source};

/// Begins every file; the last byte counts the format's versions.
const MAGIC: &[u8; 8] = b"rutlass\x07";
const DIGEST: usize = blake3::OUT_LEN;

#[derive(Debug, Error)]
pub(super) enum DecodeError {
    #[error("they do not begin as one does")]
    Magic,
    #[error("they are torn or changed: the checksum does not match")]
    Checksum,
    #[error("{0}")]
    Format(#[from] postcard::Error),
}

/// Where programs are kept: `CUTLASS_API_CACHE_DIR`, else `rutlass` in the user's cache directory. `None` where the
/// system names no such directory; programs are then kept in memory only.
pub fn directory() -> Option<PathBuf> {
    match std::env::var_os("CUTLASS_API_CACHE_DIR") {
        Some(path) if !path.is_empty() => Some(PathBuf::from(path)),
        _ => dirs::cache_dir().map(|base| base.join("rutlass")),
    }
}

/// All that decides what NVRTC makes of a program: its text, the headers, the options and the compiler's version.
pub(super) fn key(text: &str, options: &[String], (major, minor): (i32, i32)) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(text.as_bytes());
    source::HEADERS.iter().for_each(|(name, content)| {
        part(name.as_bytes());
        part(content.as_bytes());
    });
    options.iter().for_each(|option| part(option.as_bytes()));
    part(format!("nvrtc {major}.{minor}").as_bytes());
    hasher.finalize().to_hex().to_string()
}

/// Magic, checksum of the rest, the rest.
pub(super) fn encode(program: &Program) -> Vec<u8> {
    // Serializing plain data into memory fails only where memory does.
    let body = postcard::to_stdvec(program).unwrap_or_default();
    [MAGIC.as_slice(), blake3::hash(&body).as_bytes(), &body].concat()
}

pub(super) fn decode(bytes: &[u8]) -> Result<Program, DecodeError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(DecodeError::Magic)?;
    let (digest, body) = rest.split_at_checked(DIGEST).ok_or(DecodeError::Checksum)?;
    if blake3::hash(body).as_bytes() != digest {
        return Err(DecodeError::Checksum);
    }
    Ok(postcard::from_bytes(body)?)
}

/// The file of a key. Two levels, so that no folder grows large.
fn path(base: &Path, key: &str) -> PathBuf {
    base.join(&key[..2]).join(format!("{}.cubin", &key[2..]))
}

/// The program of this key, if a whole one is there. Whatever else is found is left to be overwritten.
pub(super) fn load(key: &str) -> Option<Program> {
    let bytes = std::fs::read(path(&directory()?, key)).ok()?;
    decode(&bytes).ok().filter(|program| program.key == key)
}

/// A file with the rights of any other, less the user's mask: several may share a cache.
fn temporary() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
}

/// Keeps a program, if the disk lets us: a cache that cannot be written to is no reason to fail.
pub(super) fn store(program: &Program) {
    let Some(base) = directory() else { return };
    let target = path(&base, &program.key);
    let Some(folder) = target.parent() else { return };
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        // Renaming is atomic: a reader, or a second process storing the same program, sees a whole file or none.
        let mut file = temporary().tempfile_in(folder)?;
        file.write_all(&encode(program))?;
        file.persist(&target)?;
        Ok(())
    };
    let _ = write();
}
