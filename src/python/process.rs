//! Forks by Python (`os.fork`, which `multiprocessing` calls, and `subprocess` with `preexec_fn`),
//! the interpreter's exit, and its lock.

use std::cell::Cell;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::launch::promotion;
use crate::process::{self, Forking};

thread_local! {
    /// The fork that this thread makes.
    static CURRENT: Cell<Option<Forking>> = const { Cell::new(None) };
}

#[pyfunction]
fn before_fork(py: Python<'_>) {
    // A compilation may take seconds, during which other threads run.
    py.detach(|| drop(Forking::begin()));
    // A thread that delays forks never waits for the interpreter's lock, which this one holds. The
    // lock keeps threads from delaying the fork again, except for those that run without it.
    CURRENT.set(Some(Forking::begin()));
}

/// In the parent and in the child.
#[pyfunction]
fn after_fork() {
    drop(CURRENT.take());
}

#[pyfunction]
fn after_fork_in_child() {
    after_fork();
    promotion::forget_parent();
}

/// Python calls this when all threads but daemons have ended, and the interpreter is intact.
#[pyfunction]
fn before_exit(py: Python<'_>) {
    py.detach(process::end);
}

/// Runs work without the interpreter's lock. A thread that cannot attach to the interpreter, as
/// after its end, runs the work all the same.
fn unlock(work: &mut (dyn FnMut() + Send)) {
    if Python::try_attach(|py| py.detach(&mut *work)).is_none() {
        work();
    }
}

/// Makes Python call this module at each fork and at exit, and the core release Python's lock.
pub fn install(py: Python<'_>) -> PyResult<()> {
    process::set_unlock(unlock);
    let hooks = PyDict::new(py);
    hooks.set_item("before", wrap_pyfunction!(before_fork, py)?)?;
    hooks.set_item("after_in_parent", wrap_pyfunction!(after_fork, py)?)?;
    hooks.set_item("after_in_child", wrap_pyfunction!(after_fork_in_child, py)?)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&hooks))?;
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(before_exit, py)?,))?;
    Ok(())
}
