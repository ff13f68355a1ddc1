//! The cost of `skinny` kernels: the longest of reading the wide operand from device memory, the
//! busiest SM's loads at the latency of its bytes in flight, and the arithmetic.
//!
//! On an H200, estimates of up to 16 rows are off by 27 % (root mean square; 16 random products of
//! 16-bit operands), and by 19 % for mixed products. Other alignments and FMA are not timed.

use crate::kernel::cost::factors::factors;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::skinny::{Method, Skinny};
use crate::kernel::types::Types;
use crate::operand::DType;

factors! {
    /// Seconds of a kernel's prologue and epilogue, of a load's latency, and of adding up the
    /// partial sums of a cluster.
    fitted_ends = 2.6e-6;
    fitted_latency = 1.36e-6;
    fitted_sum = 1.7e-6;
    /// Seconds of a load's latency and of adding up partial sums in mixed products.
    fitted_mixed_latency = 1.02e-6;
    fitted_mixed_sum = 0.53e-6;
    /// Bytes of weights per second that a multiprocessor converts, of 4 bits and of 8 bits.
    fitted_codes_rate = 26.6e9;
    fitted_bytes_rate = 37.4e9;
    /// The time of a byte of the narrow operand, which comes from the L2 cache, over that of a byte
    /// of the wide operand; and where the wide operand's elements are codes.
    fitted_narrow = 0.08;
    fitted_narrow_beside_codes = 0.125;
    /// Multiply-adds per second in the FMA loop, over FLOP per second of FMA.
    fitted_fma_loop = 0.118;
    /// Time factor of narrow loads.
    fitted_narrow_loads = 1.25;
}

/// Bytes of the wide operand per second that a multiprocessor converts.
fn conversion_rate(element: f64) -> f64 {
    if element < 1.0 { fitted_codes_rate() } else { fitted_bytes_rate() }
}

/// The time of a byte of the narrow operand over that of a byte of the wide operand.
fn narrow_share(element: f64) -> f64 {
    if element < 1.0 { fitted_narrow_beside_codes() } else { fitted_narrow() }
}

fn load_penalty(config: &Skinny) -> f64 {
    if config.align >= 8 { 1.0 } else { fitted_narrow_loads() }
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
    let memory_rate = query.rates.memory;
    let split = config.split > 1;
    let (arithmetic, memory, busiest, further) = if narrow != element {
        let narrow_bytes = f64::from(config.rows) * narrow * blocks * tile_k;
        let rate = conversion_rate(element);
        let conversion = most * (wide_bytes + narrow_share(element) * narrow_bytes) / rate;
        let loads = most * wide_bytes / in_flight(config.stages) * fitted_mixed_latency();
        let sum = if split { fitted_mixed_sum() } else { 0.0 };
        (0.0, ctas * wide_bytes / memory_rate, conversion.max(loads), sum)
    } else {
        let narrow_bytes = problem.m() as f64 * narrow * blocks * tile_k;
        let bytes_of_cta = (wide_bytes + fitted_narrow() * narrow_bytes) * load_penalty(config);
        // A CTA that has an SM to itself fills its pipeline while nothing else is in flight.
        let starts = if ctas_per_sm == 1 { most - 1.0 } else { 0.0 };
        let busiest =
            (most * bytes_of_cta / in_flight(config.stages - 1) + starts) * fitted_latency();
        let arithmetic = match config.method {
            Method::TensorCores => 0.0,
            Method::Fma => {
                let rate = fitted_fma_loop() * query.rates.fma;
                most * tile_n * blocks * tile_k * f64::from(config.rows) / rate
            }
        };
        let sum = if split { fitted_sum() } else { 0.0 };
        (arithmetic, ctas * bytes_of_cta / memory_rate, busiest, sum)
    };
    let launch = query.rates.launch + fitted_ends() + further;
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
    let rate = conversion_rate(element);
    let conversion = (columns * column_bytes + narrow_share(element) * narrow_bytes) / rate;
    let ahead = f64::from(config.stages).min((blocks * tiles).max(1.0));
    let in_flight = resident * ahead * columns_of_tile * tile_k * element;
    let busiest = conversion.max(columns * column_bytes / in_flight * fitted_mixed_latency());
    let all_columns = (ranges.strips * units * Skinny::UNIT) as f64;
    let memory = all_columns * column_bytes / query.rates.memory;
    let launch = query.rates.launch + fitted_ends();
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
