//! What an `sm90` kernel takes on an H100: the chip's rates, and how the family uses them.
//!
//! The constants were fitted to 921 timings of the configurations, on 78 shapes in float16 (docs/notes/sm90.md), with the loss that
//! matters: the time of the kernel that the model puts first over that of the best. It is 1.017 in the geometric mean, and 1.25 at
//! worst (1536 cubed; the table's own rows: 1.10), before MEETING was added. Times themselves are within 11 % (root mean square).

use super::sm90::{Schedule, Sm90};
use super::{Target, Types};
use crate::problem::GemmProblem;

/// FLOP a second of one multiprocessor's tensor cores on 16-bit elements, as wgmma reaches it.
const TENSOR_RATE: f64 = 5.27e12;
/// Bytes a second that wgmma reads of a multiprocessor's shared memory.
const SHARED_RATE: f64 = 126e9;
/// Bytes a second that one multiprocessor draws from the L2 cache, and that all of them do.
const L2_RATE: f64 = 112e9;
const L2_RATE_OF_ALL: f64 = 10.9e12;
/// How much longer the L2 cache takes over rows that do not begin at a multiple of 128 bytes.
const RAGGED: f64 = 1.15;
/// Bytes a second of device memory with all that it takes in flight, and the bytes in flight at which it reaches half of that.
const DEVICE_RATE: f64 = 2.71e12;
const DEVICE_HALF: f64 = 0.05e6;
/// Seconds: a launch; the first block's way to the tensor cores and the end of a tile; adding up a tile that is split.
const LAUNCH: f64 = 0.79e-6;
const TILE_ENDS: f64 = 1.64e-6;
const SPLIT: f64 = 4.66e-6;
/// What is left of a tile's ends where consumers take turns, for all tiles but the last.
const PING_PONG_ENDS: f64 = 0.485;
/// Seconds that an epilogue adds to the end of a tile for each sum that a thread has, and what is left of that where consumers take
/// turns: from bias and GELU, and from a matrix added and one more stored, at 4096 cubed (docs/notes/epilogue.md).
const EPILOGUE: f64 = 66e-9;
const PING_PONG_EPILOGUE: f64 = 0.3;
/// What CTAs take to meet that share what they load. Not fitted, but enough to decide where the model sees no difference.
const MEETING: f64 = 0.2e-6;
/// Clusters of 1 to 8 CTAs, each with a multiprocessor for itself, that run at once (cuOccupancyMaxActiveClusters on an H100).
const CLUSTERS: [f64; 9] = [0.0, 132.0, 66.0, 39.0, 30.0, 22.0, 17.0, 15.0, 15.0];
/// A guess, to keep swapped configurations to the problems that they are for: none was measured in several rounds.
const SWAPPED_ROUNDS: f64 = 1.3;
/// Copying operands first: a launch, and bytes a second read and written.
const PACK_LAUNCH: f64 = 2.6e-6;
const PACK_RATE: f64 = 2.8e12;

/// Estimated seconds of a kernel, with an epilogue behind the sums or not.
pub fn seconds(config: &Sm90, types: Types, problem: &GemmProblem, target: &Target, fused: bool) -> f64 {
    let [tile_m, tile_n] = config.tile.map(f64::from);
    let [cluster_m, cluster_n] = config.cluster.map(f64::from);
    let (size, split) = (f64::from(config.cluster_size()), f64::from(config.split));
    let sms = f64::from(target.multiprocessors);
    let ragged = if config.reads_ragged_rows(problem) { 1.0 + RAGGED } else { 1.0 };

    let tiles = config.tiles(problem) as f64;
    // Clusters lie within a GPC, whose 16 or 18 multiprocessors their size does not always divide.
    let placed = CLUSTERS[config.cluster_size().min(8) as usize] / CLUSTERS[1] * sms;
    let slots = (placed * f64::from(config.ctas_per_sm(types))).floor().max(1.0);
    let running = tiles.min(slots);
    let (rounds, sharing) = ((tiles / slots).ceil(), (running * size / sms).max(1.0));

    // A block is 128 bytes of K, whatever the type: wgmma takes as long for it in all.
    let element = types.a.bytes() as f64;
    let blocks = ((problem.k() as f64 * element / 128.0).ceil() / split).ceil();
    let operands = (tile_m / cluster_n + tile_n / cluster_m) * 128.0;
    let block = (tile_m * tile_n * 128.0 / TENSOR_RATE)
        .max((tile_m + tile_m * tile_n / 64.0) * 128.0 / SHARED_RATE)
        .max(operands / L2_RATE * ragged)
        * sharing;
    let ends = match config.schedule {
        Schedule::Cooperative => rounds,
        Schedule::PingPong => (rounds - 1.0) * PING_PONG_ENDS + 1.0,
    };
    let mut work = rounds * blocks * block + ends * TILE_ENDS * sharing.sqrt();
    if fused {
        let share = if config.schedule == Schedule::PingPong { PING_PONG_EPILOGUE } else { 1.0 };
        work += EPILOGUE * config.sums_of_thread() * rounds * share;
    }
    if config.split > 1 {
        work += SPLIT;
    }
    // With an epilogue, which draws from the L2 cache too, sharing what is loaded was worth it.
    if cluster_m * cluster_n > 1.0 && !fused {
        work += MEETING;
    }
    // An output that is written transposed goes through registers and is waited for, which further rounds do not hide.
    if config.swapped && rounds > 1.0 {
        work *= SWAPPED_ROUNDS;
    }
    let through_l2 = tiles * size * blocks * operands / L2_RATE_OF_ALL * ragged;
    let work = work.max(through_l2);

    let [m, n, k] = [problem.m(), problem.n(), problem.k()].map(|extent| extent as f64);
    let bytes = problem.batch() as f64 * (element * (m * k + k * n) + types.out.bytes() as f64 * m * n);
    let in_flight = running * size * f64::from(config.shared_bytes(types));
    let device = bytes / (DEVICE_RATE * in_flight / (in_flight + DEVICE_HALF));

    // Both at once, the longer counting most.
    let packing = match config.workspace_bytes(problem) {
        0 => 0.0,
        bytes => PACK_LAUNCH + 2.0 * bytes as f64 / PACK_RATE,
    };
    LAUNCH + (work.powi(6) + device.powi(6)).powf(1.0 / 6.0) + packing
}
