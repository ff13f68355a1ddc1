//! The process: its forks, its end, and drops without the interpreter's lock.

mod fork;
mod unlocked;

pub use fork::{Forking, Shared, delay_forks, end, is_ending};
pub use unlocked::{drop_unlocked, set_unlock};
