//! Terms that the models of `sm90` share.

use crate::kernel::cost::factors::factors;

factors! {
    /// The least seconds of a K block.
    pub fitted_block = 0.115e-6;
    /// Seconds of an epilogue for each accumulator of a thread, and the share of them that remains
    /// in ping-pong.
    pub fitted_epilogue = 20e-9;
    pub fitted_ping_pong_epilogue = 0.23;
    /// Relative extra time of the L2 cache for rows that begin inside a 32-byte sector, and for
    /// rows that begin at a sector inside a 128-byte line.
    fitted_inside_sectors = 0.775;
    fitted_inside_lines = 0.42;
}

/// The time of terms that overlap: the root of the sum of squares, in which the longest dominates.
pub fn overlapped<const N: usize>(terms: [f64; N]) -> f64 {
    terms.into_iter().map(|seconds| seconds * seconds).sum::<f64>().sqrt()
}

/// Relative extra time of the L2 cache for rows of this alignment in bytes: 0 if aligned.
pub fn alignment_penalty(aligned: u32) -> f64 {
    match aligned {
        128.. => 0.0,
        32.. => fitted_inside_lines(),
        _ => fitted_inside_sectors(),
    }
}
