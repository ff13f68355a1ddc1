//! Fitted factors of the cost models.
//!
//! A factor is declared once, under a name that no other model has, in the model that it belongs
//! to. `scripts/fit.py` fits factors to timings and writes their values into the sources: a build
//! with the feature `fit` reads them from a table that the script changes.

/// Declares factors: `name = value;` with a documentation comment, which states the unit.
macro_rules! factors {
    ($($(#[$doc:meta])* $vis:vis $name:ident = $value:expr;)*) => { $(
        $(#[$doc])*
        #[inline]
        $vis fn $name() -> f64 {
            #[cfg(feature = "fit")]
            let value = $crate::kernel::fit::value(stringify!($name), $value);
            #[cfg(not(feature = "fit"))]
            let value = $value;
            value
        }
    )* };
}
pub(crate) use factors;

/// The table of a build with the feature `fit`, and its chip.
#[cfg(feature = "fit")]
pub mod fit {
    use std::sync::{LazyLock, Mutex, MutexGuard};

    use rustc_hash::FxHashMap;

    use crate::kernel::Target;

    type Values = FxHashMap<&'static str, f64>;

    /// The values of the factors that estimates have read.
    pub fn values() -> MutexGuard<'static, Values> {
        static VALUES: LazyLock<Mutex<Values>> = LazyLock::new(Mutex::default);
        VALUES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn value(name: &'static str, declared: f64) -> f64 {
        *values().entry(name).or_insert(declared)
    }

    /// The chip that is typical of compute capability 9.0.
    pub fn chip() -> MutexGuard<'static, Target> {
        static CHIP: Mutex<Target> = Mutex::new(Target::H100);
        CHIP.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
