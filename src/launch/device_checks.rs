//! `CUTLASS_API_CHECK=1`: before each launch of a grouped GEMM, the host reads the offsets, which
//! otherwise only the device knows, and checks them.

use std::sync::LazyLock;

use super::error::LaunchError;
use crate::driver::{Device, is_captured};
use crate::problem::{GroupedGemmProblem, Problem};

/// `1` in this environment variable switches the checks on.
const SWITCH: &str = "CUTLASS_API_CHECK";

/// Whether the checks are on. Reads the environment once per process.
pub fn are_enabled() -> bool {
    static ARE_ENABLED: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os(SWITCH).is_some_and(|value| value == "1"));
    *ARE_ENABLED
}

/// The grouped GEMM whose offsets are to be checked before a launch of this problem.
pub fn checked(problem: &Problem) -> Option<&GroupedGemmProblem> {
    match problem {
        Problem::GroupedGemm(grouped) if are_enabled() => Some(grouped),
        _ => None,
    }
}

/// Checks the offsets after the work on a stream. Does nothing while the stream is captured.
///
/// # Errors
/// If the offsets name no groups, or a driver call fails.
///
/// # Safety
/// The offsets are int32 in valid memory of the device.
pub unsafe fn check_offsets(
    grouped: &GroupedGemmProblem,
    device: &Device,
    stream: u64,
) -> Result<(), LaunchError> {
    let (offsets, groups) = (&grouped.offsets, grouped.groups() as usize);
    if groups == 0 || is_captured(stream)? {
        return Ok(());
    }
    let step = offsets.stride[2] as usize;
    let mut words = vec![0i32; (groups - 1) * step + 1];
    let bytes = size_of_val(&words[..]) as u64;
    // SAFETY: guaranteed by the caller; any bits are an i32.
    unsafe { device.download(stream, &mut words, offsets.data, bytes)? };
    let values: Vec<i64> = (0..groups).map(|group| words[group * step].into()).collect();
    grouped.parts(&values)?;
    Ok(())
}
