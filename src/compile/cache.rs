//! The disk cache of compiled programs.
//!
//! - Key: a hash of program text, headers, options and NVRTC version. The key names the file.
//! - Owner: this file. Other processes may share the directory.
//! - Lifetime: until the cache exceeds its limit and others were used more recently (folder.rs).
//! - Invalidation: by key. A file of another format, or with a wrong checksum or key, is a miss and
//!   gets overwritten.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Once;

use thiserror::Error;

use super::folder::{directory, touch, trim_now_and_then};
use super::{Program, embedded};

/// The first bytes of every file. The last byte is the version of the format.
const MAGIC: &[u8; 8] = b"rutlass\x09";
const DIGEST: usize = blake3::OUT_LEN;

#[derive(Debug, Error)]
pub(super) enum DecodeError {
    #[error("the header is not that of an artifact of this version")]
    Magic,
    #[error("the checksum does not match")]
    Checksum,
    #[error("{0}")]
    Format(#[from] postcard::Error),
}

/// Hashes everything that determines NVRTC's output: text, headers, options, NVRTC version.
pub(super) fn key(text: &str, options: &[String], (major, minor): (i32, i32)) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(text.as_bytes());
    embedded::HEADERS.iter().for_each(|(name, content)| {
        part(name.as_bytes());
        part(content.as_bytes());
    });
    options.iter().for_each(|option| part(option.as_bytes()));
    part(format!("nvrtc {major}.{minor}").as_bytes());
    hasher.finalize().to_hex().to_string()
}

/// The file format: magic, checksum of the body, body.
pub(super) fn encode(program: &Program) -> Vec<u8> {
    // Serializing plain data into memory cannot fail.
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

/// The file of a key. The first two digits of the key name one of 256 folders.
fn path(base: &Path, key: &str) -> PathBuf {
    base.join(&key[..2]).join(format!("{}.cubin", &key[2..]))
}

/// Reads the program of a key. Anything but an intact program of this key is a miss.
pub(super) fn load(key: &str) -> Option<Program> {
    let path = path(&directory()?, key);
    let bytes = std::fs::read(&path).ok()?;
    let program = decode(&bytes).ok().filter(|program| program.key == key)?;
    touch(&path);
    Some(program)
}

/// A temporary file with the permissions of the user's umask, so that users may share a cache.
fn temporary() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
}

/// Writes a program. The first error of the process is logged: an unwritable cache must not fail a
/// compilation.
pub(super) fn store(program: &Program) {
    let Some(base) = directory() else { return };
    let target = path(&base, &program.key);
    let Some(folder) = target.parent() else { return };
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        // Renaming is atomic: readers and concurrent writers see a whole file or none.
        let mut file = temporary().tempfile_in(folder)?;
        file.write_all(&encode(program))?;
        file.persist(&target)?;
        Ok(())
    };
    match write() {
        Ok(()) => trim_now_and_then(),
        Err(error) => {
            static WARN: Once = Once::new();
            WARN.call_once(|| {
                log::warn!(
                    "compiled programs cannot be cached in {}: {error}; each process compiles them \
                     again. Set CUTLASS_API_CACHE_DIR to a folder that can be written",
                    base.display()
                );
            });
        }
    }
}
