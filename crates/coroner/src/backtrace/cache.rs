//! Named stacks by hash: a bounded table whose hits take no lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwapOption;

use super::Backtrace;
use super::names::Names;

/// Stacks that are kept.
const SETS: usize = 256;
const WAYS: usize = 4;

#[derive(Default)]
struct Set {
    ways: [ArcSwapOption<Names>; WAYS],
    /// The way that is replaced next.
    next: AtomicUsize,
}

static SETS_OF_NAMES: LazyLock<Vec<Set>> = LazyLock::new(|| (0..SETS).map(|_| Set::default()).collect());

/// The names of a backtrace. Two threads that miss the same stack at once may both name it.
pub(super) fn names_of(backtrace: &Backtrace) -> Arc<Names> {
    let set = &SETS_OF_NAMES[backtrace.hash() as usize % SETS];
    for way in &set.ways {
        let held = way.load();
        if let Some(names) = &*held
            && names.is_of(backtrace)
        {
            return Arc::clone(names);
        }
    }
    let names = Arc::new(Names::find(backtrace));
    let way = set.next.fetch_add(1, Ordering::Relaxed) % WAYS;
    set.ways[way].store(Some(Arc::clone(&names)));
    names
}
