//! The tuner: problems as keys, timed kernels, and the store of results. Reorders what `kernel`
//! ranks. Independent of Python: `cutlass_api.tuning` searches and reports.

mod benchmark;
mod check;
mod error;
mod key;
mod mode;
mod operands;
mod own;
mod ranking;
mod store;
mod timed;

pub use benchmark::{Benchmark, CheckOptions};
pub use error::TuneError;
pub use key::{Extents, Rounding, extents, key};
pub use mode::{Mode, ModeError};
pub use own::OwnBenchmark;
pub use ranking::{Tuned, ranked};
pub use store::{Measurement, Store, driver_of};
pub use timed::TimedKernel;
