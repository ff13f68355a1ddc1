//! Drops without the interpreter's lock. `python/process.rs` defines how a thread releases the
//! lock, so that folders which know no Python can drop in this way.

use std::cell::Cell;
use std::sync::OnceLock;

/// Runs work after releasing the interpreter's lock, if this thread holds the lock.
pub type Unlock = fn(&mut (dyn FnMut() + Send));

static UNLOCK: OnceLock<Unlock> = OnceLock::new();

thread_local! {
    /// Whether this thread runs inside [`drop_unlocked`].
    static IS_UNLOCKED: Cell<bool> = const { Cell::new(false) };
}

/// Sets how threads release the interpreter's lock. Later calls have no effect.
pub fn set_unlock(unlock: Unlock) {
    let _ = UNLOCK.set(unlock);
}

/// Drops a value without the interpreter's lock, for values whose drop may block on another thread,
/// which may need the lock: the driver frees graphs and memory in this way. Inside such a drop, the
/// drops of other values do not release the lock again.
///
/// Waits for the interpreter's lock afterwards. Do not call this function while forks are delayed
/// or while this thread holds a lock that others wait for.
pub fn drop_unlocked<T: Send>(value: T) {
    let mut value = Some(value);
    let mut drop_value = || drop(value.take());
    match UNLOCK.get() {
        Some(unlock) if !IS_UNLOCKED.replace(true) => {
            unlock(&mut drop_value);
            IS_UNLOCKED.set(false);
        }
        _ => drop_value(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static RELEASES: AtomicUsize = AtomicUsize::new(0);

    fn count_release(work: &mut (dyn FnMut() + Send)) {
        RELEASES.fetch_add(1, Ordering::Relaxed);
        work();
    }

    struct Freed<'a>(&'a AtomicUsize);

    impl Drop for Freed<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Owner<'a>(Option<Freed<'a>>);

    impl Drop for Owner<'_> {
        fn drop(&mut self) {
            drop_unlocked(self.0.take());
        }
    }

    #[test]
    fn nested_drops_release_the_lock_once() {
        let freed = AtomicUsize::new(0);
        // No interpreter has set how to release its lock.
        drop_unlocked(Freed(&freed));
        set_unlock(count_release);
        drop_unlocked([Owner(Some(Freed(&freed))), Owner(Some(Freed(&freed)))]);
        assert_eq!((freed.load(Ordering::Relaxed), RELEASES.load(Ordering::Relaxed)), (3, 1));
        drop(Owner(Some(Freed(&freed))));
        assert_eq!((freed.load(Ordering::Relaxed), RELEASES.load(Ordering::Relaxed)), (4, 2));
    }
}
