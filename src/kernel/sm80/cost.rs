//! The cost of `sm80` kernels.

use crate::kernel::cost::factors::factors;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::cost::tiled::{
    self, DEEP_MEMORY_SHARE, Tile, fitted_pipeline, fitted_shallow_memory_share,
};
use crate::kernel::operation::Groups;
use crate::kernel::sm80::Sm80;
use crate::kernel::types::{ProductClass, Types};

factors! {
    /// The share of the rate of `mma.sync` that a tile reaches: 128x128 with a short K block, which
    /// synchronizes more often; 64x128, 64x64 and smaller ones, whose warps reload operands from
    /// shared memory more often.
    fitted_short_block = 0.837;
    fitted_tile_64x128 = 0.6;
    fitted_tile_64x64 = 0.672;
    fitted_tile_small = 0.4;
    /// The share of its rate that a float64 tile reaches with the four warps of a CTA that has the
    /// multiprocessor to itself.
    fitted_float64_alone = 0.6;
    /// Time factor of loads of 4 bytes, which take more instructions for the same bytes: where
    /// several CTAs share the multiprocessor and hide the latency of one another's instructions,
    /// and where not.
    fitted_words_shared = 1.4;
    fitted_words_alone = 2.6;
    /// The least seconds of a K block of one CTA where loads move single elements, which pass
    /// through registers and arrive one block ahead: for each element that a thread loads.
    fitted_element_latency = 25e-9;
    /// Seconds to store an element of the tile if an epilogue computes.
    fitted_epilogue_store = 0.33e-9;
}

/// Assumed, not measured: the share of the rate of 16-bit products that float8 products have on
/// chips without an instruction for them. The loop of a 128x128 tile has 192 conversions beside 128
/// HMMA.
const CONVERTED_FLOAT8_SHARE: f64 = 0.5;

/// Assumed, not measured: the share of the rate of 16-bit products that mixed products have. For 64
/// HMMA, the loop of a 128x128 tile has 356 to 436 instructions, that of float16 256. HMMA occupies
/// the tensor cores for 8 clocks or more, in which conversions are issued.
const CONVERTED_MIXED_SHARE: f64 = 0.9;

/// Whether the chip has a machine instruction (QMMA) for `mma.sync` of float8. The program converts
/// the operands elsewhere.
fn multiplies_float8(cc: u32) -> bool {
    cc == 89 || cc >= 120
}

/// The rate of `mma.sync` over that of 16-bit elements.
fn relative_rate(class: ProductClass, cc: u32) -> f64 {
    match class {
        ProductClass::Integer8 => 2.0,
        // Whitepapers of Ada and of RTX Blackwell: as integers of 8 bits.
        ProductClass::Float8 if multiplies_float8(cc) => 2.0,
        ProductClass::Float8 => CONVERTED_FLOAT8_SHARE,
        ProductClass::Half => 1.0,
        ProductClass::Mixed => CONVERTED_MIXED_SHARE,
        ProductClass::Single => 0.5,
        ProductClass::Double => unreachable!("float64_rate"),
        ProductClass::Integer32 | ProductClass::Unserved => {
            unreachable!("Sm80::configs has no kernels of this class")
        }
    }
}

/// The share of the rate of `mma.sync` that a tile reaches.
fn efficiency([m, n, k]: [u32; 3], element: f64) -> f64 {
    match (m, n) {
        (128, 128) if f64::from(k) * element >= 128.0 => 1.0,
        (128, 128) => fitted_short_block(),
        (128, 256) | (256, 128) => 1.0,
        (64, 128) | (128, 64) => fitted_tile_64x128(),
        (64, 64) => fitted_tile_64x64(),
        _ => fitted_tile_small(),
    }
}

/// Assumed: clocks of a barrier, which other CTAs of the multiprocessor fill in part.
const BARRIER_SHARED_CLOCKS: f64 = 50.0;
const BARRIER_ALONE_CLOCKS: f64 = 100.0;

/// Bytes per clock of a multiprocessor's shared memory.
const SHARED_BYTES_PER_CLOCK: f64 = 128.0;

/// FLOP per second of one multiprocessor in the main loop of a float64 tile. An element of K takes
/// the longer of the products and the traffic of shared memory: copies write the tile, and each
/// warp reads its rows of A and columns of B. `shares`: whether several CTAs share it.
fn float64_rate(config: &Sm80, shares: bool, query: &CostQuery) -> f64 {
    let ([m, n, k], [warps_m, warps_n]) = (config.tile.map(f64::from), config.warps.map(f64::from));
    let tensor_clocks = 2.0 * m * n / query.target.float64_mma_flop_per_clock;
    let bytes = 8.0 * (m + n + m * warps_n + n * warps_m);
    let barrier = if shares { BARRIER_SHARED_CLOCKS } else { BARRIER_ALONE_CLOCKS };
    let clocks = tensor_clocks.max(bytes / SHARED_BYTES_PER_CLOCK) + barrier / k;
    let reached = if shares || config.threads() >= 256 { 1.0 } else { fitted_float64_alone() };
    2.0 * m * n / clocks * query.target.clock_hz * reached
}

/// Assumed, not measured: the largest share of the memory rate, and seconds from the request of a
/// byte to its arrival.
const MOST_OF_MEMORY: f64 = 0.65;
const LATENCY: f64 = 0.85e-6;

/// Tile rows of a band, whose tiles the program walks first (`kernels/common/raster.cuh`).
const BAND: f64 = 8.0;

/// The share of the memory rate that the bytes in flight permit: of the tiles of one wave, which
/// share rows of A and columns of B, all stages but one.
fn memory_share(config: &Sm80, types: Types, ctas_per_sm: u32, query: &CostQuery) -> f64 {
    let [m, n, k] = config.tile.map(f64::from);
    let slots = query.sms() * f64::from(ctas_per_sm);
    let tiles = (config.ctas(query.problem) as f64).min(slots);
    let rows = (query.problem.m() as f64 / m).ceil().clamp(1.0, BAND);
    let bytes = (rows * m * types.a.width() + tiles / rows * n * types.b.width()) * k;
    let in_flight = f64::from(config.stages - 1) * bytes;
    MOST_OF_MEMORY.min(in_flight / LATENCY / query.rates.memory)
}

/// Time factor of narrow loads. `shares`: whether several CTAs share the multiprocessor.
fn load_penalty(config: &Sm80, types: Types, shares: bool) -> f64 {
    match (types.class(), config.align) {
        // Their traffic of shared memory takes longer.
        (ProductClass::Double, _) => 0.0,
        (_, 4) if config.groups == Groups::None && shares => fitted_words_shared(),
        (_, 4) if config.groups == Groups::None => fitted_words_alone(),
        _ => 1.0,
    }
}

pub fn estimate(config: &Sm80, types: Types, query: &CostQuery) -> Estimate {
    // On Hopper, float8 and mixed products belong to sm90. Those of sm80 rank last there.
    let of_sm90 = matches!(types.class(), ProductClass::Float8 | ProductClass::Mixed);
    if of_sm90 && query.target.cc == 90 {
        return Estimate::UNKNOWN;
    }
    let wider = types.a.width().max(types.b.width());
    let ctas_per_sm = config.ctas_per_sm(types, &query.target);
    let shares =
        ctas_per_sm > 1 && config.ctas(query.problem) > u64::from(query.target.multiprocessors);
    let (rate, memory_share) = match types.class() {
        ProductClass::Double => (float64_rate(config, shares, query), DEEP_MEMORY_SHARE),
        class => {
            let share = relative_rate(class, query.target.cc) * efficiency(config.tile, wider);
            let memory_share = match config.groups {
                Groups::None if of_sm90 => memory_share(config, types, ctas_per_sm, query),
                _ => fitted_shallow_memory_share(),
            };
            (share * query.rates.mma_sync, memory_share)
        }
    };
    let [m, n, k] = config.tile.map(f64::from);
    let (block_latency, overhead) = match (config.align, config.groups) {
        (4.., _) | (_, Groups::AlongM | Groups::AlongK) => (0.0, fitted_pipeline()),
        _ => (fitted_element_latency() * (m + n) * k / f64::from(config.threads()), 0.0),
    };
    let store = if query.fusion_takes_time { fitted_epilogue_store() * m * n } else { 0.0 };
    let tile = Tile {
        extents: config.tile,
        groups: config.groups,
        split: 1,
        ctas_per_sm,
        rate,
        load_penalty: load_penalty(config, types, shares),
        memory_share,
        block_latency,
        overhead,
        store,
    };
    tiled::estimate(&tile, types, query)
}
