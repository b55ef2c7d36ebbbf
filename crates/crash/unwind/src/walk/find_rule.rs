//! Finds the rule for an address: registered by the app, from unwind data, or by code analysis.

use super::Walker;
use super::caller_check::accept_interrupted;
use crate::arch::Architecture;
use crate::call_site::is_in_zero_page;
use crate::code_analysis::outlined::{OutlinedReturns, follow_to_binder};
use crate::code_analysis::{self, Code, CodeRow, Followed, Path, Reached, Start, stack_switch};
use crate::execute;
use crate::frame::{AddressKind, End, Found, Problem};
use crate::image::{AddressRange, ImageFormat, Images};
use crate::lookup;
use crate::registers::RegisterFile;
use crate::rule::{Row, Rule};
use crate::rule_cache::FoundRule;
use crate::signal_trampoline;
use coroner_process::memory::Memory;
use coroner_process::registers::Arch;

fn same_meaning<A: Architecture>(rule: &Rule, row: &Row, registers: &RegisterFile<A>) -> bool {
    let Rule::Row(other) = rule else { return false };
    let cfa = |row: &Row| Some(registers.certain(row.cfa_register)?.wrapping_add_signed(row.cfa_offset.into()));
    let used = |row: &Row, slot: usize| row.slots.get(slot).filter(|_| row.saved >> slot & 1 != 0).copied();
    cfa(row).is_some() && cfa(row) == cfa(other) && (0..A::SAVED_COUNT).all(|slot| used(row, slot) == used(other, slot))
}

/// Initial value of a rule to be filled in.
pub(super) const NO_RULE: FoundRule =
    FoundRule { rule: Rule::Outermost, found: Found::Context, signal_trampoline: false };

/// A rule from unwind data.
#[derive(Clone, Copy, Debug)]
struct RuleAndRange {
    rule: FoundRule,
    /// The code that the rule is for: a function, or several.
    range: AddressRange,
}

/// An interrupted frame in an outlined function (or in one that another outlined function called).
#[derive(Clone, Copy, Debug)]
pub(super) struct OutlinedFrames {
    parts: OutlinedReturns,
    /// Number of outlined functions that the walk has left.
    left: usize,
    /// Finds the caller of the function that called them, in terms of the interrupted registers
    /// except for the stack pointer.
    function: Option<CodeRow>,
}

impl OutlinedFrames {
    /// Whether the walk has reached the function, and the function's rule is not known.
    pub(super) fn is_left(&self) -> bool {
        self.function.is_none() && self.parts.get(self.left).is_none()
    }
}

/// Maximum number of return addresses without unwind data for which a walk analyzes the code, which
/// takes microseconds each; beyond that, in a deep recursion, frame pointers must suffice.
const MAX_CODE_ANALYSES: u32 = 128;

impl<A: Architecture, M: Memory, I: Images> Walker<'_, A, M, I> {
    /// Writes the rule of an address to `into`, and stores it in the cache if it follows from the
    /// address alone; returns `false` if there is none.
    #[inline(never)]
    pub(super) fn find_rule(&mut self, lookup: u64, interrupted: bool, into: &mut FoundRule) -> Result<bool, Problem> {
        let mut lasting = true;
        if let Some(registered) = self.images.registered(lookup) {
            *into = FoundRule { rule: registered.rule, found: Found::Registered, signal_trampoline: false };
        } else if interrupted {
            if !self.recognize_trampoline(into) {
                let Some((rule, follows)) = self.interrupted_rule(lookup)? else { return Ok(false) };
                *into = rule;
                lasting = follows;
            }
        } else {
            let has_image = self.find_image(lookup);
            let stated = if has_image { self.rule_by_unwind_data(lookup, into) } else { Ok(None) };
            // The return address of a signal handler is the first instruction of a trampoline, so
            // the unwind data for the call before it are not for the same function (or mark it as a
            // trampoline).
            let is_certain = match stated {
                Ok(Some(range)) => range.contains(self.registers.pc) && !into.signal_trampoline,
                _ => false,
            };
            let is_code = has_image || self.images.is_executable(lookup) == Some(true);
            // Go's `.debug_frame` does not describe where its code switches stacks.
            let may_switch = matches!(stated, Ok(None)) || !self.image.debug_frame.is_empty();
            if may_switch && is_code && self.switch_stack() {
                return Ok(true);
            }
            if !is_certain && !self.recognize_trampoline(into) && stated?.is_none() {
                return Ok(is_code && self.follow_code_to_return(into));
            }
        }
        if lasting {
            let place = self.cache.put::<A>(self.registers.pc, self.kind, into);
            if let Some(below) = self.below.take() {
                self.cache.set_caller(below, place);
            }
            self.cached = Some(place);
        }
        Ok(true)
    }

    /// Steps to the caller on another stack, if the code of the frame switches stacks; the result
    /// is in [`Self::switched`].
    #[cold]
    #[inline(never)]
    fn switch_stack(&mut self) -> bool {
        let mut stored = self.stored;
        self.switched = match stack_switch::follow::<A, _>(&mut self.memory, &mut self.registers, &mut stored) {
            Ok(None) => None,
            // What is above on this stack are not the callers.
            Err(unreadable) => Some(Err(End::Unreadable { address: unreadable.address })),
            Ok(Some((caller, fp))) if self.is_return_address(caller.pc & self.mask, None) == Some(true) => {
                let sp = self.registers.sp();
                accept_interrupted(&mut self.switches, sp, self.mask, caller).ok().map(|pc| {
                    self.stored = stored;
                    self.registers = RegisterFile::new(pc);
                    self.registers.set(A::SP, caller.cfa);
                    if let Some(fp) = fp {
                        self.registers.set(A::FP, fp);
                    }
                    self.arrive(Found::CodeAnalysis, false);
                    Ok(caller.cfa)
                })
            }
            Ok(Some(_)) => None,
        };
        self.switched.is_some()
    }

    /// Stores the rule from unwind data for the frame where a walk has to end, although this walk
    /// does not need it: the next walk along the same frames can then go as far without looking up
    /// the last frame.
    #[inline(never)]
    pub(super) fn remember_rule(&mut self) {
        let lookup = self.frame().lookup_address();
        let is_stated = self.cached.is_none() && self.contexts.is_none() && self.kind == AddressKind::ReturnAddress;
        if !is_stated || self.images.registered(lookup).is_some() || !self.find_image(lookup) {
            return;
        }
        let mut rule = NO_RULE;
        if let Ok(Some(range)) = self.rule_by_unwind_data(lookup, &mut rule)
            && range.contains(self.registers.pc)
            && !rule.signal_trampoline
        {
            self.apply_pending_saves();
            self.cache.put::<A>(self.registers.pc, self.kind, &rule);
        }
    }

    /// Writes the rule of a Linux signal trampoline to `into`, if the code is one.
    fn recognize_trampoline(&mut self, into: &mut FoundRule) -> bool {
        let pc = self.registers.pc;
        // Darwin's are in an image, and have unwind data.
        let is_elsewhere = self.image.format_in::<I>() == ImageFormat::MachO && self.images.is_executable(pc).is_none();
        if is_in_zero_page(pc) || is_elsewhere {
            return false;
        }
        let Some(context) = signal_trampoline::recognize::<A, _>(&mut self.memory, pc) else { return false };
        let rule = Rule::SignalContext(context);
        *into = FoundRule { rule, found: Found::SignalContext, signal_trampoline: true };
        true
    }

    /// Returns the rule at an interrupted instruction, and whether it follows from the address
    /// alone.
    fn interrupted_rule(&mut self, pc: u64) -> Result<Option<(FoundRule, bool)>, Problem> {
        let has_image = self.find_image(pc);
        if has_image && let Some(rule) = self.stub_helper_rule(pc) {
            return Ok(Some((rule, true)));
        }
        let mut rule = NO_RULE;
        let stated = if has_image { self.rule_by_unwind_data(pc, &mut rule) } else { Ok(None) };
        let stated = stated.map(|range| range.map(|range| RuleAndRange { rule, range }));
        // ELF's unwind data hold at every instruction, except those of some compilers on arm64, and
        // those for the epilogues of GCC's realigned functions, which have expressions; Mach-O's
        // hold at calls.
        let exact = self.image.format_in::<I>() == ImageFormat::Elf
            && A::ARCH == Arch::X86_64
            && matches!(stated, Ok(Some(RuleAndRange { rule: FoundRule { rule: Rule::Row(_), .. }, .. })));
        let is_code = has_image || self.images.is_executable(pc) == Some(true);
        if exact || !is_code {
            return Ok(stated?.map(|stated| (stated.rule, true)));
        }
        if let Err(problem) = stated {
            self.note(problem);
        }
        let stubs = if has_image { self.image.stubs } else { AddressRange::default() };
        match self.follow_code(pc, stated.ok().flatten(), stubs) {
            (Some(rule), lasting) => Ok(Some((rule, lasting))),
            (None, _) => stated.map(|_| None),
        }
    }

    /// Sets [`Self::image`] to the image that contains `address`, and returns `true`, if there is
    /// one. None contains the zero page, whatever it claims: a rule there would be cached, and the
    /// next walk would treat as code what [`CallerCheck`](super::caller_check::CallerCheck)
    /// rejects.
    #[inline]
    pub(super) fn find_image(&mut self, address: u64) -> bool {
        if is_in_zero_page(address) {
            return false;
        }
        if self.image.text.contains(address) {
            return true;
        }
        match self.images.find(address) {
            Some(image) => {
                self.image = image;
                true
            }
            None => false,
        }
    }

    /// Writes the rule from the unwind data of [`Self::image`] for an address in it to `into`, and
    /// returns the code that the rule is for; `None` if there is no entry.
    #[inline]
    pub(super) fn rule_by_unwind_data(
        &mut self,
        lookup: u64,
        into: &mut FoundRule,
    ) -> Result<Option<AddressRange>, Problem> {
        let (image, memory, sections) = (&self.image, &mut self.memory, &mut self.cache.sections);
        let stated = match image.format_in::<I>() {
            ImageFormat::Elf => lookup::frame_rule::<A, _>(memory, sections, image, lookup, &mut into.rule)?,
            ImageFormat::MachO if image.stubs.contains(lookup) => {
                // A stub is a jump: the caller's call has just been made.
                into.rule = Rule::Row(if A::LINK_REGISTER {
                    Row::new(A::SP, 0)
                } else {
                    Row::new(A::SP, 8).with_saved::<A>(A::RA, -8).unwrap_or(Row::new(A::SP, 8))
                });
                into.found = Found::CodeAnalysis;
                into.signal_trampoline = false;
                return Ok(Some(image.stubs));
            }
            ImageFormat::MachO => lookup::mach_rule::<A, _>(memory, sections, image, lookup, &mut into.rule)?,
        };
        let Some(stated) = stated else { return Ok(None) };
        into.found = stated.found;
        into.signal_trampoline = stated.signal_trampoline;
        if image.format_in::<I>() == ImageFormat::MachO
            && self.kind == AddressKind::ReturnAddress
            && let Rule::Row(row) = &into.rule
            && let Some(context) = signal_trampoline::recognize_darwin(memory, &mut self.registers, row)
        {
            into.rule = Rule::SignalContext(context);
            into.found = Found::SignalContext;
            into.signal_trampoline = true;
        }
        Ok(Some(stated.range))
    }

    /// Returns the rule in Mach-O's `__stub_helper`, which has no unwind data: the code pushes two
    /// words and jumps to dyld's binder, which pops them. The rule follows from the address alone.
    fn stub_helper_rule(&mut self, pc: u64) -> Option<FoundRule> {
        if self.image.format_in::<I>() != ImageFormat::MachO || !self.image.stub_helper.contains(pc) {
            return None;
        }
        let at_binder =
            if A::LINK_REGISTER { Row::new(A::SP, 16) } else { Row::new(A::SP, 24).with_saved::<A>(A::RA, -8)? };
        let start = Start::new(&mut self.registers, &mut self.memory);
        let path = follow_to_binder::<A, _>(&mut self.memory, pc, &start)?;
        let CodeRow { row, link, .. } = path.pull_back::<A>(&start, &at_binder)?;
        let rule = FoundRule { rule: Rule::Row(row), found: Found::CodeAnalysis, signal_trampoline: false };
        (link == A::RA).then_some(rule)
    }

    /// Returns the rule at an interrupted instruction by what the code does from there on, and
    /// whether it follows from the address alone. `stated` is the rule from unwind data.
    fn follow_code(&mut self, pc: u64, stated: Option<RuleAndRange>, stubs: AddressRange) -> (Option<FoundRule>, bool) {
        let function = stated.map(|stated| stated.range).unwrap_or_default();
        let stated = stated.map(|stated| stated.rule);
        if stated.is_some_and(|stated| stated.signal_trampoline || stated.rule == Rule::Outermost) {
            return (stated, true);
        }
        let start = Start::new(&mut self.registers, &mut self.memory);
        let code = Code { pc, start: &start, stubs, through_calls: stated.is_none(), mask: self.mask };
        let Ok(Followed { reached, parts }) = code_analysis::follow::<A, _>(&mut self.memory, &code) else {
            return (stated, true);
        };
        if parts.last().is_some() {
            return (self.rule_of_outlined(parts, &reached, &start), false);
        }
        // A call that does not return may have led the path into code of another function.
        if let Reached::Return(row) = &reached
            && stated.is_none()
            && !self.is_tail_call(pc, row, None, function)
        {
            return (None, false);
        }
        let (row, lasting) = self.reached_row(&reached, &start, function);
        // If the code does not restore a register that was saved according to the unwind data, the
        // path was not understood. (Swift's functions return in registers that others preserve.)
        let saved = match stated.map(|stated| stated.rule) {
            Some(Rule::Row(row)) => A::registers_of_slots(row.saved),
            Some(_) => u32::MAX,
            None => 0,
        };
        let Some(row) = row.filter(|row| row.lost & saved == 0) else { return (stated, lasting) };
        // The rule from the code is in terms of this frame's registers; if it agrees with the
        // unwind data, theirs is used.
        match stated {
            Some(stated) if row.link == A::RA && same_meaning(&stated.rule, &row.row, &self.registers) => {
                (Some(stated), lasting)
            }
            Some(stated) if !self.code_overrules(&row, &stated, pc) => (Some(stated), false),
            _ if row.link != A::RA && !self.take_link(row.link) => (stated, false),
            _ => {
                self.lost = row.lost;
                let rule = FoundRule { rule: Rule::Row(row.row), found: Found::CodeAnalysis, signal_trampoline: false };
                (Some(rule), false)
            }
        }
    }

    /// Whether the rule from the code at an interrupted instruction is used rather than the one
    /// from unwind data. ELF's expressions are wrong only in some epilogues: against them, the code
    /// must lead to the same caller, or to a return address that follows a call if theirs doesn't.
    /// Rows win only if theirs does and the code's doesn't.
    fn code_overrules(&mut self, code: &CodeRow, stated: &FoundRule, pc: u64) -> bool {
        let by_code = self.return_address(code);
        let by_data = self.try_step(stated, pc).ok();
        if by_code == by_data {
            return true;
        }
        let mut follows_call =
            |address: Option<u64>| address.is_some_and(|address| self.is_return_address(address, None) == Some(true));
        let (code_does, data_does) = (follows_call(by_code), follows_call(by_data));
        let is_expression = matches!(stated.rule, Rule::Program(_)) && self.image.format_in::<I>() == ImageFormat::Elf;
        if is_expression { code_does && !data_does } else { code_does || !data_does }
    }

    /// Executes a rule and returns the return address that it leads to. The walk stays where it is.
    #[inline(never)]
    pub(super) fn try_step(&mut self, rule: &FoundRule, lookup: u64) -> Result<u64, End> {
        let before = (self.registers, self.accepted, self.found, self.kind, self.from_trampoline);
        let stepped = self.execute(rule, lookup);
        let pc = self.registers.pc;
        (self.registers, self.accepted, self.found, self.kind, self.from_trampoline) = before;
        stepped?;
        // A Swift context has no return address on the stack.
        Ok(if self.contexts.take().is_some() { 0 } else { pc })
    }

    /// Returns the row that follows from where a path ended, and whether it is independent of
    /// memory contents.
    fn reached_row(&mut self, reached: &Reached, start: &Start, function: AddressRange) -> (Option<CodeRow>, bool) {
        match reached {
            Reached::Return(row) => (Some(*row), true),
            Reached::Call(at, path) => (self.body_row(*at, path, start), true),
            Reached::Jump(at, path) => {
                let in_body = self.body_row(*at, path, start);
                let tail_call = path.at_return::<A>(start, code_analysis::return_link::<A>());
                let is_tail_call = match (&tail_call, &in_body) {
                    (Some(tail_call), in_body) => self.is_tail_call(*at, tail_call, in_body.as_ref(), function),
                    (None, _) => false,
                };
                (if is_tail_call { tail_call } else { in_body }, false)
            }
            Reached::Nothing => (None, true),
        }
    }

    /// Records that the frame is in outlined functions, and returns a rule that represents it. The
    /// path continued after their return.
    fn rule_of_outlined(&mut self, parts: OutlinedReturns, reached: &Reached, start: &Start) -> Option<FoundRule> {
        let outermost = parts.last()?;
        let call = outermost.pc.wrapping_sub(1);
        let mut rule = NO_RULE;
        let stated = if self.find_image(call) { self.rule_by_unwind_data(call, &mut rule) } else { Ok(None) };
        let range = stated.ok().flatten().unwrap_or_default();
        let (mut function, _) = self.reached_row(reached, start, range);
        if let Some(function) = &mut function
            && function.row.cfa_register == A::SP
        {
            function.row.cfa_offset = function.row.cfa_offset.checked_sub(outermost.sp)?;
        }
        self.outlined = Some(OutlinedFrames { parts, left: 0, function });
        let row = Row::new(A::SP, outermost.sp);
        Some(FoundRule { rule: Rule::Row(row), found: Found::CodeAnalysis, signal_trampoline: false })
    }

    /// Steps from an outlined function to the function that called it, or from that one to its
    /// caller. Both have the same registers; the rule for the caller is already known, since it
    /// depends on how far the outlined function has run.
    #[cold]
    pub(super) fn step_from_outlined(&mut self, mut frame: OutlinedFrames) -> Result<Option<u64>, End> {
        let Some(part) = frame.parts.get(frame.left) else { return self.step_from_outlining_function(&frame) };
        if self.images.is_executable(part.pc.wrapping_sub(1)) == Some(false) {
            return self.without_rule(End::BadReturnAddress { address: part.pc });
        }
        let before = frame.left.checked_sub(1).and_then(|before| frame.parts.get(before)).unwrap_or_default();
        let moved = i64::from(part.sp).wrapping_sub(before.sp.into());
        let sp = self.registers.sp().wrapping_add_signed(moved);
        self.registers.pc = part.pc;
        self.registers.set(A::SP, sp);
        self.arrive(Found::CodeAnalysis, false);
        frame.left = frame.left.wrapping_add(1);
        self.outlined = Some(frame).filter(|frame| !frame.is_left());
        Ok(Some(sp))
    }

    fn step_from_outlining_function(&mut self, frame: &OutlinedFrames) -> Result<Option<u64>, End> {
        let address = self.registers.pc;
        let Some(CodeRow { row, lost, .. }) =
            frame.function.filter(|row| row.link == A::RA || self.take_link(row.link))
        else {
            return self.without_rule(End::NoUnwindData { address });
        };
        self.lost = lost;
        let left = match self.enter_contexts(&row) {
            Some(entered) => entered,
            // If the outlined function is part of an epilogue, the function may have no stack any
            // more.
            None => self.execute_row(&row, true),
        };
        match left {
            Ok(cfa) => {
                if self.contexts.is_none() {
                    self.arrive(Found::CodeAnalysis, false);
                }
                Ok(Some(cfa))
            }
            Err(end) => self.without_rule(end),
        }
    }

    /// Sets the link register to what register `number` keeps for it during the call of an outlined
    /// function.
    fn take_link(&mut self, number: u8) -> bool {
        match self.registers.value(number, &mut self.memory) {
            Ok(Some(value)) if self.registers.is_certain(number) => {
                self.registers.set(A::RA, value);
                true
            }
            _ => false,
        }
    }

    /// Writes the rule at a return address in code without unwind data to `into`, by what the code
    /// does until it returns.
    pub(super) fn follow_code_to_return(&mut self, into: &mut FoundRule) -> bool {
        if self.analyses >= MAX_CODE_ANALYSES {
            return false;
        }
        self.analyses = self.analyses.saturating_add(1);
        match self.follow_code(self.registers.pc, None, self.image.stubs) {
            (Some(rule), _) => {
                *into = rule;
                true
            }
            (None, _) => false,
        }
    }

    /// Returns the row from unwind data in the body of a function, at the end of a path, converted
    /// to the path's start.
    fn body_row(&mut self, at: u64, path: &Path, start: &Start) -> Option<CodeRow> {
        if !self.find_image(at) {
            return None;
        }
        let mut stated = NO_RULE;
        self.rule_by_unwind_data(at, &mut stated).ok()??;
        match stated.rule {
            Rule::Row(row) => path.pull_back::<A>(start, &row),
            _ => None,
        }
    }

    /// Whether a jump at `at` to an unknown address is a tail call, with the row `tail_call`,
    /// rather than one in the body of `function`, with the row `in_body`: its return address must
    /// follow a call. If it is in the link register, it must not be one that an inner call of the
    /// same function left (which can't be the case for a jump elsewhere, outside any body), nor one
    /// that the body has saved.
    fn is_tail_call(
        &mut self,
        at: u64,
        tail_call: &CodeRow,
        in_body: Option<&CodeRow>,
        function: AddressRange,
    ) -> bool {
        let Some(pc) = self.return_address(tail_call) else { return false };
        let may_be_inner = function.contains(pc.wrapping_sub(1)) && (function.contains(at) || in_body.is_some());
        let stale = A::LINK_REGISTER
            && (may_be_inner || in_body.is_some_and(|in_body| self.return_address(in_body) == Some(pc)));
        !stale && self.is_return_address(pc, None) == Some(true)
    }

    /// Returns the return address that results from a row.
    fn return_address(&mut self, CodeRow { row, link, .. }: &CodeRow) -> Option<u64> {
        let mut registers = self.registers;
        if *link != A::RA {
            let kept = registers.value(*link, &mut self.memory).ok()??;
            registers.set(A::RA, kept);
        }
        let mask = self.mask;
        execute::row::<A, _, Problem>(row, &mut registers, &mut self.memory, |_, caller| Ok(caller.pc & mask)).ok()?;
        Some(registers.pc)
    }
}
