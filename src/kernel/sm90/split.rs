//! Split-K: how many slices K has, and the workspace where the partial sums of a grid split meet.

use super::config::{ROW_BYTES, Sm90};
use crate::kernel::cost::chips::Target;
use crate::kernel::cost::chips::hopper::active_clusters;
use crate::problem::GemmProblem;

// The program asserts that its constants of these names have the same values.
/// The most slices of K.
pub const MAX_SPLITS: u32 = 16;
/// Partial sums that a reducer CTA fetches before it adds them up.
pub const SPLITS_AT_ONCE: u32 = 8;
/// Most K of a grid split of 8-bit integers: their sums are then greater than the least int32, the
/// program's mark of a missing partial sum (`MISSING`).
pub const MOST_K_OF_INTEGERS: i64 = 1 << 15;
/// Distance between the words of two tiles in workspace, in 64-bit words. Many CTAs poll a word, so
/// each word has its own cache lines.
pub const WORD_STRIDE: u32 = 32;

impl Sm90 {
    /// The number of slices of K. A grid split has as many slices as an H100 runs at once. The
    /// number is the same on every device, so results depend only on the problem.
    pub fn k_splits(&self, problem: &GemmProblem) -> u32 {
        /// Fewest K blocks of a slice. With fewer, the reduction costs more than the split saves.
        const LEAST_BLOCKS: u64 = 8;
        if !self.over_grid {
            return self.split;
        }
        let blocks = problem.a.dtype.bytes_of(problem.k()) as u64 / u64::from(ROW_BYTES);
        let most = (blocks / LEAST_BLOCKS).clamp(1, MAX_SPLITS.into());
        (self.clusters_on_h100() / self.tiles(problem).max(1)).clamp(1, most) as u32
    }

    /// Clusters that an H100 runs at once, one CTA to a multiprocessor.
    pub(super) fn clusters_on_h100(&self) -> u64 {
        u64::from(self.clusters_at_once(1, Target::H100.multiprocessors))
    }

    /// Clusters that run at once on a device with this many multiprocessors. A further cluster
    /// would start only after another has finished all its tiles.
    pub fn clusters_at_once(&self, ctas_per_sm: u32, multiprocessors: u32) -> u32 {
        active_clusters(self.cluster_size(), multiprocessors * ctas_per_sm)
    }

    /// Bytes of workspace of a grid split: a word for each tile, then the 32-bit sums of each
    /// slice of each tile. 0 for other kernels.
    pub(super) fn split_workspace_bytes(&self, problem: &GemmProblem) -> u64 {
        if !self.over_grid {
            return 0;
        }
        let tiles = self.tiles(problem) * u64::from(self.cluster_size());
        let sums = self.k_splits(problem) * self.tile[0] * self.tile[1];
        tiles * (u64::from(8 * WORD_STRIDE) + u64::from(4 * sums))
    }
}
