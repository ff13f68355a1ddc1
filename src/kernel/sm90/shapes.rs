//! The shapes of `sm90` kernels (tile, schedule, cluster, split), by rules: one function per kind
//! of kernel. `space.rs` combines them with element types and layouts.
//!
//! The program accepts any tile with 64 or 128 rows per consumer and a multiple of 8 columns up to
//! 256, if registers and shared memory suffice (kernels/sm90/config.cuh). The rules here select
//! the tiles that pay.
//!
//! Candidates come from nested loops over rows, columns and clusters; a comment beside each filter
//! states its reason. Rows and columns are those of the program's frame: `wgmma` multiplies blocks
//! of 64 rows by any multiple of 8 columns (integers: 8, 24, or multiples of 16).

use std::cmp::Reverse;

use super::config::ROW_BYTES;
use super::config::Schedule::{self, Cooperative, PingPong};

/// The parameters that vary among the configurations of one kind of kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub tile: [u32; 2],
    pub consumers: u32,
    pub schedule: Schedule,
    pub cluster: [u32; 2],
    /// CTAs that share a tile (cluster split), or reducer CTAs of a tile (grid split).
    pub split: u32,
}

/// Rows of a tile. For 256 rows, each of two consumers multiplies two blocks of 64.
const ROWS: [u32; 4] = [256, 192, 128, 64];

/// Largest area of a tile for which clusters of eight pay. A smaller tile loads more bytes per
/// FLOP, so it gains more from multicast; but clusters of eight leave 12 of an H100's 132 SMs idle.
const SMALL_TILE: u32 = 128 * 112;

pub(super) const fn cooperative(tile: [u32; 2], cluster: [u32; 2]) -> Shape {
    let consumers = match tile[0] {
        256 => 2,
        rows => rows / 64,
    };
    Shape { tile, consumers, schedule: Cooperative, cluster, split: 1 }
}

pub(super) const fn ping_pong(columns: u32, cluster: [u32; 2]) -> Shape {
    Shape { tile: [128, columns], consumers: 2, schedule: PingPong, cluster, split: 1 }
}

/// The clusters of two, four and eight CTAs that load the fewest bytes: most of their CTAs share
/// the longer side of the tile.
fn least_traffic_clusters([rows, columns]: [u32; 2]) -> [[u32; 2]; 3] {
    if rows >= columns { [[1, 2], [1, 4], [2, 4]] } else { [[2, 1], [4, 1], [4, 2]] }
}

/// Whether the tile is for ping-pong, where each consumer multiplies a tile of two blocks of 64
/// rows. With fewer than 128 columns, consumers wait for operands; with more than 192, the
/// accumulators leave too few of a thread's 240 registers.
fn suits_ping_pong([rows, columns]: [u32; 2]) -> bool {
    rows == 128 && (128..=192).contains(&columns)
}

/// Tiles for cooperative consumers. Columns are multiples of `step`.
fn cooperative_tiles(step: u32) -> impl Iterator<Item = [u32; 2]> {
    let tiles = ROWS.into_iter().flat_map(move |rows| {
        // `wgmma` takes at most 256 columns. `few_rows` has the tiles of fewer than 32 columns.
        (32..=256).step_by(step as usize).map(move |columns| [rows, columns])
    });
    tiles.filter(|[rows, columns]| {
        // Registers: 512 threads have 128 each before `setmaxnreg`, of which 96 hold sums.
        let registers = *rows != 192 || *columns <= 192;
        // Shared memory: four stages (two being multiplied, two being loaded) in 208 KiB. The
        // epilogue's slabs take the rest of 227 KiB.
        let stages = 4 * (rows + columns) * ROW_BYTES <= 208 * 1024;
        // Aspect: a longer tile loads more bytes per FLOP.
        let aspect = *rows <= 2 * columns && *columns <= 2 * rows;
        registers && stages && aspect && !suits_ping_pong([*rows, *columns])
    })
}

/// Clusters of four and eight CTAs.
fn large_clusters(tile: [u32; 2]) -> impl Iterator<Item = [u32; 2]> {
    let [rows, columns] = tile;
    let [_, row_of_four, _] = least_traffic_clusters(tile);
    // Clusters of four tiles in a row serve outputs that are narrow in the other direction.
    let narrow = rows <= 192 && columns <= 128;
    // Clusters of eight have two or four rows; the output's aspect decides which is faster.
    let small = rows * columns <= SMALL_TILE;
    let eights = [[2, 4], [4, 2]].into_iter().filter(move |_| small);
    narrow.then_some(row_of_four).into_iter().chain(eights)
}

/// Programs that store rows as wgmma computes them, for 16-byte aligned operands of any extents.
pub(super) fn plain() -> Vec<Shape> {
    // The smallest box of an N-major B has rows of 64 bytes, 32 columns of 16-bit elements.
    const STEP: u32 = 32;
    let mut shapes = Vec::new();
    // Finer steps let the tiles of a large problem fill whole waves.
    for columns in (128..=192).step_by(16) {
        let [_, _, eight] = least_traffic_clusters([128, columns]);
        shapes.extend([[2, 1], eight, [1, 2], [1, 1]].map(|cluster| ping_pong(columns, cluster)));
    }
    for tile in cooperative_tiles(STEP) {
        let [pair, ..] = least_traffic_clusters(tile);
        shapes.push(cooperative(tile, [1, 1]));
        // Pairs along M share B. Small tiles take a pair along M, which follows the tile order;
        // large tiles take the pair that loads the fewest bytes.
        let is_small = tile[0] * tile[1] < SMALL_TILE;
        shapes.push(cooperative(tile, if is_small { [2, 1] } else { pair }));
        shapes.extend(large_clusters(tile).map(|cluster| cooperative(tile, cluster)));
    }
    // For a few hundred rows and deep K: a wide tile of 64 rows fills the chip as a squarer tile
    // does, and overhangs fewer rows.
    shapes.extend([160, 192].map(|columns| cooperative([64, columns], [1, 1])));
    shapes.extend(splits());
    sort(&mut shapes);
    shapes
}

/// The transposed product, whose columns are the user's rows.
pub(super) fn swapped() -> Vec<Shape> {
    // The transposed store takes 16 columns at a time.
    const STEP: u32 = 16;
    // The plain tile with rows and columns exchanged covers the same output and stores faster.
    let has_plain_twin = |columns: u32| columns.is_multiple_of(64);
    let mut shapes = few_rows();
    for columns in (128..=192).step_by(STEP as usize).filter(|columns| !has_plain_twin(*columns)) {
        // Columns as in `plain`. The pair lies along the user's M.
        shapes.extend([[1, 2], [4, 2]].map(|cluster| ping_pong(columns, cluster)));
    }
    for tile in cooperative_tiles(STEP).filter(|[_, columns]| !has_plain_twin(*columns)) {
        let area = tile[0] * tile[1];
        let [pair, ..] = least_traffic_clusters(tile);
        // Large tiles have no variant of one CTA: in a large output, a pair seldom lacks a second
        // tile.
        if area <= SMALL_TILE {
            shapes.push(cooperative(tile, [1, 1]));
        }
        // Pairs as in `plain`, along the user's M.
        shapes.push(cooperative(tile, if area < SMALL_TILE { [1, 2] } else { pair }));
        shapes.extend(large_clusters(tile).map(|cluster| cooperative(tile, cluster)));
    }
    shapes
}

/// Tiles for up to 16 rows, which are the columns of a swapped program. Memory bandwidth limits
/// such problems; with few tiles, a split in two doubles the bytes in flight.
fn few_rows() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for columns in [8, 16] {
        let shape = cooperative([64, columns], [1, 1]);
        shapes.extend([1, 2].map(|split| Shape { split, ..shape }));
    }
    shapes
}

/// Cluster splits, for few tiles of deep K. Clusters of 2, 4 and 8 CTAs spread evenly over the
/// GPCs.
fn splits() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (tile, splits) in [
        ([128, 128], &[4][..]),
        ([128, 64], &[4]),
        // Few sums to exchange: every split pays.
        ([64, 64], &[2, 4, 8]),
        // For one or two tiles: the most CTAs.
        ([64, 32], &[8]),
    ] {
        let shape = cooperative(tile, [1, 1]);
        shapes.extend(splits.iter().map(|split| Shape { split: *split, ..shape }));
    }
    shapes
}

/// Tiles of halving area, from 256x128 to 64x64, without clusters.
fn halves() -> [Shape; 4] {
    [
        cooperative([256, 128], [1, 1]),
        ping_pong(128, [1, 1]),
        cooperative([128, 64], [1, 1]),
        cooperative([64, 64], [1, 1]),
    ]
}

/// Tiles for packed operands. A coarse choice suffices: unaligned rows are rare, and packing takes
/// longer than the difference between neighbouring tiles.
pub(super) fn plain_packed() -> Vec<Shape> {
    // Ping-pong in pairs for the largest outputs; a split for deep K.
    let mut shapes = vec![ping_pong(192, [2, 1]), ping_pong(128, [1, 2])];
    shapes.extend(halves());
    shapes.push(Shape { split: 8, ..cooperative([64, 64], [1, 1]) });
    shapes
}

pub(super) fn swapped_packed() -> Vec<Shape> {
    vec![cooperative([64, 16], [1, 1])]
}

/// Tiles whose A the producer's threads load, at about 30 GB/s an SM on an H100. Loading 128 rows
/// of a K block takes longer than `wgmma` with 128 columns, so larger tiles gain nothing. Threads
/// cannot multicast, so there are no clusters.
pub(super) fn by_threads() -> Vec<Shape> {
    vec![ping_pong(128, [1, 1]), cooperative([64, 128], [1, 1]), cooperative([64, 64], [1, 1])]
}

/// Tiles for float32 operands of which one is not K-major. `wgmma` takes that operand from
/// registers, as A. No ping-pong: a consumer that uses the tensor cores alone stalls on loads of A
/// into registers. No clusters: they reduce L2 traffic, but shared memory bandwidth limits the main
/// loop, which copies A from shared memory into registers.
pub(super) fn from_registers() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for rows in ROWS {
        for columns in [128, 192, 256] {
            // Registers: as for cooperative tiles, plus 16 for A for each block of 64 rows.
            let (blocks, most) = match rows {
                256 => (2, 160),
                192 => (1, 112),
                _ => (1, 160),
            };
            let registers = blocks * (columns / 2 + 16) <= most;
            // Aspect: as for cooperative tiles. 128x128 has a split, below: the problems that it
            // suits have few tiles.
            if registers && columns <= 2 * rows && [rows, columns] != [128, 128] {
                shapes.push(cooperative([rows, columns], [1, 1]));
            }
        }
    }
    shapes.push(cooperative([64, 64], [1, 1]));
    // More CTAs share a smaller tile. Six: 17 such clusters fit an H100 at once, but only 15
    // clusters of eight, so that 16 tiles would take two waves.
    for (tile, split) in [([128, 128], 2), ([128, 64], 6), ([64, 64], 2), ([64, 64], 8)] {
        shapes.push(Shape { split, ..cooperative(tile, [1, 1]) });
    }
    sort(&mut shapes);
    shapes
}

/// As `from_registers`, with the other operand packed: the largest tile, a quarter of it, and a
/// split for deep K.
pub(super) fn from_registers_packed() -> Vec<Shape> {
    let deep = Shape { split: 8, ..cooperative([64, 64], [1, 1]) };
    vec![cooperative([128, 256], [1, 1]), cooperative([64, 128], [1, 1]), deep]
}

/// Tiles for 8-bit operands, K-major. Few shapes, because each is compiled for many types.
/// Ping-pong and 128x256 are for integers: float8 needs registers for two sets of sums
/// (`space.rs`).
pub(super) fn eight_bit() -> Vec<Shape> {
    let mut shapes = vec![
        ping_pong(192, [2, 1]),
        cooperative([128, 256], [2, 1]),
        cooperative([128, 128], [2, 1]),
    ];
    let single = [[128, 128], [128, 64], [64, 128], [64, 64]];
    shapes.extend(single.map(|tile| cooperative(tile, [1, 1])));
    for (tile, split) in [([128, 64], 4), ([64, 64], 2), ([64, 64], 8)] {
        shapes.push(Shape { split, ..cooperative(tile, [1, 1]) });
    }
    shapes
}

/// Further tiles for float8 whose sums are added to totals. They fill waves that tiles of 128x128
/// leave half empty. 192x64 also applies scales of blocks of B.
pub(super) fn float8() -> Vec<Shape> {
    [
        ([128, 80], [2, 1]),
        ([128, 96], [2, 1]),
        ([128, 112], [2, 1]),
        ([128, 176], [1, 2]),
        ([192, 64], [1, 2]),
        ([192, 96], [2, 1]),
    ]
    .map(|(tile, cluster)| cooperative(tile, cluster))
    .into()
}

/// Tiles for float8 without totals, whose registers hold more sums. With few rows, memory bandwidth
/// decides, and the tiles of `eight_bit` serve as well.
pub(super) fn fast_sums() -> Vec<Shape> {
    vec![ping_pong(128, [1, 2]), ping_pong(96, [2, 1]), cooperative([192, 128], [1, 2])]
}

/// The transposed product for up to 32 rows.
pub(super) fn eight_bit_swapped() -> Vec<Shape> {
    let mut shapes = few_rows();
    shapes.push(cooperative([64, 32], [1, 1]));
    shapes
}

/// Tiles for 8-bit operands of which one is not K-major, or not aligned.
pub(super) fn eight_bit_packed() -> Vec<Shape> {
    vec![cooperative([128, 128], [1, 1]), cooperative([64, 64], [1, 1])]
}

/// Tiles of a mixed product: weights, whose rows are the program's, by 16-bit columns. Few
/// columns: memory bandwidth limits the product. Two or three consumers convert weights at that
/// rate, and more rows reread the columns less often; a split lets more multiprocessors read. Many
/// columns: the more columns, the more products of each converted integer (`mixed_wide`).
pub(super) fn mixed() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for tile in [[64, 16], [64, 32], [64, 64], [192, 16], [192, 64]] {
        let shape = cooperative(tile, [1, 1]);
        shapes.extend([1, 2].map(|split| Shape { split, ..shape }));
    }
    let large = [[128, 64], [128, 128], [256, 128]];
    shapes.extend(large.map(|tile| cooperative(tile, [1, 1])));
    shapes
}

/// The same for codes of 4 bits, of which a K block has 256. Four consumers of 64 rows hide more
/// latency than two of 128, where their sums leave registers for it.
pub(super) fn codes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (tile, splits) in [
        ([128, 16], &[1, 2][..]),
        ([128, 32], &[1]),
        ([64, 32], &[2, 4]),
        ([192, 32], &[4]),
        ([64, 64], &[2, 4]),
        ([128, 64], &[1]),
        ([192, 64], &[4]),
        ([64, 128], &[1]),
        ([128, 128], &[1, 2]),
        ([256, 128], &[1]),
    ] {
        shapes.extend(splits.iter().map(|&split| Shape { split, ..cooperative(tile, [1, 1]) }));
    }
    shapes.push(Shape { consumers: 4, ..cooperative([256, 64], [1, 1]) });
    shapes
}

/// Tiles of more columns for both, with K blocks half as long, of which more stages fit. The more
/// columns, the fewer conversions a product; a split serves outputs of few tiles.
pub(super) fn mixed_wide() -> Vec<Shape> {
    let whole = [96, 160, 192, 256].map(|columns| (columns, 1));
    let split = [128, 192, 256].map(|columns| (columns, 2));
    let of = |(columns, split)| Shape { split, ..cooperative([128, columns], [1, 1]) };
    whole.into_iter().chain(split).map(of).collect()
}

/// The same where the integers are not K-major, or an operand is not aligned.
pub(super) fn mixed_packed() -> Vec<Shape> {
    vec![cooperative([128, 128], [1, 1]), cooperative([64, 16], [1, 1])]
}

/// Grid splits, for outputs of few tiles. Every CTA of the chip computes a slice of K, and four
/// reducer CTAs add up the partial sums of a tile. A reducer CTA fetches eight partial sums of its
/// columns at once; larger tiles would spill.
pub(super) fn over_grid() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (tile, clusters) in [
        // The fewest FLOP per byte: clusters of eight share the loads.
        ([128, 64], &[[2, 4], [4, 2]][..]),
        ([128, 96], &[]),
        // The most sums to exchange, so clusters are small: for fewer than four such tiles.
        ([128, 128], &[[1, 2], [2, 1]]),
        // For a single tile.
        ([64, 64], &[[1, 1]]),
    ] {
        // Clusters of 2x2 share both operands, and 30 of them fit an H100 at once.
        for cluster in clusters.iter().chain(&[[2, 2]]) {
            shapes.push(Shape { split: 4, ..cooperative(tile, *cluster) });
        }
    }
    shapes
}

/// The same for 8-bit operands.
pub(super) fn eight_bit_over_grid() -> Vec<Shape> {
    [([128, 64], [2, 4]), ([128, 128], [1, 2]), ([64, 64], [1, 1])]
        .map(|(tile, cluster)| Shape { split: 4, ..cooperative(tile, cluster) })
        .into()
}

/// Sorts shapes for lists without a problem: first one kernel of each large tile, then ping-pong
/// before cooperative and large tiles before small ones. (`leading.rs` has the kernels before all
/// of these.)
fn sort(shapes: &mut [Shape]) {
    shapes.sort_by_key(|Shape { tile, schedule, cluster, split, .. }| {
        let large = tile.iter().all(|extent| extent % 64 == 0 && *extent >= 128);
        let [pair, ..] = least_traffic_clusters(*tile);
        let is_first = large && *cluster == pair;
        (!is_first, *split > 1, *schedule == Cooperative, Reverse(tile[0] * tile[1]))
    });
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::grouped_shapes::{along_k, along_m};
    use super::*;
    use crate::kernel::types::ProductClass;
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
            assert!(registers <= most, "{kernel}: {registers} registers");
            // A stage of a mixed product has 128 elements of K, twice as many as one of 16 bits.
            let least = if kernel.types.class() == ProductClass::Mixed { 2 } else { 4 };
            assert!(config.stages >= least || config.loads_by_threads(), "{kernel}");
            assert!(config.shared_bytes(kernel.types) <= 227 * 1024, "{kernel}");
        }
    }

    #[test]
    fn tiles_are_whole_warpgroups_and_boxes() {
        for (kernel, Sm90 { tile: [rows, columns], consumers, schedule, cluster, .. }) in configs()
        {
            let sharers = if schedule == PingPong { 1 } else { consumers };
            assert!([64, 128].contains(&(rows / sharers)) && rows % sharers == 0);
            assert!(schedule == Cooperative || consumers == 2, "{kernel}");
            // A CTA loads its slice in swizzle atoms of 8 rows.
            assert!(columns % 8 == 0 && columns / 8 >= cluster[0], "{kernel}");
            assert!(rows % (8 * cluster[1]) == 0, "{kernel}");
        }
    }

    #[test]
    fn clusters_spread_over_the_gpcs() {
        for (kernel, config) in configs() {
            let sizes: &[u32] = if config.split == 6 { &[6] } else { &[1, 2, 4, 8] };
            assert!(sizes.contains(&config.cluster_size()), "{kernel}");
        }
    }

    #[test]
    fn no_tile_is_in_both_frames() {
        for Shape { tile: [_, columns], .. } in swapped() {
            assert!(columns % 64 != 0);
        }
        for shapes in [plain(), swapped(), from_registers(), over_grid(), along_m(), along_k()] {
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
        // `get_kernels` checks every configuration of a problem's types and layout.
        assert!(plain().len() + swapped().len() + over_grid().len() <= 151);
        let kernels = all().iter().filter(|kernel| matches!(kernel.design, Design::Sm90(_)));
        let count = kernels.count();
        assert!(count <= 12_900, "{count}");
    }
}
