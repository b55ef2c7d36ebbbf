//! Named stacks by hash: a bounded table that nobody waits for.

use std::sync::{Arc, RwLock};

use super::Backtrace;
use super::names::Names;

/// Stacks that are kept.
const SETS: usize = 256;
const WAYS: usize = 4;

struct Set {
    ways: [Option<Arc<Names>>; WAYS],
    /// The way that is replaced next.
    next: usize,
}

static SETS_OF_NAMES: [RwLock<Set>; SETS] =
    [const { RwLock::new(Set { ways: [const { None }; WAYS], next: 0 }) }; SETS];

/// The names of a backtrace. Two threads that miss the same stack at once may both name it.
pub(super) fn names_of(backtrace: &Backtrace) -> Arc<Names> {
    let set = &SETS_OF_NAMES[backtrace.hash() as usize % SETS];
    if let Ok(held) = set.try_read()
        && let Some(names) = held.ways.iter().flatten().find(|names| names.is_of(backtrace))
    {
        return Arc::clone(names);
    }
    let names = Arc::new(Names::find(backtrace));
    // Where others read or write, it is not kept: nobody waits here, not even a child of fork for threads that it has not.
    if let Ok(mut held) = set.try_write() {
        let way = held.next;
        held.next = (way + 1) % WAYS;
        let replaced = held.ways[way].replace(Arc::clone(&names));
        drop(held);
        drop(replaced);
    }
    names
}
