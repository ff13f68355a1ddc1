//! Workspace: device memory that a kernel needs in addition to its operands.

use super::Host;
use super::error::LaunchError;
use crate::driver::{Device, DriverError, PoolMemory};
use crate::epilogue::BoundEpilogue;
use crate::operand::View;
use crate::problem::Problem;

/// Returns the address of a user's workspace of at least `bytes` bytes.
///
/// # Errors
/// If size, device, alignment or contiguity do not fit, or the memory is read-only, fake or shared
/// with an operand.
pub fn check_workspace(
    view: &View,
    bytes: u64,
    problem: &Problem,
    epilogue: Option<&BoundEpilogue>,
) -> Result<u64, LaunchError> {
    let refuse = |reason: String| Err(LaunchError::Workspace(reason));
    if view.fake {
        return refuse("is a FakeTensor, which has no memory; pass a real tensor".into());
    }
    if view.read_only {
        return refuse("is read-only; pass a writable tensor".into());
    }
    let of_epilogue = epilogue.map(BoundEpilogue::tensors).unwrap_or_default();
    let mut operands = problem.operands().into_iter().chain(of_epilogue);
    if let Some((name, _)) = operands.find(|(_, operand)| view.may_alias(operand)) {
        return refuse(format!("shares memory with {name}; pass separate memory"));
    }
    let device = problem.device();
    if view.device != device {
        return refuse(format!("is on {}, the operands are on {device}", view.device));
    }
    let has = view.bytes() as u64;
    if has < bytes || !view.is_contiguous() {
        return refuse(format!(
            "has {has} bytes, and {bytes} contiguous bytes are needed: see get_workspace_size"
        ));
    }
    if !view.data.is_multiple_of(16) {
        return refuse(format!("begins at {:#x}, which is not a multiple of 16", view.data));
    }
    Ok(view.data)
}

/// Allocates device memory in stream order. If allocation fails for lack of memory, frameworks
/// release their caches and allocation is retried once.
pub fn allocate(
    host: &impl Host,
    device: &Device,
    stream: u64,
    bytes: u64,
) -> Result<PoolMemory, DriverError> {
    let attempt = || device.allocate(stream, bytes);
    match host.unlocked(attempt) {
        Err(error) if error.means_no_memory() && host.release_cached_memory() => {
            host.unlocked(attempt)
        }
        allocated => allocated,
    }
}
