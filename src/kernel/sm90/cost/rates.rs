//! Rates and times, fitted on an H100, that the models of `sm90` share.

use crate::kernel::sm90::Schedule;
use crate::kernel::types::{ProductClass, Types};

/// Time factor of tensor cores that serve a single consumer warpgroup.
pub const FITTED_ONE_CONSUMER: f64 = 1.03;
/// Bytes per second of device memory, and seconds until the first bytes arrive.
pub const FITTED_MEMORY_RATE: f64 = 3.35e12;
pub const FITTED_MEMORY_LATENCY: f64 = 0.2e-6;
/// Seconds of a launch.
pub const FITTED_LAUNCH: f64 = 0.05e-6;
/// Extra seconds of a cluster split of 8-bit operands over 16-bit ones (H200).
const SPLIT_OF_EIGHT_BITS: f64 = 1.3e-6;
/// Relative extra time of the L2 cache for rows that begin inside a 32-byte sector, and for rows
/// that begin at a sector inside a 128-byte line.
const FITTED_UNALIGNED_TO_SECTORS: f64 = 0.775;
const FITTED_UNALIGNED_TO_LINES: f64 = 0.42;
/// Seconds of an epilogue for each accumulator of a thread.
const FITTED_EPILOGUE: f64 = 70e-9;
/// The share of that time that remains in ping-pong.
const FITTED_PING_PONG_EPILOGUE: f64 = 0.23;
/// Time factor in ping-pong if a thread has more accumulators than `FITTED_CROWDED_SUMS`, which
/// leave no registers to load operands ahead.
const FITTED_CROWDED: f64 = 2.5;
const FITTED_CROWDED_SUMS: f64 = 152.0;

/// Extra seconds of a split, by the types of the operands.
pub fn split_seconds(types: Types) -> f64 {
    match types.class() {
        ProductClass::Float8 | ProductClass::Integer8 => SPLIT_OF_EIGHT_BITS,
        _ => 0.0,
    }
}

/// The time of terms that overlap: the root of the sum of squares, in which the longest dominates.
pub fn overlapped<const N: usize>(terms: [f64; N]) -> f64 {
    terms.into_iter().map(|seconds| seconds * seconds).sum::<f64>().sqrt()
}

/// Relative extra time of the L2 cache for rows of this alignment in bytes: 0 if aligned.
pub fn alignment_penalty(aligned: u32) -> f64 {
    match aligned {
        128.. => 0.0,
        32.. => FITTED_UNALIGNED_TO_LINES,
        _ => FITTED_UNALIGNED_TO_SECTORS,
    }
}

/// Seconds that a fused epilogue adds to waves of tiles. `sums`: accumulators of a thread.
pub fn epilogue_seconds(fusion_takes_time: bool, schedule: Schedule, sums: f64, waves: f64) -> f64 {
    if !fusion_takes_time {
        return 0.0;
    }
    let share = match schedule {
        Schedule::Cooperative => 1.0,
        Schedule::PingPong if sums > FITTED_CROWDED_SUMS => {
            FITTED_PING_PONG_EPILOGUE * FITTED_CROWDED
        }
        Schedule::PingPong => FITTED_PING_PONG_EPILOGUE,
    };
    FITTED_EPILOGUE * sums * waves * share
}
