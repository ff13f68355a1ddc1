//! The conversion of a mixed product's weights to elements of 16 bits.

use crate::kernel::sm90::Sm90;
use crate::kernel::types::Types;

/// The conversion of 64 rows of 128 bytes of weights of 8 bits, and the share of `wgmma`'s time
/// that it does not overlap. Fitted to timings of float8 beside bfloat16 on an H200.
const FITTED_CONVERSION: f64 = 0.16e-6;
const FITTED_CONVERTED_MULTIPLIED: f64 = 0.7;
/// The least time of a row of 128 bytes: of one CTA that has the multiprocessor to itself. Fitted
/// to timings on an H200.
const FITTED_CONVERSION_ALONE: f64 = 0.45e-6;
/// The same of codes of 4 bits, integers and e2m1. Fitted to timings on an H100, the least time on
/// an H200. Also the share of the time of `wgmma` that conversions do not overlap, and that of a
/// consumer alone.
const FITTED_CODES: [f64; 2] = [0.21e-6, 0.45e-6];
const FITTED_CODES_ALONE: [f64; 2] = [0.5e-6, 1.1e-6];
const FITTED_CODES_MULTIPLIED: f64 = 0.48;
const FITTED_CODES_MULTIPLIED_ALONE: f64 = 0.12;

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
    if weight.is_whole() {
        return (turns * FITTED_CONVERSION * rows + FITTED_CONVERTED_MULTIPLIED * multiplied)
            .max(FITTED_CONVERSION_ALONE * rows);
    }
    let kind = usize::from(weight.is_float());
    let converted = turns * FITTED_CODES[kind] * rows;
    let alone = FITTED_CODES_ALONE[kind] * rows;
    (converted + FITTED_CODES_MULTIPLIED * multiplied)
        .max(alone + FITTED_CODES_MULTIPLIED_ALONE * multiplied)
}
