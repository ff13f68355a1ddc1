//! The `sm90` family: Hopper's `wgmma`, fed by TMA, warp-specialized and persistent.

mod boxes;
mod config;
mod cost;
mod family;
mod grid;
mod grouped_shapes;
mod launch;
mod leading;
mod memory;
mod params;
mod placement;
mod shapes;
mod source;
mod space;
mod split;
mod support;
mod tile_order;

pub use config::{Schedule, Sm90};
pub use params::{Sm90Params, Sm90Scalars};
