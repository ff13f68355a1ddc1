//! Tiles of a plain or grouped GEMM.

use super::operation::Groups;
use crate::problem::GemmProblem;

/// Tiles of this shape that cover a problem; with groups along M, an upper bound.
pub fn tiles(problem: &GemmProblem, groups: Groups, tile_m: u32, tile_n: u32) -> u64 {
    let (rows, batch, height) = (problem.m() as u64, problem.b.shape[0] as u64, u64::from(tile_m));
    let strips = match groups {
        // The last strip of each group has at least one row.
        Groups::AlongM if problem.out.shape[0] == 1 => {
            ((rows + batch * (height - 1)) / height).min(rows)
        }
        // Masked groups have a matrix each.
        Groups::None | Groups::AlongM | Groups::AlongK => rows.div_ceil(height) * batch,
    };
    strips * (problem.n() as u64).div_ceil(u64::from(tile_n))
}

/// As [`tiles`], but with groups along M the expected number: only the device knows where groups
/// end.
pub fn expected_tiles(problem: &GemmProblem, groups: Groups, tile_m: u32, tile_n: u32) -> f64 {
    let most = tiles(problem, groups, tile_m, tile_n) as f64;
    if groups != Groups::AlongM {
        return most;
    }
    let strips = problem.b.shape[0] as f64 * expected_strips(problem, tile_m);
    most.min(strips * (problem.n() as f64 / f64::from(tile_n)).ceil())
}

/// Expected strips of `tile_m` rows that cover one group.
fn expected_strips(problem: &GemmProblem, tile_m: u32) -> f64 {
    /// The assumed empty share of a group's last strip: 0.5 for random group sizes, 0 for whole
    /// strips.
    const EMPTY: f64 = 0.4;
    // The rows of all groups. Those of masked groups count as full.
    let rows = (problem.m() * problem.out.shape[0]) as f64;
    (rows / problem.b.shape[0].max(1) as f64 / f64::from(tile_m) + EMPTY).max(1.0)
}
