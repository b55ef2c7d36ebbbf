//! What live backtraces share with crash time: stopping a thread, listing threads, and reads whose faults are made good.
//!
//! Normal life only. Nothing here allocates.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use coroner_machine::memory::Memory;
use coroner_machine::threads::{Interrupted, ThreadList, Tid, facts};
use coroner_unwind::SwiftAsync;
use coroner_unwind::swift_async::DARWIN_TASK_KEY;

use crate::global;

pub use super::process::is_traced;
pub use crate::here::{here, store_here};
pub use crate::reader::Reader;
pub use crate::stack_bounds::stack_bounds;

/// The bits of a code address that are no address: what a walk removes from return addresses.
pub fn authentication_mask() -> u64 {
    super::process::authentication_mask()
}

/// Whether Coroner is installed.
#[inline]
pub fn is_installed() -> bool {
    global::get().is_some()
}

/// What a walk of the calling thread does at marks of Swift's async frames: they are followed if it runs a task.
pub fn swift_async() -> SwiftAsync {
    // SAFETY: asks for a thread's datum; libpthread answers for the keys that it reserves as for others, 0 if none was set.
    SwiftAsync::Task(unsafe { libc::pthread_getspecific(DARWIN_TASK_KEY as libc::pthread_key_t) } as u64)
}

/// The same for a thread that was stopped.
pub fn swift_async_of<M: Memory>(thread: &Interrupted, memory: &mut M) -> SwiftAsync {
    SwiftAsync::of_darwin_thread(memory, thread.specific())
}

/// Stops another thread of this process until the result is dropped. Be brief, and call nothing that may take a lock: the
/// thread may hold it. Nothing where there is no such thread, or it is the calling one. The kernel stops it, whatever it
/// does: no time is needed.
pub fn interrupt(tid: Tid) -> Option<Interrupted> {
    Interrupted::stop(tid)
}

/// Calls `each` with the id of every thread of this process. False where the kernel gives no list.
pub fn threads(each: &mut impl FnMut(Tid)) -> bool {
    let Ok(list) = ThreadList::take() else { return false };
    list.ports().iter().filter_map(|port| facts(*port)).for_each(|facts| each(facts.tid));
    true
}

/// What [`guards_loads`] found when it asked last.
static TAKES: AtomicBool = AtomicBool::new(false);

/// Lets the next [`guards_loads`] ask the kernel.
pub(crate) fn ask_again() {
    TAKES.store(false, Ordering::Release);
}

/// Whether faults of loads are made good now, on every thread: the kernel sends memory faults to Coroner. It is asked at the first
/// call and at every 64th after it.
pub(crate) fn guards_loads() -> bool {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let Some(global) = global::get().filter(|global| global.os.takes_exceptions.load(Ordering::Acquire)) else {
        return false;
    };
    if CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(64) || !TAKES.load(Ordering::Acquire) {
        TAKES.store(global.os.ports.has_memory_faults(global.os.primary_port), Ordering::Release);
    }
    TAKES.load(Ordering::Acquire)
}
