//! Runs a program and records the truth: a shadow call stack from calls and returns alone.
//!
//! It needs no unwind data and no convention except that a return goes back to the call's origin,
//! which is checked at every return.

use std::{collections::HashMap, ops::Range};

use anyhow::{Context, bail, ensure};
use coroner_process::registers::{Aarch64Registers, Arch, X86_64Registers};
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use object::BinaryFormat;

use super::{
    loader::{BINDER, HEAP_BASE, HEAP_LENGTH, HOST_BASE, HOST_STEP, Program, STACK_END},
    unicorn::{ARM64_IDS, Cpu, Unicorn, X86_64_IDS},
};

/// The registers of a state.
#[derive(Clone, Copy)]
pub(super) enum Registers {
    X86_64(X86_64Registers),
    Aarch64(Aarch64Registers),
}

impl Registers {
    fn read(cpu: &Cpu<'_>, arch: Arch) -> Registers {
        match arch {
            Arch::X86_64 => {
                let values = cpu.read(&X86_64_IDS);
                let mut registers = X86_64Registers { pc: values[16], ..Default::default() };
                registers.gpr.copy_from_slice(&values[..16]);
                Registers::X86_64(registers)
            }
            Arch::Aarch64 => {
                let values = cpu.read(&ARM64_IDS);
                let mut registers = Aarch64Registers { sp: values[31], pc: values[32], ..Default::default() };
                registers.x.copy_from_slice(&values[..31]);
                Registers::Aarch64(registers)
            }
        }
    }

    pub(super) fn pc(&self) -> u64 {
        match self {
            Registers::X86_64(registers) => registers.pc,
            Registers::Aarch64(registers) => registers.pc,
        }
    }

    fn with_pc(mut self, pc: u64) -> Registers {
        match &mut self {
            Registers::X86_64(registers) => registers.pc = pc,
            Registers::Aarch64(registers) => registers.pc = pc,
        }
        self
    }

    pub(super) fn sp(&self) -> u64 {
        match self {
            Registers::X86_64(registers) => registers.sp(),
            Registers::Aarch64(registers) => registers.sp(),
        }
    }

    /// Returns the callee-saved registers, in ascending order of their DWARF numbers.
    pub(super) fn preserved(&self) -> Preserved {
        let mut values = [0; 11];
        match self {
            Registers::X86_64(registers) => {
                for (value, number) in values.iter_mut().zip([3, 6, 12, 13, 14, 15]) {
                    *value = registers.gpr[number];
                }
            }
            Registers::Aarch64(registers) => values.copy_from_slice(&registers.x[19..30]),
        }
        values
    }
}

/// The callee-saved registers: rbx, rbp, r12–r15 or x19–x29.
pub(super) type Preserved = [u64; 11];

/// A call that hasn't returned: the truth about one frame.
#[derive(Clone, Copy)]
pub(super) struct Call {
    /// The number of the call, in order of execution.
    number: u64,
    /// The return address.
    pub(super) return_address: u64,
    /// The caller's stack pointer before the call.
    pub(super) sp: u64,
    /// The caller's callee-saved registers.
    pub(super) preserved: Preserved,
    /// The call's changes to the stack pointer and the registers, according to an earlier run.
    pub(super) changed: Option<Changed>,
}

impl Call {
    /// Returns the caller's stack pointer when the call returns.
    fn sp_at_return(&self) -> u64 {
        self.changed.map_or(self.sp, |changed| changed.sp)
    }

    /// Whether `value` is right for the caller's callee-saved register `number` (of [`Preserved`]).
    ///
    /// `below` is the callee's value. During a call of an outlined part that changes the register,
    /// it holds what the part has stored so far.
    pub(super) fn may_be(&self, number: usize, value: u64, below: u64) -> bool {
        let (before, after) = (self.preserved[number], self.changed.map(|changed| changed.preserved[number]));
        value == before || after.is_some_and(|after| after != before && (value == after || value == below))
    }
}

/// The stack pointer and callee-saved registers after a call that changed them.
///
/// Such a call is that of an outlined part of its caller, which doesn't follow the calling
/// convention.
#[derive(Clone, Copy)]
pub(super) struct Changed {
    sp: u64,
    preserved: Preserved,
}

/// Changes by each call, by the call's number.
pub(super) type Changes = HashMap<u64, Changed>;

/// A moment in the program: before the instruction at the registers' pc.
pub(super) struct State<'a> {
    pub(super) registers: Registers,
    /// The calls that haven't returned, outermost first.
    pub(super) calls: &'a [Call],
    /// The thread's situation in this state.
    pub(super) situation: Situation,
}

/// The thread's situation. All but the first are derived from an actual moment of the program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Situation {
    /// The actual state.
    Running,
    /// The last call went through a bad pointer: to 0, to data or to an unmapped address.
    ///
    /// The program actually called a function, and only the pc differs at its first instruction.
    BadCall,
    /// A signal interrupted it, and its handler (a function of the program) is about to run.
    ///
    /// The kernel's frame is on the stack, and the handler will return to the trampoline.
    Signal {
        /// The trampoline's first instruction, and its stack pointer.
        trampoline: (u64, u64),
        /// The interrupted instruction, and its stack pointer.
        interrupted: (u64, u64),
    },
}

impl State<'_> {
    /// Returns the true stack: every frame's pc and stack pointer, innermost first.
    ///
    /// A caller's values are those after the call returns.
    pub(super) fn truth(&self) -> Vec<(u64, u64)> {
        let mut truth = vec![(self.registers.pc(), self.registers.sp())];
        if let Situation::Signal { trampoline, interrupted } = self.situation {
            truth.extend([trampoline, interrupted]);
        }
        truth.extend(self.calls.iter().rev().map(|call| (call.return_address, call.sp_at_return())));
        truth
    }

    /// Whether a frame of the truth is at an instruction that will run, rather than after a call.
    pub(super) fn is_interrupted(&self, frame: usize) -> bool {
        frame == 0 || frame <= 2 && matches!(self.situation, Situation::Signal { .. })
    }
}

/// One of this many moments is also examined as if a signal had interrupted it.
const SIGNALS: u64 = 5;

/// The size of the kernel's signal frame.
///
/// At least arm64's `struct rt_sigframe` (4,688 bytes) and the frame record.
const FRAME: usize = 4704;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    Plain,
    Call,
    Return,
}

/// The expected effect of the next instruction.
enum Next {
    Anything,
    /// A call: it is now on the stack.
    Called(Call),
    /// A return, which must have led here with this stack pointer.
    Returned(Call),
}

/// The selection of states to examine.
#[derive(Clone, Copy)]
pub(super) struct Sampling {
    /// Number of first visits to each instruction that are examined.
    pub(super) visits: u16,
    /// Afterwards, one random state of this many is examined; 0 for none.
    pub(super) one_of: u64,
    /// Calls at instruction counts divisible by this are also examined as bad calls.
    pub(super) wild_one_of: u64,
    /// The random seed.
    pub(super) seed: u64,
    /// Whether parts of functions are outlined.
    ///
    /// Such a part may be half a prologue, which changes the stack pointer.
    pub(super) outlined: bool,
}

/// A run's result.
pub(super) struct Ran {
    /// The number of instructions executed in the image.
    pub(super) instructions: u64,
    /// Changes by the run's calls.
    pub(super) changes: Changes,
}

/// Runs `program` to its end, and calls `look` for states selected by `sampling`.
///
/// The program's argument is `seed`.
///
/// `changes` are those of an earlier run of the same program with the same seed, because a call's
/// changes are not known before it returns.
///
/// # Errors
/// An error if the program executes an unknown instruction, calls a missing host function, or
/// returns to another address than the call's.
pub(super) fn run(
    unicorn: &Unicorn,
    program: &mut Program,
    seed: u64,
    sampling: Sampling,
    changes: &Changes,
    look: &mut dyn FnMut(&Program, &State<'_>),
) -> anyhow::Result<Ran> {
    let cpu = Cpu::new(unicorn, program.arch)?;
    for region in &program.regions.0 {
        // SAFETY: the region is page-aligned and outlives the CPU, which this function drops.
        unsafe { cpu.map(region.address, region.length(), region.executable, region.host())? };
    }
    // At the stack's bottom, frame pointer and return address are zero, as where a system starts a
    // thread.
    let sp = STACK_END - 0x1000;
    match program.arch {
        Arch::X86_64 => {
            program.regions.set_word(sp - 8, 0)?;
            let mut values = [0; 17];
            (values[5], values[7]) = (seed, sp - 8);
            cpu.write(&X86_64_IDS, &values);
        }
        Arch::Aarch64 => {
            let mut values = [0; 33];
            (values[0], values[31]) = (seed, sp);
            cpu.write(&ARM64_IDS, &values);
            // Floating point is not trapped: CPACR_EL1.FPEN.
            cpu.write(&[261], &[3 << 20]);
        }
    }
    let text = program.text.clone();
    let length = usize::try_from(text.end - text.start)?;
    let mut run = Run {
        arch: program.arch,
        kinds: vec![Kind::Unknown; length],
        visits: vec![0; length],
        text,
        calls: Vec::new(),
        made: 0,
        known: changes,
        changes: Changes::new(),
        next: Next::Anything,
        instructions: 0,
        looks: 0,
        sampling,
        chance: sampling.seed | 1,
        heap: HEAP_BASE,
        done: None,
    };
    let entry = program.entry;
    let emulated = cpu.run(entry, |cpu, pc, length| {
        if run.done.is_some() {
            return cpu.stop();
        }
        if let Err(error) = run.before(cpu, program, pc, length, look) {
            run.done = Some(Err(error));
        }
        if run.done.is_some() {
            cpu.stop();
        }
    });
    match run.done {
        Some(Ok(())) => Ok(Ran { instructions: run.instructions, changes: run.changes }),
        Some(Err(error)) => Err(error),
        None => {
            emulated.with_context(|| {
                format!("after {} instructions, at {}", run.instructions, program.describe(pc_of(&cpu, program.arch)))
            })?;
            bail!("the emulation ended before the program did")
        }
    }
}

fn pc_of(cpu: &Cpu<'_>, arch: Arch) -> u64 {
    Registers::read(cpu, arch).pc()
}

struct Run<'k> {
    arch: Arch,
    text: Range<u64>,
    kinds: Vec<Kind>,
    visits: Vec<u16>,
    calls: Vec<Call>,
    /// Number of calls so far.
    made: u64,
    /// Changes by calls, according to an earlier run.
    known: &'k Changes,
    /// Changes by calls in this run.
    changes: Changes,
    next: Next,
    instructions: u64,
    /// Number of examined moments.
    looks: u64,
    sampling: Sampling,
    chance: u64,
    /// The heap's first free byte.
    heap: u64,
    done: Option<anyhow::Result<()>>,
}

impl Run<'_> {
    fn before(
        &mut self,
        cpu: &Cpu<'_>,
        program: &mut Program,
        pc: u64,
        length: u32,
        look: &mut dyn FnMut(&Program, &State<'_>),
    ) -> anyhow::Result<()> {
        match std::mem::replace(&mut self.next, Next::Anything) {
            Next::Anything => {}
            Next::Called(call) => {
                self.calls.push(call);
                // An outlined part is not called through a pointer, except those in the linkage
                // table, which the loader makes read-only.
                let may_be_part = self.sampling.outlined
                    && program
                        .function(pc)
                        .is_some_and(|(name, _)| name.starts_with("OUTLINED_FUNCTION_") || name == ".plt");
                if !may_be_part
                    && call.changed.is_none()
                    && self.instructions.is_multiple_of(self.sampling.wild_one_of.max(1))
                {
                    let wild = [0, 0x10, HEAP_BASE + 0x40, 0xdead_beef_0000, STACK_END - 0x2000];
                    let pc = wild[(self.chance % wild.len() as u64) as usize];
                    let registers = Registers::read(cpu, self.arch).with_pc(pc);
                    self.chosen();
                    look(program, &State { registers, calls: &self.calls, situation: Situation::BadCall });
                }
            }
            Next::Returned(call) => {
                let registers = Registers::read(cpu, self.arch);
                let (sp, preserved) = (registers.sp(), registers.preserved());
                if sp != call.sp || preserved != call.preserved {
                    self.changes.insert(call.number, Changed { sp, preserved });
                }
                ensure!(
                    pc == call.return_address && (sp == call.sp || self.sampling.outlined),
                    "a return led to {} with sp {sp:#x}, the call was before {} with sp {:#x}",
                    program.describe(pc),
                    program.describe(call.return_address),
                    call.sp
                );
            }
        }
        if let Some(offset) = pc.checked_sub(HOST_BASE) {
            let name = program.host.get((offset / HOST_STEP) as usize).context("a jump into nowhere")?.clone();
            if name == BINDER {
                // Its later instructions run normally.
                return if offset.is_multiple_of(HOST_STEP) { self.bind(cpu, program) } else { Ok(()) };
            }
            self.host_function(cpu, program, &name)?;
            return self.will_return();
        }
        ensure!(self.text.contains(&pc), "a jump to {pc:#x}, outside the image, from {} calls deep", self.calls.len());
        self.instructions += 1;
        ensure!(self.instructions < 100_000_000, "the program did not exit");
        let index = (pc - self.text.start) as usize;
        if self.kinds[index] == Kind::Unknown {
            let bytes = program.regions.get(pc, length as usize).context("an instruction outside memory")?;
            self.kinds[index] = kind(self.arch, bytes, pc);
        }
        if self.visits[index] < self.sampling.visits || self.chosen() {
            self.visits[index] = self.visits[index].saturating_add(1);
            let registers = Registers::read(cpu, self.arch);
            look(program, &State { registers, calls: &self.calls, situation: Situation::Running });
            if program.format == BinaryFormat::Elf && self.looks.is_multiple_of(SIGNALS) {
                self.look_from_signal(program, &registers, look)?;
            }
            self.looks += 1;
        }
        match self.kinds[index] {
            Kind::Call => {
                let registers = Registers::read(cpu, self.arch);
                self.made += 1;
                self.next = Next::Called(Call {
                    number: self.made,
                    return_address: pc + u64::from(length),
                    sp: registers.sp(),
                    preserved: registers.preserved(),
                    changed: self.known.get(&self.made).copied(),
                });
                Ok(())
            }
            Kind::Return => self.will_return(),
            Kind::Plain | Kind::Unknown => Ok(()),
        }
    }

    /// Examines the moment as if a signal had interrupted it.
    ///
    /// Linux's signal frame is written below the stack (which is restored afterwards), and the
    /// entry function acts as the handler.
    fn look_from_signal(
        &mut self,
        program: &mut Program,
        registers: &Registers,
        look: &mut dyn FnMut(&Program, &State<'_>),
    ) -> anyhow::Result<()> {
        // Below x86_64's red zone; rounded down as the kernel does.
        let below = (registers.sp() - 128 - FRAME as u64) & !15;
        let old = program.regions.get(below - 16, FRAME + 16).context("no room for a signal frame")?.to_vec();
        let trampoline = program.trampoline();
        let (handler, sp) = match registers {
            Registers::X86_64(interrupted) => {
                // The return address, then the ucontext (asm/sigcontext.h): r8-r15, rdi, rsi, rbp,
                // rbx, rdx, rax, rcx, rsp, rip from its offset 40.
                let sp = below - 8;
                program.regions.set_word(sp, trampoline)?;
                let order = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7];
                for (place, number) in order.into_iter().enumerate() {
                    program.regions.set_word(sp + 8 + 40 + 8 * place as u64, interrupted.gpr[number])?;
                }
                program.regions.set_word(sp + 8 + 40 + 8 * 16, interrupted.pc)?;
                let mut handler = X86_64Registers { pc: program.entry, ..Default::default() };
                handler.gpr[7] = sp;
                (Registers::X86_64(handler), below)
            }
            Registers::Aarch64(interrupted) => {
                // siginfo, then the ucontext, whose mcontext is at 176: fault address, x0-x30, sp,
                // pc. The kernel's additional frame record is above.
                let context = below + 128 + 176 + 8;
                let words = interrupted.x.iter().chain([&interrupted.sp, &interrupted.pc]);
                for (place, word) in words.enumerate() {
                    program.regions.set_word(context + 8 * place as u64, *word)?;
                }
                let record = below + FRAME as u64 - 16;
                program.regions.set_word(record, interrupted.fp())?;
                program.regions.set_word(record + 8, interrupted.lr())?;
                let mut handler = Aarch64Registers { pc: program.entry, sp: below, ..Default::default() };
                (handler.x[29], handler.x[30]) = (record, trampoline);
                (Registers::Aarch64(handler), below)
            }
        };
        let interrupted = (registers.pc(), registers.sp());
        let situation = Situation::Signal { trampoline: (trampoline, sp), interrupted };
        look(program, &State { registers: handler, calls: &self.calls, situation });
        program.regions.get_mut(below - 16, FRAME + 16).context("no room for a signal frame")?.copy_from_slice(&old);
        Ok(())
    }

    fn will_return(&mut self) -> anyhow::Result<()> {
        let call = self.calls.pop().context("a return without a call: the entry function must not return")?;
        self.next = Next::Returned(call);
        Ok(())
    }

    /// Whether this state is randomly selected (xorshift64*).
    fn chosen(&mut self) -> bool {
        self.chance ^= self.chance >> 12;
        self.chance ^= self.chance << 25;
        self.chance ^= self.chance >> 27;
        self.sampling.one_of != 0
            && (self.chance.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20).is_multiple_of(self.sampling.one_of)
    }

    /// Emulates dyld's binder: sets the called pointer, and the register of the jump that follows.
    fn bind(&mut self, cpu: &Cpu<'_>, program: &mut Program) -> anyhow::Result<()> {
        let sp = Registers::read(cpu, self.arch).sp();
        let (number, register) = match self.arch {
            Arch::X86_64 => (sp + 8, X86_64_IDS[11]),
            Arch::Aarch64 => (sp, ARM64_IDS[16]),
        };
        let number = program.regions.word(number).context("no word for the binder")?;
        let lazy = *program.lazy.get(&number).with_context(|| format!("no lazy pointer has the number {number:#x}"))?;
        program.regions.set_word(lazy.place, lazy.target)?;
        cpu.write(&[register], &[lazy.target]);
        Ok(())
    }

    fn host_function(&mut self, cpu: &Cpu<'_>, program: &mut Program, name: &str) -> anyhow::Result<()> {
        let [a, b, c] = match self.arch {
            Arch::X86_64 => cpu.read(&[X86_64_IDS[5], X86_64_IDS[4], X86_64_IDS[1]]),
            Arch::Aarch64 => cpu.read(&[ARM64_IDS[0], ARM64_IDS[1], ARM64_IDS[2]]),
        };
        let memory = &mut program.regions;
        let result = match name {
            "memcpy" | "memmove" => {
                let bytes = memory.get(b, c as usize).context("memcpy from nowhere")?.to_vec();
                memory.get_mut(a, c as usize).context("memcpy to nowhere")?.copy_from_slice(&bytes);
                a
            }
            "memset" => {
                memory.get_mut(a, c as usize).context("memset of nowhere")?.fill(b as u8);
                a
            }
            "bzero" => {
                memory.get_mut(a, b as usize).context("bzero of nowhere")?.fill(0);
                a
            }
            "memcmp" | "bcmp" => {
                let (x, y) = (memory.get(a, c as usize), memory.get(b, c as usize));
                x.context("memcmp of nowhere")?.cmp(y.context("memcmp of nowhere")?) as i64 as u64
            }
            "malloc" => self.allocate(a, 16)?,
            "calloc" => self.allocate(a * b, 16)?,
            "aligned_alloc" => self.allocate(b, a)?,
            "posix_memalign" => {
                let block = self.allocate(c, b)?;
                memory.set_word(a, block)?;
                0
            }
            "realloc" => {
                let block = self.allocate(b, 16)?;
                if a != 0 {
                    let old = memory.word(a - 8).context("realloc of nowhere")?;
                    let bytes = memory.get(a, old.min(b) as usize).context("realloc of nowhere")?.to_vec();
                    memory.get_mut(block, bytes.len()).context("the heap is full")?.copy_from_slice(&bytes);
                }
                block
            }
            "free" => 0,
            "oracle_exit" => {
                self.done = Some(Ok(()));
                0
            }
            other => bail!("the program calls {other}, which the emulator doesn't provide"),
        };
        if matches!(name, "malloc" | "calloc" | "aligned_alloc" | "realloc") {
            let length = self.heap - result;
            program.regions.set_word(result - 8, length)?;
        }
        match self.arch {
            Arch::X86_64 => cpu.write(&[X86_64_IDS[0]], &[result]),
            Arch::Aarch64 => cpu.write(&[ARM64_IDS[0]], &[result]),
        }
        Ok(())
    }

    /// Allocates a fresh block; its length is stored in the preceding word. Blocks are never freed.
    fn allocate(&mut self, length: u64, alignment: u64) -> anyhow::Result<u64> {
        let block = (self.heap + 8).next_multiple_of(alignment.max(16));
        self.heap = block.checked_add(length.max(1)).context("an impossible length")?;
        ensure!(self.heap < HEAP_BASE + HEAP_LENGTH, "the program needs more heap than {HEAP_LENGTH} bytes");
        Ok(block)
    }
}

fn kind(arch: Arch, bytes: &[u8], pc: u64) -> Kind {
    match arch {
        Arch::X86_64 => {
            let instruction = Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE).decode();
            match instruction.flow_control() {
                FlowControl::Call | FlowControl::IndirectCall => Kind::Call,
                FlowControl::Return => Kind::Return,
                _ => Kind::Plain,
            }
        }
        Arch::Aarch64 => {
            let word = bytes.try_into().map_or(0, u32::from_le_bytes);
            match word {
                // BL; BLR, BLRAA and similar
                w if w & 0xfc00_0000 == 0x9400_0000 || w & 0xfeff_f000 == 0xd63f_0000 => Kind::Call,
                // RET, RETAA, RETAB
                w if w & 0xffff_f000 == 0xd65f_0000 => Kind::Return,
                _ => Kind::Plain,
            }
        }
    }
}
