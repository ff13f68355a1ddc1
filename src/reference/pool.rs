//! The threads that the reference computes on.

use std::sync::Mutex;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// The pool of this process, made on first use.
///
/// A forked child (a DataLoader's worker, `multiprocessing`'s default on Linux before Python 3.14) inherits the pool's
/// memory but none of its threads, and would wait for them for ever; so a pool belongs to a process id, and a child makes
/// its own. The inherited one is left as it is: there is nothing to join.
pub fn current() -> Option<&'static ThreadPool> {
    static POOL: Mutex<Option<(u32, &'static ThreadPool)>> = Mutex::new(None);
    let mut pool = POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let process = std::process::id();
    if let Some((owner, threads)) = *pool
        && owner == process
    {
        return Some(threads);
    }
    // Where no thread can be started, the caller's own does the work.
    let threads: &'static ThreadPool = Box::leak(Box::new(ThreadPoolBuilder::new().build().ok()?));
    *pool = Some((process, threads));
    Some(threads)
}
