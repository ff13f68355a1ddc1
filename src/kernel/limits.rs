//! Limits that hold for every kernel.

use super::operation::Operation;
use super::unsupported::Unsupported;
use crate::operand::DeviceId;
use crate::problem::Problem;

/// The largest extent: 32-bit, with headroom for the tiles that overhang the edge.
const MAX_EXTENT: i64 = i32::MAX as i64 - 1024;

/// Checks that a problem fits 32 bits. On a GPU, M, N, K and L are 32-bit numbers (offsets are
/// 64-bit), and a grid has one dimension of CTAs.
pub fn check_limits(problem: &Problem) -> Result<(), Unsupported> {
    if let Problem::GroupedGemm(grouped) = problem {
        if let Some((name, view, expected)) = grouped.misranked() {
            let shape = view.user_shape().to_vec();
            return Err(Unsupported::Rank { name, rank: view.rank, shape, expected });
        }
        if !grouped.offsets_fit() {
            let (offsets, groups) = (grouped.offsets.shape[2], grouped.groups());
            return Err(Unsupported::Offsets { offsets, groups });
        }
    }
    let (DeviceId::Cuda(_), Some(product)) = (problem.device(), problem.product()) else {
        return Ok(());
    };
    // Groups of rows of one matrix.
    let has_strips = Operation::of(problem) == Operation::GroupedGemm && product.out.shape[0] == 1;
    let batch = product.b.shape[0];
    let rows_of_a = problem.views()[0].shape[1];
    let extents = [
        ("M", product.m()),
        ("N", product.n()),
        ("K", product.k()),
        ("L", batch),
        ("M of A", rows_of_a),
    ];
    for (dimension, extent) in extents {
        if extent > MAX_EXTENT {
            return Err(Unsupported::Extent { dimension, extent, limit: MAX_EXTENT });
        }
    }
    // The smallest tiles of sm80 and simt are 32 x 32. Families with smaller tiles check their own
    // counts.
    let (strips, batch) = (i128::from(product.m() / 32), i128::from(batch));
    let strips = if has_strips { strips + batch } else { (strips + 1) * batch };
    let tiles = strips * (i128::from(product.n() / 32) + 1);
    if tiles > i128::from(i32::MAX) {
        return Err(Unsupported::Extent {
            dimension: "M * N * L / 1024",
            extent: (tiles.min(i64::MAX.into())) as i64,
            limit: i32::MAX.into(),
        });
    }
    Ok(())
}

/// Checks that a count fits 32 bits.
pub fn check_count(dimension: &'static str, count: u64) -> Result<(), Unsupported> {
    match i32::try_from(count) {
        Ok(_) => Ok(()),
        Err(_) => {
            let (extent, limit) = (count as i64, i32::MAX.into());
            Err(Unsupported::Extent { dimension, extent, limit })
        }
    }
}

/// Checks that an extent fits 32 bits.
pub fn check_index(dimension: &'static str, extent: i64) -> Result<(), Unsupported> {
    let limit = i32::MAX.into();
    if extent <= limit { Ok(()) } else { Err(Unsupported::Extent { dimension, extent, limit }) }
}
