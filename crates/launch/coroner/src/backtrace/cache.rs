//! The names of stacks by hash, in a bounded table that never blocks.

use std::sync::{Arc, RwLock};

use super::Backtrace;
use super::names::Names;

/// Number of sets of the cache.
const SETS: usize = 256;
const WAYS: usize = 4;

struct Set {
    ways: [Option<Arc<Names>>; WAYS],
    /// Index of the way to replace next.
    next: usize,
}

static SETS_OF_NAMES: [RwLock<Set>; SETS] =
    [const { RwLock::new(Set { ways: [const { None }; WAYS], next: 0 }) }; SETS];

/// Returns a backtrace's names. Two threads that miss the cache for the same stack may both name
/// it.
pub(super) fn cached_names(backtrace: &Backtrace) -> Arc<Names> {
    let set = &SETS_OF_NAMES[backtrace.hash() as usize % SETS];
    if let Ok(held) = set.try_read()
        && let Some(names) = held.ways.iter().flatten().find(|names| names.belongs_to(backtrace))
    {
        return Arc::clone(names);
    }
    let names = Arc::new(Names::find(backtrace));
    // If another thread uses the set, the names are not cached. Never wait here: in a child of fork
    // the thread that holds the lock doesn't exist.
    if let Ok(mut held) = set.try_write() {
        let way = held.next;
        held.next = (way + 1) % WAYS;
        let replaced = held.ways[way].replace(Arc::clone(&names));
        drop(held);
        drop(replaced);
    }
    names
}
