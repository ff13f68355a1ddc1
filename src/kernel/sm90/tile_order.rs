//! The order in which clusters walk the output.

use super::config::{Schedule, Sm90};
use super::grid::TileGrid;
use crate::kernel::cost::chips::Target;
use crate::kernel::operation::Groups;

/// Rows and columns of tiles that `count` consecutive tiles span in bands of this height. `count`
/// is at least 1.
fn walked(tiles: [f64; 2], band: u32, count: f64) -> [f64; 2] {
    let down = f64::from(band).min(count).min(tiles[0]);
    let across = count / down;
    // Within one band, or across several. The cost model calls this often, so the usual case has
    // one division.
    if across <= tiles[1] {
        [down, across]
    } else {
        [(count / tiles[1]).clamp(1.0, tiles[0]), tiles[1]]
    }
}

impl Sm90 {
    /// Clusters along M that the program walks before the next along N, a power of two. The band
    /// minimizes the operand rows and columns that consecutive CTAs read, in windows of 10 CTAs and
    /// of half a chip.
    ///
    /// The windows (in CTAs) and the weight are chosen by timings on an H100 and do not depend on
    /// the device.
    pub fn band(&self, grid: &TileGrid) -> u32 {
        const NEIGHBOURS: f64 = 10.0;
        const CHIP: f64 = Target::H100.multiprocessors as f64;
        const WEIGHT_OF_HALF: f64 = 3.0;
        if self.groups == Groups::AlongM {
            // Only the device knows the rows of a group.
            let wide = self.tile[1] >= 2 * self.tile[0] || self.schedule == Schedule::PingPong;
            return if wide { 16 } else { 8 } / self.cluster[0];
        }
        let TileGrid { cluster, clusters: tiles, .. } = *grid;
        if tiles[0].min(tiles[1]) == 1.0 {
            return 8; // One row or column of tiles has one order.
        }
        // A ping-pong CTA works on two tiles at once if there are more tiles than CTAs.
        let two = self.schedule == Schedule::PingPong
            && tiles[0] * tiles[1] * f64::from(self.cluster_size()) > CHIP;
        let half = if two { CHIP } else { CHIP / 2.0 };
        let windows = [(NEIGHBOURS, 1.0), (half, WEIGHT_OF_HALF)].map(|(ctas, weight)| {
            let clusters = (ctas / f64::from(self.cluster_size())).clamp(1.0, tiles[0] * tiles[1]);
            (clusters, weight / clusters)
        });
        // The first of equal bands.
        let mut best = (f64::INFINITY, 8);
        for band in [8, 16, 4, 32, 2, 64, 1] {
            if f64::from(band) >= 2.0 * tiles[0] {
                continue; // Same order as with half the band.
            }
            // Rows and columns that each cluster reads, shared within the window.
            let read = windows.map(|(clusters, weight)| {
                let [down, across] = walked(tiles, band, clusters);
                weight * (down * cluster[0] + across * cluster[1])
            });
            let read = read[0] + read[1];
            if read < best.0 {
                best = (read, band);
            }
        }
        best.1
    }
}
