//! The usual steps: the rules of a frame and of its caller are in the cache, and say that the caller is above and its return
//! address saved. This is all that most walks consist of, in live backtraces above all.
//!
//! It is one tight loop for each register that a canonical frame address is relative to. The loop does nothing but go on: it
//! keeps a few frames at a time in a [`Log`], from which they are then handed out, and the registers that they saved noted. A rule
//! that is not in the cache is found on the way where it is of the usual kind ([`super::learn`]).

use super::learn::{Learner, Unknown};
use super::{Metered, Walker};
use crate::arch::Architecture;
use crate::cache::{Base, Place, RuleCache};
use crate::frame::{AddressKind, FpUse, Frame};
use crate::image::Images;
use crate::registers::RegisterFile;
use crate::swift_async::{SwiftAsync, is_marked};
use core::hint::cold_path;
use core::ops::ControlFlow;
use coroner_machine::memory::Memory;

/// Stacks are below this address. A stack pointer below it can't wrap around in any number of steps.
const HIGHEST: u64 = 1 << 62;

/// How many frames are left before they are handed out: more than most walks want, so that what the frames saved is noted in the
/// registers seldom.
const LOGGED: usize = 256;

/// A frame that was left.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// Its canonical frame address: the caller's stack pointer.
    cfa: u64,
    /// Its return address.
    caller: u64,
    /// Where its rule is.
    place: Place,
}

/// The frames that were left last. Where they saved registers is seldom asked for, and then the last one that saved a
/// register is all that counts, so it is noted for several frames at once.
///
/// It has a place in the [`RuleCache`], where it need not be made anew for each walk.
#[derive(Debug)]
pub(crate) struct Log([Left; LOGGED]);

impl Log {
    pub(crate) const EMPTY: Log = Log([Left { cfa: 0, caller: 0, place: Place::NONE }; LOGGED]);
}

/// What a walk's registers do not have yet of the frames that it left: most walks end before anybody asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unnoted {
    /// The first so many frames of the log.
    steps: usize,
    /// The registers that they may have saved, slot by slot.
    slots: u16,
}

impl Unnoted {
    /// Nothing.
    pub(super) const NOTHING: Unnoted = Unnoted { steps: 0, slots: 0 };
}

/// Notes in `registers` where the frames of the log saved theirs.
fn note<A: Architecture>(cache: &RuleCache, unnoted: Unnoted, registers: &mut RegisterFile<A>) {
    let mut missing = unnoted.slots;
    for left in cache.log.0.iter().take(unnoted.steps).rev() {
        let saved = cache.entry(left.place).step.saved & missing;
        if saved != 0
            && let Some(row) = cache.entry(left.place).row()
        {
            registers.save_places(row, left.cfa, saved);
            missing &= !saved;
            if missing == 0 {
                break;
            }
        }
    }
    registers.hold_places(unnoted.slots & !missing);
}

/// What a run of steps begins with.
struct Run {
    place: Place,
    sp: u64,
    /// Of use only where canonical frame addresses are relative to it.
    fp: u64,
    /// At most this many steps, [`LOGGED`] at most.
    steps: usize,
    /// No step is made from a stack pointer that is this or above.
    stop: u64,
    /// Bits of return addresses that count.
    mask: u64,
    /// Whether marks of async frames are looked for.
    follows_marks: bool,
}

/// What a run of steps came to.
struct Ran {
    /// The number of steps, which are in the log.
    steps: usize,
    /// Where the rule of the frame after them is.
    place: Place,
    /// Its frame pointer.
    fp: u64,
}

impl Run {
    /// Steps over rules of one kind. It ends before the first one that is of another kind, or where anything is not as
    /// expected.
    #[inline(never)]
    fn go<A: Architecture, M: Memory, I: Images, const BY_FRAME_POINTER: bool>(
        self,
        cache: &mut RuleCache,
        metered: &mut Metered<M>,
        mut learner: Learner<'_, A, I>,
    ) -> Ran {
        let Run { mut place, mut sp, mut fp, steps, stop, mask, follows_marks } = self;
        let base = if BY_FRAME_POINTER { Base::FramePointer } else { Base::StackPointer };
        let current = cache.current();
        let mut done = 0;
        while done < steps && sp < stop {
            let step = &cache.entry(place).step;
            if step.base != base {
                break;
            }
            let (cfa, saved_fp, word);
            if BY_FRAME_POINTER {
                cfa = at(fp, step.cfa);
                if cfa <= sp || !cfa.is_multiple_of(8) || cfa >= HIGHEST {
                    break;
                }
                let Ok(record) = metered.memory.read_pair(fp) else { break };
                (saved_fp, word) = record;
                if is_marked(saved_fp) {
                    // To be followed, or to be taken off.
                    break;
                }
            } else {
                cfa = at(sp, step.cfa);
                if follows_marks && step.frame_pointer != 0 {
                    match metered.memory.read_u64(at(cfa, step.frame_pointer)) {
                        Ok(saved) if !is_marked(saved) => {}
                        _ => break,
                    }
                }
                let Ok(read) = metered.memory.read_u64(at(cfa, step.return_address)) else { break };
                (saved_fp, word) = (0, read);
            }
            let caller = word & mask;
            let mut next = cache.entry(place).caller;
            if !cache.is_of(next, caller, current) {
                // Another caller than the last time.
                cold_path();
                let kind = AddressKind::ReturnAddress;
                let fp = BY_FRAME_POINTER.then_some(saved_fp);
                let found = cache
                    .find(caller, kind)
                    .or_else(|| learner.learn(cache, metered, Unknown { pc: caller, kind, sp: cfa, fp }));
                let Some(found) = found else { break };
                cache.set_caller(place, found);
                next = found;
            }
            cache.log.0[done & (LOGGED - 1)] = Left { cfa, caller, place };
            done += 1;
            (sp, fp, place) = (cfa, saved_fp, next);
        }
        Ran { steps: done, place, fp }
    }
}

impl<A: Architecture, M: Memory, I: Images> Walker<'_, A, M, I> {
    /// Goes on for at most `limit` frames while their rules and those of their callers are known, and calls `each` with every
    /// frame that is left, until it says to stop or the stack pointer is `stop` or above. Where anything is otherwise the walk
    /// stands where it was.
    #[inline]
    pub(super) fn walk_known(
        &mut self,
        limit: u32,
        stop: u64,
        each: &mut impl FnMut(&Frame, FpUse) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let last = self.frames.saturating_add(limit);
        loop {
            let (ran, by_frame_pointer) = self.run_known(last, stop);
            if ran.steps == 0 {
                return ControlFlow::Continue(());
            }
            let (mut pc, mut sp) = (self.registers.pc, self.registers.sp());
            let (mut found, mut kind) = (self.found, self.kind);
            let mut flow = ControlFlow::Continue(());
            let mut given = 0;
            for left in self.cache.log.0.iter().take(ran.steps) {
                let frame = Frame { pc, sp, cfa: Some(left.cfa), found, kind, signal_trampoline: false };
                (pc, sp) = (left.caller, left.cfa);
                let entry = self.cache.entry(left.place);
                (found, kind) = (entry.found(), AddressKind::ReturnAddress);
                given += 1;
                flow = each(&frame, entry.fp_use());
                if flow.is_break() {
                    break;
                }
            }
            self.leave(given, &ran, by_frame_pointer);
            flow?;
        }
    }

    /// Leaves frames, into the log only, until [`Self::frames`] would be `last` or the stack pointer is `stop` or above; and says
    /// by which register.
    #[inline]
    fn run_known(&mut self, last: u32, stop: u64) -> (Ran, bool) {
        const NOTHING: (Ran, bool) = (Ran { steps: 0, place: Place::NONE, fp: 0 }, false);
        let Some(place) = self.known.or_else(|| self.learn()) else { return NOTHING };
        let sp = self.registers.sp();
        // The last frame that the budget allows is not left.
        let frames = last.min(self.options.frames.saturating_sub(1)).saturating_sub(self.frames);
        let reads = usize::try_from(self.memory.left / 2).unwrap_or(usize::MAX);
        let steps = reads.min(frames as usize).min(LOGGED);
        if steps == 0 || !sp.is_multiple_of(8) || sp >= HIGHEST {
            return NOTHING;
        }
        // The log is going to be of other frames.
        self.note_left();
        let follows_marks = self.options.swift_async != SwiftAsync::Ignore;
        let mut run = Run { place, sp, fp: 0, steps, stop, mask: self.mask, follows_marks };
        let by_frame_pointer = self.cache.entry(place).step.base == Base::FramePointer;
        if by_frame_pointer {
            let Ok(Some(fp)) = self.registers.address(A::FP, &mut self.memory) else { return NOTHING };
            run.fp = fp;
        }
        let learner = Learner::<A, I>::new(&self.images, &mut self.image);
        let ran = if by_frame_pointer {
            run.go::<A, M, I, true>(self.cache, &mut self.memory, learner)
        } else {
            run.go::<A, M, I, false>(self.cache, &mut self.memory, learner)
        };
        (ran, by_frame_pointer)
    }

    /// Finds the rule of the frame where the walk is, if that is of the usual kind.
    #[inline]
    fn learn(&mut self) -> Option<Place> {
        if self.end.is_some() || self.contexts.is_some() || self.part.is_some() {
            return None;
        }
        let fp = self.registers.certain(A::FP);
        let frame = Unknown { pc: self.registers.pc, kind: self.kind, sp: self.registers.sp(), fp };
        let mut learner = Learner::<A, I>::new(&self.images, &mut self.image);
        let place = learner.learn(self.cache, &mut self.memory, frame)?;
        if let Some(below) = self.below.take() {
            self.cache.set_caller(below, place);
        }
        self.known = Some(place);
        Some(place)
    }

    /// Notes in the registers what the frames that were left saved: before anything but the program counter, stack pointer and
    /// frame pointer of the frame where the walk is counts, and before the cache forgets a rule.
    #[inline]
    pub(super) fn note_left(&mut self) {
        if self.unnoted.steps != 0 {
            note(self.cache, self.unnoted, &mut self.registers);
            self.unnoted = Unnoted::NOTHING;
        }
    }

    /// Makes the walk stand where it is after the first `steps` of the logged ones, at least one.
    #[inline(never)]
    fn leave(&mut self, steps: usize, ran: &Ran, by_frame_pointer: bool) {
        let log = &self.cache.log.0;
        let Some(left) = steps.checked_sub(1).and_then(|last| log.get(last)) else { return };
        self.unnoted = Unnoted { steps, slots: RegisterFile::<A>::SLOTS };
        self.registers.return_to(left.caller, left.cfa);
        self.found = self.cache.entry(left.place).found();
        self.kind = AddressKind::ReturnAddress;
        self.known = Some(log.get(steps).filter(|_| steps < ran.steps).map_or(ran.place, |next| next.place));
        if by_frame_pointer && steps == ran.steps {
            self.registers.set(A::FP, ran.fp);
            let slot = A::slot_of(A::FP).map_or(0, |slot| 1_u16.wrapping_shl(slot as u32));
            self.unnoted.slots &= !slot;
        }
        self.memory.left = self.memory.left.saturating_sub(steps as u64);
        self.frames = self.frames.saturating_add(steps as u32);
        self.from_trampoline = false;
    }
}

/// `cfa + 8·words`, and the same of other addresses.
#[inline]
const fn at(cfa: u64, words: i16) -> u64 {
    cfa.wrapping_add_signed((words as i64) << 3)
}
