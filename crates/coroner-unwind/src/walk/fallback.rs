//! What is tried where there is no rule: the caller of a bad pointer, the frame record, a scan of the stack.

use super::Walker;
use crate::arch::Architecture;
use crate::call_site::follows_call;
use crate::frame::{End, Found, Malformed};
use crate::image::Images;
use crate::rule::Row;
use crate::scan::scan;
use coroner_machine::memory::Memory;

/// Whether a rule wanted the link register of a frame that has made a call.
pub(super) fn is_lost_link<A: Architecture>(end: End) -> bool {
    A::LINK_REGISTER
        && matches!(end, End::BadUnwindData { what: Malformed::UnknownRegister, address } if address == A::RA.into())
}

/// How many frames of a walk may come from a scan: beyond that there is no stack, only words.
const SCANS: u32 = 16;

impl<A: Architecture, M: Memory, I: Images> Walker<'_, A, M, I> {
    /// What is tried where unwind data give no caller; `why` is what they gave instead.
    #[cold]
    #[inline(never)]
    pub(super) fn without_rule(&mut self, why: End) -> Result<Option<u64>, End> {
        self.by_stack = false;
        if self.memory.left == 0 {
            return Err(End::ReadBudget);
        }
        if is_lost_link::<A>(why) {
            // The return address would be in lr, which a call has overwritten: this is how outermost functions look.
            return Err(End::EndOfStack);
        }
        if self.interrupted()
            && matches!(why, End::NoUnwindData { .. })
            && let Some(cfa) = self.called_bad_pointer()
        {
            return Ok(Some(cfa));
        }
        let fp = self.registers.address(A::FP, &mut self.memory).ok().flatten().unwrap_or(0);
        if fp >= self.registers.sp() && fp.is_multiple_of(8) && fp != 0 {
            let row = Row::frame_record_at::<A>(A::FP, 0);
            let executed = match self.enter_contexts(&row) {
                Some(entered) => entered,
                None => self.execute_frame_record(),
            };
            match executed {
                Ok(cfa) => {
                    if self.contexts.is_none() {
                        self.arrive(Found::FramePointer, false);
                        // What else this frame, or ones that keep no record, saved is not known.
                        self.registers.after_call(1 << A::FP | 1 << A::SP);
                    }
                    return Ok(Some(cfa));
                }
                Err(End::EndOfStack) => return Err(End::EndOfStack),
                Err(_) => {}
            }
        }
        if let Some(cfa) = self.scan() {
            return Ok(Some(cfa));
        }
        if fp == 0 && matches!(why, End::NoUnwindData { .. }) && !self.interrupted() {
            return Err(End::EndOfStack);
        }
        Err(why)
    }

    /// The caller of a program counter that is no code: the return address is where a call leaves it, at the stack pointer
    /// or in the link register, if it is one.
    fn called_bad_pointer(&mut self) -> Option<u64> {
        let pc = self.registers.pc;
        let executable = if pc < 0x1000 { Some(false) } else { self.images.is_executable(pc) };
        if executable == Some(true) {
            return None;
        }
        let sp = self.registers.sp();
        let value = if A::LINK_REGISTER {
            self.registers.value(A::RA, &mut self.memory).ok()??
        } else {
            self.memory.read_u64(sp).ok()?
        } & self.mask;
        if value < 0x1000
            || self.images.is_executable(value.wrapping_sub(1)) == Some(false)
            || follows_call::<A, _>(&mut self.memory, value) == Some(false)
        {
            return None;
        }
        if A::LINK_REGISTER && executable.is_none() && self.is_stale_link(value) {
            return None;
        }
        let (row, found) = if A::LINK_REGISTER {
            (Row::new(A::SP, 0), Found::LinkRegister)
        } else {
            (Row::new(A::SP, 8).with_saved::<A>(A::RA, -8)?, Found::StackTop)
        };
        let cfa = self.execute_row(&row).ok()?;
        self.arrive(found, false);
        Some(cfa)
    }

    /// Where code may be running that nobody knows of: whether the link register holds what an inner call of that code
    /// left there, or what its frame record holds already.
    fn is_stale_link(&mut self, link: u64) -> bool {
        if self.images.is_executable(link).is_none() {
            return true;
        }
        let fp = self.registers.address(A::FP, &mut self.memory).ok().flatten().unwrap_or(0);
        fp >= self.registers.sp()
            && self.memory.read_u64(fp.wrapping_add(8)).is_ok_and(|saved| saved & self.mask == link)
    }

    fn scan(&mut self) -> Option<u64> {
        if self.scans >= SCANS {
            return None;
        }
        let sp = self.registers.sp();
        let words = self.options.scan_words;
        let candidate = scan::<A, _, _>(&mut self.memory, &self.images, sp, words, self.mask)?;
        self.scans = self.scans.saturating_add(1);
        let cfa = candidate.place.wrapping_add(8);
        match (candidate.fp, self.registers.address(A::FP, &mut self.memory)) {
            (Some(fp), _) => self.registers.set(A::FP, fp),
            // It may belong to a frame further up.
            (None, Ok(Some(fp))) if fp >= cfa => {}
            (None, _) => self.registers.forget(A::FP),
        }
        // What the frames in between saved is not known.
        self.registers.after_call(1 << A::FP);
        self.registers.set(A::SP, cfa);
        self.registers.pc = candidate.pc;
        self.arrive(Found::Scan, false);
        Some(cfa)
    }
}
