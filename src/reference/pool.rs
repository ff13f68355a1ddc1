//! The thread pool of the reference.

use std::sync::Mutex;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// The thread pool, created on first use.
///
/// - Key: the process id.
/// - Owner: this function.
/// - Lifetime: the process.
/// - Invalidation: by fork. A child (a DataLoader's worker, `multiprocessing`'s default on Linux
///   before Python 3.14) inherits the pool's memory without its threads and would wait for them
///   forever. The child creates its own pool and leaks the inherited one.
///
/// `None` if no thread can be started: the calling thread then does the work.
pub fn current() -> Option<&'static ThreadPool> {
    static POOL: Mutex<Option<(u32, &'static ThreadPool)>> = Mutex::new(None);
    let mut pool = POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let process = std::process::id();
    if let Some((owner, threads)) = *pool
        && owner == process
    {
        return Some(threads);
    }
    // Failure is not cached.
    let threads: &'static ThreadPool = Box::leak(Box::new(ThreadPoolBuilder::new().build().ok()?));
    *pool = Some((process, threads));
    Some(threads)
}
