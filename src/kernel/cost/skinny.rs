//! The cost of `skinny` kernels: the wide operand through device memory, or through the busiest SM
//! with the bytes that its CTAs have in flight.
//!
//! Fitted to timings on an H100 of up to 16 rows, float16, 16-byte aligned, with a root mean square
//! error of 5 %. The factors for other alignments and multiply-adds are off by up to 20 %.

use super::query::{CostQuery, Estimate};
use crate::kernel::skinny::{Method, Skinny};
use crate::kernel::types::Types;

/// Fitted on an H100: bytes a second of device memory.
const FITTED_MEMORY_RATE: f64 = 3.0e12;
/// Fitted: seconds of a launch with its ends, of a byte's latency, and of adding up a cluster's
/// sums.
const FITTED_LAUNCH: f64 = 3.3e-6;
const FITTED_LATENCY: f64 = 0.85e-6;
const FITTED_SPLIT: f64 = 1.7e-6;
/// Fitted: the cost of a byte of the narrow operand, which comes from the L2 cache, in bytes of the
/// wide operand.
const FITTED_NARROW: f64 = 0.05;
/// Fitted on an H100: multiply-adds a second of an SM in the FMA loop.
const FITTED_FMA_RATE: f64 = 60e9;
/// Fitted: how much longer rows take that begin inside a line of 128 bytes.
const FITTED_RAGGED: f64 = 1.17;

/// Fitted: how much longer narrow loads take. Includes rows that begin inside a cache line.
fn fitted_load_penalty(config: &Skinny) -> f64 {
    match (config.align, config.tokens) {
        (8.., _) => 1.0,
        (_, 17..) => 1.6,
        _ => 1.25,
    }
}

pub fn estimate(config: &Skinny, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
    let framed = config.framed(query.problem);
    let (element, [tile_n, tile_k]) = (types.a.bytes() as f64, config.tile.map(f64::from));
    let sms = query.sms();
    let ctas = config.ctas(framed.n(), framed.batch()) as f64;
    let blocks = ((framed.k() as f64 / tile_k).ceil() / f64::from(config.split)).ceil();
    let begins_inside = config.k_major()[1] && framed.k() * types.a.bytes() % 128 != 0;
    let ragged = if config.align >= 8 && begins_inside { FITTED_RAGGED } else { 1.0 };
    let penalty = fitted_load_penalty(config);
    let bytes_of_cta =
        (tile_n + FITTED_NARROW * framed.m() as f64) * blocks * tile_k * element * penalty;
    let bytes = ctas * bytes_of_cta * ragged;
    let memory = bytes / (FITTED_MEMORY_RATE * query.scale.memory);
    let most = (ctas / sms).ceil();
    let resident = most.min(f64::from(ctas_per_sm));
    let in_flight = resident * f64::from(config.stages - 1) * tile_n * tile_k * element;
    let busiest = most * bytes_of_cta * FITTED_LATENCY / in_flight;
    let arithmetic = match config.method {
        Method::TensorCores => 0.0,
        Method::Fma => {
            let rate = FITTED_FMA_RATE * query.scale.fma;
            most * tile_n * blocks * tile_k * f64::from(config.tokens) / rate
        }
    };
    let launch = FITTED_LAUNCH + if config.split > 1 { FITTED_SPLIT } else { 0.0 };
    Estimate {
        waves: (most / f64::from(ctas_per_sm)).ceil(),
        bytes,
        arithmetic_seconds: arithmetic,
        memory_seconds: memory,
        cache_seconds: busiest,
        launch_seconds: launch,
        total_seconds: launch + memory.max(busiest).max(arithmetic),
    }
}
