//! Fallbacks for finding the caller if unwind data provide none: after a call through a bad
//! pointer, by the code, by the frame record at the frame pointer, by a scan of the stack.
//!
//! Limits: the only check of a frame record is that its return address follows a call, and a scan
//! may find a stale return address: [`Frame::found`](crate::Frame::found) records the method.

use super::find_rule::NO_RULE;
use super::{Walker, is_far};
use crate::arch::Architecture;
use crate::call_site::{follows_call, is_goroutine_start, is_in_zero_page, marks_outermost};
use crate::execute;
use crate::frame::{End, Found, Malformed};
use crate::image::{ImageFormat, Images};
use crate::rule::{Row, Rule};
use crate::rule_cache::FoundRule;
use crate::signal_trampoline;
use coroner_process::memory::Memory;

/// Whether a rule required the link register of a frame that has made a call.
pub(super) fn is_lost_link<A: Architecture>(end: End) -> bool {
    A::LINK_REGISTER
        && matches!(end, End::BadUnwindData { what: Malformed::UnknownRegister, address } if address == A::RA.into())
}

/// Maximum number of frames of a walk that may come from a scan: beyond that there is no stack,
/// only words.
const MAX_SCANNED_FRAMES: u32 = 16;

impl<A: Architecture, M: Memory, I: Images> Walker<'_, A, M, I> {
    /// Tries the fallbacks if unwind data provide no caller; `why` is what they resulted in
    /// instead.
    #[cold]
    #[inline(never)]
    pub(super) fn without_rule(&mut self, why: End) -> Result<Option<u64>, End> {
        if self.memory.left == 0 {
            return Err(End::ReadBudget);
        }
        if is_lost_link::<A>(why) {
            // The return address would be in lr, which a call has overwritten: this is how
            // outermost functions look.
            return Err(End::EndOfStack);
        }
        let is_outermost = is_goroutine_start::<A, _>(&mut self.memory, self.registers.pc);
        if !self.interrupted() && (is_outermost || self.returns_to_beginning()) {
            return Err(End::EndOfStack);
        }
        if self.interrupted()
            && matches!(why, End::NoUnwindData { .. })
            && let Some(cfa) = self.called_bad_pointer()
        {
            return Ok(Some(cfa));
        }
        if !matches!(why, End::NoUnwindData { .. })
            && let Some(cfa) = self.step_by_code()
        {
            return Ok(Some(cfa));
        }
        let fp = self.registers.address(A::FP, &mut self.memory).ok().flatten().unwrap_or(0);
        if matches!(why, End::NoUnwindData { .. }) && self.ends_by_frame_pointer(fp) {
            return Err(End::EndOfStack);
        }
        if fp >= self.registers.sp() && fp.is_multiple_of(8) && fp != 0 && self.may_be_frame_record(fp) {
            match self.step_by_frame_record() {
                Ok(cfa) => return Ok(Some(cfa)),
                Err(End::EndOfStack) => return Err(End::EndOfStack),
                Err(_) => {}
            }
        }
        if fp == 0 && !self.interrupted() && marks_outermost::<A, _>(&mut self.memory, self.registers.pc) {
            return Err(End::EndOfStack);
        }
        let interpreter = self.is_record_without_call(fp);
        if let Some(cfa) = self.scan(if interpreter { fp } else { u64::MAX }) {
            return Ok(Some(cfa));
        }
        if interpreter && let Ok(cfa) = self.step_by_frame_record() {
            return Ok(Some(cfa));
        }
        if fp == 0 && matches!(why, End::NoUnwindData { .. }) && !self.interrupted() {
            return Err(End::EndOfStack);
        }
        Err(why)
    }

    /// Steps to the caller in the record at the frame pointer.
    fn step_by_frame_record(&mut self) -> Result<u64, End> {
        let row = Row::frame_record_at::<A>(A::FP, 0);
        let executed = match self.enter_contexts(&row) {
            Some(entered) => entered,
            None => self.execute_frame_record(),
        };
        if executed.is_ok() && self.contexts.is_none() {
            self.arrive(Found::FramePointer, false);
            // What else was saved by this frame, or by frames that keep no record, is unknown.
            self.registers.after_call(1 << A::FP | 1 << A::SP);
        }
        executed
    }

    /// Whether there is a frame record at the frame pointer of an interpreter that was generated at
    /// run time (HotSpot's): it pushes the return address and jumps to its callee, so that no call
    /// precedes the return address. Frame and caller are in code outside all images, and the chain
    /// continues close above; return addresses below, of compiled code that keeps no record, are
    /// closer.
    fn is_record_without_call(&mut self, fp: u64) -> bool {
        let lookup = self.frame().lookup_address();
        if fp < self.registers.sp() || is_far(self.registers.sp(), fp) || !fp.is_multiple_of(8) {
            return false;
        }
        let Ok((caller, pc)) = self.memory.read_pair(fp) else { return false };
        let call = (pc & self.mask).wrapping_sub(1);
        let mut made = |address| self.images.is_executable(address) == Some(true) && !self.find_image(address);
        caller > fp
            && !is_far(fp, caller)
            && caller.is_multiple_of(8)
            && !is_in_zero_page(call)
            && made(lookup)
            && made(call)
            && self.memory.read_pair(caller).is_ok()
    }

    /// Whether a Darwin frame without unwind data is the outermost. Frame records are never omitted
    /// there, so a frame pointer of 0 ends the stack (`thread_start` of arm64 creates no record),
    /// and so does a record with the frame pointer 0 and an invalid return address: at the end of
    /// the main thread's stack argc follows it on x86_64 (`start` of dyld 3). What is above is not
    /// part of the stack, and is not searched for return addresses.
    fn ends_by_frame_pointer(&mut self, fp: u64) -> bool {
        let lookup = self.frame().lookup_address();
        if self.interrupted() || !self.find_image(lookup) || self.image.format_in::<I>() != ImageFormat::MachO {
            return false;
        }
        if fp < self.registers.sp() {
            return fp == 0;
        }
        let Ok((0, pc)) = self.memory.read_pair(fp) else { return false };
        let call = (pc & self.mask).wrapping_sub(1);
        is_in_zero_page(pc & self.mask)
            || self.images.is_executable(call) != Some(true) && self.images.registered(call).is_none()
    }

    /// Steps to a caller whose code is no longer mapped: a library was unloaded while its function
    /// was on the stack. The rule of the frame that is left gives the return address, and the code
    /// doesn't contradict it; the rule of an interrupted frame is trusted only if it needs no frame
    /// pointer, which may be broken.
    #[cold]
    #[inline(never)]
    pub(super) fn step_to_unloaded(&mut self, rule: &FoundRule, address: u64) -> Option<u64> {
        /// Range of addresses that may be unmapped code: no program has code below it, and no
        /// process above it. Other values are numbers, or were overwritten.
        const CODE: core::ops::Range<u64> = 0x1_0000..1 << 47;
        let Rule::Row(row) = &rule.rule else { return None };
        if (self.interrupted() && row.cfa_register != A::SP)
            || !CODE.contains(&address)
            || self.memory.read_u64(address & !7).is_ok()
        {
            return None;
        }
        if !self.interrupted() && self.returns_to_beginning() {
            return None;
        }
        if let Some(cfa) = self.step_by_code() {
            return Some(cfa);
        }
        let (sp, mask) = (self.registers.sp(), self.mask);
        let cfa = execute::row(row, &mut self.registers, &mut self.memory, |_, caller| {
            if caller.cfa > sp { Ok(caller.pc & mask) } else { Err(End::NoProgress { sp: caller.cfa }) }
        });
        let cfa = cfa.ok()?;
        self.arrive(rule.found, false);
        Some(cfa)
    }

    /// Whether `fp` points to the end of a chain, or to a return address that follows a call, as
    /// far as the code can be read.
    fn may_be_frame_record(&mut self, fp: u64) -> bool {
        let Ok((_, pc)) = self.memory.read_pair(fp) else { return false };
        let pc = pc & self.mask;
        pc == 0 || self.is_return_address(pc, None) != Some(false)
    }

    /// Whether the frame that the walk has reached is certainly a frame: its return address follows
    /// a call, and so does its caller's, whose place follows from this one's rule. The walk stays
    /// where it is.
    #[cold]
    #[inline(never)]
    pub(super) fn is_confirmed(&mut self) -> bool {
        if self.contexts.is_some() || self.outlined.is_some() {
            return true;
        }
        if self.is_return_address(self.registers.pc, None) != Some(true) {
            return false;
        }
        let (registers, cached, accepted) = (self.registers, self.cached.take(), self.accepted.take());
        let (found, stored) = (self.found, self.stored);
        let mut rule = NO_RULE;
        let lookup = self.frame().lookup_address();
        let stepped = match self.find_rule(lookup, false, &mut rule) {
            Ok(true) if self.outlined.take().is_some() || self.switched.take().is_some() => Ok(0),
            Ok(true) => self.execute(&rule, lookup),
            Ok(false) => self.execute_frame_record(),
            Err(problem) => Err(problem.into()),
        };
        let is_confirmed = match stepped {
            Ok(_) if self.contexts.take().is_some() || rule.signal_trampoline => true,
            Ok(_) => self.is_return_address(self.registers.pc, None) == Some(true),
            Err(_) => matches!(stepped, Err(End::EndOfStack)) && matches!(rule.rule, Rule::Outermost),
        };
        (self.registers, self.cached, self.accepted, self.lost) = (registers, cached, accepted, 0);
        (self.found, self.stored) = (found, stored);
        is_confirmed
    }

    /// Whether a function begins at the return address, and no call precedes it: the function was
    /// not called, the address was put there explicitly, at the first frame of a coroutine
    /// (`makecontext`). The frame pointer is that of the coroutine's creator.
    fn returns_to_beginning(&mut self) -> bool {
        let pc = self.registers.pc;
        let mut rule = NO_RULE;
        self.find_image(pc)
            && matches!(self.rule_by_unwind_data(pc, &mut rule), Ok(Some(range)) if range.start == pc)
            && self.is_return_address(pc, None) == Some(false)
    }

    /// Steps to the caller by what the code does until it returns: where unwind data are wrong, the
    /// code is right.
    pub(super) fn step_by_code(&mut self) -> Option<u64> {
        let mut rule = NO_RULE;
        let found = self.follow_code_to_return(&mut rule);
        // The caller of an outlined function does not follow from one row.
        if self.outlined.take().is_some() || !found {
            return None;
        }
        let Rule::Row(row) = &rule.rule else { return None };
        let cfa = self.execute_row(row, self.interrupted()).ok()?;
        self.arrive(rule.found, false);
        Some(cfa)
    }

    /// Steps to the caller of a program counter that isn't code: the return address is where a call
    /// leaves it, at the stack pointer or in the link register, if it is one.
    fn called_bad_pointer(&mut self) -> Option<u64> {
        let pc = self.registers.pc;
        let executable = if is_in_zero_page(pc) { Some(false) } else { self.images.is_executable(pc) };
        if executable == Some(true) {
            return None;
        }
        let sp = self.registers.sp();
        let value = if A::LINK_REGISTER {
            self.registers.value(A::RA, &mut self.memory).ok()??
        } else {
            self.memory.read_u64(sp).ok()?
        } & self.mask;
        if self.is_return_address(value, None) == Some(false) {
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
        let cfa = self.execute_row(&row, self.interrupted()).ok()?;
        self.arrive(found, false);
        Some(cfa)
    }

    /// Whether the link register, if code outside all images may be running, contains what an inner
    /// call of that code left there, or what its frame record already contains.
    fn is_stale_link(&mut self, link: u64) -> bool {
        if self.images.is_executable(link).is_none() {
            return true;
        }
        let fp = self.registers.address(A::FP, &mut self.memory).ok().flatten().unwrap_or(0);
        fp >= self.registers.sp()
            && self.memory.read_u64(fp.wrapping_add(8)).is_ok_and(|saved| saved & self.mask == link)
    }

    /// Whether a word of the stack is certainly a return address; `cfa` is the address after it.
    /// Not inlined: in a loop the compiler keeps the address of the callee in a register, and
    /// `xtask signal-safety` can't follow that call.
    #[inline(never)]
    fn is_surely_return_address(&mut self, pc: u64, cfa: u64) -> bool {
        !is_in_zero_page(pc)
            && self.images.is_executable(pc.wrapping_sub(1)) == Some(true)
            && self.is_return_address(pc, Some(cfa)) == Some(true)
    }

    /// Steps to the first word of the stack below `end` that is certainly an address of code after
    /// a call, or of a signal trampoline below a signal frame.
    fn scan(&mut self, end: u64) -> Option<u64> {
        if self.scans >= MAX_SCANNED_FRAMES {
            return None;
        }
        let start = self.registers.sp().checked_add(7)? & !7;
        let mut before = 0;
        for index in 0..u64::from(self.options.scan_words) {
            let place = start.checked_add(index.wrapping_mul(8))?;
            if place >= end {
                return None;
            }
            let word = self.memory.read_u64(place).ok()?;
            let (pc, cfa) = (word & self.mask, place.wrapping_add(8));
            if self.is_surely_return_address(pc, cfa) {
                self.scans = self.scans.saturating_add(1);
                if self.is_frame_record(before, place) {
                    self.registers.set(A::FP, before);
                } else if self.registers.address(A::FP, &mut self.memory).ok()?.is_none_or(|fp| fp < cfa) {
                    // Otherwise it may belong to a frame further up.
                    self.registers.forget(A::FP);
                }
                // What the frames in between saved is unknown.
                self.registers.after_call(1 << A::FP);
                self.registers.set(A::SP, cfa);
                self.registers.pc = pc;
                self.arrive(Found::Scan, false);
                return Some(cfa);
            }
            before = word;
        }
        None
    }

    /// Whether the word before a return address at `place` is a frame pointer: it points above it,
    /// and not far, to a record with a return address or the end of the chain.
    fn is_frame_record(&mut self, fp: u64, place: u64) -> bool {
        if fp <= place || is_far(place, fp) || !fp.is_multiple_of(8) {
            return false;
        }
        let Ok((caller, pc)) = self.memory.read_pair(fp) else { return false };
        let pc = pc & self.mask;
        pc == 0 && caller == 0 || self.is_return_address(pc, None) == Some(true)
    }

    /// Whether a function may return to `pc`: it follows a call, or is a signal trampoline; `None`
    /// if the code can't be read. `frame` is the address of the kernel's signal frame, if that has
    /// to be verified.
    pub(super) fn is_return_address(&mut self, pc: u64, frame: Option<u64>) -> Option<bool> {
        if is_in_zero_page(pc) {
            return Some(false);
        }
        if signal_trampoline::recognize::<A, _>(&mut self.memory, pc).is_some() {
            return Some(frame.is_none_or(|frame| signal_trampoline::is_signal_frame::<A, _>(&mut self.memory, frame)));
        }
        if self.images.is_executable(pc.wrapping_sub(1)) == Some(false) {
            return Some(false);
        }
        follows_call::<A, _>(&mut self.memory, pc)
    }
}
