//! A cache keyed by the identity of long-lived Python objects such as types and dtypes.

use std::sync::OnceLock;

use pyo3::prelude::*;

/// A map from Python objects to facts about them. A lookup takes no lock.
///
/// - Key: the object's identity. The cache holds a reference, so that an address is never reused.
/// - Owner: the static that declares the cache.
/// - Lifetime: the process. The first [`LIMIT`] objects stay; later ones are never stored.
/// - Invalidation: none. Only immutable facts are stored.
pub struct ObjectCache<T>([OnceLock<(Py<PyAny>, T)>; LIMIT]);

/// Capacity. The lookup is linear, and programs use few tensor types and dtypes.
const LIMIT: usize = 64;

impl<T> ObjectCache<T> {
    pub const fn empty() -> ObjectCache<T> {
        ObjectCache([const { OnceLock::new() }; LIMIT])
    }

    #[inline(always)] // four calls per `GemmArguments`
    pub fn get(&self, object: &Bound<'_, PyAny>) -> Option<&T> {
        self.0
            .iter()
            .map_while(OnceLock::get)
            .find(|(known, _)| known.is(object))
            .map(|(_, found)| found)
    }

    /// Stores an object that `get` does not find. Drops the entry if the cache is full.
    pub fn insert(&self, object: &Bound<'_, PyAny>, found: T) {
        let mut entry = (object.clone().unbind(), found);
        for slot in &self.0 {
            match slot.set(entry) {
                Ok(()) => return,
                Err(back) => entry = back,
            }
        }
    }
}
