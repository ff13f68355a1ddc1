//! What has been found out about Python objects that are few and live long: types, dtypes.

use std::sync::OnceLock;

use pyo3::prelude::*;

/// What was found out about each object, by its identity. Read without a lock, of which a launch would take several. The objects are kept
/// alive, so that an address never comes to mean another.
pub struct ObjectCache<T>([OnceLock<(Py<PyAny>, T)>; LIMIT]);

/// More different objects than that are made anew each time, and are not worth remembering.
const LIMIT: usize = 64;

impl<T> ObjectCache<T> {
    pub const fn empty() -> ObjectCache<T> {
        ObjectCache([const { OnceLock::new() }; LIMIT])
    }

    #[inline(always)] // four times in every `GemmArguments`
    pub fn get(&self, object: &Bound<'_, PyAny>) -> Option<&T> {
        self.0
            .iter()
            .map_while(OnceLock::get)
            .find(|(known, _)| known.is(object))
            .map(|(_, found)| found)
    }

    /// Remembers an object that `find` does not find, while there is room.
    pub fn insert(&self, object: &Bound<'_, PyAny>, found: T) {
        let mut entry = (object.clone().unbind(), found);
        for place in &self.0 {
            match place.set(entry) {
                Ok(()) => return,
                Err(back) => entry = back,
            }
        }
    }
}
