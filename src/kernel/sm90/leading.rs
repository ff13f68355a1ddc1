//! The kernels of the family that lead the list without a problem (`kernel/listing.rs`).

use super::config::Sm90;
use super::shapes::{Shape, cooperative, ping_pong};

/// A small set of kernels that contains, for linear layers of 1 to 8192 rows, one that is nearly
/// the fastest according to the cost model. It was chosen greedily: each comment names the products
/// for which the set without that kernel is slower. `tests/listing.rs` has the products and limits.
///
/// Splits come first; large outputs skip them, as splits refuse large outputs. Small tiles come
/// before large ones, for small outputs.
const LEADING: [Leading; 10] = [
    // One row of 4096 columns: a split in two doubles the bytes in flight.
    Leading { swapped: true, ..split(2, cooperative([64, 16], [1, 1])) },
    // 1 to 64 rows of 1024 columns.
    split(4, cooperative([64, 64], [1, 1])),
    // 32 to 64 rows of 4096 columns, 100 to 128 rows of 1024.
    split(2, cooperative([64, 64], [1, 1])),
    // 256 rows of 1024 columns.
    Leading { over_grid: true, ..split(4, cooperative([128, 64], [2, 4])) },
    // 100 to 128 rows of 4096 columns with K above 10000, 384 rows of 1024 columns.
    Leading { over_grid: true, ..split(4, cooperative([128, 128], [1, 2])) },
    // 1 to 64 rows of 11008 columns: 115 tiles, one wave.
    whole(cooperative([64, 96], [1, 1])),
    // 1 to 64 rows of 14336 columns: 112 tiles, one wave. 256 rows of 4096 columns.
    whole(cooperative([64, 128], [1, 1])),
    // 384 rows and more.
    whole(ping_pong(128, [1, 2])),
    // 192 to 1024 rows of 11008 columns, 4096 rows of 14336.
    whole(ping_pong(176, [2, 1])),
    // 192 to 512 rows of 14336 columns: 64 tiles a strip, two strips a wave.
    whole(cooperative([128, 224], [2, 1])),
];

struct Leading {
    shape: Shape,
    swapped: bool,
    over_grid: bool,
}

const fn whole(shape: Shape) -> Leading {
    Leading { shape, swapped: false, over_grid: false }
}

const fn split(split: u32, shape: Shape) -> Leading {
    whole(Shape { split, ..shape })
}

impl Sm90 {
    /// The place among the leading kernels of the same types and layout, from 1; `None` for the
    /// other kernels.
    pub(super) fn leading_place(&self) -> Option<usize> {
        let Sm90 { tile, consumers, schedule, cluster, split, swapped, over_grid, .. } = *self;
        if self.packs() || self.loads_by_threads() || self.has_groups() {
            return None;
        }
        let shape = Shape { tile, consumers, schedule, cluster, split };
        let is_this = |leading: &Leading| {
            (leading.shape, leading.swapped, leading.over_grid) == (shape, swapped, over_grid)
        };
        LEADING.iter().position(is_this).map(|place| place + 1)
    }

    /// The number of leading kernels of one layout.
    #[cfg(test)]
    pub const LEADING: usize = LEADING.len();
}
