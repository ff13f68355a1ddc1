//! The tiles, schedules, clusters and splits that `sm90` offers, one function per kind of kernel.
//!
//! Candidates come from nested loops over rows, columns and clusters; each rule that cuts them has
//! its reason beside it. Rows and columns are those of the program's frame: `wgmma` multiplies
//! blocks of 64 rows by any multiple of 8 columns.

use std::cmp::Reverse;

use super::config::ROW_BYTES;
use super::config::Schedule::{self, Cooperative, PingPong};

/// What distinguishes the configurations of one kind of kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub tile: [u32; 2],
    pub consumers: u32,
    pub schedule: Schedule,
    pub cluster: [u32; 2],
    /// CTAs that share a tile; with K over the grid, reducer CTAs.
    pub split: u32,
}

/// Rows of a tile. Two consumers multiply 256 rows as two blocks of 64 each.
const ROWS: [u32; 4] = [256, 192, 128, 64];

/// Area of the largest tiles for which clusters of eight pay. The smaller a tile, the more bytes it
/// draws for a product, and the more it gains by sharing them; but clusters of eight leave 12 of
/// an H100's 132 SMs idle.
const SMALL_TILE: u32 = 128 * 112;

const fn cooperative(tile: [u32; 2], cluster: [u32; 2]) -> Shape {
    let consumers = match tile[0] {
        256 => 2,
        rows => rows / 64,
    };
    Shape { tile, consumers, schedule: Cooperative, cluster, split: 1 }
}

const fn ping_pong(columns: u32, cluster: [u32; 2]) -> Shape {
    Shape { tile: [128, columns], consumers: 2, schedule: PingPong, cluster, split: 1 }
}

/// The clusters of a pair, four and eight CTAs that draw the fewest bytes: most of their CTAs share
/// the longer side of the tile.
fn thrifty([rows, columns]: [u32; 2]) -> [[u32; 2]; 3] {
    if rows >= columns { [[1, 2], [1, 4], [2, 4]] } else { [[2, 1], [4, 1], [4, 2]] }
}

/// Whether ping-pong serves the tile: each consumer multiplies two blocks of 64 rows alone. Below
/// 128 columns it waits for its operands; beyond 192, its sums leave too few of 240 registers.
fn suits_ping_pong([rows, columns]: [u32; 2]) -> bool {
    rows == 128 && (128..=192).contains(&columns)
}

/// Tiles for cooperating consumers, the columns in these steps.
fn cooperative_tiles(step: u32) -> impl Iterator<Item = [u32; 2]> {
    let tiles = ROWS.into_iter().flat_map(move |rows| {
        // `wgmma` takes at most 256 columns. Fewer than 32 are for few rows (`few_rows`).
        (32..=256).step_by(step as usize).map(move |columns| [rows, columns])
    });
    tiles.filter(|[rows, columns]| {
        // Registers: 512 threads have 128 each before `setmaxnreg`, of which 96 hold sums.
        let registers = *rows != 192 || *columns <= 192;
        // Shared memory: four stages, two that multiply and two that load, in 208 KiB. The rest of
        // 227 KiB is for the epilogue's slabs.
        let stages = 4 * (rows + columns) * ROW_BYTES <= 208 * 1024;
        // Longer tiles draw more bytes for as many products.
        let aspect = *rows <= 2 * columns && *columns <= 2 * rows;
        registers && stages && aspect && !suits_ping_pong([*rows, *columns])
    })
}

/// Clusters of four and eight CTAs.
fn large_clusters(tile: [u32; 2]) -> impl Iterator<Item = [u32; 2]> {
    let [rows, columns] = tile;
    let [_, row_of_four, _] = thrifty(tile);
    // Four tiles in a row, for outputs that are narrow in the other direction.
    let narrow = rows <= 192 && columns <= 128;
    // Eight in two or four rows: which is better depends on the output's aspect.
    let small = rows * columns <= SMALL_TILE;
    let eights = [[2, 4], [4, 2]].into_iter().filter(move |_| small);
    narrow.then_some(row_of_four).into_iter().chain(eights)
}

/// Any number of rows and columns, 16-byte aligned.
pub(super) fn plain() -> Vec<Shape> {
    // Boxes: rows of an N-major B are 64 bytes or 128, 32 or 64 columns.
    const STEP: u32 = 32;
    let mut shapes = Vec::new();
    // Finer steps, so that the number of tiles of large products fits the number of SMs.
    for columns in (128..=192).step_by(16) {
        let [_, _, eight] = thrifty([128, columns]);
        shapes.extend([[2, 1], eight, [1, 2], [1, 1]].map(|cluster| ping_pong(columns, cluster)));
    }
    for tile in cooperative_tiles(STEP) {
        let [pair, ..] = thrifty(tile);
        shapes.push(cooperative(tile, [1, 1]));
        // Clusters are walked along M first, where neighbours share B. Small tiles need no more
        // than that; large ones draw as few bytes as they can.
        let is_small = tile[0] * tile[1] < SMALL_TILE;
        shapes.push(cooperative(tile, if is_small { [2, 1] } else { pair }));
        shapes.extend(large_clusters(tile).map(|cluster| cooperative(tile, cluster)));
    }
    // Deep K in a few hundred rows: the chip is full with either, and a wide tile of 64 rows wastes
    // fewer rows than a squarer one.
    shapes.extend([160, 192].map(|columns| cooperative([64, columns], [1, 1])));
    shapes.extend(splits());
    sort(&mut shapes);
    shapes
}

/// The transposed product, whose columns are the user's rows.
pub(super) fn swapped() -> Vec<Shape> {
    // The transposed store takes 16 columns at a time.
    const STEP: u32 = 16;
    // A plain tile with rows and columns exchanged covers the same output, and stores faster.
    let has_plain_twin = |columns: u32| columns.is_multiple_of(64);
    let mut shapes = few_rows();
    for columns in (128..=192).step_by(STEP as usize).filter(|columns| !has_plain_twin(*columns)) {
        // Columns as in `plain`; a pair along the user's M, and eight.
        shapes.extend([[1, 2], [4, 2]].map(|cluster| ping_pong(columns, cluster)));
    }
    for tile in cooperative_tiles(STEP).filter(|[_, columns]| !has_plain_twin(*columns)) {
        let area = tile[0] * tile[1];
        let [pair, ..] = thrifty(tile);
        // Large tiles are for large outputs, where a pair of CTAs seldom lacks a second tile.
        if area <= SMALL_TILE {
            shapes.push(cooperative(tile, [1, 1]));
        }
        // Along the user's M, as in `plain`.
        shapes.push(cooperative(tile, if area < SMALL_TILE { [1, 2] } else { pair }));
        shapes.extend(large_clusters(tile).map(|cluster| cooperative(tile, cluster)));
    }
    shapes
}

/// Up to 16 rows, on the columns of a swapped program: memory bandwidth decides, and a split in two
/// doubles the bytes in flight where outputs are few.
fn few_rows() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for columns in [8, 16] {
        let shape = cooperative([64, columns], [1, 1]);
        shapes.extend([1, 2].map(|split| Shape { split, ..shape }));
    }
    shapes
}

/// Few tiles of deep K, each shared by the CTAs of a cluster, which spread evenly over the GPCs in
/// sizes of 2, 4 and 8.
fn splits() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (tile, splits) in [
        ([128, 128], &[4][..]),
        ([128, 64], &[4]),
        // The fewest sums to exchange: any number of CTAs.
        ([64, 64], &[2, 4, 8]),
        // A single tile or two: the most CTAs.
        ([64, 32], &[8]),
    ] {
        let shape = cooperative(tile, [1, 1]);
        shapes.extend(splits.iter().map(|split| Shape { split: *split, ..shape }));
    }
    shapes
}

/// Tiles that halve from 256x128 to 64x64, without clusters.
fn halves() -> [Shape; 4] {
    [
        cooperative([256, 128], [1, 1]),
        ping_pong(128, [1, 1]),
        cooperative([128, 64], [1, 1]),
        cooperative([64, 64], [1, 1]),
    ]
}

/// Operands that are copied first. Unaligned rows are rare, and the copy takes longer than the
/// difference between neighbouring tiles.
pub(super) fn plain_packed() -> Vec<Shape> {
    // The largest outputs take ping-pong in pairs; deep K takes a split.
    let mut shapes = vec![ping_pong(192, [2, 1]), ping_pong(128, [1, 2])];
    shapes.extend(halves());
    shapes.push(Shape { split: 8, ..cooperative([64, 64], [1, 1]) });
    shapes
}

pub(super) fn swapped_packed() -> Vec<Shape> {
    vec![cooperative([64, 16], [1, 1])]
}

/// A loaded by the producer's threads, at some 30 GB/s an SM: 128 rows of a K block take longer
/// than `wgmma` with 128 columns, so that larger tiles gain nothing. Threads cannot multicast.
pub(super) fn by_threads() -> Vec<Shape> {
    vec![ping_pong(128, [1, 1]), cooperative([64, 128], [1, 1]), cooperative([64, 64], [1, 1])]
}

/// float32 operands of which one is not K-major: `wgmma` takes that one from registers, as A.
/// Ping-pong is out: a consumer that is alone with the tensor cores waits for its registers. So are
/// clusters: shared memory, which A is read from once more, limits the main loop, and L2 does not.
pub(super) fn from_registers() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for rows in ROWS {
        for columns in [128, 192, 256] {
            // Registers: those of cooperative tiles, less 16 that hold A for each block of 64 rows.
            let (blocks, most) = match rows {
                256 => (2, 160),
                192 => (1, 112),
                _ => (1, 160),
            };
            let registers = blocks * (columns / 2 + 16) <= most;
            // Aspect as for cooperative tiles. Where 128x128 suits, tiles are so few that K is
            // split, below.
            if registers && columns <= 2 * rows && [rows, columns] != [128, 128] {
                shapes.push(cooperative([rows, columns], [1, 1]));
            }
        }
    }
    shapes.push(cooperative([64, 64], [1, 1]));
    // The smaller the tile, the more CTAs share it. Six: an H100 runs 17 such clusters at once, but
    // 15 of eight, and 16 tiles in clusters of eight would take a second round.
    for (tile, split) in [([128, 128], 2), ([128, 64], 6), ([64, 64], 2), ([64, 64], 8)] {
        shapes.push(Shape { split, ..cooperative(tile, [1, 1]) });
    }
    sort(&mut shapes);
    shapes
}

/// The same where the other operand is copied first: the largest tile, a quarter of it, and a split
/// for deep K.
pub(super) fn from_registers_packed() -> Vec<Shape> {
    let deep = Shape { split: 8, ..cooperative([64, 64], [1, 1]) };
    vec![cooperative([128, 256], [1, 1]), cooperative([64, 128], [1, 1]), deep]
}

/// The groups of a grouped GEMM. Only the device knows how many rows a group has, so tiles halve
/// from 128x256 to 64x64.
pub(super) fn grouped() -> Vec<Shape> {
    vec![
        // A pair along N does not pad a group's rows.
        cooperative([128, 256], [1, 1]),
        cooperative([128, 256], [1, 2]),
        ping_pong(128, [1, 1]),
        // The widest that registers leave, in pairs along either side; with 4-byte outputs, 176.
        ping_pong(192, [2, 1]),
        ping_pong(192, [1, 2]),
        ping_pong(176, [2, 1]),
        cooperative([256, 128], [1, 2]),
        cooperative([64, 128], [1, 1]),
        cooperative([64, 64], [1, 1]),
    ]
}

/// K cut over the grid, for outputs of few tiles: every CTA of the chip has a part of K, and four
/// reducer CTAs add up the columns of a tile. A reducer fetches eight partial sums of its columns
/// before it adds them up: larger tiles spill.
pub(super) fn over_grid() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (tile, clusters) in [
        // The least work a CTA for what it loads: eight CTAs share it.
        ([128, 64], &[[2, 4], [4, 2]][..]),
        ([128, 96], &[]),
        // The most sums to exchange, so the fewest CTAs: products of less than four such tiles.
        ([128, 128], &[[1, 2], [2, 1]]),
        // A single tile of output.
        ([64, 64], &[[1, 1]]),
    ] {
        // Both operands are shared, and 30 clusters of 2x2 run at once.
        for cluster in clusters.iter().chain(&[[2, 2]]) {
            shapes.push(Shape { split: 4, ..cooperative(tile, *cluster) });
        }
    }
    shapes
}

/// The order to try kernels in where no problem is known: one kernel of each large tile, then
/// ping-pong before cooperative, large tiles before small ones.
fn sort(shapes: &mut [Shape]) {
    shapes.sort_by_key(|Shape { tile, schedule, cluster, split, .. }| {
        let large = tile.iter().all(|extent| extent % 64 == 0 && *extent >= 128);
        let [pair, ..] = thrifty(*tile);
        let is_first = large && *cluster == pair;
        (!is_first, *split > 1, *schedule == Cooperative, Reverse(tile[0] * tile[1]))
    });
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::kernel::{Design, Sm90, all};

    fn configs() -> impl Iterator<Item = (&'static crate::kernel::Kernel, Sm90)> {
        all().iter().filter_map(|kernel| match kernel.design {
            Design::Sm90(config) => Some((kernel, config)),
            _ => None,
        })
    }

    #[test]
    fn sums_and_stages_fit() {
        for (kernel, config) in configs() {
            let registers = config.sum_registers(kernel.types);
            let most = if config.consumers == 3 { 96 } else { 192 };
            assert!(registers <= most, "{}: {registers} registers", kernel.name());
            assert!(config.stages >= 4 || config.loads_by_threads(), "{}", kernel.name());
            assert!(config.shared_bytes(kernel.types) <= 227 * 1024, "{}", kernel.name());
        }
    }

    #[test]
    fn tiles_are_whole_warpgroups_and_boxes() {
        for (kernel, Sm90 { tile: [rows, columns], consumers, schedule, cluster, .. }) in configs()
        {
            let sharers = if schedule == PingPong { 1 } else { consumers };
            assert!([64, 128].contains(&(rows / sharers)) && rows % sharers == 0);
            assert!(schedule == Cooperative || consumers == 2, "{}", kernel.name());
            // A CTA loads its slice in swizzle atoms of 8 rows.
            assert!(columns % 8 == 0 && columns / 8 >= cluster[0], "{}", kernel.name());
            assert!(rows % (8 * cluster[1]) == 0, "{}", kernel.name());
        }
    }

    #[test]
    fn clusters_spread_over_the_gpcs() {
        for (kernel, config) in configs() {
            let sizes: &[u32] = if config.split == 6 { &[6] } else { &[1, 2, 4, 8] };
            assert!(sizes.contains(&config.cluster_size()), "{}", kernel.name());
        }
    }

    #[test]
    fn no_output_tile_stands_in_both_frames() {
        for Shape { tile: [_, columns], .. } in swapped() {
            assert!(columns % 64 != 0);
        }
        for shapes in [plain(), swapped(), from_registers(), over_grid(), grouped()] {
            assert_eq!(shapes.iter().collect::<HashSet<_>>().len(), shapes.len());
        }
    }

    #[test]
    fn five_large_tiles_come_first() {
        let first: Vec<_> = plain().into_iter().take(5).collect();
        assert_eq!(first.iter().map(|shape| shape.tile).collect::<HashSet<_>>().len(), 5);
        assert!(first.iter().all(|shape| shape.tile[0] * shape.tile[1] >= 128 * 128));
        assert_eq!(first[0].schedule, PingPong);
    }

    #[test]
    fn the_list_of_all_kernels_stays_short() {
        // `get_kernels` looks at every configuration of a problem's types and layout.
        assert!(plain().len() + swapped().len() + over_grid().len() <= 151);
        assert!(all().len() <= 13_165, "{}", all().len());
    }
}
