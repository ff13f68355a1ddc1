//! The cost of `skinny` kernels: the longest of reading the wide operand from device memory, the
//! busiest SM's loads at the latency of its bytes in flight, and the arithmetic.
//!
//! Fitted to timings on an H100 (up to 16 rows, float16, 16-byte aligned) with a root mean square
//! error of 5 %. Estimates for other alignments and for FMA are off by up to 20 %.

use super::query::{CostQuery, Estimate};
use crate::kernel::family::Family;
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
/// Measured on an H200 with mixed products: a launch, whose weights are prefetched; a split, whose
/// sums meet while weights still arrive; and the bytes per second that one SM draws from device
/// memory.
const LAUNCH_OF_MIXED: f64 = 2.3e-6;
const SPLIT_OF_MIXED: f64 = 0.3e-6;
const SM_RATE: f64 = 35e9;
/// The same of codes of 4 bits, fitted on an H100: the share of the rate of device memory that
/// remains, the latency of a load, a CTA in addition to its loads, the bytes of codes per second
/// that an SM converts, and the share of this rate where one CTA has the SM to itself.
const FITTED_CODES_MEMORY: f64 = 0.85;
const FITTED_CODES_LATENCY: f64 = 1.1e-6;
const FITTED_CODES_CTA: f64 = 1.5e-6;
const FITTED_CODES_RATE: f64 = 22e9;
const FITTED_CODES_ALONE: f64 = 0.8;
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
    let framed = config.framed(query.problem);
    let [narrow, element] = config.operand_types(types).map(DType::width);
    let [tile_n, tile_k] = config.tile.map(f64::from);
    let sms = query.sms();
    let ctas = config.ctas(&framed) as f64;
    let blocks = ((framed.k() as f64 / tile_k).ceil() / f64::from(config.split)).ceil();
    let is_unaligned = config.k_major()[1] && framed.k() as f64 * element % 128.0 != 0.0;
    let unaligned = if config.align >= 8 && is_unaligned { FITTED_UNALIGNED_ROWS } else { 1.0 };
    let penalty = fitted_load_penalty(config);
    let bytes_of_cta =
        (tile_n * element + FITTED_NARROW * framed.m() as f64 * narrow) * blocks * tile_k * penalty;
    let mixed = narrow != element;
    let (memory_share, latency, overhead, sm_rate) = if element < 1.0 {
        (FITTED_CODES_MEMORY, FITTED_CODES_LATENCY, FITTED_CODES_CTA, FITTED_CODES_RATE)
    } else {
        (1.0, FITTED_LATENCY, CTA_OVERHEAD, SM_RATE)
    };
    let memory_rate = FITTED_MEMORY_RATE * memory_share * query.scale.memory;
    let memory = ctas * bytes_of_cta * unaligned / memory_rate;
    let most = (ctas / sms).ceil();
    let resident = most.min(f64::from(ctas_per_sm));
    let loads_ahead = f64::from(config.stages - 1).min(blocks.max(1.0));
    let in_flight = resident * loads_ahead * tile_n * tile_k * element;
    // A CTA that has an SM to itself fills its pipeline while nothing else is in flight.
    let starts = if ctas_per_sm == 1 { most - 1.0 } else { 0.0 };
    let later_rounds = (most / f64::from(ctas_per_sm)).ceil() - 1.0;
    let mut busiest = (most * bytes_of_cta / in_flight + starts) * latency;
    if element < 1.0 {
        let alone = if resident == 1.0 { FITTED_CODES_ALONE } else { 1.0 };
        busiest = busiest.max(most * bytes_of_cta / (sm_rate * alone));
    }
    busiest += later_rounds * overhead;
    if mixed {
        busiest = busiest.max(most * bytes_of_cta / sm_rate);
    }
    let arithmetic = match config.method {
        Method::TensorCores => 0.0,
        Method::Fma => {
            let rate = FITTED_FMA_RATE * query.scale.fma;
            most * tile_n * blocks * tile_k * f64::from(config.rows) / rate
        }
    };
    let split = match config.split {
        1 => 0.0,
        _ if mixed => SPLIT_OF_MIXED,
        _ => FITTED_SPLIT,
    };
    let launch = split + if mixed { LAUNCH_OF_MIXED } else { FITTED_LAUNCH };
    Estimate {
        waves: (most / f64::from(ctas_per_sm)).ceil(),
        bytes: query.bytes,
        arithmetic_seconds: arithmetic,
        memory_seconds: memory,
        cache_seconds: busiest,
        launch_seconds: launch,
        total_seconds: launch + memory.max(busiest).max(arithmetic),
    }
}
