//! Which tiles `sm90` offers, by how many consumers, in which clusters: chosen from timings on an H100, for each kind of problem.

use super::Schedule::{self, Cooperative, PingPong};

/// Tile, consumers, schedule, cluster, split.
pub(super) type Shape = ([u32; 2], u32, Schedule, [u32; 2], u32);

/// For products with more than a few rows and columns: the tiles that make what the model ranks first fastest, one after the other, on products
/// of which some were made by chance (runs 17, 20, 23, 24 and 25 of docs/notes/sm90.md). In large clusters many CTAs share what they read, which
/// narrow products with few tiles need.
/// Splits are by 2, 4 and 8, as clusters of such sizes spread evenly over the GPCs (docs/notes/sm90-parts.md). The order is the one to
/// try them in where no problem is known.
pub(super) const SHAPES: &[Shape] = &[
    ([128, 192], 2, PingPong, [2, 1], 1),
    ([128, 192], 2, PingPong, [4, 2], 1),
    ([128, 192], 2, PingPong, [1, 2], 1),
    ([128, 128], 2, PingPong, [1, 2], 1),
    ([128, 256], 2, Cooperative, [2, 1], 1),
    ([256, 128], 2, Cooperative, [1, 1], 1),
    ([128, 176], 2, PingPong, [2, 1], 1),
    ([128, 160], 2, PingPong, [2, 1], 1),
    ([128, 128], 2, PingPong, [2, 1], 1),
    ([128, 128], 2, PingPong, [1, 1], 1),
    ([128, 128], 2, PingPong, [2, 4], 1),
    ([128, 256], 2, Cooperative, [1, 1], 1),
    ([256, 128], 2, Cooperative, [1, 2], 1),
    ([256, 160], 2, Cooperative, [1, 2], 1),
    ([256, 168], 2, Cooperative, [1, 1], 1),
    ([192, 192], 3, Cooperative, [1, 2], 1),
    ([192, 160], 3, Cooperative, [1, 2], 1),
    ([192, 128], 3, Cooperative, [1, 1], 1),
    ([192, 136], 3, Cooperative, [2, 1], 1),
    ([192, 128], 3, Cooperative, [1, 2], 1),
    ([192, 128], 3, Cooperative, [1, 4], 1),
    ([192, 112], 3, Cooperative, [1, 2], 1),
    ([192, 88], 3, Cooperative, [2, 4], 1),
    ([192, 112], 3, Cooperative, [2, 1], 1),
    ([192, 112], 3, Cooperative, [4, 2], 1),
    ([128, 224], 2, Cooperative, [1, 2], 1),
    ([128, 208], 2, Cooperative, [2, 4], 1),
    ([128, 224], 2, Cooperative, [2, 1], 1),
    ([128, 192], 2, Cooperative, [1, 1], 1),
    ([128, 176], 2, Cooperative, [1, 1], 1),
    ([128, 144], 2, Cooperative, [2, 1], 1),
    ([128, 144], 2, Cooperative, [2, 1], 2),
    ([128, 128], 2, Cooperative, [2, 2], 1),
    ([128, 128], 2, Cooperative, [2, 1], 1),
    ([128, 128], 2, Cooperative, [1, 1], 2),
    ([128, 128], 2, Cooperative, [1, 1], 4),
    ([128, 128], 2, Cooperative, [1, 4], 1),
    ([128, 96], 2, Cooperative, [2, 1], 1),
    ([128, 96], 2, Cooperative, [4, 1], 1),
    ([128, 96], 2, Cooperative, [4, 2], 1),
    ([128, 80], 2, Cooperative, [1, 4], 1),
    ([128, 80], 2, Cooperative, [2, 1], 1),
    ([128, 80], 2, Cooperative, [2, 4], 1),
    ([128, 64], 2, Cooperative, [1, 1], 1),
    ([128, 64], 2, Cooperative, [2, 1], 1),
    ([128, 64], 2, Cooperative, [1, 1], 4),
    ([128, 64], 2, Cooperative, [1, 2], 4),
    ([128, 64], 2, Cooperative, [2, 4], 1),
    ([128, 64], 2, Cooperative, [1, 4], 1),
    ([64, 192], 1, Cooperative, [1, 1], 1),
    ([64, 160], 1, Cooperative, [4, 2], 1),
    ([64, 128], 1, Cooperative, [1, 1], 1),
    ([64, 96], 1, Cooperative, [1, 2], 1),
    ([64, 104], 1, Cooperative, [2, 4], 1),
    ([64, 96], 1, Cooperative, [2, 1], 1),
    ([64, 96], 1, Cooperative, [4, 2], 1),
    ([64, 64], 1, Cooperative, [1, 1], 1),
    ([64, 48], 1, Cooperative, [1, 2], 1),
    ([64, 72], 1, Cooperative, [4, 2], 1),
    ([64, 64], 1, Cooperative, [1, 1], 2),
    ([64, 64], 1, Cooperative, [1, 1], 4),
    ([64, 64], 1, Cooperative, [1, 1], 8),
    ([64, 64], 1, Cooperative, [2, 4], 1),
    ([64, 32], 1, Cooperative, [1, 1], 1),
    ([64, 32], 1, Cooperative, [1, 1], 8),
];

/// For operands that are copied first: rows that are not aligned are rare, and so need no last percent.
pub(super) const SHAPES_PACKED: &[Shape] = &[
    ([128, 192], 2, PingPong, [2, 1], 1),
    ([128, 128], 2, PingPong, [1, 2], 1),
    ([256, 128], 2, Cooperative, [1, 1], 1),
    ([128, 128], 2, PingPong, [1, 1], 1),
    ([128, 128], 2, Cooperative, [2, 4], 1),
    ([128, 64], 2, Cooperative, [1, 1], 1),
    ([64, 64], 1, Cooperative, [1, 1], 1),
    ([64, 64], 1, Cooperative, [1, 1], 8),
];

/// For an A that threads load. They are slower at it than the copy engine, but need no copy in front: few tiles gain by that, many
/// do not.
pub(super) const BY_THREADS: &[Shape] = &[
    ([128, 128], 2, PingPong, [1, 1], 1),
    ([64, 128], 1, Cooperative, [1, 1], 1),
    ([64, 64], 1, Cooperative, [1, 1], 1),
];

/// For few rows, which lie on the program's N; and for a few hundred, which N takes in steps of 8 where M takes them in steps of 64.
pub(super) const SWAPPED: &[Shape] = &[
    ([64, 8], 1, Cooperative, [1, 1], 1),
    ([64, 8], 1, Cooperative, [1, 1], 2),
    ([256, 8], 2, Cooperative, [1, 1], 1),
    ([64, 16], 1, Cooperative, [1, 1], 1),
    ([64, 16], 1, Cooperative, [1, 1], 2),
    ([128, 16], 2, Cooperative, [1, 1], 1),
    ([128, 64], 2, Cooperative, [1, 4], 1),
    ([128, 56], 2, Cooperative, [4, 2], 1),
    ([128, 56], 2, Cooperative, [2, 4], 1),
    ([128, 72], 2, Cooperative, [1, 4], 1),
    ([128, 80], 2, Cooperative, [2, 4], 1),
    ([128, 80], 2, Cooperative, [4, 2], 1),
    ([64, 32], 1, Cooperative, [1, 1], 1),
    ([64, 48], 1, Cooperative, [4, 2], 1),
    ([64, 48], 1, Cooperative, [1, 2], 1),
    ([64, 64], 1, Cooperative, [2, 4], 1),
    ([64, 80], 1, Cooperative, [2, 4], 1),
    ([64, 80], 1, Cooperative, [4, 2], 1),
    ([64, 88], 1, Cooperative, [4, 2], 1),
    ([64, 88], 1, Cooperative, [2, 4], 1),
    ([64, 32], 1, Cooperative, [1, 2], 1),
    ([64, 96], 1, Cooperative, [1, 2], 1),
    ([64, 96], 1, Cooperative, [4, 1], 1),
    ([64, 96], 1, Cooperative, [1, 2], 2),
    ([64, 96], 1, Cooperative, [2, 1], 1),
    ([64, 128], 1, Cooperative, [1, 2], 1),
    ([64, 128], 1, Cooperative, [1, 2], 2),
    ([64, 160], 1, Cooperative, [1, 2], 1),
    ([192, 64], 3, Cooperative, [2, 4], 1),
    ([192, 80], 3, Cooperative, [2, 4], 1),
    ([192, 88], 3, Cooperative, [1, 2], 1),
    ([192, 96], 3, Cooperative, [1, 1], 1),
    ([192, 96], 3, Cooperative, [1, 2], 1),
    ([192, 104], 3, Cooperative, [1, 4], 1),
    ([192, 104], 3, Cooperative, [1, 1], 1),
    ([192, 112], 3, Cooperative, [1, 4], 1),
    ([192, 128], 3, Cooperative, [1, 2], 1),
    ([192, 128], 3, Cooperative, [4, 2], 1),
    ([192, 144], 3, Cooperative, [2, 1], 1),
    ([192, 152], 3, Cooperative, [2, 4], 1),
    ([192, 160], 3, Cooperative, [1, 4], 1),
    ([192, 144], 3, Cooperative, [4, 2], 1),
    ([192, 176], 3, Cooperative, [1, 2], 1),
    ([192, 184], 3, Cooperative, [1, 1], 1),
    ([192, 200], 3, Cooperative, [2, 1], 1),
    ([128, 96], 2, Cooperative, [1, 2], 1),
    ([128, 112], 2, Cooperative, [2, 4], 1),
    ([128, 120], 2, Cooperative, [4, 2], 1),
    ([128, 96], 2, Cooperative, [1, 4], 1),
    ([128, 96], 2, Cooperative, [1, 2], 2),
    ([128, 96], 2, Cooperative, [4, 2], 1),
    ([128, 200], 2, Cooperative, [1, 1], 1),
    ([128, 160], 2, Cooperative, [1, 2], 1),
    ([128, 144], 2, Cooperative, [2, 1], 1),
    ([128, 224], 2, Cooperative, [2, 1], 1),
    ([128, 160], 2, PingPong, [1, 2], 1),
    ([128, 184], 2, PingPong, [4, 2], 1),
    ([128, 160], 2, PingPong, [4, 2], 1),
    ([256, 112], 2, Cooperative, [1, 1], 1),
    ([256, 120], 2, Cooperative, [1, 2], 1),
    ([256, 144], 2, Cooperative, [1, 2], 1),
    ([256, 144], 2, Cooperative, [2, 1], 1),
    ([256, 160], 2, Cooperative, [2, 1], 1),
    ([256, 160], 2, Cooperative, [1, 2], 1),
    ([256, 184], 2, Cooperative, [1, 2], 1),
];
pub(super) const SWAPPED_PACKED: &[Shape] = &[([64, 16], 1, Cooperative, [1, 1], 1)];

/// For float32 operands of which one is not K-major, which `wgmma` takes from registers; and where the other one is copied first. On an
/// H100, for 39 problems, the first ones are within 1 % of the best of 25 in the geometric mean, 9 % at worst (docs/notes/sm90.md).
pub(super) const SHAPES_FROM_REGISTERS: &[Shape] = &[
    ([128, 256], 2, Cooperative, [1, 2], 1),
    ([256, 128], 2, Cooperative, [1, 1], 1),
    ([128, 192], 2, Cooperative, [1, 1], 1),
    ([192, 192], 3, Cooperative, [1, 1], 1),
    ([192, 128], 3, Cooperative, [1, 1], 1),
    ([128, 128], 2, Cooperative, [1, 1], 2),
    ([128, 64], 2, Cooperative, [1, 1], 6),
    ([64, 128], 1, Cooperative, [1, 1], 1),
    ([64, 64], 1, Cooperative, [1, 1], 1),
    ([64, 64], 1, Cooperative, [1, 1], 2),
    ([64, 64], 1, Cooperative, [1, 1], 8),
];
pub(super) const SHAPES_FROM_REGISTERS_PACKED: &[Shape] = &[
    ([128, 256], 2, Cooperative, [1, 2], 1),
    ([64, 128], 1, Cooperative, [1, 1], 1),
    ([64, 64], 1, Cooperative, [1, 1], 8),
];

/// For the groups of a grouped GEMM: of 18 timed on an H100, those that some problem is better off with (docs/notes/grouped.md).
pub(super) const GROUPED: &[Shape] = &[
    ([128, 256], 2, Cooperative, [1, 1], 1),
    ([128, 256], 2, Cooperative, [1, 2], 1),
    ([128, 128], 2, PingPong, [1, 1], 1),
    ([128, 192], 2, PingPong, [2, 1], 1),
    ([128, 192], 2, PingPong, [1, 2], 1),
    ([128, 176], 2, PingPong, [2, 1], 1),
    ([256, 128], 2, Cooperative, [1, 2], 1),
    ([64, 128], 1, Cooperative, [1, 1], 1),
    ([64, 64], 1, Cooperative, [1, 1], 1),
];

/// With K cut over the grid; in place of the split, how many CTAs add up a tile's columns. For 95 deep products on an H100, the best of them and
/// of all other kernels is within 0.2 % of the best with 21 such shapes, 5 % at worst (docs/notes/sm90-parts.md).
pub(super) const OVER_GRID: &[Shape] = &[
    ([128, 64], 2, Cooperative, [2, 4], 4),
    ([128, 64], 2, Cooperative, [2, 2], 4),
    ([128, 64], 2, Cooperative, [4, 2], 4),
    ([128, 96], 2, Cooperative, [2, 2], 4),
    ([128, 128], 2, Cooperative, [1, 2], 4),
    ([128, 128], 2, Cooperative, [2, 1], 4),
    ([128, 128], 2, Cooperative, [2, 2], 4),
    ([64, 64], 1, Cooperative, [2, 2], 4),
    ([64, 64], 1, Cooperative, [1, 1], 4),
];
