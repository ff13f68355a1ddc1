//! Interned epilogues and operand names. A kernel refers to its epilogue and stays `Copy`.
//!
//! Both tables share these properties:
//!
//! - Key: the epilogue, or the name.
//! - Owner: the function that declares the table.
//! - Lifetime: the process, like the programs compiled for the epilogues.
//! - Invalidation: none. Entries are immutable.

use std::collections::HashSet;
use std::sync::Mutex;

use super::Epilogue;

/// The interned copy of an epilogue.
pub fn intern(epilogue: Epilogue) -> &'static Epilogue {
    static KNOWN: Mutex<Option<HashSet<&'static Epilogue>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let known = known.get_or_insert_default();
    if let Some(same) = known.get(&epilogue) {
        return same;
    }
    let kept: &'static Epilogue = Box::leak(Box::new(epilogue));
    known.insert(kept);
    kept
}

/// The interned copy of an operand's name.
pub fn intern_name(name: &str) -> &'static str {
    static KNOWN: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let known = known.get_or_insert_default();
    if let Some(same) = known.get(name) {
        return same;
    }
    let kept: &'static str = Box::leak(name.to_owned().into_boxed_str());
    known.insert(kept);
    kept
}
