//! The cost of `sm80` kernels.

use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::cost::tiled::{
    self, DEEP_PIPELINE_MEMORY_RATE, FITTED_MEMORY_RATE, FITTED_TILE_OVERHEAD, Tile,
};
use crate::kernel::operation::Groups;
use crate::kernel::sm80::Sm80;
use crate::kernel::types::{ProductClass, Types};

/// Fitted on an H100: FLOP per second of one multiprocessor's `mma.sync` in the fastest kernel.
const FITTED_HALF_RATE: f64 = 4e12;
const FITTED_INTEGER8_RATE: f64 = 8e12;
const FITTED_SINGLE_RATE: f64 = 2e12;

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

/// FLOP per second of one multiprocessor's `mma.sync`, on an H100's scale.
fn rate(class: ProductClass, cc: u32) -> f64 {
    match class {
        ProductClass::Integer8 => FITTED_INTEGER8_RATE,
        // Whitepapers of Ada and of RTX Blackwell: as integers of 8 bits.
        ProductClass::Float8 if multiplies_float8(cc) => FITTED_INTEGER8_RATE,
        ProductClass::Float8 => FITTED_HALF_RATE * CONVERTED_FLOAT8_SHARE,
        ProductClass::Half => FITTED_HALF_RATE,
        ProductClass::Mixed => FITTED_HALF_RATE * CONVERTED_MIXED_SHARE,
        ProductClass::Single => FITTED_SINGLE_RATE,
        ProductClass::Double => unreachable!("float64_rate"),
        ProductClass::Integer32 | ProductClass::Unserved => {
            unreachable!("Sm80::configs has no kernels of this class")
        }
    }
}

/// Fitted on an H100 at 4096 x 4096 x 4096: the share of [`rate`] that a tile reaches. Small
/// warp tiles reload operands from shared memory more often; a shorter K block synchronizes more
/// often.
fn fitted_efficiency([m, n, k]: [u32; 3], element: f64) -> f64 {
    let short = f64::from(k) * element < 128.0;
    match (m, n) {
        (128, 128) if !short => 1.0,
        (128, 128) => 0.93,
        (128, 256) | (256, 128) => 0.83,
        (64, 128) | (128, 64) => 0.75,
        (64, 64) => 0.6,
        _ => 0.4,
    }
}

/// Fitted: the share of its rate that a float64 tile reaches with at least eight warps on the
/// multiprocessor, and with the four of a CTA that has it alone.
const FITTED_FLOAT64: f64 = 0.87;
const FITTED_FLOAT64_ALONE: f64 = 0.6;
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
    let reached =
        if shares || config.threads() >= 256 { FITTED_FLOAT64 } else { FITTED_FLOAT64_ALONE };
    2.0 * m * n / clocks * query.target.clock_hz * reached
}

/// Assumed, not measured: the most bytes per second of device memory, on an H100's scale, of which
/// `skinny` reaches 3.0e12, and seconds from the request of a byte to its arrival, as of `skinny`.
const DEEP_MEMORY_RATE: f64 = 2.2e12;
const LATENCY: f64 = 0.85e-6;

/// Tile rows of a band, whose tiles the program walks first (`kernels/common/raster.cuh`).
const BAND: f64 = 8.0;

/// Bytes per second of device memory, on an H100's scale, that the bytes in flight permit: of the
/// tiles of one wave, which share rows of A and columns of B, all stages but one.
fn memory_rate(config: &Sm80, types: Types, ctas_per_sm: u32, query: &CostQuery) -> f64 {
    let [m, n, k] = config.tile.map(f64::from);
    let by_shared = query.target.shared_bytes_per_sm / (config.shared_bytes(types) + 1024);
    let slots = query.sms() * f64::from(ctas_per_sm.min(by_shared));
    let tiles = (config.ctas(query.problem) as f64).min(slots);
    let rows = (query.problem.m() as f64 / m).ceil().clamp(1.0, BAND);
    let bytes = (rows * m * types.a.width() + tiles / rows * n * types.b.width()) * k;
    let in_flight = f64::from(config.stages - 1) * bytes;
    DEEP_MEMORY_RATE.min(in_flight / LATENCY / query.scale.memory)
}

/// Fitted: time factor of narrow loads, which take more instructions for the same bytes. `shares`:
/// whether several CTAs share the multiprocessor and hide the latency of one another's
/// instructions.
fn fitted_load_penalty(config: &Sm80, types: Types, shares: bool) -> f64 {
    match (types.class(), config.align) {
        (ProductClass::Double, 16) => 0.85,
        (ProductClass::Double, _) => 1.3,
        (_, 16) => 1.0,
        // Grouped kernels have a fit of their own.
        (_, 4) if config.groups != Groups::None => 1.5,
        _ if config.groups != Groups::None => 2.5,
        (_, 4) if shares => 1.4,
        (_, 4) => 2.6,
        // An instruction for each element.
        _ => 2.9 / types.a.width().min(types.b.width()),
    }
}

// Fitted on an H200 to kernels whose loads move single elements. `cp.async` copies at least 4
// bytes, so these elements pass through registers, and arrive one block ahead.
/// The least seconds of a K block of one CTA, for each element that a thread loads.
const FITTED_ELEMENT_LATENCY: f64 = 25e-9;
/// Seconds to fill the pipeline.
const FITTED_ELEMENT_OVERHEAD: f64 = 0.3e-6;
/// Seconds to store an element of the tile. The output's rows are mostly unaligned, too.
const FITTED_ELEMENT_STORE: f64 = 0.22e-9;

/// Measured on an H200 (bfloat16, a matrix added and relu; 128x128 and 128x256): further seconds to
/// store an element of the tile if an epilogue computes.
const EPILOGUE_STORE: f64 = 0.33e-9;

pub fn estimate(config: &Sm80, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
    // On Hopper, float8 and mixed products belong to sm90. Those of sm80 rank last there.
    let of_sm90 = matches!(types.class(), ProductClass::Float8 | ProductClass::Mixed);
    if of_sm90 && query.target.cc == 90 {
        return Estimate::UNKNOWN;
    }
    let wider = types.a.width().max(types.b.width());
    let shares =
        ctas_per_sm > 1 && config.ctas(query.problem) > u64::from(query.target.multiprocessors);
    let (rate, memory_rate) = match types.class() {
        ProductClass::Double => (float64_rate(config, shares, query), DEEP_PIPELINE_MEMORY_RATE),
        class => {
            let rate = rate(class, query.target.cc) * fitted_efficiency(config.tile, wider);
            let memory_rate = match config.groups {
                Groups::None if of_sm90 => memory_rate(config, types, ctas_per_sm, query),
                _ => FITTED_MEMORY_RATE,
            };
            (rate * query.scale.mma_sync, memory_rate)
        }
    };
    let [m, n, k] = config.tile.map(f64::from);
    let (block_latency, overhead, store) = match (config.align, config.groups) {
        (4.., _) | (_, Groups::AlongM | Groups::AlongK) => (0.0, FITTED_TILE_OVERHEAD, 0.0),
        _ => (
            FITTED_ELEMENT_LATENCY * (m + n) * k / f64::from(config.threads()),
            FITTED_ELEMENT_OVERHEAD,
            FITTED_ELEMENT_STORE * m * n,
        ),
    };
    let epilogue = if query.fusion_takes_time { EPILOGUE_STORE * m * n } else { 0.0 };
    let tile = Tile {
        extents: config.tile,
        groups: config.groups,
        split: 1,
        ctas_per_sm,
        rate,
        load_penalty: fitted_load_penalty(config, types, shares),
        memory_rate,
        block_latency,
        overhead,
        store: store + epilogue,
    };
    tiled::estimate(&tile, types, query)
}
