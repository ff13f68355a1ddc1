//! From a checked problem and a compiled program to the driver's launch call: prepared
//! launches, their promotion to CUDA graphs, and the caches of launches. Independent of
//! Python: a caller passes a stream handle and a [`Host`].

mod choices;
pub mod device_checks;
mod error;
mod host;
mod last;
mod params;
mod prepared;
pub mod promotion;
mod workspace;

pub use choices::{ChoiceKey, KernelChoice, choices};
pub use error::{LaunchError, check, check_architecture, device_of};
pub use host::Host;
pub use last::{LastLaunch, LaunchRequest};
pub use prepared::PreparedLaunch;
