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
//! * The unwinder's caches and the list of images are in a workspace ([`workspaces`]), one for each throw that is under way.
//! * Reads are loads from the thread's own stack, whose bounds are known ([`memory`]); everything else is read guarded.
//!
//! No lock is taken. Memory comes from `mmap` and only the first time that a thread throws, or that more threads throw at
//! once than ever before. A signal handler that interrupts a throw and throws itself is not captured.
//!
//! # Limits
//! [`FRAMES`] innermost frames of a throw; [`KEPT`] throws of a thread; 4,096 threads that have thrown and live; 16 throws at
//! once. What is beyond has no stack of its throw, and is reported without.

pub(crate) mod interpose;
mod memory;
mod replay;
#[cfg(all(target_vendor = "apple", any(feature = "interpose-cxa-throw", feature = "wrap-cxa-throw")))]
mod rewrite;
mod slots;
mod workspaces;

use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, Ordering};

use coroner_machine::registers::Registers;
use coroner_report::wire::{AddressKind, FoundBy, Frame};
use coroner_unwind::{Options, Walker};

use crate::global;
use crate::pipeline::frames::Native;
use memory::OwnStack;
use replay::{Noting, Replay, Start};
use slots::Frames;
use workspaces::Workspace;

/// Frames kept of one throw.
pub(crate) const FRAMES: usize = 64;

/// Throws kept of one thread.
pub(crate) const KEPT: usize = 8;

/// Whether throws are captured.
static ON: AtomicBool = AtomicBool::new(false);

/// Captures throws from now on (normal life); without memory they are not.
pub(crate) fn install() {
    if !interpose::IS_BUILT_IN {
        return;
    }
    interpose::prepare();
    if slots::prepare() && workspaces::prepare() {
        ON.store(true, Ordering::Release);
    }
}

/// Whether throws are captured.
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
    if !ON.load(Ordering::Acquire) || global::get().is_none() {
        return;
    }
    let Some(mut slot) = slots::enter() else { return };
    let Some(mut workspace) = workspaces::claim(slot.last_workspace()) else { return };
    slot.set_last_workspace(workspace.number());
    let mut stack = slot.own_stack(registers.sp());
    workspace.refresh_if_due(&mut stack);
    let fingerprint = workspace.fingerprint();
    let start = Start { pc: registers.pc, sp: registers.sp(), fp: registers.fp(), high: stack.high, fingerprint };
    slot.record(object, type_info, &start, |frames, replay, number| {
        walk(registers, stack, &mut workspace, frames, (replay, &start, number))
    });
}

/// An exception is thrown again: its first throw stays the one that counts. One that has no entry (it was thrown before
/// install, or by a runtime that is not interposed) gets this place instead.
fn thrown_again(object: u64, type_info: u64, registers: &Registers) {
    if !ON.load(Ordering::Acquire) || global::get().is_none() {
        return;
    }
    if let Some(mut slot) = slots::enter()
        && slot.refresh(object, type_info)
    {
        return;
    }
    if !slots::has(object, type_info) {
        thrown(object, type_info, registers);
    }
}

/// Walks up to [`FRAMES`] frames; answers how many. The walk is kept to be repeated, under its number.
fn walk(
    registers: &Registers,
    mut stack: OwnStack,
    workspace: &mut Workspace,
    frames: &Frames,
    (replay, start, number): (&Replay, &Start, u64),
) -> usize {
    let mut noting = Noting::new(stack, replay);
    let (count, by_stack) = walk_once(registers, &mut noting, workspace, frames);
    if !workspace.has_missed() {
        if by_stack {
            replay.keep(start, &noting, number);
        }
        return count;
    }
    // An address in no image that is known: it may be of one that was loaded a moment ago.
    if workspace.refresh_now(&mut stack) {
        return walk_once(registers, &mut Noting::new(stack, replay), workspace, frames).0;
    }
    count
}

/// Answers how many frames there are, and whether nothing but the stack led from each to the next.
fn walk_once(
    registers: &Registers,
    memory: &mut Noting<'_>,
    workspace: &mut Workspace,
    frames: &Frames,
) -> (usize, bool) {
    // No scan: a frame that is not certain is worth nothing here, and costs.
    let options = Options { frames: 2 * FRAMES as u32, reads: 1 << 16, scan_words: 0, ..Options::default() };
    let (rules, images) = workspace.parts();
    let mut walker = Walker::<Native, _, _>::new(registers, memory, images, rules, options).from_return_address();
    let mut count = 0;
    walker.for_each(|frame| {
        frames.set(count, frame.pc, frame.found as u8);
        count += 1;
        if count < FRAMES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    (count, walker.is_by_stack_alone())
}

/// The frames of the throw of an object of that type, innermost first, into `frames`; answers how many. 0 where no throw of it
/// was captured.
pub(crate) fn find(object: u64, type_info: u64, frames: &mut [Frame; FRAMES]) -> usize {
    slots::find(object, type_info, &mut |index, pc, found| {
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
    slots::captured()
}

/// A clock of the processor: not of any known rate, the same on all its cores.
#[inline]
fn stamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a counter, which every x86_64 has.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(target_arch = "aarch64")]
    {
        let count: u64;
        // SAFETY: reads the virtual counter, which Linux and Darwin let every program read.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags)) };
        count
    }
}
