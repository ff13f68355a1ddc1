//! The process: its forks, and its end.

mod fork;

pub use fork::{Forking, Shared, delay_forks, end, is_ending};
