//! Messages of the core to Python's `logging`, as logger `cutlass_api`
//! (python/cutlass_api/_log.py). The environment variable `CUTLASS_API_LOG` sets the level.

use std::sync::Once;

use log::{LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;

const VARIABLE: &str = "CUTLASS_API_LOG";

struct PythonLogger;

impl Log for PythonLogger {
    /// Whether a message is this crate's: libraries may log too.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let root = module_path!().split("::").next().unwrap_or_default();
        metadata.level() <= log::max_level() && metadata.target().starts_with(root)
    }

    /// Attaches to the interpreter. Call without locks that a thread may hold while it waits for
    /// the interpreter.
    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = record.level().as_str();
        let text = record.args().to_string();
        // After the interpreter has ended, messages are dropped.
        Python::try_attach(|py| {
            let write = || py.import("cutlass_api._log")?.call_method1("write", (level, text));
            if let Err(error) = write() {
                error.write_unraisable(py, None);
            }
        });
    }

    fn flush(&self) {}
}

/// Sends messages to Python from now on: warnings, and what the environment variable enables. An
/// unknown value enables warnings only, with a warning.
pub fn install() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        if log::set_logger(&PythonLogger).is_err() {
            return; // Another logger is installed.
        }
        log::set_max_level(LevelFilter::Warn);
        match std::env::var(VARIABLE).unwrap_or_default().as_str() {
            "" | "warning" => {}
            "info" => log::set_max_level(LevelFilter::Info),
            "debug" => log::set_max_level(LevelFilter::Debug),
            other => log::warn!(
                "{VARIABLE} is {other:?}; it must be info or debug; only warnings are logged"
            ),
        }
    });
}
