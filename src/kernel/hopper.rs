//! What an `sm90` kernel takes on an H100: the chip's rates, and how the family uses them.
//!
//! The constants were fitted to 55 900 timings of 190 configurations on 295 products made by chance, and to those of the best few on 420
//! more (docs/benchmarks/chance_h100.json, float16), for the loss that matters: the time of the kernel that the model puts first over that of
//! the best. That is 1.024 for these, 1.027 in folds that were held out (1.030 with the constants before), and on 197 products that are not among
//! them 1.043 (1.053; of rough timings, the best of which is best by chance as well). Times themselves are 6 % too long, and scatter by 7 % about that among
//! the best kernels of a product. What concerns threads that load, epilogues and copies is from other timings (docs/notes/sm90-runs.md).

use super::Types;
use super::cost::CostQuery;
use super::sm90::{Placement, Schedule, Sm90, TileGrid};
use crate::problem::GemmProblem;

/// FLOP a second of one multiprocessor's tensor cores on 16-bit elements, as wgmma reaches it; and how much of the time it takes in
/// ping-pong (of one round, too, where a consumer is alone: apart, they were worth nothing).
pub const TENSOR_RATE: f64 = 5.5e12;
const PING_PONG: f64 = 0.96;
/// How much longer they take where one warpgroup is alone with them, in the fits of `placed` and of K over the grid.
const ALONE: f64 = 1.03;
/// Bytes a second that arrive in one multiprocessor, and that it asks the L2 cache for where all of them do so: of what a cluster shares, its
/// part. By how much that rate grows where nearly no other one asks.
pub const ARRIVING_RATE: f64 = 96.0e9;
pub const L2_RATE: f64 = 87.5e9;
const L2_RATE_ALONE: f64 = 0.6;
/// How many times as long loads take where two CTAs share them, and where more do.
const BY_PAIRS: f64 = 1.11;
const BY_MORE: f64 = 0.94;
/// Bytes a second that the L2 cache gives all multiprocessors together.
const L2_RATE_OF_ALL: f64 = 22.5e12;
/// Bytes a second that a GPC draws. There are 7 of 16 or 18 multiprocessors, and one of about 8.
const L2_RATE_OF_GPC: f64 = 1.14e12;
const GPCS: f64 = 7.0;
const SMALL_GPC: u32 = 8;
/// Seconds that a block takes a multiprocessor, however small it is.
const BLOCK: f64 = 0.115e-6;
/// Bytes a second of A that a multiprocessor's threads load, 8 and 4 at a time. 64x128 tiles had 31e9 and 26e9 at 1024x1024x4100 and
/// 256x4096x4092; since run 20 (docs/notes/sm90-runs.md) the loads are 1.05 to 1.08 and 1.14 to 1.22 times as fast. Six problems are ranked
/// alike with up to 50e9 and 42e9, and better than with the old rates.
const THREADS_RATE_8: f64 = 36e9;
const THREADS_RATE_4: f64 = 31e9;
/// How much longer the L2 cache takes over rows that do not begin at a multiple of 32 bytes, its sectors, or only not at one of 128, its
/// lines.
const RAGGED: f64 = 0.775;
const RAGGED_LINES: f64 = 0.42;
/// Bytes that the cache keeps of what tiles have read for those that come after them. A guess below its 50 MB.
const L2_KEEPS: f64 = 30e6;
/// How much of what is read again from device memory adds to the time of the cache; the more where consumers take turns, for the CTAs
/// are then further apart in K.
const REREAD: f64 = 0.05;
const PING_PONG_REREAD: f64 = 4.24;
/// Bytes a second of device memory.
pub const DEVICE_RATE: f64 = 3.35e12;
/// Seconds until the first bytes arrive.
const DEVICE_STARTS: f64 = 0.2e-6;
/// Seconds: a launch, and more of one by pairs of CTAs that share operands, and by larger clusters; the first block's way to the tensor cores and
/// the end of the last tile, with so much more for each sum of a thread; the ends of the others, while the next tile is loaded; adding up a tile that is
/// split, with so much more for each sum that a CTA sends.
const LAUNCH: f64 = 0.05e-6;
const PAIRS: f64 = 0.44e-6;
const CLUSTERS: f64 = 0.28e-6;
const TILE_ENDS: f64 = 0.61e-6;
const SUM_ENDS: f64 = 13.7e-9;
const NEXT_TILE_ENDS: f64 = 0.295e-6;
const NEXT_SUM_ENDS: f64 = 18.9e-9;
const SPLIT: f64 = 0.95e-6;
const SPLIT_ELEMENT: f64 = 2.3e-10;
/// What is left of a tile's ends where consumers take turns, for all tiles but the last.
const PING_PONG_ENDS: f64 = 0.02;
/// Seconds that an epilogue adds to the end of a tile for each sum that a thread has; what is left of that where consumers take turns;
/// and how much more of it where the sums, being more than so many, leave no registers for what the epilogue reads to be loaded ahead.
/// From bias and GELU, and from a matrix added and one more stored, behind the first 16 kernels of five shapes: what is ranked first
/// takes 1.009 times as long as the best of them, 1.057 at worst (docs/notes/epilogue.md).
const EPILOGUE: f64 = 70e-9;
const PING_PONG_EPILOGUE: f64 = 0.23;
const CROWDED: f64 = 2.5;
const CROWDED_SUMS: f64 = 152.0;
/// An output that is written transposed, and needs more than a conversion to 16 bits, goes through the registers in small pieces, which
/// further rounds do not hide.
const SWAPPED_ROUNDS: f64 = 1.2;
/// Where A comes from registers, pairs of its rows are stored from there, and cost nothing of that; not behind an epilogue, which adds
/// this much (4096 cubed in float32).
const FUSED_PAIRS: f64 = 1.04;
/// Copying operands first: a launch, and bytes a second read and written.
const PACK_LAUNCH: f64 = 2.97e-6;
const PACK_RATE: f64 = 2.8e12;
/// How much longer it all takes then: of 12 products of chance that need no copy, where the model saw one lose at most 6 %, the best kernel
/// with a copy was 2.5 % further behind the best without than predicted, and ahead once, by 1 % (docs/notes/sm90-runs.md, run 23). Where a copy is
/// needed, that moves it by as much behind threads that load and other families, which was not looked at.
const PACKED: f64 = 1.03;

/// How much longer the L2 cache takes over rows that begin at multiples of so many bytes.
pub fn ragged(aligned: u32) -> f64 {
    match aligned {
        128.. => 0.0,
        32.. => RAGGED_LINES,
        _ => RAGGED,
    }
}

/// How a kernel without clusters is best placed on an empty chip, GPC by GPC, and its seconds then; none where it need not be.
///
/// What the multiprocessors of a GPC ask for at about the same time, the L2 cache delivers once: 1024 x 1024 x 8960 by 128x64 tiles takes
/// 47 000 cycles, and 188 MB from the cache, where a GPC has 2 x 8 of them, 81 000 and 305 MB where it has 8 x 2 (cuBLAS 58 000). CTAs that
/// start while a grid in front still runs lie anywhere. Fitted to 419 kernels on 87 products, within 12 % (root mean square); the
/// choice wins 1.084 of the 1.096 that the better of both would (docs/notes/sm90-runs.md, run 26).
pub fn placed(
    config: &Sm90,
    types: Types,
    problem: &GemmProblem,
    grid: &TileGrid,
    ctas_per_sm: u32,
    multiprocessors: u32,
) -> Option<(Placement, f64)> {
    /// Bytes a second that the L2 cache delivers to all GPCs, what the CTAs of each share counted once, where they lie beside each other
    /// and where they lie anywhere: they do not ask for all of it at the same time.
    const DRAWN_RATE: f64 = 3.5e12;
    const DRAWN_RATE_ANYWHERE: f64 = 5.0e12;
    /// As above, in a fit of their own.
    const ARRIVING_RATE: f64 = 160e9;
    const TENSOR_RATE: f64 = 6.19e12;
    const BLOCK: f64 = 0.1e-6;
    const TILE_ENDS: f64 = 0.5e-6;
    const SUM_ENDS: f64 = 27.7e-9;
    /// Seconds more that it takes to begin when the grid in front has ended.
    const ALONE_ON_CHIP: f64 = 0.7e-6;
    let placement = config.placement(problem, grid, ctas_per_sm, multiprocessors)?;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let arriving =
        config.rows_read(problem).map(|(rows, _)| f64::from(rows) * 128.0).into_iter().sum::<f64>();
    let blocks = (problem.k() as f64 * types.a.bytes() as f64 / 128.0).ceil();
    let alone = config.consumers == 1 || config.schedule == Schedule::PingPong;
    let multiplied = tile_m * tile_n * 128.0 / TENSOR_RATE * if alone { ALONE } else { 1.0 };
    let device = DEVICE_STARTS + bytes(types, problem) / DEVICE_RATE;
    let with = |drawn: f64| {
        let block = multiplied.max(arriving / ARRIVING_RATE).max(drawn * 128.0).max(BLOCK);
        let work = blocks * block + TILE_ENDS + SUM_ENDS * config.sums_of_thread();
        LAUNCH + (work * work + device * device).sqrt()
    };
    let seconds = with(placement.drawn / DRAWN_RATE) + ALONE_ON_CHIP;
    (seconds < with(placement.drawn_anywhere / DRAWN_RATE_ANYWHERE)).then_some((placement, seconds))
}

/// Bytes of a product's operands and output.
pub fn bytes(types: Types, problem: &GemmProblem) -> f64 {
    let [a, b, out] = [&problem.a, &problem.b, &problem.out].map(|view| view.numel() as f64);
    types.a.bytes() as f64 * (a + b) + types.out.bytes() as f64 * out
}

/// Seconds that an epilogue adds to so many rounds of tiles.
fn epilogue(config: &Sm90, rounds: f64) -> f64 {
    let sums = config.sums_of_thread();
    let share = match config.schedule {
        Schedule::Cooperative => 1.0,
        Schedule::PingPong if sums > CROWDED_SUMS => PING_PONG_EPILOGUE * CROWDED,
        Schedule::PingPong => PING_PONG_EPILOGUE,
    };
    EPILOGUE * sums * rounds * share
}

/// Estimated seconds of a kernel.
pub fn seconds(config: &Sm90, types: Types, ctas_per_sm: u32, asked: &CostQuery) -> f64 {
    /// What the times below are too long by, beside those of `placed`.
    const AS_OTHERS: f64 = 1.12;
    let CostQuery { problem, target, fused, copied_bytes } = *asked;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let [cluster_m, cluster_n] = config.cluster.map(f64::from);
    let (size, split) = (f64::from(config.cluster_size()), f64::from(config.split));
    let sms = f64::from(target.multiprocessors);

    // Of a single tile, the other CTAs of a cluster have none: nothing that is worth a look. (Of a row of tiles they help to load what the
    // row shares.) First of all, as the smallest products have the most kernels.
    let [m, n] =
        if config.crossed() { [problem.n(), problem.m()] } else { [problem.m(), problem.n()] };
    if config.cluster != [1, 1] && m <= config.tile[0].into() && n <= config.tile[1].into() {
        return f64::INFINITY;
    }
    let grid = config.grid(problem);
    if let Some((_, seconds)) =
        placed(config, types, problem, &grid, ctas_per_sm, target.multiprocessors)
    {
        return AS_OTHERS * (seconds + if fused { epilogue(config, 1.0) } else { 0.0 });
    }
    let tiles = grid.clusters[0] * grid.clusters[1] * problem.batch() as f64;
    let slots = f64::from(config.clusters_at_once(ctas_per_sm, target.multiprocessors));
    // Of a problem without tiles, as if it had one: no time is NaN.
    let running = tiles.clamp(1.0, slots);
    let (rounds, sharing) = ((tiles / slots).ceil(), (running * size / sms).max(1.0));
    let sharing_ends = sharing.sqrt();

    // A block is 128 bytes of K, whatever the type: wgmma takes as long for it in all.
    let element = types.a.bytes() as f64;
    let blocks =
        ((problem.k() * types.a.bytes()).unsigned_abs().div_ceil(128) as f64 / split).ceil();
    // Bytes of a block of A and of B: as they arrive, and as many more as the L2 cache takes as long for.
    let rows = config.rows_read(problem);
    let arriving = f64::from(rows[0].0 + rows[1].0) * 128.0;
    let [a_rows, b_rows] =
        rows.map(|(rows, aligned)| f64::from(rows) * 128.0 * (1.0 + ragged(aligned)));
    let operands = a_rows / cluster_n + b_rows / cluster_m;
    let by_threads = match config.align {
        16 => 0.0,
        8 => tile_m * 128.0 / THREADS_RATE_8,
        _ => tile_m * 128.0 / THREADS_RATE_4,
    };
    let share = (running * size * config.occupied(&grid) / sms).min(1.0);
    let ping_pong = config.schedule == Schedule::PingPong;
    let mut multiplied = (tile_m * tile_n * 128.0 / TENSOR_RATE
        * if ping_pong { PING_PONG } else { 1.0 })
    .max(BLOCK);
    let (by_cluster, launch_of_cluster) = match (cluster_m * cluster_n) as u32 {
        1 => (1.0, 0.0),
        2 => (BY_PAIRS, PAIRS),
        _ => (BY_MORE, CLUSTERS),
    };
    let l2_rate = L2_RATE * (1.0 + L2_RATE_ALONE * (1.0 - share));
    let mut loaded =
        (operands / l2_rate).max(arriving / ARRIVING_RATE).max(by_threads) * by_cluster;
    if split > 1.0 {
        // The clusters of tiles that are split are few, and do not always spread evenly; the fullest GPC is done last.
        let in_small = f64::from(SMALL_GPC / config.cluster_size());
        let fullest = ((running - in_small) / GPCS).ceil().max(1.0);
        loaded = loaded.max(fullest * size * operands / L2_RATE_OF_GPC);
    }
    multiplied *= sharing;
    loaded *= sharing;
    // Of a tile that is split, all sums are sent before they are stored. It has its cluster for itself: those of the next round begin behind it.
    let ends = (TILE_ENDS + SUM_ENDS * config.sums_of_thread() * split) * sharing_ends;
    let work = if split > 1.0 {
        rounds
            * (blocks * multiplied.max(loaded)
                + ends
                + SPLIT
                + SPLIT_ELEMENT * tile_m * tile_n * (split - 1.0) / split)
    } else {
        let next_ends = match config.schedule {
            Schedule::Cooperative => {
                (NEXT_TILE_ENDS + NEXT_SUM_ENDS * config.sums_of_thread()) * sharing_ends
            }
            Schedule::PingPong => PING_PONG_ENDS * ends,
        };
        let next = (blocks * multiplied + next_ends).max(blocks * loaded);
        blocks * multiplied.max(loaded) + ends + (rounds - 1.0) * next
    };
    let mut work = work + if fused { epilogue(config, rounds) } else { 0.0 };
    if config.swapped && rounds > 1.0 {
        work *= match config.a_from_registers(types) {
            true if fused => FUSED_PAIRS,
            false if fused || types.out.bytes() != 2 => SWAPPED_ROUNDS,
            _ => 1.0,
        };
    }
    // What runs at the same time shares what it reads; what follows finds of it only what the cache still holds.
    let again =
        |rows_and_columns: f64| tiles / running * rows_and_columns * problem.k() as f64 * element;
    let reread = if again(grid.extent[0] + grid.extent[1]) > L2_KEEPS {
        let [rows, columns] = config.covered(&grid, running);
        let apart = if ping_pong { PING_PONG_REREAD } else { 1.0 };
        REREAD * apart * (again(rows + columns) - L2_KEEPS).max(0.0) / DEVICE_RATE
    } else {
        0.0 // It would keep all of it even if each round read both operands whole.
    };
    let [a_inside, b_inside] = config.inside(&grid);
    let inside = a_rows * a_inside / cluster_n + b_rows * b_inside / cluster_m;
    let from_cache = tiles * size * blocks * inside / L2_RATE_OF_ALL;

    let device = DEVICE_STARTS + bytes(types, problem) / DEVICE_RATE;

    let (packing, packed) = match copied_bytes {
        0 => (0.0, 1.0),
        bytes => (PACK_LAUNCH + 2.0 * bytes as f64 / PACK_RATE, PACKED),
    };
    // All at once, the longest counting most.
    let together = [work, from_cache + reread, device]
        .map(|seconds| seconds * seconds)
        .into_iter()
        .sum::<f64>();
    (LAUNCH + launch_of_cluster + together.sqrt() + packing) * packed
}

/// Estimated seconds of a kernel with K over the grid.
///
/// A model of its own: all CTAs run at once, and sums meet behind the last product. Fitted to 935 timings on 153 products of few tiles in
/// float16 (docs/notes/sm90-parts.md), then, with the other model, to docs/benchmarks/chance_h100.json, which moved it by a tenth. Hence
/// `AS_OTHERS`: the other model's times, too, are too long on such products.
pub fn over_grid_seconds(config: &Sm90, types: Types, ctas_per_sm: u32, asked: &CostQuery) -> f64 {
    const AS_OTHERS: f64 = 1.243;
    /// As above; of operands, a multiprocessor draws as much as where it is alone with the cache.
    const TENSOR_RATE: f64 = 6.39e12;
    const BLOCK: f64 = 0.084e-6;
    const L2_RATE: f64 = 141e9;
    const L2_RATE_OF_ALL: f64 = 16.1e12;
    const DEVICE_RATE: f64 = 3.77e12;
    /// Seconds: a launch and the meeting, with so much more for each sum that a thread has stored, and for each that it then adds up of each
    /// part.
    const MEETING: f64 = 1.25e-6;
    const SUM_STORED: f64 = 50e-9;
    const SUM_OF_PART: f64 = 12.7e-9;
    /// Seconds that parts wait for each other where they do not all run at once, as on a chip smaller than an H100 (`PATIENCE` of the
    /// program).
    const APART: f64 = 50e-6;
    let CostQuery { problem, target, fused, .. } = *asked;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let [cluster_m, cluster_n] = config.cluster.map(f64::from);
    let (split, parts) = (f64::from(config.split), f64::from(config.k_splits(problem)));
    let element = types.a.bytes() as f64;
    let blocks = ((problem.k() as f64 * element / 128.0).ceil() / parts).ceil();
    let [a_rows, b_rows] = config
        .rows_read(problem)
        .map(|(rows, aligned)| f64::from(rows) * 128.0 * (1.0 + ragged(aligned)));
    let operands = a_rows / cluster_n + b_rows / cluster_m;
    let alone = if config.consumers == 1 { ALONE } else { 1.0 };
    let block = (tile_m * tile_n * 128.0 / TENSOR_RATE * alone).max(BLOCK).max(operands / L2_RATE);
    let work = blocks * block;
    let ctas = config.tiles(problem) as f64
        * f64::from(config.cluster_size())
        * parts
        * config.occupied(&config.grid(problem));
    let from_cache = ctas * blocks * operands / L2_RATE_OF_ALL;
    let device = bytes(types, problem) / DEVICE_RATE;
    let together =
        [work, from_cache, device].map(|seconds| seconds * seconds).into_iter().sum::<f64>();
    // Where there are fewer parts than CTAs are to add up columns, some do so more than once.
    let added = config.sums_of_thread() * (split / parts).ceil();
    let epilogue = if fused { EPILOGUE * added } else { 0.0 };
    let meeting =
        MEETING + SUM_STORED * config.sums_of_thread() * split + SUM_OF_PART * parts * added;
    let clusters = config.tiles(problem) as f64 * parts;
    let at_once = f64::from(config.clusters_at_once(ctas_per_sm, target.multiprocessors));
    let apart = if clusters > at_once { APART } else { 0.0 };
    AS_OTHERS * (together.sqrt() + meeting + epilogue) + apart
}

/// Estimated seconds of a kernel for the groups of a grouped product.
///
/// A coarser model than the other, and apart from it: where groups end is not known, and what tells between its 9 configurations is how
/// their tiles fill the chip, and how often B is read. Checked against 57 sets of timings; the kernel that it puts first takes 1.02
/// times as long as the best (docs/notes/grouped.md).
pub fn grouped_seconds(config: &Sm90, types: Types, ctas_per_sm: u32, asked: &CostQuery) -> f64 {
    const TENSOR_RATE: f64 = 5.3e12;
    const L2_RATE: f64 = 112e9;
    const L2_RATE_OF_ALL: f64 = 10.9e12;
    const DEVICE_RATE: f64 = 2.8e12;
    const LAUNCH: f64 = 0.8e-6;
    const TILE_ENDS: f64 = 1.64e-6;
    const PING_PONG_ENDS: f64 = 0.485;
    /// How much of B each strip of a group's rows after the first reads from memory again, as they do not read it at quite the same time.
    const AGAIN: f64 = 0.15;
    let CostQuery { problem, target, .. } = *asked;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let [cluster_m, cluster_n] = config.cluster.map(f64::from);
    let (size, sms) = (f64::from(config.cluster_size()), f64::from(target.multiprocessors));
    let tiles = config.expected_tiles(problem);
    let slots = f64::from(config.clusters_at_once(ctas_per_sm, target.multiprocessors));
    let (rounds, sharing) = ((tiles / slots).ceil(), (tiles.min(slots) * size / sms).max(1.0));

    let element = types.a.bytes() as f64;
    let blocks = (problem.k() as f64 * element / 128.0).ceil();
    let [a_rows, b_rows] = config.rows_read(problem).map(|(rows, _)| f64::from(rows) * 128.0);
    let operands = a_rows / cluster_n + b_rows / cluster_m;
    let block = (tile_m * tile_n * 128.0 / TENSOR_RATE).max(operands / L2_RATE) * sharing;
    let ends = match config.schedule {
        Schedule::Cooperative => rounds,
        Schedule::PingPong => (rounds - 1.0) * PING_PONG_ENDS + 1.0,
    };
    let work = rounds * blocks * block + ends * TILE_ENDS * sharing.sqrt();
    let work = work.max(tiles * size * blocks * operands / L2_RATE_OF_ALL);

    let [a, b, out] = [&problem.a, &problem.b, &problem.out].map(|view| view.numel() as f64);
    let b = b * (1.0 + AGAIN * (config.expected_strips(problem) - 1.0));
    let device = (element * (a + b) + types.out.bytes() as f64 * out) / DEVICE_RATE;
    LAUNCH + (work.powi(4) + device.powi(4)).powf(0.25)
}
