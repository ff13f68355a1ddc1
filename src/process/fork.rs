//! Forks. A child inherits the memory of all threads, but only the thread that forks: what another
//! thread has locked, or has half changed, stays so in the child. Threads therefore delay forks
//! while they hold a lock without the interpreter's lock, or call a library that has locks of its
//! own. At exit, which ends such libraries, the process waits for these threads, too.
//! `python/process.rs` calls this module at forks and at exit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Read-locked by threads that delay forks, write-locked during a fork.
static FORKS: RwLock<()> = RwLock::new(());

/// Delays forks of this process while it lives. Do not wait for the interpreter's lock meanwhile,
/// and do not delay forks a second time: a thread that forks may hold the one and wait for the
/// other.
#[must_use]
pub struct ForkDelay(#[expect(dead_code, reason = "holds the lock")] RwLockReadGuard<'static, ()>);

pub fn delay_forks() -> ForkDelay {
    ForkDelay(FORKS.read().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// The time of a fork: no other thread delays forks while it lives.
pub struct Forking(#[expect(dead_code, reason = "holds the lock")] RwLockWriteGuard<'static, ()>);

impl Forking {
    /// Waits until no thread delays forks.
    pub fn begin() -> Forking {
        Forking(FORKS.write().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Whether the process ends. Threads ask while they delay forks, before they call a library that
/// must not run at exit.
pub fn is_ending() -> bool {
    IS_ENDING.load(Ordering::Relaxed) // `FORKS` orders the accesses
}

/// Waits until no thread delays forks, before the process ends.
pub fn end() {
    IS_ENDING.store(true, Ordering::Relaxed);
    drop(Forking::begin());
}

/// A value that threads share, and that a forked child finds unlocked.
pub struct Shared<T>(Mutex<T>);

impl<T> Shared<T> {
    pub const fn new(value: T) -> Shared<T> {
        Shared(Mutex::new(value))
    }

    /// Locks the value for `work`, which must obey the rules of [`ForkDelay`].
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let _delay = delay_forks();
        work(&mut self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}
