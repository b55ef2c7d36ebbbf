//! The stack of a C++ throw, captured when it is thrown.
//!
//! For an exception that was caught and thrown again, or that met a `noexcept`, a signal handler or
//! a terminate handler sees only where the runtime gave up. So `__cxa_throw` and `__cxa_rethrow`
//! are Coroner's own ([`interpose`]): they walk the stack with Coroner's unwinder, store the
//! addresses and continue in the C++ runtime as if they had not been there.
//!
//! * A thread that throws has a slot ([`thread_slots`]), a ring of its last [`KEPT`] throws, each
//!   with the address of the thrown object. Nothing is done when an exception is caught: an object
//!   that is thrown later at the same address, or the [`KEPT`]th throw after it, replaces the
//!   entry. So nothing grows, and an exception that is caught and thrown again, or goes to another
//!   thread by `std::exception_ptr`, still has its entry.
//! * The walk is that of live backtraces ([`coroner_walk`]): the shared list of images, a claimed
//!   rule cache, the thread's own stack by plain loads.
//!
//! No lock is taken. Memory comes from `mmap`, and only the first time that a thread throws, or
//! that more threads throw at once than ever before. Throws from a signal handler that interrupts a
//! throw are not captured.
//!
//! # Limits
//! [`FRAMES`] innermost frames of a throw; [`KEPT`] throws of a thread; 4,096 living threads that
//! have thrown; 16 concurrent throws. Beyond these limits an exception is reported without the
//! stack of its throw.

pub(crate) mod interpose;
#[cfg(all(not(target_vendor = "apple"), feature = "interpose-cxa-throw", not(feature = "wrap-cxa-throw")))]
mod libstdcxx_throw;
#[cfg(all(not(target_vendor = "apple"), feature = "interpose-cxa-throw", not(feature = "wrap-cxa-throw")))]
mod runtime_of_caller;
#[cfg(all(target_vendor = "apple", any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw")))]
mod symbol_pointers;
mod thread_slots;

use core::cell::Cell;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, Ordering};

use coroner_process::registers::Registers;
use coroner_report::wire::{AddressKind, FoundBy, Frame};
use coroner_unwind::Options;
use coroner_walk::{LiveImages, StackReader, WalkImages, rule_caches, swift_tasks};

use thread_slots::Frames;

/// Maximum number of frames kept of one throw.
pub(crate) const FRAMES: usize = 64;

/// Number of throws kept of one thread.
pub(crate) const KEPT: usize = 8;

static ON: AtomicBool = AtomicBool::new(false);

/// Whether C++ exceptions have the stacks of their throws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThrowStacks {
    /// Exceptions have the stacks of their throws.
    Captured,
    /// The program was built without `interpose-cxa-throw` and `wrap-cxa-throw`, or C++ exceptions
    /// were not requested.
    NotBuilt,
    /// Another definition of `__cxa_throw` is the first one: that of a C++ runtime that is linked
    /// into the program, or of a library that comes before Coroner's.
    OwnedByRuntime,
    /// There is no memory, or no key for a thread-specific value.
    NoMemory,
}

/// Captures throws from now on (not async-signal-safe).
pub(crate) fn install() -> ThrowStacks {
    if !interpose::IS_BUILT_IN {
        return ThrowStacks::NotBuilt;
    }
    if !interpose::prepare() {
        return ThrowStacks::OwnedByRuntime;
    }
    if !thread_slots::prepare() {
        return ThrowStacks::NoMemory;
    }
    ON.store(true, Ordering::Release);
    ThrowStacks::Captured
}

#[cfg(any(target_vendor = "apple", feature = "interpose-cxa-throw", feature = "wrap-cxa-throw"))]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Acquire)
}

/// Stops capturing throws.
pub(crate) fn uninstall() {
    ON.store(false, Ordering::Release);
}

/// Captures a throw of an object with its type; `registers` are those of the caller of
/// `__cxa_throw`, with its return address as program counter.
fn thrown(object: u64, type_info: u64, registers: &Registers) {
    if !ON.load(Ordering::Acquire) {
        return;
    }
    record(object, type_info, registers);
}

fn record(object: u64, type_info: u64, registers: &Registers) {
    let Some(mut slot) = thread_slots::enter() else { return };
    let mut stack = slot.stack_reader(registers.sp());
    let Some(images) = stack.list().and_then(LiveImages::recent) else { return };
    slot.record(object, type_info, |frames| {
        let (count, missed) = walk(registers, &mut stack, &images, frames);
        // An address in no known image: it may be in one that was loaded a moment ago.
        let fresh = if missed { stack.list().and_then(LiveImages::current) } else { None };
        match fresh.filter(|fresh| fresh.identity() != images.identity()) {
            Some(fresh) => walk(registers, &mut stack, &fresh, frames).0,
            None => count,
        }
    });
}

/// Handles a rethrown exception: its first throw stays the one that counts. An exception without an
/// entry (it was thrown before install, or by a runtime that is not interposed) gets this place
/// instead.
fn thrown_again(object: u64, type_info: u64, registers: &Registers) {
    if !ON.load(Ordering::Acquire) {
        return;
    }
    if let Some(mut slot) = thread_slots::enter()
        && slot.refresh(object, type_info)
    {
        return;
    }
    if !thread_slots::has(object, type_info) {
        thrown(object, type_info, registers);
    }
}

/// Walks up to [`FRAMES`] frames; returns their number, and whether an address is in no image.
fn walk(registers: &Registers, stack: &mut StackReader<'_>, images: &LiveImages, frames: &Frames) -> (usize, bool) {
    let Some(mut rules) = rule_caches::claim() else { return (0, false) };
    let missed = Cell::new(false);
    let images = WalkImages::Noting(images, &missed);
    // No scan: a frame that is not certain is worthless here, and costs time.
    let swift_async =
        if cfg!(target_vendor = "apple") { swift_tasks::for_this_thread() } else { swift_tasks::NOT_FOLLOWED };
    let options = Options { frames: FRAMES as u32, reads: 1 << 16, scan_words: 0, swift_async, ..Options::default() };
    let mut walker = coroner_walk::walker(registers, stack, images, &mut rules, options).from_return_address();
    let mut count = 0;
    walker.for_each(|frame| {
        frames.set(count, frame.pc, frame.found as u8);
        count += 1;
        ControlFlow::Continue(())
    });
    (count, missed.get())
}

/// Copies the frames of the throw of an object of that type to `frames`, innermost first; returns
/// their number. Returns 0 if no throw of it was captured.
pub(crate) fn find(object: u64, type_info: u64, frames: &mut [Frame; FRAMES]) -> usize {
    thread_slots::find(object, type_info, &mut |index, pc, found| {
        if let Some(place) = frames.get_mut(index) {
            // The first address is that after the call of `__cxa_throw`.
            let kind = AddressKind::RETURN;
            *place = Frame { pc, found_by: FoundBy(found), address_kind: kind, sp: None, cfa: None };
        }
    })
}

/// Returns the number of C++ throws that were captured in this process so far: 0 if it was built
/// without `interpose-cxa-throw` and `wrap-cxa-throw`.
pub fn throws_captured() -> u64 {
    thread_slots::captured()
}
