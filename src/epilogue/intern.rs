//! One copy of each epilogue and each name, kept for the life of the process, as compiled programs are: a kernel can then
//! be a plain value that refers to its epilogue.

use std::collections::HashSet;
use std::sync::Mutex;

use super::Epilogue;

/// The one copy of an epilogue.
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

/// The one copy of an operand's name.
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
