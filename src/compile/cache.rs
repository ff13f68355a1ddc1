//! The disk cache of compiled programs, which processes of the user may share (trust.rs). The key
//! names the file. A file of another format, or with a wrong checksum or key, is a miss and gets
//! overwritten. Beyond the limit, the programs that were used longest ago go (folder.rs).

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Once;

use thiserror::Error;

use super::folder::{touch, trim_now_and_then};
use super::{Program, embedded, trust};

/// The first bytes of every file. The last byte is the version of the format.
const MAGIC: &[u8; 8] = b"rutlass\x0a";
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
    let path = path(&trusted_directory()?, key);
    let bytes = trust::read(&path)?;
    let reason = match decode(&bytes) {
        Ok(program) if program.key == key => {
            touch(&path);
            return Some(program);
        }
        Ok(_) => "it holds the program of another key".to_owned(),
        Err(error) => error.to_string(),
    };
    log::info!("{} is not loaded: {reason}; the program is compiled again", path.display());
    None
}

/// Writes a program. An unwritable cache must not fail a compilation.
pub(super) fn store(program: &Program) {
    let Some(base) = trusted_directory() else { return };
    let target = path(&base, &program.key);
    let Some(folder) = target.parent() else { return };
    let write = || -> std::io::Result<()> {
        trust::create_directory(&base)?;
        trust::create_directory(folder)?;
        // Renaming is atomic: readers and concurrent writers see a whole file or none.
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&encode(program))?;
        file.persist(&target)?;
        Ok(())
    };
    match write() {
        Ok(()) => trim_now_and_then(),
        Err(error) => warn_once(&base, &error),
    }
}

/// The folder of the cache. A folder that is not trusted is logged.
fn trusted_directory() -> Option<PathBuf> {
    match trust::trusted_directory() {
        Ok(folder) => folder,
        Err(refusal) => {
            warn_once(&trust::directory()?, &refusal);
            None
        }
    }
}

/// Logs why programs are not cached. The first call of the process logs.
fn warn_once(folder: &Path, reason: &dyn Display) {
    static WARN: Once = Once::new();
    WARN.call_once(|| {
        log::warn!(
            "compiled programs cannot be cached in {}: {reason}; each process compiles them \
             again. Set CUTLASS_API_CACHE_DIR to a folder that this user can write and others \
             cannot",
            folder.display()
        );
    });
}
