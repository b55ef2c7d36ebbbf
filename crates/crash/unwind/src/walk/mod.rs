//! The walk: steps from frame to frame, until there is a reason to end.
//!
//! Each step first tries the cache ([`cached_frames`], and [`cache_miss`] if a rule is not cached
//! yet), then all other ways to find a rule ([`find_rule`]), and if that yields no caller, the
//! fallbacks without a rule ([`fallback`]). [`caller_check`] decides whether a caller is accepted.

mod cache_miss;
mod cached_frames;
mod caller_check;
mod fallback;
mod find_rule;

use crate::arch::Architecture;
use crate::code_analysis::stack_switch::Stored;
use crate::execute;
use crate::frame::{AddressKind, End, Found, Frame, Problem};
use crate::image::{Image, Images};
use crate::lookup;
use crate::registers::RegisterFile;
use crate::rule::{Row, Rule};
use crate::rule_cache::{EntryIndex, FoundRule, RuleCache};
use crate::swift_async::{Contexts, SwiftAsync, is_marked, without_mark};
use cached_frames::PendingSaves;
use caller_check::{Accepted, CallerCheck, accept_interrupted};
use core::ops::ControlFlow;
use coroner_process::memory::{BLOCK, Memory, Unreadable};
use fallback::is_lost_link;
use find_rule::{NO_RULE, OutlinedFrames};

/// Limits and settings of a walk.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum number of frames.
    pub frames: u32,
    /// Maximum number of memory reads (of words, frame records and windows of sections).
    pub reads: u64,
    /// Bits that are removed from return addresses: pointer authentication and tags, as reported by
    /// the system (`NT_ARM_PAC_MASK` on Linux, the size of the address space on Darwin). 0 removes
    /// nothing.
    pub authentication_mask: Option<u64>,
    /// Number of stack words that are searched for a return address if nothing else yields a
    /// caller. 0 disables the search.
    pub scan_words: u32,
    /// Whether Swift's async frames are followed if a saved frame pointer marks one.
    pub swift_async: SwiftAsync,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            frames: 1 << 20,
            reads: 1 << 26,
            authentication_mask: None,
            scan_words: 512,
            swift_async: if cfg!(target_vendor = "apple") { SwiftAsync::Follow } else { SwiftAsync::Ignore },
        }
    }
}

/// Maximum distance in bytes of the caller's frame above a stack pointer without further evidence.
const MAX_FRAME_SIZE: u64 = 1 << 20;

/// Whether a frame, or frame record, at `address` is farther from the stack pointer than frames
/// usually are.
#[inline]
const fn is_far(sp: u64, address: u64) -> bool {
    address.wrapping_sub(sp) > MAX_FRAME_SIZE
}

/// Memory with a read budget.
#[derive(Debug)]
struct BudgetedMemory<M> {
    memory: M,
    left: u64,
}

impl<M: Memory> BudgetedMemory<M> {
    #[inline]
    fn spend(&mut self, address: u64) -> Result<(), Unreadable> {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Unreadable { address }),
        }
    }
}

impl<M: Memory> Memory for BudgetedMemory<M> {
    #[inline]
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.spend(address)?;
        self.memory.read(address, into)
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        self.spend(address)?;
        self.memory.read_u64(address)
    }

    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        self.spend(address)?;
        self.memory.read_pair(address)
    }

    #[inline]
    fn read_block(&mut self, address: u64, into: &mut [u8; BLOCK]) -> Result<(), Unreadable> {
        self.spend(address)?;
        self.memory.read_block(address, into)
    }
}

/// Walks up a thread's stack from its registers, frame by frame.
///
/// Use [`Self::for_each`], which is the fastest, or [`Self::next_frame`] until it returns `None`,
/// or [`Self::frame`] and [`Self::step`] to get the registers of each frame. They may be mixed.
#[derive(Debug)]
pub struct Walker<'c, A, M, I> {
    memory: BudgetedMemory<M>,
    images: I,
    cache: &'c mut RuleCache,
    registers: RegisterFile<A>,
    kind: AddressKind,
    found: Found,
    mask: u64,
    options: Options,
    frames: u32,
    switches: u32,
    scans: u32,
    analyses: u32,
    /// The async contexts, if the walk has left the stack.
    contexts: Option<Contexts>,
    /// Place of the current frame's rule, if it is cached.
    cached: Option<EntryIndex>,
    /// Place of the rule for the frame below, if this frame's was not known when the walk reached
    /// it.
    below: Option<EntryIndex>,
    /// Set if the frame is in an outlined function, as determined by the search for its rule, or is
    /// the function that called one.
    outlined: Option<OutlinedFrames>,
    /// Registers, as bits, whose value in the caller does not follow from the code that was
    /// analyzed last.
    lost: u32,
    /// The step to another stack, if the search for a frame's rule made one.
    switched: Option<Result<u64, End>>,
    /// Words that the frames that returned on another stack will have stored.
    stored: Stored,
    /// Whether a frame below was found by a scan: what is found from a guess is one.
    guessed: bool,
    /// The return address that was last accepted.
    accepted: Option<Accepted>,
    /// The image that was found last: most callers are in the same one.
    image: Image,
    /// Saved registers that [`Self::registers`] does not contain yet.
    pending_saves: PendingSaves,
    /// Whether the last frame that was left was a signal trampoline.
    from_trampoline: bool,
    problem: Option<Problem>,
    end: Option<End>,
}

impl<'c, A: Architecture, M: Memory, I: Images> Walker<'c, A, M, I> {
    /// Creates a walk of the thread with these registers.
    #[inline]
    pub fn new(registers: &A::Registers, memory: M, images: I, cache: &'c mut RuleCache, options: Options) -> Self {
        let mut walker = Walker::without_registers(memory, images, cache, options);
        // In place: a copy of what was just stored word by word waits for all of it.
        walker.registers.load(registers);
        walker.registers.pc &= walker.mask;
        walker.cached = walker.cache.find(walker.registers.pc, walker.kind);
        walker
    }

    /// Creates a walk without registers.
    #[inline]
    fn without_registers(memory: M, images: I, cache: &'c mut RuleCache, options: Options) -> Self {
        cache.enter(images.generation());
        Walker {
            memory: BudgetedMemory { memory, left: options.reads },
            images,
            cache,
            registers: RegisterFile::new(0),
            kind: AddressKind::InstructionPointer,
            found: Found::Context,
            mask: !options.authentication_mask.unwrap_or(A::AUTHENTICATION_MASK),
            options,
            frames: 0,
            switches: 0,
            scans: 0,
            analyses: 0,
            contexts: None,
            cached: None,
            below: None,
            outlined: None,
            lost: 0,
            switched: None,
            stored: Stored::default(),
            guessed: false,
            accepted: None,
            image: Image::default(),
            pending_saves: PendingSaves::NOTHING,
            from_trampoline: false,
            problem: None,
            end: None,
        }
    }

    /// Treats the first address as that of the instruction after a call: for registers that a
    /// function saved for its caller, or an exception's saved return addresses.
    #[must_use]
    pub fn from_return_address(mut self) -> Self {
        self.kind = AddressKind::ReturnAddress;
        self.cached = self.cache.find(self.registers.pc, self.kind);
        self
    }

    /// Returns the walk's current frame, without [`Frame::cfa`] and
    /// [`AddressKind::SignalTrampoline`], which only [`Self::step`] determines.
    #[inline]
    pub fn frame(&self) -> Frame {
        Frame { pc: self.registers.pc, sp: self.registers.sp(), cfa: None, found: self.found, kind: self.kind }
    }

    /// Returns the registers of the walk's current frame.
    pub fn registers(&mut self) -> &RegisterFile<A> {
        self.apply_pending_saves();
        self.registers.settle(&mut self.memory);
        &self.registers
    }

    /// Returns the reason for the walk's end; `None` before the end.
    #[inline]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Returns the first problem with unwind data, even if another method then found the caller.
    #[inline]
    pub fn problem(&self) -> Option<Problem> {
        self.problem
    }

    /// Calls `each` for every frame from the current one to the last one, or until it returns
    /// `Break`.
    #[inline]
    pub fn for_each(&mut self, mut each: impl FnMut(&Frame) -> ControlFlow<()>) {
        loop {
            if self.walk_cached(u32::MAX, &mut each).is_break() {
                return;
            }
            let Some(frame) = self.next_uncached() else { return };
            if each(&frame).is_break() {
                return;
            }
        }
    }

    /// Returns the next frame, starting with the first; `None` after the last one, when
    /// [`Self::end`] returns the reason.
    #[inline]
    pub fn next_frame(&mut self) -> Option<Frame> {
        let mut next = None;
        if self.end.is_none() {
            let known = self.walk_cached(1, &mut |frame| {
                next = Some(*frame);
                ControlFlow::Break(())
            });
            if known.is_break() {
                return next;
            }
        }
        self.next_uncached()
    }

    #[inline(never)]
    fn next_uncached(&mut self) -> Option<Frame> {
        if self.end.is_some() {
            return None;
        }
        let mut frame = self.frame();
        if let Ok(cfa) = self.step_uncached() {
            frame.cfa = cfa;
        }
        if self.from_trampoline {
            frame.kind = AddressKind::SignalTrampoline;
        }
        Some(frame)
    }

    /// Steps from the walk's current frame to its caller, and returns the CFA of the frame that was
    /// left, if it is on the stack.
    ///
    /// # Errors
    /// The reason why the walk ends here. Every further call returns the same.
    #[inline]
    pub fn step(&mut self) -> Result<Option<u64>, End> {
        if let Some(end) = self.end {
            return Err(end);
        }
        let mut cfa = None;
        let known = self.walk_cached(1, &mut |frame| {
            cfa = frame.cfa;
            ControlFlow::Break(())
        });
        if known.is_break() { Ok(cfa) } else { self.step_uncached() }
    }

    #[inline]
    fn step_uncached(&mut self) -> Result<Option<u64>, End> {
        self.from_trampoline = false;
        self.frames = self.frames.saturating_add(1);
        let stepped = if self.frames >= self.options.frames {
            self.remember_rule();
            Err(End::FrameBudget)
        } else if self.interrupted() && self.contexts.is_none() {
            self.step_from_interrupted()
        } else {
            self.step_to_caller()
        };
        if let Err(end) = stepped {
            let end = if self.memory.left == 0 { End::ReadBudget } else { end };
            self.end = Some(end);
            return Err(end);
        }
        let left = self.cached.take();
        let (pc, kind) = (self.registers.pc, self.kind);
        self.cached = match self.accepted.take() {
            _ if self.contexts.is_some() || self.outlined.is_some() => None,
            Some(accepted) if accepted.pc == pc && kind == AddressKind::ReturnAddress => accepted.place,
            _ => self.cache.find(pc, kind),
        };
        match (left, self.cached) {
            (Some(left), Some(known)) => self.cache.set_caller(left, known),
            _ => self.below = left,
        }
        stepped
    }

    #[inline]
    fn interrupted(&self) -> bool {
        self.kind == AddressKind::InstructionPointer
    }

    #[inline]
    fn step_to_caller(&mut self) -> Result<Option<u64>, End> {
        if self.contexts.is_some() {
            return self.step_to_context();
        }
        if self.cached.is_some_and(|place| self.cache.entry(place).is_outermost()) {
            return Err(End::EndOfStack);
        }
        self.apply_pending_saves();
        let interrupted = self.interrupted();
        let lookup = self.frame().lookup_address();
        let mut rule = NO_RULE;
        if let Some(place) = self.cached {
            rule = self.cache.at(place);
        } else {
            if let Some(frame) = self.outlined.take() {
                return self.step_from_outlined(frame);
            }
            match self.find_rule(lookup, interrupted, &mut rule) {
                Ok(true) => {
                    if let Some(frame) = self.outlined.take() {
                        return self.step_from_outlined(frame);
                    }
                    if let Some(switched) = self.switched.take() {
                        return switched.map(Some);
                    }
                }
                Ok(false) => return self.without_rule(End::NoUnwindData { address: lookup }),
                Err(problem) => {
                    self.note(problem);
                    return self.without_rule(problem.into());
                }
            }
        }
        match self.execute(&rule, lookup) {
            Ok(cfa) => {
                if self.contexts.is_none() {
                    self.arrive(rule.found, rule.signal_trampoline);
                }
                Ok(Some(cfa))
            }
            // The return address is 0, according to unwind data that may be wrong.
            Err(End::EndOfStack) => match &rule.rule {
                Rule::Row(row) if row.cfa_register == A::SP => self.step_by_code().map(Some).ok_or(End::EndOfStack),
                _ => Err(End::EndOfStack),
            },
            Err(end) => {
                if let End::BadReturnAddress { address } = end
                    && let Some(cfa) = self.step_to_unloaded(&rule, address)
                {
                    return Ok(Some(cfa));
                }
                if let End::BadUnwindData { what, address } = end
                    && !is_lost_link::<A>(end)
                {
                    self.note(Problem::Malformed { what, address });
                }
                self.without_rule(end)
            }
        }
    }

    /// Same as [`Self::step_to_caller`], for an interrupted frame, in which any register may be
    /// broken: a caller that is far from the stack pointer is accepted only if its own caller is
    /// where its rule requires, since the frame pointer may point into data.
    fn step_from_interrupted(&mut self) -> Result<Option<u64>, End> {
        self.apply_pending_saves();
        let (registers, found) = (self.registers, self.found);
        let stepped = self.step_to_caller();
        if let Ok(Some(cfa)) = stepped
            && is_far(registers.sp(), cfa)
            && !self.from_trampoline
            && !self.is_confirmed()
        {
            let address = self.registers.pc;
            (self.registers, self.found, self.kind) = (registers, found, AddressKind::InstructionPointer);
            self.accepted = None;
            return Err(End::BadReturnAddress { address });
        }
        stepped
    }

    #[inline]
    fn arrive(&mut self, found: Found, from_trampoline: bool) {
        let lost = core::mem::take(&mut self.lost);
        if found == Found::CodeAnalysis {
            self.registers.forget_all(lost);
        }
        // A context that the kernel saved is recognized by its content.
        self.guessed &= found != Found::SignalContext;
        self.guessed |= found == Found::Scan;
        self.found = self.marked(found);
        self.from_trampoline = from_trampoline;
        self.kind = if from_trampoline { AddressKind::InstructionPointer } else { AddressKind::ReturnAddress };
    }

    /// Returns the method by which a frame was found, marked as a guess if it was found from one.
    #[inline]
    fn marked(&self, found: Found) -> Found {
        if self.guessed { Found::Scan } else { found }
    }

    fn note(&mut self, problem: Problem) {
        self.problem = self.problem.or(Some(problem));
    }

    /// Executes a rule; the registers become the caller's only if that succeeds.
    #[inline]
    fn execute(&mut self, rule: &FoundRule, lookup: u64) -> Result<u64, End> {
        match &rule.rule {
            Rule::Row(row) if !rule.signal_trampoline => match self.enter_contexts(row) {
                None => self.execute_row(row, self.interrupted()),
                Some(entered) => entered,
            },
            Rule::FrameRecord => self.execute_frame_record(),
            Rule::Outermost => Err(End::EndOfStack),
            _ => self.execute_rare(rule, lookup),
        }
    }

    /// Steps to the async contexts of a frame that is marked to have some; returns `None` if it is
    /// not. Otherwise the caller is the first context's resume function, or, if contexts are not
    /// followed, the caller on the stack.
    #[inline]
    fn enter_contexts(&mut self, row: &Row) -> Option<Result<u64, End>> {
        if self.options.swift_async == SwiftAsync::Ignore {
            return None;
        }
        let (record, cfa) = execute::saved_at(row, A::FP, &mut self.registers, &mut self.memory)?;
        let saved = self.memory.read_u64(record).ok()?;
        if is_marked(saved) { Some(self.enter_marked(row, record, cfa, saved)) } else { None }
    }

    #[cold]
    fn enter_marked(&mut self, row: &Row, record: u64, cfa: u64, saved: u64) -> Result<u64, End> {
        if self.options.swift_async.follows(&mut self.memory) {
            let contexts = Contexts::from_record(&mut self.memory, record, self.mask);
            self.contexts = Some(contexts.map_err(|error| End::Unreadable { address: error.address })?);
            self.step_to_context()?;
            return Ok(cfa);
        }
        let executed = self.execute_row(row, self.interrupted())?;
        self.registers.set(A::FP, without_mark(saved));
        Ok(executed)
    }

    #[cold]
    fn step_to_context(&mut self) -> Result<Option<u64>, End> {
        let Some(contexts) = &mut self.contexts else { return Err(End::EndOfStack) };
        let (context, pc) = contexts.next(&mut self.memory, self.mask)?;
        self.registers = RegisterFile::new(pc);
        self.registers.set(A::SP, context);
        self.arrive(Found::SwiftAsync, false);
        Ok(None)
    }

    /// Returns the conditions for accepting the frame's caller. `stackless` means that the frame
    /// may have no stack: an interrupted one that keeps its return address in a register, or (in
    /// OCaml's `caml_c_call`) has popped it.
    #[inline]
    fn check(
        &mut self,
        stackless: bool,
        switches: bool,
    ) -> (&mut RegisterFile<A>, &mut BudgetedMemory<M>, CallerCheck<'_, I>) {
        let check = CallerCheck {
            images: &self.images,
            code: self.image.text,
            cache: &*self.cache,
            sp: self.registers.sp(),
            mask: self.mask,
            stackless,
            switches: switches.then_some(&mut self.switches),
            accepted: &mut self.accepted,
        };
        (&mut self.registers, &mut self.memory, check)
    }

    #[inline]
    fn execute_row(&mut self, row: &Row, stackless: bool) -> Result<u64, End> {
        let (registers, memory, check) = self.check(stackless, false);
        execute::row(row, registers, memory, |memory, caller| check.accept::<A, _>(memory, caller))
    }

    #[inline]
    fn execute_frame_record(&mut self) -> Result<u64, End> {
        let (registers, memory, check) = self.check(false, false);
        execute::frame_record(registers, memory, |memory, caller| check.accept::<A, _>(memory, caller))
    }

    #[inline(never)]
    fn execute_rare(&mut self, rule: &FoundRule, lookup: u64) -> Result<u64, End> {
        let sp = self.registers.sp();
        let mask = self.mask;
        match &rule.rule {
            Rule::SignalContext(context) => {
                let switches = &mut self.switches;
                execute::signal_context(*context, &mut self.registers, &mut self.memory, |_, caller| {
                    accept_interrupted(switches, sp, mask, caller)
                })
            }
            Rule::Row(row) => {
                let switches = &mut self.switches;
                execute::row(row, &mut self.registers, &mut self.memory, |_, caller| {
                    accept_interrupted(switches, sp, mask, caller)
                })
            }
            Rule::Program(program) => {
                if !self.find_image(lookup) {
                    return Err(End::NoUnwindData { address: lookup });
                }
                let (state, cie) =
                    lookup::program_row(&mut self.memory, &mut self.cache.sections, &self.image, *program, lookup)
                        .inspect_err(|problem| self.problem = self.problem.or(Some(*problem)))?;
                if cie.signal_trampoline {
                    let switches = &mut self.switches;
                    return execute::full_row(&state, &cie, &mut self.registers, &mut self.memory, |_, caller| {
                        accept_interrupted(switches, sp, mask, caller)
                    });
                }
                let (registers, memory, check) = self.check(self.interrupted(), true);
                execute::full_row(&state, &cie, registers, memory, |memory, caller| {
                    check.accept::<A, _>(memory, caller)
                })
            }
            Rule::FrameRecord | Rule::Outermost => Err(End::EndOfStack),
        }
    }
}
