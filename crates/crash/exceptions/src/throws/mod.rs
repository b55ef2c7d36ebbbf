//! The stack of a C++ throw, taken when it is thrown.
//!
//! What a signal handler or a terminate handler sees of an exception that was caught and thrown again, or that met a
//! `noexcept`, is where the runtime gave up. So `__cxa_throw` and `__cxa_rethrow` are Coroner's own ([`interpose`]): they
//! walk the stack with Coroner's unwinder, keep the addresses and go on in the C++ runtime as if they had not been there.
//!
//! * A thread that throws has a slot ([`slots`]), a ring of its last [`KEPT`] throws, each with the address of the thrown
//!   object. Nothing is done when an exception is caught: an object that is thrown later at the same address, or the
//!   [`KEPT`]th throw after it, takes the entry's place. So nothing grows, and an exception that is caught and thrown again,
//!   or goes to another thread by `std::exception_ptr`, still has its entry.
//! * The walk is that of live backtraces ([`coroner_walk`]): the shared list of images, a claimed cache of rules, the thread's own stack by
//!   plain loads.
//!
//! No lock is taken. Memory comes from `mmap` and only the first time that a thread throws, or that more threads throw at
//! once than ever before. A signal handler that interrupts a throw and throws itself is not captured.
//!
//! # Limits
//! [`FRAMES`] innermost frames of a throw; [`KEPT`] throws of a thread; 4,096 threads that have thrown and live; 16 throws at
//! once. What is beyond has no stack of its throw, and is reported without.

pub(crate) mod interpose;
#[cfg(all(not(target_vendor = "apple"), feature = "interpose-cxa-throw", not(feature = "wrap-cxa-throw")))]
mod libstdcxx_throw;
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

/// Frames kept of one throw.
pub(crate) const FRAMES: usize = 64;

/// Throws kept of one thread.
pub(crate) const KEPT: usize = 8;

static ON: AtomicBool = AtomicBool::new(false);

/// Whether C++ exceptions have the stacks of their throws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThrowStacks {
    /// They have.
    Captured,
    /// The program was built without `interpose-cxa-throw` and `wrap-cxa-throw`, or nobody asked for C++ exceptions.
    NotBuilt,
    /// Another definition of `__cxa_throw` is the first one: that of a C++ runtime that is linked into the program, or of a library
    /// that comes before Coroner's.
    OwnedByRuntime,
    /// There is no memory, or no key for a thread's value.
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

#[cfg(target_vendor = "apple")]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Acquire)
}

/// Captures none from now on.
pub(crate) fn uninstall() {
    ON.store(false, Ordering::Release);
}

/// One exception is thrown: the object, its type, and the registers of the caller of `__cxa_throw`, whose program counter is
/// its return address.
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
        // An address in no image that is known: it may be of one that was loaded a moment ago.
        let fresh = if missed { stack.list().and_then(LiveImages::current) } else { None };
        match fresh.filter(|fresh| fresh.identity() != images.identity()) {
            Some(fresh) => walk(registers, &mut stack, &fresh, frames).0,
            None => count,
        }
    });
}

/// An exception is thrown again: its first throw stays the one that counts. One that has no entry (it was thrown before
/// install, or by a runtime that is not interposed) gets this place instead.
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

/// Walks up to [`FRAMES`] frames; returns how many, and whether an address is in no image.
fn walk(registers: &Registers, stack: &mut StackReader<'_>, images: &LiveImages, frames: &Frames) -> (usize, bool) {
    let Some(mut rules) = rule_caches::claim() else { return (0, false) };
    let missed = Cell::new(false);
    let images = WalkImages::Noting(images, &missed);
    // No scan: a frame that is not certain is worth nothing here, and costs.
    let swift_async =
        if cfg!(target_vendor = "apple") { swift_tasks::of_this_thread() } else { swift_tasks::NOT_FOLLOWED };
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

/// The frames of the throw of an object of that type, innermost first, into `frames`; returns how many. 0 where no throw of it
/// was captured.
pub(crate) fn find(object: u64, type_info: u64, frames: &mut [Frame; FRAMES]) -> usize {
    thread_slots::find(object, type_info, &mut |index, pc, found| {
        if let Some(place) = frames.get_mut(index) {
            // The first address is that after the call of `__cxa_throw`.
            let kind = AddressKind::RETURN;
            *place = Frame { pc, found_by: FoundBy(found), address_kind: kind, sp: None, cfa: None };
        }
    })
}

/// How many C++ throws were captured in this process so far: 0 where it was built without `interpose-cxa-throw` and
/// `wrap-cxa-throw`.
pub fn throws_captured() -> u64 {
    thread_slots::captured()
}
