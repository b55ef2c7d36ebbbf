//! A thread's last caught panic. If the thread aborts soon after, whoever caught the panic gave up
//! because of it, as rayon does with a panic of `spawn`: the report of the SIGABRT then contains
//! the panic as its exception.
//!
//! # Limits
//! That the panic caused the abort is inferred from the time between them (`RECENT_NS`) and from
//! the thread.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use coroner_process::threads::{Tid, monotonic_now, process_id, this_thread};
use coroner_report::wire::{AddressKind, Exception, FoundBy, Frame, Language};

use crate::report_lock::thread_word;

/// Time after a panic, in nanoseconds, during which an abort of its thread is attributed to it.
/// Destructors run between them.
const RECENT_NS: u64 = 1_000_000_000;

/// Number of threads whose last panic is kept: those that panicked last.
const THREADS: usize = 4;

/// Maximum number of frames kept of a panic's stack, and bytes kept of each of its texts.
const FRAMES: usize = 128;
const TEXT: usize = 1024;

/// Owner of a slot that is being written.
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
    /// [`thread_word`] of the thread that panicked; 0 for none.
    owner: AtomicU64,
    /// When the thread panicked, in nanoseconds of the monotonic clock.
    time: AtomicU64,
    kept: UnsafeCell<Kept>,
}

// SAFETY: the cell belongs to whoever has made the owner BUSY.
unsafe impl Sync for Slot {}

impl Slot {
    fn is_recent(&self, now: u64) -> bool {
        match self.owner.load(Ordering::Acquire) {
            0 => false,
            BUSY => true,
            _ => now.saturating_sub(self.time.load(Ordering::Acquire)) <= RECENT_NS,
        }
    }

    /// Takes the slot's content if `owner` still is its owner, until another owner is stored.
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
/// All zeros; no page is touched before a panic.
static SLOTS: [Slot; THREADS] =
    [const { Slot { owner: AtomicU64::new(0), time: AtomicU64::new(0), kept: UnsafeCell::new(NOTHING) } }; THREADS];

/// Keeps a panic of the calling thread that is going to be caught. It is not kept if `THREADS`
/// threads have panicked within the last second.
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

/// Notes that the hooks of the calling thread's panic have run, which may have taken seconds, and
/// that the thread unwinds from now on.
pub fn unwinds() {
    let me = thread_word(process_id(), this_thread());
    for slot in SLOTS.iter().filter(|slot| slot.owner.load(Ordering::Acquire) == me) {
        slot.time.store(monotonic_now(), Ordering::Release);
    }
}

/// Passes the panic that caused a thread's abort to `each`, if the thread has one. The panic is
/// then used up. Async-signal-safe.
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
