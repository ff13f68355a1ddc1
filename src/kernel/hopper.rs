//! What an `sm90` kernel takes on an H100: the chip's rates, and how the family uses them.
//!
//! The constants were fitted to 5773 timings of the configurations, on 54 shapes in float16, several of them measured in more than one
//! run (docs/notes/sm90.md), with the loss that matters: the time of the kernel that the model puts first over that of the best. It is
//! 1.020 in the geometric mean for the shapes of the table, 1.018 for others, and 1.26 at worst. Times themselves are within 17 %
//! (root mean square). Of shapes that a fit has not seen, it chooses kernels that take 1.03 times as long as the best.

use super::sm90::{Schedule, Sm90};
use super::{Target, Types};
use crate::problem::GemmProblem;

/// FLOP a second of one multiprocessor's tensor cores on 16-bit elements, as wgmma reaches it.
const TENSOR_RATE: f64 = 5.97e12;
/// Bytes a second that wgmma reads of a multiprocessor's shared memory.
const SHARED_RATE: f64 = 158e9;
/// Bytes a second that one multiprocessor draws from the L2 cache, and that all of them do.
const L2_RATE: f64 = 98.7e9;
const L2_RATE_OF_ALL: f64 = 8.56e12;
/// Bytes a second of A that a multiprocessor's threads load, 8 and 4 at a time: from 64x128 tiles at 1024x1024x4100 and 256x4096x4092.
const THREADS_RATE_8: f64 = 31e9;
const THREADS_RATE_4: f64 = 26e9;
/// How much longer the L2 cache takes over rows that do not begin at a multiple of 128 bytes.
const RAGGED: f64 = 0.89;
/// Bytes that the cache keeps of what tiles have read for those that come after them. A guess below its 50 MB.
const L2_KEEPS: f64 = 30e6;
/// How much of what is read again from device memory adds to the time of the cache; the more where consumers take turns, for the CTAs
/// are then further apart in K.
const REREAD: f64 = 0.239;
const PING_PONG_REREAD: f64 = 2.79;
/// Bytes a second of device memory with all that it takes in flight, and the bytes in flight at which it reaches half of that.
const DEVICE_RATE: f64 = 2.95e12;
const DEVICE_HALF: f64 = 0.3e6;
/// Seconds until the first bytes arrive.
const DEVICE_STARTS: f64 = 2.0e-6;
/// Seconds: a launch; the first block's way to the tensor cores and the end of a tile, with so much more for each of its elements;
/// adding up a tile that is split; clusters, whose CTAs start and end together.
const LAUNCH: f64 = 0.2e-6;
const TILE_ENDS: f64 = 2.04e-6;
const ELEMENT_ENDS: f64 = 2.8e-11;
const SPLIT: f64 = 7.91e-6;
const CLUSTER: f64 = 1.5e-6;
/// What is left of a tile's ends where consumers take turns, for all tiles but the last.
const PING_PONG_ENDS: f64 = 0.05;
/// Seconds that an epilogue adds to the end of a tile for each sum that a thread has, and what is left of that where consumers take
/// turns: from bias and GELU, and from a matrix added and one more stored, at 4096 cubed (docs/notes/epilogue.md).
const EPILOGUE: f64 = 70e-9;
const PING_PONG_EPILOGUE: f64 = 0.28;
/// An output that is written transposed goes through registers and is waited for, which further rounds do not hide.
const SWAPPED_ROUNDS: f64 = 1.2;
/// Copying operands first: a launch, and bytes a second read and written.
const PACK_LAUNCH: f64 = 2.97e-6;
const PACK_RATE: f64 = 2.8e12;

/// Estimated seconds of a kernel, with an epilogue behind the sums or not.
pub fn seconds(config: &Sm90, types: Types, problem: &GemmProblem, target: &Target, fused: bool) -> f64 {
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let [cluster_m, cluster_n] = config.cluster.map(f64::from);
    let (size, split) = (f64::from(config.cluster_size()), f64::from(config.split));
    let sms = f64::from(target.multiprocessors);

    let tiles = config.tiles(problem) as f64;
    let slots = f64::from(config.clusters_at_once(types, target.multiprocessors));
    let running = tiles.min(slots);
    let (rounds, sharing) = ((tiles / slots).ceil(), (running * size / sms).max(1.0));

    // A block is 128 bytes of K, whatever the type: wgmma takes as long for it in all.
    let element = types.a.bytes() as f64;
    let blocks = ((problem.k() as f64 * element / 128.0).ceil() / split).ceil();
    let [a_rows, b_rows] = config
        .rows_read(problem)
        .map(|(rows, ragged)| f64::from(rows) * 128.0 * if ragged { 1.0 + RAGGED } else { 1.0 });
    let operands = a_rows / cluster_n + b_rows / cluster_m;
    let by_threads = match config.align {
        16 => 0.0,
        8 => tile_m * 128.0 / THREADS_RATE_8,
        _ => tile_m * 128.0 / THREADS_RATE_4,
    };
    let block = (tile_m * tile_n * 128.0 / TENSOR_RATE)
        .max((tile_m + tile_m * tile_n / 64.0) * 128.0 / SHARED_RATE)
        .max(operands / L2_RATE)
        .max(by_threads)
        * sharing;
    let ends = match config.schedule {
        Schedule::Cooperative => rounds,
        Schedule::PingPong => (rounds - 1.0) * PING_PONG_ENDS + 1.0,
    };
    let mut work = rounds * blocks * block + ends * (TILE_ENDS + ELEMENT_ENDS * tile_m * tile_n) * sharing.sqrt();
    if fused {
        let share = if config.schedule == Schedule::PingPong { PING_PONG_EPILOGUE } else { 1.0 };
        work += EPILOGUE * config.sums_of_thread() * rounds * share;
    }
    if config.split > 1 {
        work += SPLIT;
    }
    // With an epilogue, which draws from the L2 cache too, sharing what is loaded was worth it.
    if cluster_m * cluster_n > 1.0 && !fused {
        work += CLUSTER;
    }
    if config.swapped && rounds > 1.0 {
        work *= SWAPPED_ROUNDS;
    }
    // What runs at the same time shares what it reads; what follows finds of it only what the cache still holds.
    let k = problem.k() as f64;
    let [rows, columns] = config.covered(problem, running);
    let read = tiles / running * (rows + columns) * k * element;
    let apart = if config.schedule == Schedule::PingPong { PING_PONG_REREAD } else { 1.0 };
    let reread = REREAD * apart * (read - L2_KEEPS).max(0.0) / DEVICE_RATE;
    let work = work.max(tiles * size * blocks * operands / L2_RATE_OF_ALL + reread);

    let [a, b, out] = [&problem.a, &problem.b, &problem.out].map(|view| view.numel() as f64);
    let bytes = element * (a + b) + types.out.bytes() as f64 * out;
    let in_flight = running * size * config.occupied(problem) * f64::from(config.shared_bytes(types));
    let device = DEVICE_STARTS + bytes / (DEVICE_RATE * in_flight / (in_flight + DEVICE_HALF));

    let packing = match config.workspace_bytes(problem) {
        0 => 0.0,
        bytes => PACK_LAUNCH + 2.0 * bytes as f64 / PACK_RATE,
    };
    // Both at once, the longer counting most.
    LAUNCH + (work.powi(6) + device.powi(6)).powf(1.0 / 6.0) + packing
}

/// Estimated seconds of a kernel for the groups of a grouped product.
///
/// A coarser model than the other, and apart from it: where groups end is not known, and what tells between its 9 configurations is how
/// their tiles fill the chip, and how often B is read. Checked against 57 sets of timings; the kernel that it puts first takes 1.02
/// times as long as the best (docs/notes/grouped.md).
pub fn grouped_seconds(config: &Sm90, types: Types, problem: &GemmProblem, target: &Target) -> f64 {
    const TENSOR_RATE: f64 = 5.3e12;
    const L2_RATE: f64 = 112e9;
    const L2_RATE_OF_ALL: f64 = 10.9e12;
    const DEVICE_RATE: f64 = 2.8e12;
    const LAUNCH: f64 = 0.8e-6;
    const TILE_ENDS: f64 = 1.64e-6;
    const PING_PONG_ENDS: f64 = 0.485;
    /// How much of B each strip of a group's rows after the first reads from memory again, as they do not read it at quite the same time.
    const AGAIN: f64 = 0.15;
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let [cluster_m, cluster_n] = config.cluster.map(f64::from);
    let (size, sms) = (f64::from(config.cluster_size()), f64::from(target.multiprocessors));
    let tiles = config.expected_tiles(problem);
    let slots = f64::from(config.clusters_at_once(types, target.multiprocessors));
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
