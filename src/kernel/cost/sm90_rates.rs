//! Rates and times that the models of `sm90` share, fitted on an H100.

use crate::kernel::sm90::Schedule;

/// How much longer tensor cores take that one consumer warpgroup has to itself.
pub const FITTED_ALONE: f64 = 1.03;
/// Bytes a second of device memory, and seconds until the first bytes arrive.
pub const FITTED_MEMORY_RATE: f64 = 3.35e12;
pub const FITTED_MEMORY_LATENCY: f64 = 0.2e-6;
/// Seconds of a launch.
pub const FITTED_LAUNCH: f64 = 0.05e-6;
/// How much longer the L2 cache takes over rows that do not begin at sectors (32 bytes), and over
/// rows that begin at sectors and not at lines (128 bytes).
const FITTED_RAGGED: f64 = 0.775;
const FITTED_RAGGED_LINES: f64 = 0.42;
/// An epilogue for each sum of a thread; the share of that in ping-pong, and its factor where more
/// sums than this leave no registers to load operands ahead.
const FITTED_EPILOGUE: f64 = 70e-9;
const FITTED_PING_PONG_EPILOGUE: f64 = 0.23;
const FITTED_CROWDED: f64 = 2.5;
const FITTED_CROWDED_SUMS: f64 = 152.0;

/// How much longer the L2 cache takes over rows of this alignment.
pub fn ragged(aligned: u32) -> f64 {
    match aligned {
        128.. => 0.0,
        32.. => FITTED_RAGGED_LINES,
        _ => FITTED_RAGGED,
    }
}

/// Seconds that an epilogue adds to rounds of tiles. `sums`: of a thread.
pub fn epilogue_seconds(schedule: Schedule, sums: f64, rounds: f64) -> f64 {
    let share = match schedule {
        Schedule::Cooperative => 1.0,
        Schedule::PingPong if sums > FITTED_CROWDED_SUMS => {
            FITTED_PING_PONG_EPILOGUE * FITTED_CROWDED
        }
        Schedule::PingPong => FITTED_PING_PONG_EPILOGUE,
    };
    FITTED_EPILOGUE * sums * rounds * share
}
