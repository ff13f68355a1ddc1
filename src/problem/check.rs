//! Checks that several problems share.

use super::ProblemError;
use crate::operand::View;

/// Checks that all operands are on one device, and that the output can be written without changing
/// an input.
pub(super) fn check_operands(
    inputs: &[(&'static str, &View)],
    out: &View,
) -> Result<(), ProblemError> {
    for (name, view) in inputs {
        if view.device != out.device {
            return Err(ProblemError::MixedDevices {
                name,
                device: view.device,
                out_device: out.device,
            });
        }
    }
    if out.read_only {
        return Err(ProblemError::ReadOnly { name: "out" });
    }
    if out.overlaps_itself() {
        return Err(ProblemError::SelfOverlap {
            name: "out",
            shape: out.user_shape().to_vec(),
            stride: out.user_stride().to_vec(),
        });
    }
    for (name, view) in inputs {
        if !view.fake && !out.fake && out.may_alias(view) {
            return Err(ProblemError::Aliased { name });
        }
    }
    Ok(())
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
