//! The cost of `skinny` kernels: the longest of reading the wide operand from device memory, the
//! busiest SM's loads at the latency of its bytes in flight, and the arithmetic.
//!
//! Fitted to timings on an H100 (up to 16 rows, float16, 16-byte aligned) with a root mean square
//! error of 5 %. Estimates for other alignments and for FMA are off by up to 20 %. Mixed products
//! have factors of their own, with an error of 10 %.

use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::skinny::{Method, Skinny};
use crate::kernel::types::Types;
use crate::operand::DType;

/// Fitted on an H100: bytes per second of device memory.
const FITTED_MEMORY_RATE: f64 = 3.0e12;
/// Fitted: seconds of a launch, including a kernel's prologue and epilogue; of a load's latency;
/// and of adding up the partial sums of a cluster.
const FITTED_LAUNCH: f64 = 3.3e-6;
const FITTED_LATENCY: f64 = 0.85e-6;
const FITTED_SPLIT: f64 = 1.7e-6;
/// Measured on an H200, with CTAs of one K block: seconds of a CTA in addition to its loads. CTAs
/// that share an SM overlap.
const CTA_OVERHEAD: f64 = 1.2e-6;

/// Times of mixed products, fitted to those of 8 matrices in 6 formats on an H200 with 1, 4 and 16
/// rows, in CTAs of one tile.
struct FittedMixed {
    /// Seconds of a launch, of each further round of CTAs, of a split, and of a load's latency.
    launch: f64,
    round: f64,
    split: f64,
    latency: f64,
    /// Bytes of the wide operand per second that an SM converts, and the share of this rate where
    /// one CTA has the SM to itself.
    sm_rate: f64,
    alone: f64,
    /// The time of a byte of the narrow operand's rows over that of a byte of the wide operand.
    narrow: f64,
}

const FITTED_CODES: FittedMixed = FittedMixed {
    launch: 3.43e-6,
    round: 1.93e-6,
    split: 0.49e-6,
    latency: 1.01e-6,
    sm_rate: 26.6e9,
    alone: 0.754,
    narrow: 0.125,
};
const FITTED_BYTES: FittedMixed = FittedMixed {
    launch: 3.69e-6,
    round: 1.32e-6,
    split: 0.57e-6,
    latency: 1.04e-6,
    sm_rate: 31.5e9,
    alone: 0.948,
    narrow: 0.039,
};

/// Fitted to persistent CTAs on an H200 (2 matrices, 5 formats, 1, 8 and 16 rows): seconds of each
/// further tile, for the barriers and the sums of its warps. The kernel that ranks first takes
/// 1.005 of the time of the fastest in the mean.
const TILE_OVERHEAD: f64 = 0.6e-6;

/// Fitted: the time of a byte of the narrow operand, which comes from the L2 cache, over that of a
/// byte of the wide operand.
const FITTED_NARROW: f64 = 0.05;
/// Fitted on an H100: multiply-adds per second of one SM in the FMA loop.
const FITTED_FMA_RATE: f64 = 60e9;
/// Fitted: time factor of rows that begin inside a 128-byte cache line.
const FITTED_UNALIGNED_ROWS: f64 = 1.17;

/// Fitted: time factor of narrow loads, including that of rows that begin inside a cache line.
fn fitted_load_penalty(config: &Skinny) -> f64 {
    match (config.align, config.rows) {
        (8.., _) => 1.0,
        (_, 17..) => 1.6,
        _ => 1.25,
    }
}

pub fn estimate(config: &Skinny, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
    if config.is_persistent(types) {
        return estimate_persistent(config, types, ctas_per_sm, query);
    }
    let problem = query.problem;
    let [narrow, element] = [types.a, types.b].map(DType::width);
    let [tile_n, tile_k] = config.tile.map(f64::from);
    let ctas = config.ctas(problem) as f64;
    let blocks = ((problem.k() as f64 / tile_k).ceil() / f64::from(config.split)).ceil();
    let most = (ctas / query.sms()).ceil();
    let resident = most.min(f64::from(ctas_per_sm));
    let rounds = (most / f64::from(ctas_per_sm)).ceil();
    let wide_bytes = tile_n * element * blocks * tile_k;
    let in_flight =
        |ahead: u32| resident * f64::from(ahead).min(blocks.max(1.0)) * tile_n * tile_k * element;
    let memory_rate = FITTED_MEMORY_RATE * query.scale.memory;
    let split = config.split > 1;
    let (arithmetic, memory, busiest, launch) = if narrow != element {
        let fitted = if element < 1.0 { FITTED_CODES } else { FITTED_BYTES };
        let narrow_bytes = f64::from(config.rows) * narrow * blocks * tile_k;
        let rate = fitted.sm_rate * if resident == 1.0 { fitted.alone } else { 1.0 };
        let conversion = most * (wide_bytes + fitted.narrow * narrow_bytes) / rate;
        let loads = most * wide_bytes / in_flight(config.stages) * fitted.latency;
        let launch = fitted.launch + if split { fitted.split } else { 0.0 };
        let rounds = (rounds - 1.0) * fitted.round;
        (0.0, ctas * wide_bytes / memory_rate, conversion.max(loads), launch + rounds)
    } else {
        let is_unaligned = config.k_major()[1] && problem.k() as f64 * element % 128.0 != 0.0;
        let unaligned = if config.align >= 8 && is_unaligned { FITTED_UNALIGNED_ROWS } else { 1.0 };
        let narrow_bytes = problem.m() as f64 * narrow * blocks * tile_k;
        let bytes_of_cta =
            (wide_bytes + FITTED_NARROW * narrow_bytes) * fitted_load_penalty(config);
        // A CTA that has an SM to itself fills its pipeline while nothing else is in flight.
        let starts = if ctas_per_sm == 1 { most - 1.0 } else { 0.0 };
        let busiest = (most * bytes_of_cta / in_flight(config.stages - 1) + starts)
            * FITTED_LATENCY
            + (rounds - 1.0) * CTA_OVERHEAD;
        let arithmetic = match config.method {
            Method::TensorCores => 0.0,
            Method::Fma => {
                let rate = FITTED_FMA_RATE * query.scale.fma;
                most * tile_n * blocks * tile_k * f64::from(config.rows) / rate
            }
        };
        let launch = FITTED_LAUNCH + if split { FITTED_SPLIT } else { 0.0 };
        (arithmetic, ctas * bytes_of_cta * unaligned / memory_rate, busiest, launch)
    };
    Estimate {
        waves: rounds,
        bytes: query.bytes,
        arithmetic_seconds: arithmetic,
        memory_seconds: memory,
        cache_seconds: busiest,
        launch_seconds: launch,
        total_seconds: launch + memory.max(busiest).max(arithmetic),
    }
}

/// Persistent CTAs of mixed products, whose shares of the columns are nearly equal.
fn estimate_persistent(
    config: &Skinny,
    types: Types,
    ctas_per_sm: u32,
    query: &CostQuery,
) -> Estimate {
    let problem = query.problem;
    let [narrow, element] = [types.a, types.b].map(DType::width);
    let fitted = if element < 1.0 { FITTED_CODES } else { FITTED_BYTES };
    let [tile_n, tile_k] = config.tile.map(f64::from);
    let blocks = (problem.k() as f64 / tile_k).ceil();
    let slots = query.target.multiprocessors * ctas_per_sm;
    let ranges = config.ranges(problem, slots);
    let (units, of_strip) = (ranges.units, ranges.of_strip);
    // The first CTAs, which have a unit more, are spread over the SMs.
    let most = (ranges.ctas() as f64 / query.sms()).ceil();
    let longer = ((ranges.strips * (units % of_strip)) as f64 / query.sms()).ceil().min(most);
    let columns = (most * (units / of_strip) as f64 + longer) * Skinny::UNIT as f64;
    let resident = most.min(f64::from(ctas_per_sm));
    let rounds = (most / f64::from(ctas_per_sm)).ceil();
    let tiles = ((ranges.longest() * Skinny::UNIT) as f64 / tile_n).ceil();
    let columns_of_tile = (ranges.longest() as f64 / tiles).ceil() * Skinny::UNIT as f64;

    let column_bytes = element * blocks * tile_k;
    let narrow_bytes = most * tiles * f64::from(config.rows) * narrow * blocks * tile_k;
    let rate = fitted.sm_rate * if resident == 1.0 { fitted.alone } else { 1.0 };
    let conversion = (columns * column_bytes + fitted.narrow * narrow_bytes) / rate;
    let ahead = f64::from(config.stages).min((blocks * tiles).max(1.0));
    let in_flight = resident * ahead * columns_of_tile * tile_k * element;
    let busiest = conversion.max(columns * column_bytes / in_flight * fitted.latency);
    let all_columns = (ranges.strips * units * Skinny::UNIT) as f64;
    let memory = all_columns * column_bytes / (FITTED_MEMORY_RATE * query.scale.memory);
    let launch = fitted.launch + (tiles * rounds - 1.0) * TILE_OVERHEAD;
    Estimate {
        waves: rounds,
        bytes: query.bytes,
        arithmetic_seconds: 0.0,
        memory_seconds: memory,
        cache_seconds: busiest,
        launch_seconds: launch,
        total_seconds: launch + memory.max(busiest),
    }
}
