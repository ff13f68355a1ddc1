//! The conversion of a mixed product's weights to elements of 16 bits.

use crate::kernel::cost::factors::factors;
use crate::kernel::sm90::Sm90;
use crate::kernel::types::Types;

factors! {
    /// Seconds of the conversion of 64 rows of 128 bytes of weights: of 8 bits, of integers of 4
    /// bits, and of e2m1.
    fitted_conversion = 200e-9;
    fitted_int4 = 336e-9;
    fitted_e2m1 = 720e-9;
    /// The share of `wgmma`'s time that conversions of 8 bits do not overlap.
    fitted_beside_conversion = 0.42;
}

/// The time of a K block of a mixed product, whose products take `multiplied`. `sharing`: tiles of
/// the multiprocessor. All its consumers issue their conversions in turns. Times of conversions are
/// those of rows of 128 bytes.
pub fn with_conversion(
    config: &Sm90,
    types: Types,
    multiplied: f64,
    sharing: f64,
    clock: f64,
) -> f64 {
    let rows = f64::from(config.row_bytes(0)) / 128.0 / clock;
    let weight = if types.b.is_widened() { types.b } else { types.a };
    let turns = f64::from(config.tile[0]) / 64.0 * sharing;
    let (converted, beside) = match (weight.is_whole(), weight.is_float()) {
        (true, _) => (fitted_conversion(), fitted_beside_conversion()),
        (false, true) => (fitted_e2m1(), 1.0),
        (false, false) => (fitted_int4(), 1.0),
    };
    turns * converted * rows + beside * multiplied
}
