//! A thread's last panic that was caught. If the thread aborts at once, whoever caught it gave up because of it, as rayon does with a panic
//! of `spawn`: the report of the SIGABRT has the panic as its exception.
//!
//! # Limits
//! That the one is because of the other is known by the time between them (`RECENT_NS`) and by the thread.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use coroner_process::threads::{Tid, monotonic_now, process_id, this_thread};
use coroner_report::wire::{AddressKind, Exception, FoundBy, Frame, Language};

use crate::report_lock::thread_word;

/// How long after a panic an abort of its thread is because of it, in nanoseconds. Between them destructors run.
const RECENT_NS: u64 = 1_000_000_000;

/// Threads whose last panic is kept: those that panicked last.
const THREADS: usize = 4;

/// What is kept of a panic's stack, and of its texts in bytes.
const FRAMES: usize = 128;
const TEXT: usize = 1024;

/// The owner of a slot that is being written.
const BUSY: u64 = u64::MAX;

struct Text {
    bytes: [u8; TEXT],
    length: usize,
}

impl Text {
    const EMPTY: Text = Text { bytes: [0; TEXT], length: 0 };

    fn set(&mut self, text: Option<&[u8]>) {
        self.length = 0;
        for (place, byte) in self.bytes.iter_mut().zip(text.unwrap_or_default()) {
            *place = *byte;
            self.length += 1;
        }
    }

    fn get(&self) -> Option<&[u8]> {
        self.bytes.get(..self.length).filter(|text| !text.is_empty())
    }
}

struct Kept {
    message: Text,
    location: Text,
    frames: [Frame; FRAMES],
    count: usize,
}

struct Slot {
    /// The thread whose panic it is, as [`thread_word`] says; 0 for none.
    owner: AtomicU64,
    /// When it panicked, by the monotonic clock.
    time: AtomicU64,
    kept: UnsafeCell<Kept>,
}

// SAFETY: the cell is that of who has made the owner BUSY.
unsafe impl Sync for Slot {}

impl Slot {
    fn is_recent(&self, now: u64) -> bool {
        match self.owner.load(Ordering::Acquire) {
            0 => false,
            BUSY => true,
            _ => now.saturating_sub(self.time.load(Ordering::Acquire)) <= RECENT_NS,
        }
    }

    /// What is kept in it, if `owner` still is its owner, until another one is stored.
    #[expect(clippy::mut_from_ref, reason = "one has it at a time")]
    fn take(&self, owner: u64) -> Option<&mut Kept> {
        let is_free =
            owner != BUSY && self.owner.compare_exchange(owner, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // SAFETY: whoever makes it BUSY is its only user.
        is_free.then(|| unsafe { &mut *self.kept.get() })
    }
}

const NO_FRAME: Frame = Frame { pc: 0, found_by: FoundBy(0), address_kind: AddressKind(0), sp: None, cfa: None };
const NOTHING: Kept = Kept { message: Text::EMPTY, location: Text::EMPTY, frames: [NO_FRAME; FRAMES], count: 0 };
/// Zeros, of which no page is touched before a panic.
static SLOTS: [Slot; THREADS] =
    [const { Slot { owner: AtomicU64::new(0), time: AtomicU64::new(0), kept: UnsafeCell::new(NOTHING) } }; THREADS];

/// Keeps a panic of the calling thread that is going to be caught. Not kept while as many threads as there are places have panicked within
/// a second.
pub fn keep(panic: &Exception<'_>) {
    let me = thread_word(process_id(), this_thread());
    let now = monotonic_now();
    let own = SLOTS.iter().find(|slot| slot.owner.load(Ordering::Acquire) == me);
    let Some(slot) = own.or_else(|| SLOTS.iter().find(|slot| !slot.is_recent(now))) else { return };
    let Some(kept) = slot.take(slot.owner.load(Ordering::Acquire)) else { return };
    kept.message.set(panic.message);
    kept.location.set(panic.location);
    kept.count = 0;
    for (place, frame) in kept.frames.iter_mut().zip(panic.frames) {
        *place = *frame;
        kept.count += 1;
    }
    slot.time.store(now, Ordering::Release);
    slot.owner.store(me, Ordering::Release);
}

/// The hooks of the calling thread's panic have run, which may have taken seconds: it unwinds from now on.
pub fn unwinds() {
    let me = thread_word(process_id(), this_thread());
    for slot in SLOTS.iter().filter(|slot| slot.owner.load(Ordering::Acquire) == me) {
        slot.time.store(monotonic_now(), Ordering::Release);
    }
}

/// Gives `each` the panic because of which a thread aborts, if it is the calling one's. It is no other abort's. Async-signal-safe.
pub(crate) fn with_that_of_aborting<T>(pid: i32, tid: Tid, each: impl FnOnce(&Exception<'_>) -> T) -> Option<T> {
    let me = thread_word(pid, tid);
    let slot = SLOTS.iter().find(|slot| slot.owner.load(Ordering::Acquire) == me)?;
    if !slot.is_recent(monotonic_now()) {
        return None;
    }
    let kept = slot.take(me)?;
    let exception = Exception {
        language: Language::RUST,
        type_name: Some(b"panic shortly before the abort"),
        message: kept.message.get(),
        tid: tid as u64,
        location: kept.location.get(),
        frames: kept.frames.get(..kept.count).unwrap_or_default(),
        user_info: None,
    };
    let given = each(&exception);
    slot.owner.store(0, Ordering::Release);
    Some(given)
}

#[cfg(test)]
mod tests;
