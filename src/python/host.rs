//! The interpreter as the host of launches.

use pyo3::prelude::*;

use crate::launch::Host;

pub struct Interpreter<'py>(pub Python<'py>);

impl Host for Interpreter<'_> {
    fn unlocked<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.detach(work)
    }

    /// Calls `torch.cuda.empty_cache()` if torch is imported.
    fn release_cached_memory(&self) -> bool {
        let empty_cache = || {
            let modules = self.0.import("sys")?.getattr("modules")?;
            modules.get_item("torch")?.getattr("cuda")?.call_method0("empty_cache")
        };
        empty_cache().is_ok()
    }
}
