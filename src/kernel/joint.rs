//! Joint GEMM: one A, and several matrices B whose columns lie side by side in the output.

use super::unsupported::Unsupported;
use crate::epilogue::Joint;

/// Checks that each tile, of so many of the user's columns, lies in one matrix, and that all
/// matrices have the alignment that a kernel requires, in bytes.
pub fn check_joint(joint: &Joint, tile: u32, align: u32) -> Result<(), Unsupported> {
    if !joint.unit.is_multiple_of(tile) {
        return Err(Unsupported::UnevenPanels { unit: joint.unit, tile });
    }
    match joint.align < align {
        true => Err(Unsupported::UnalignedPanels { align: joint.align, expected: align }),
        false => Ok(()),
    }
}
