//! Tiles of grouped GEMMs. Only the device knows the extents of groups.

use super::shapes::{Shape, cooperative, ping_pong};

/// Along M, from 128x256 to 64x64: a group has any number of rows.
pub(super) fn along_m() -> Vec<Shape> {
    vec![
        // A pair along N does not increase the rows by which tiles overhang a group.
        cooperative([128, 256], [1, 1]),
        cooperative([128, 256], [1, 2]),
        ping_pong(128, [1, 1]),
        // The widest ping-pong tiles that fit the registers, in pairs: 192, or 176 for 4-byte
        // outputs.
        ping_pong(192, [2, 1]),
        ping_pong(192, [1, 2]),
        ping_pong(176, [2, 1]),
        cooperative([256, 128], [1, 2]),
        cooperative([64, 128], [1, 1]),
        cooperative([64, 64], [1, 1]),
    ]
}

/// Along K. Outputs are matrices of weights, larger than any tile. A group has few K blocks: a
/// tile's store takes a large part of its time, which ping-pong overlaps with the products of
/// another tile.
pub(super) fn along_k() -> Vec<Shape> {
    vec![
        cooperative([128, 256], [1, 1]),
        cooperative([128, 256], [2, 1]),
        cooperative([256, 128], [1, 2]),
        ping_pong(128, [1, 1]),
        ping_pong(128, [2, 1]),
        ping_pong(192, [1, 1]),
        // The widest ping-pong tiles that fit the registers: 192, or 160 for 4-byte outputs.
        ping_pong(192, [2, 1]),
        ping_pong(160, [2, 1]),
        cooperative([64, 128], [1, 1]),
        cooperative([64, 64], [1, 1]),
    ]
}

/// As `along_m`, for 8-bit operands.
pub(super) fn eight_bit() -> Vec<Shape> {
    vec![
        ping_pong(128, [1, 1]),
        cooperative([128, 160], [2, 1]),
        cooperative([128, 128], [1, 1]),
        cooperative([64, 64], [1, 1]),
    ]
}

/// As `along_k`, for float8.
pub(super) fn eight_bit_along_k() -> Vec<Shape> {
    vec![
        cooperative([128, 160], [2, 1]),
        cooperative([128, 128], [2, 1]),
        cooperative([128, 128], [1, 1]),
        cooperative([64, 64], [1, 1]),
    ]
}

/// The same without totals.
pub(super) fn fast_sums_along_k() -> Vec<Shape> {
    vec![cooperative([128, 256], [2, 1]), ping_pong(128, [2, 1])]
}

/// Along M of a mixed product, whose groups lie along the program's columns: tiles of `codes`, for
/// any number of rows. There are many tiles, one or more for each group, so that no split pays. Two
/// consumers of 32 columns, of which a multiprocessor holds two CTAs, spill with zero points.
pub(super) fn weights() -> Vec<Shape> {
    [[128, 16], [192, 32], [128, 64], [128, 128]].map(|tile| cooperative(tile, [1, 1])).into()
}

/// The same with K blocks half as long, of which more stages fit, for large groups.
pub(super) fn weights_wide() -> Vec<Shape> {
    vec![cooperative([128, 256], [1, 1])]
}

/// As `eight_bit`, for float8 without totals. In ping-pong, the group walk and the scales
/// of groups leave no registers for more than 144 columns.
pub(super) fn fast_sums() -> Vec<Shape> {
    vec![
        ping_pong(144, [2, 1]),
        ping_pong(128, [1, 1]),
        // A pair along N does not increase the rows by which tiles overhang a group.
        cooperative([128, 256], [1, 2]),
    ]
}
