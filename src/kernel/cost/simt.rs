//! The cost of `simt` kernels.

use super::query::{CostQuery, Estimate};
use super::tiled::{self, Tile};
use crate::kernel::operation::Operation;
use crate::kernel::simt::Simt;
use crate::kernel::types::Types;
use crate::operand::DType;

/// Fitted on an H100: FLOP per second of one multiprocessor, by accumulator type.
fn fitted_rate(accumulator: DType) -> f64 {
    match accumulator {
        DType::F64 => 0.25e12,
        _ => 0.5e12,
    }
}

/// Fitted: the share of [`fitted_rate`] that a tile reaches.
fn fitted_efficiency([m, n, _]: [u32; 3]) -> f64 {
    if m * n >= 128 * 64 { 0.7 } else { 0.4 }
}

pub fn estimate(config: &Simt, types: Types, query: &CostQuery) -> Estimate {
    let rate = fitted_rate(types.accumulator) * fitted_efficiency(config.tile);
    let tile = Tile {
        extents: config.tile,
        operation: Operation::gemm(config.grouped),
        rate: rate * query.scale.fma,
        load_penalty: 1.0,
    };
    tiled::estimate(&tile, types, query)
}
