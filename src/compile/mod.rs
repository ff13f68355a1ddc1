//! Compilation: program text, NVRTC, and the caches of programs in memory and on disk.

mod architecture;
mod cache;
mod compiler;
#[cfg(test)]
mod elements;
mod embedded;
mod error;
mod folder;
mod headers;
mod locate;
mod nvrtc;
mod program;
mod resources;
mod scan;
mod signature;
mod target;
mod trust;
mod user;
mod user_source;

pub use crate::kernel::source;
pub use architecture::Architecture;
pub use compiler::{compile, fingerprint, from_bytes, is_of, ptx, to_bytes};
pub use embedded::header;
pub use error::CompileError;
pub use folder::{LimitError, Usage, limit, trim, usage};
pub use locate::set_package_directories;
pub use nvrtc::Nvrtc;
pub use program::Program;
pub use resources::Resources;
pub use signature::{Parameter, Pointee, ScalarType};
pub use trust::{Refusal, create_directory, directory, trusted_directory};
pub use user::compile_user;
pub use user_source::UserSource;
