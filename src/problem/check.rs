//! Checks that several problems share.

use super::ProblemError;
use crate::operand::{DType, View};

/// Checks that all operands are on one device, and that the output can be written without changing
/// an input.
pub(super) fn check_operands(
    inputs: &[(&'static str, &View)],
    out: &View,
) -> Result<(), ProblemError> {
    for (name, view) in inputs {
        check_device(name, view, out)?;
    }
    check_written("out", out)?;
    for (name, view) in inputs {
        if may_overlap(out, view) {
            return Err(ProblemError::Aliased { name });
        }
    }
    Ok(())
}

/// Checks that an operand is on the output's device.
#[inline(always)]
pub(super) fn check_device(
    name: &'static str,
    view: &View,
    out: &View,
) -> Result<(), ProblemError> {
    if view.device == out.device {
        return Ok(());
    }
    Err(ProblemError::MixedDevices { name, device: view.device, out_device: out.device })
}

/// Checks that a kernel may write to an output, and that each element has its own memory.
#[inline(always)]
pub(super) fn check_written(name: &'static str, view: &View) -> Result<(), ProblemError> {
    if view.read_only {
        return Err(ProblemError::ReadOnly { name });
    }
    if view.overlaps_itself() {
        let (shape, stride) = (view.user_shape().to_vec(), view.user_stride().to_vec());
        return Err(ProblemError::SelfOverlap { name, shape, stride });
    }
    Ok(())
}

/// Whether writing one view may change the other. Views without memory never overlap.
#[inline(always)]
pub(super) fn may_overlap(output: &View, other: &View) -> bool {
    !output.fake && !other.fake && output.may_alias(other)
}

/// Checks that an operand has the rank of A.
#[inline(always)]
pub(super) fn same_rank(name: &'static str, view: &View, a: &View) -> Result<(), ProblemError> {
    if view.rank == a.rank {
        return Ok(());
    }
    let (shape, a_shape) = (view.user_shape().to_vec(), a.user_shape().to_vec());
    Err(ProblemError::MixedRanks { name, shape, a_shape })
}

/// Checks that two operands agree in one dimension; `dim` indexes the right-aligned shape.
#[inline(always)]
pub(super) fn same_extent(
    dimension: &'static str,
    (left_name, left, left_dim): (&'static str, &View, usize),
    (right_name, right, right_dim): (&'static str, &View, usize),
) -> Result<(), ProblemError> {
    if left.shape[left_dim] == right.shape[right_dim] {
        return Ok(());
    }
    Err(ProblemError::Mismatch {
        dimension,
        left_name,
        left: left.shape[left_dim],
        left_shape: left.user_shape().to_vec(),
        right_name,
        right: right.shape[right_dim],
        right_shape: right.user_shape().to_vec(),
    })
}

/// Checks that an epilogue may read or write an operand, and that it is on the device of `out`.
pub(super) fn check_type_and_device(
    name: &'static str,
    view: &View,
    out: &View,
) -> Result<(), ProblemError> {
    if !view.dtype.is_whole() {
        let known: Vec<String> = DType::whole().map(|dtype| dtype.to_string()).collect();
        let known = known.join(", ");
        return Err(ProblemError::EpilogueType { name, dtype: view.dtype, known });
    }
    check_device(name, view, out)
}
