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
use coroner_unwind::{End, Options, Walker};

use crate::global;
use crate::os::process::authentication_mask;
use crate::pipeline::frames::Native;
use crate::ranges::RANGES;
use memory::OwnStack;
use replay::{Meeting, Noting, Start};
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
    record(object, type_info, registers);
}

/// Takes a throw in.
fn record(object: u64, type_info: u64, registers: &Registers) {
    let Some(mut slot) = slots::enter() else { return };
    let Some(mut workspace) = workspaces::claim(slot.last_workspace()) else { return };
    slot.set_last_workspace(workspace.number());
    let mut stack = slot.own_stack(registers.sp());
    workspace.refresh_if_due(&mut stack);
    let fingerprint = match workspace.fingerprint() {
        0 => 0,
        // The frames depend on what is registered, too.
        fingerprint => fingerprint ^ RANGES.generation().rotate_left(32),
    };
    let start = Start { pc: registers.pc, sp: registers.sp(), fp: registers.fp(), high: stack.high, fingerprint };
    slot.record(object, type_info, &start, |frames, meeting, number| {
        walk(registers, stack, &mut workspace, frames, (meeting, &start, number))
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
    (meeting, start, number): (Meeting<'_>, &Start, u64),
) -> usize {
    let replay = meeting.replay();
    let walked = walk_once(registers, stack, workspace, frames, meeting);
    if workspace.has_missed() {
        // An address in no image that is known: it may be of one that was loaded a moment ago.
        replay.forget();
        if workspace.refresh_now(&mut stack) {
            return walk_once(registers, stack, workspace, frames, Meeting::none(replay)).count;
        }
    } else if walked.by_stack && workspace.notes().is_whole() {
        replay.keep(start, workspace.notes(), number, walked.met, walked.ended);
    } else {
        replay.forget();
    }
    walked.count
}

/// What a walk came to.
struct Walked {
    count: usize,
    /// Nothing but the stack led from each frame to the next.
    by_stack: bool,
    /// The frame of the last walk that it met, from which on its frames are those.
    met: Option<usize>,
    /// It came to the end of the stack.
    ended: bool,
}

fn walk_once(
    registers: &Registers,
    stack: OwnStack,
    workspace: &mut Workspace,
    frames: &Frames,
    mut meeting: Meeting<'_>,
) -> Walked {
    // No scan: a frame that is not certain is worth nothing here, and costs.
    let options = Options { frames: 2 * FRAMES as u32, reads: 1 << 16, scan_words: 0, ..Options::default() };
    let swift_async = crate::live::swift_async();
    let options = Options { authentication_mask: Some(authentication_mask()), swift_async, ..options };
    let (rules, images, notes) = workspace.parts();
    let (read, left) = notes.begin();
    let mut memory = Noting::new(stack, read);
    let images = RANGES.before(images);
    let mut walker = Walker::<Native, _, _>::new(registers, &mut memory, images, rules, options).from_return_address();
    let (mut count, mut met) = (0, None);
    while walker.for_each_below(meeting.stop(), |frame, fp_use| {
        frames.set(count, frame.pc, frame.found as u8);
        left.push(frame, fp_use);
        count += 1;
        if meeting.is_at(frame, count) {
            met = meeting.met();
        }
        if met.is_none() && count < FRAMES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }) {
        meeting.go_on(walker.frame().sp);
    }
    if let Some(met) = met {
        count = meeting.replay().copy(met, frames, count);
    }
    let (by_stack, ended) = (walker.is_by_stack_alone(), walker.end() == Some(End::EndOfStack));
    Walked { count, by_stack, met, ended }
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

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use replay::{Likeness, Replay};

    /// One thread's walks, each done twice: with the last one to meet, and without.
    struct Walks {
        replay: Replay,
        frames: Frames,
        alone: Frames,
        workspace: Workspace,
        high: u64,
        random: u64,
        number: u64,
        same: usize,
        met: usize,
        whole: usize,
    }

    impl Walks {
        fn choose(&mut self, below: u64) -> u64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random % below
        }

        #[inline(never)]
        fn take(&mut self) {
            let registers = crate::live::here();
            let mut stack = OwnStack { low: registers.sp(), high: self.high, elsewhere: crate::live::Reader::new() };
            self.workspace.refresh_if_due(&mut stack);
            let (pc, sp, fp, high) = (registers.pc, registers.sp(), registers.fp(), self.high);
            let start = Start { pc, sp, fp, high, fingerprint: self.workspace.fingerprint() };
            self.number += 1;
            let count = match self.replay.compare(&start) {
                Likeness::Same(walk) => {
                    assert!(walk < self.number);
                    self.same += 1;
                    self.replay.copy_all(&self.frames)
                }
                Likeness::Partly(meeting) => {
                    let walked = walk_once(&registers, stack, &mut self.workspace, &self.frames, meeting);
                    *if walked.met.is_some() { &mut self.met } else { &mut self.whole } += 1;
                    if walked.by_stack && self.workspace.notes().is_whole() {
                        let (met, ended) = (walked.met, walked.ended);
                        self.replay.keep(&start, self.workspace.notes(), self.number, met, ended);
                    } else {
                        self.replay.forget();
                    }
                    walked.count
                }
            };
            let nothing = Replay::none();
            let alone = walk_once(&registers, stack, &mut self.workspace, &self.alone, Meeting::none(&nothing));
            assert_eq!(count, alone.count, "walk {}", self.number);
            assert!(self.frames.first(count) == self.alone.first(count), "walk {}", self.number);
            assert!(count > 2 || cfg!(target_arch = "aarch64"), "{count}");
        }

        /// Calls of three kinds of functions, as deep as `left`, with walks at the leaves of the tree.
        fn grow(&mut self, left: u64) {
            let calls = if left.is_multiple_of(9) { 1 + self.choose(3) } else { 1 };
            for _ in 0..calls {
                match self.choose(12) {
                    _ if left == 0 => self.take(),
                    0 => self.take(),
                    1..=3 => aligned(self, left - 1),
                    4..=6 => saving(self, left - 1),
                    _ => plain(self, left - 1),
                }
            }
        }
    }

    #[inline(never)]
    fn plain(walks: &mut Walks, left: u64) {
        walks.grow(left);
        core::hint::black_box(());
    }

    /// Its canonical frame address is relative to the frame pointer, which callers need not have saved.
    #[inline(never)]
    fn aligned(walks: &mut Walks, left: u64) {
        #[repr(align(128))]
        struct Aligned([u64; 16]);
        let room = core::hint::black_box(Aligned([left; 16]));
        walks.grow(left);
        core::hint::black_box(&room.0);
    }

    /// It saves registers, and has others where callers had theirs.
    #[inline(never)]
    fn saving(walks: &mut Walks, left: u64) {
        let kept: [u64; 7] = core::array::from_fn(|index| core::hint::black_box(left + index as u64));
        walks.grow(left);
        core::hint::black_box(kept[0] ^ kept[1] ^ kept[2] ^ kept[3] ^ kept[4] ^ kept[5] ^ kept[6]);
    }

    #[test]
    fn a_walk_that_met_the_last_one_has_the_frames_that_it_would_have_alone() {
        let workspace = claim_any();
        let mut walks = std::boxed::Box::new(Walks {
            replay: Replay::none(),
            frames: Frames::none(),
            alone: Frames::none(),
            workspace,
            high: crate::stack_bounds::stack_bounds().end,
            random: 0x9e37_79b9_7f4a_7c15,
            number: 0,
            same: 0,
            met: 0,
            whole: 0,
        });
        for depth in [3, 8, 20, 40, 45, 60, 90, 120] {
            for _ in 0..300 {
                walks.grow(depth);
            }
        }
        let Walks { same, met, whole, .. } = *walks;
        std::println!("{same} the same, {met} met the last one, {whole} alone");
        // An emulator has no guarded reads before an install, and without rules no walk is kept.
        assert!((met > whole && same > 0) || cfg!(target_arch = "aarch64"), "{same} {met} {whole}");
    }

    fn claim_any() -> Workspace {
        workspaces::claim(0).expect("memory")
    }
}
