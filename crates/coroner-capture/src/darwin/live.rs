//! What live backtraces share with crash time: stopping a thread, listing threads, and reads whose faults are made good.
//!
//! Normal life only. Nothing here allocates.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use coroner_machine::memory::{BLOCK, KernelCopy, LoadGuarded, Memory, Unreadable};
use coroner_machine::threads::{Interrupted, ThreadList, Tid, facts};

use crate::global;

pub use super::process::is_traced;
pub use crate::here::here;

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

/// Memory for a live walk: loads, where Coroner's threads make their faults good, else copies by the kernel.
#[derive(Clone, Copy, Debug)]
pub enum Reader {
    /// The task's exceptions are Coroner's.
    Loads(LoadGuarded),
    /// They are not. Put it behind a [`Windowed`](coroner_machine::memory::Windowed): a copy costs a microsecond.
    Copies(KernelCopy),
}

impl Reader {
    /// The best reader that is right now; nothing where the kernel refuses copies, too.
    ///
    /// An app that takes the exception ports while a walk runs gets what it asked for.
    pub fn new() -> Option<Reader> {
        if takes_memory_faults() {
            // SAFETY: just checked.
            return Some(Reader::Loads(unsafe { LoadGuarded::new() }));
        }
        KernelCopy::new().map(Reader::Copies)
    }
}

/// Whether the kernel sends memory faults to Coroner. It is asked at the first call and at every 64th after it.
fn takes_memory_faults() -> bool {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    static TAKES: AtomicBool = AtomicBool::new(false);
    let Some(global) = global::get().filter(|global| global.os.takes_exceptions.load(Ordering::Acquire)) else {
        return false;
    };
    if CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(64) || !TAKES.load(Ordering::Acquire) {
        TAKES.store(global.os.ports.has_memory_faults(global.os.primary_port), Ordering::Release);
    }
    TAKES.load(Ordering::Acquire)
}

impl Memory for Reader {
    #[inline]
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        match self {
            Reader::Loads(memory) => memory.read(address, into),
            Reader::Copies(memory) => memory.read(address, into),
        }
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        match self {
            Reader::Loads(memory) => memory.read_u64(address),
            Reader::Copies(memory) => memory.read_u64(address),
        }
    }

    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        match self {
            Reader::Loads(memory) => memory.read_pair(address),
            Reader::Copies(memory) => memory.read_pair(address),
        }
    }

    #[inline]
    fn read_block(&mut self, address: u64, into: &mut [u8; BLOCK]) -> Result<(), Unreadable> {
        match self {
            Reader::Loads(memory) => memory.read_block(address, into),
            Reader::Copies(memory) => memory.read_block(address, into),
        }
    }
}
