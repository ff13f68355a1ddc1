//! The threads of the reference.

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::process::Shared;

/// Runs work that is parallel by rayon, on all cores, or on the calling thread if the system starts
/// no others.
pub fn run<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if let Some(threads) = current() {
        return threads.install(work);
    }
    // rayon would start its global pool, and panic. As the only thread of a pool, the calling
    // thread works alone. The pool belongs to the thread from then on: a later build fails.
    if let Ok(alone) = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build() {
        std::mem::forget(alone);
    }
    work()
}

/// The thread pool, created on first use in each process. A forked child (a DataLoader's worker,
/// `multiprocessing`'s default on Linux before Python 3.14) inherits the pool's memory without its
/// threads and would wait for them forever. The child leaks the inherited pool.
///
/// `None` if the system starts no threads.
fn current() -> Option<&'static ThreadPool> {
    static POOL: Shared<Option<(u32, &'static ThreadPool)>> = Shared::new(None);
    POOL.with(|pool| {
        let process = std::process::id();
        if let Some((owner, threads)) = *pool
            && owner == process
        {
            return Some(threads);
        }
        // Failure is not cached.
        let threads: &'static ThreadPool =
            Box::leak(Box::new(ThreadPoolBuilder::new().build().ok()?));
        // Each thread of the pool initializes global state of rayon's queues, which a child forked
        // meanwhile would wait for.
        threads.broadcast(|_| ());
        *pool = Some((process, threads));
        Some(threads)
    })
}
