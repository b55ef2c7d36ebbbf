//! Walks by cached rules: a tight loop while the rules of a frame and of its caller are cached, the
//! caller is above, and the return address was saved. Most walks consist of nothing else.
//!
//! There is one loop for each register that the CFA may be relative to. It only steps: the frames
//! go into a [`StepLog`](crate::rule_cache::step_log::StepLog), from which they are then returned,
//! and saved registers are looked up later, if at all. A rule that is not cached is found on the
//! way if it is of the usual kind ([`super::cache_miss`]).

use super::cache_miss::{CacheFiller, Uncached};
use super::{BudgetedMemory, Walker, is_far};
use crate::arch::Architecture;
use crate::cold_path;
use crate::frame::{AddressKind, Frame};
use crate::image::Images;
use crate::registers::RegisterFile;
use crate::rule_cache::step_log::{LOG_LENGTH, LoggedFrame};
use crate::rule_cache::{Base, EntryIndex, RuleCache};
use crate::swift_async::{SwiftAsync, is_marked};
use core::ops::ControlFlow;
use coroner_process::memory::Memory;

/// Stacks are below this address. A stack pointer below it can't wrap around in any number of
/// steps.
const MAX_STACK_ADDRESS: u64 = 1 << 62;

/// Saved registers of logged frames that the register file does not contain yet: most walks never
/// need them, and then only the last frame that saved a register counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingSaves {
    /// Number of frames of the log, from its start, whose saves are pending.
    steps: usize,
    /// The registers that these frames may have saved, slot by slot.
    slots: u16,
}

impl PendingSaves {
    pub(super) const NOTHING: PendingSaves = PendingSaves { steps: 0, slots: 0 };
}

/// Writes to `registers` where the log's frames saved theirs.
fn apply_saves<A: Architecture>(cache: &RuleCache, pending_saves: PendingSaves, registers: &mut RegisterFile<A>) {
    let mut missing = pending_saves.slots;
    for left in cache.log.0.iter().take(pending_saves.steps).rev() {
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
    registers.hold_places(pending_saves.slots & !missing);
}

/// State at the beginning of a run of steps.
struct Run {
    place: EntryIndex,
    sp: u64,
    /// Used only if CFAs are relative to the frame pointer.
    fp: u64,
    /// Maximum number of steps, at most [`LOG_LENGTH`].
    steps: usize,
    /// Mask of the significant bits of return addresses.
    mask: u64,
    /// Whether to check for marks of async frames.
    follows_marks: bool,
}

/// Result of a run of steps.
struct RunResult {
    /// Number of steps, which are in the log.
    steps: usize,
    /// Place of the rule for the frame after them.
    place: EntryIndex,
    /// Frame pointer of the frame after them.
    fp: u64,
}

impl Run {
    /// Steps by rules of one kind. The run ends before the first rule of another kind, or if
    /// anything is not as expected.
    #[inline(never)]
    fn run<A: Architecture, M: Memory, I: Images, const BY_FRAME_POINTER: bool>(
        self,
        cache: &mut RuleCache,
        metered: &mut BudgetedMemory<M>,
        mut filler: CacheFiller<'_, A, I>,
    ) -> RunResult {
        let Run { mut place, mut sp, mut fp, steps, mask, follows_marks } = self;
        let base = if BY_FRAME_POINTER { Base::FramePointer } else { Base::StackPointer };
        let current = cache.current();
        let mut done = 0;
        while done < steps {
            let step = &cache.entry(place).step;
            if step.base != base {
                break;
            }
            let (cfa, saved_fp, word);
            if BY_FRAME_POINTER {
                cfa = at(fp, step.cfa);
                if cfa <= sp || !cfa.is_multiple_of(8) || cfa >= MAX_STACK_ADDRESS {
                    break;
                }
                let Ok(record) = metered.memory.read_pair(fp) else { break };
                (saved_fp, word) = record;
                if is_marked(saved_fp) {
                    // To be followed, or to be removed.
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
            if !cache.is_rule_for(next, caller, current) {
                // Another caller than the last time.
                cold_path();
                let kind = AddressKind::ReturnAddress;
                let fp = BY_FRAME_POINTER.then_some(saved_fp);
                let found = cache
                    .find(caller, kind)
                    .or_else(|| filler.fill(cache, metered, Uncached { pc: caller, kind, sp: cfa, fp }));
                let Some(found) = found else { break };
                cache.set_caller(place, found);
                next = found;
            }
            cache.log.0[done & (LOG_LENGTH - 1)] = LoggedFrame { cfa, caller, place };
            done += 1;
            (sp, fp, place) = (cfa, saved_fp, next);
        }
        RunResult { steps: done, place, fp }
    }
}

impl<A: Architecture, M: Memory, I: Images> Walker<'_, A, M, I> {
    /// Walks for at most `limit` frames while their rules and those of their callers are known, and
    /// calls `each` for every frame that is left, until it returns `Break`. In any other case the
    /// walk stays where it was.
    #[inline]
    pub(super) fn walk_cached(
        &mut self,
        limit: u32,
        each: &mut impl FnMut(&Frame) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let last = self.frames.saturating_add(limit);
        loop {
            let (ran, by_frame_pointer) = self.run_cached(last);
            if ran.steps == 0 {
                return ControlFlow::Continue(());
            }
            let (mut pc, mut sp) = (self.registers.pc, self.registers.sp());
            let (mut found, mut kind) = (self.found, self.kind);
            let mut flow = ControlFlow::Continue(());
            let mut given = 0;
            for left in self.cache.log.0.iter().take(ran.steps) {
                let frame = Frame { pc, sp, cfa: Some(left.cfa), found, kind };
                (pc, sp) = (left.caller, left.cfa);
                let entry = self.cache.entry(left.place);
                (found, kind) = (self.marked(entry.found()), AddressKind::ReturnAddress);
                given += 1;
                flow = each(&frame);
                if flow.is_break() {
                    break;
                }
            }
            self.leave(given, &ran, by_frame_pointer);
            flow?;
        }
    }

    /// Steps from frame to frame, into the log only, until [`Self::frames`] would be `last`.
    /// Returns whether the frame pointer was the base.
    #[inline]
    fn run_cached(&mut self, last: u32) -> (RunResult, bool) {
        const NOTHING: (RunResult, bool) = (RunResult { steps: 0, place: EntryIndex::NONE, fp: 0 }, false);
        let Some(place) = self.cached.or_else(|| self.fill()) else { return NOTHING };
        let sp = self.registers.sp();
        // The last frame that the budget allows is not left.
        let frames = last.min(self.options.frames.saturating_sub(1)).saturating_sub(self.frames);
        let reads = usize::try_from(self.memory.left / 2).unwrap_or(usize::MAX);
        let steps = reads.min(frames as usize).min(LOG_LENGTH);
        if steps == 0 || !sp.is_multiple_of(8) || sp >= MAX_STACK_ADDRESS {
            return NOTHING;
        }
        // The log is about to be overwritten by other frames.
        self.apply_pending_saves();
        let follows_marks = self.options.swift_async != SwiftAsync::Ignore;
        let mut run = Run { place, sp, fp: 0, steps, mask: self.mask, follows_marks };
        let by_frame_pointer = self.cache.entry(place).step.base == Base::FramePointer;
        if by_frame_pointer {
            let Ok(Some(fp)) = self.registers.address(A::FP, &mut self.memory) else { return NOTHING };
            if self.interrupted() && is_far(sp, fp) {
                return NOTHING;
            }
            run.fp = fp;
        }
        let filler = CacheFiller::<A, I>::new(&self.images, &mut self.image);
        let ran = if by_frame_pointer {
            run.run::<A, M, I, true>(self.cache, &mut self.memory, filler)
        } else {
            run.run::<A, M, I, false>(self.cache, &mut self.memory, filler)
        };
        (ran, by_frame_pointer)
    }

    /// Finds the rule of the walk's current frame, if it is of the usual kind.
    #[inline]
    fn fill(&mut self) -> Option<EntryIndex> {
        if self.end.is_some() || self.contexts.is_some() || self.outlined.is_some() {
            return None;
        }
        let fp = self.registers.certain(A::FP);
        let frame = Uncached { pc: self.registers.pc, kind: self.kind, sp: self.registers.sp(), fp };
        let mut filler = CacheFiller::<A, I>::new(&self.images, &mut self.image);
        let place = filler.fill(self.cache, &mut self.memory, frame)?;
        if let Some(below) = self.below.take() {
            self.cache.set_caller(below, place);
        }
        self.cached = Some(place);
        Some(place)
    }

    /// Updates the registers with what the frames that were left saved. Required before anything
    /// except the program counter, stack pointer and frame pointer of the current frame is used,
    /// and before the cache drops a rule.
    #[inline]
    pub(super) fn apply_pending_saves(&mut self) {
        if self.pending_saves.steps != 0 {
            apply_saves(self.cache, self.pending_saves, &mut self.registers);
            self.pending_saves = PendingSaves::NOTHING;
        }
    }

    /// Moves the walk to where it is after the first `steps` logged steps, at least one.
    #[inline(never)]
    fn leave(&mut self, steps: usize, ran: &RunResult, by_frame_pointer: bool) {
        let log = &self.cache.log.0;
        let Some(left) = steps.checked_sub(1).and_then(|last| log.get(last)) else { return };
        self.pending_saves = PendingSaves { steps, slots: RegisterFile::<A>::SLOTS };
        self.registers.return_to(left.caller, left.cfa);
        self.found = self.marked(self.cache.entry(left.place).found());
        self.kind = AddressKind::ReturnAddress;
        self.cached = Some(log.get(steps).filter(|_| steps < ran.steps).map_or(ran.place, |next| next.place));
        if by_frame_pointer && steps == ran.steps {
            self.registers.set(A::FP, ran.fp);
            let slot = A::slot_of(A::FP).map_or(0, |slot| 1_u16.wrapping_shl(slot as u32));
            self.pending_saves.slots &= !slot;
        }
        self.memory.left = self.memory.left.saturating_sub(steps as u64);
        self.frames = self.frames.saturating_add(steps as u32);
        self.from_trampoline = false;
    }
}

/// Returns `cfa + 8·words`, for a CFA or any other address.
#[inline]
const fn at(cfa: u64, words: i16) -> u64 {
    cfa.wrapping_add_signed((words as i64) << 3)
}
