//! `CUTLASS_API_CHECK=1`: before each launch of a grouped GEMM, the host reads the offsets, which
//! otherwise only the device knows, and checks them; also an index of A's rows.

use std::sync::LazyLock;

use super::error::LaunchError;
use crate::driver::{Device, is_captured};
use crate::operand::View;
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

/// Checks the offsets, and the index of A's rows, after the work on a stream. Does nothing while
/// the stream is captured.
///
/// # Errors
/// If the offsets name no groups, the index no rows of A, or a driver call fails.
///
/// # Safety
/// Offsets and index are int32 in valid memory of the device.
pub unsafe fn check_offsets(
    grouped: &GroupedGemmProblem,
    device: &Device,
    stream: u64,
) -> Result<(), LaunchError> {
    if grouped.groups() == 0 || is_captured(stream)? {
        return Ok(());
    }
    // SAFETY, for both calls: guaranteed by the caller.
    let offsets = unsafe { download(&grouped.offsets, device, stream)? };
    let groups = grouped.parts(&offsets)?;
    if grouped.gathers() {
        let index = unsafe { download(&grouped.index, device, stream)? };
        grouped.check_rows(&groups, &index)?;
    }
    Ok(())
}

/// The values of a vector on a device.
///
/// # Safety
/// They are int32 in valid memory of the device.
unsafe fn download(view: &View, device: &Device, stream: u64) -> Result<Vec<i64>, LaunchError> {
    let (count, step) = (view.shape[2] as usize, view.stride[2] as usize);
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut words = vec![0i32; (count - 1) * step + 1];
    let bytes = size_of_val(&words[..]) as u64;
    // SAFETY: guaranteed by the caller; any bits are an i32.
    unsafe { device.download(stream, &mut words, view.data, bytes)? };
    Ok((0..count).map(|at| words[at * step].into()).collect())
}
