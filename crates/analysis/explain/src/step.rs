//! An instruction's effects on the general registers, and where execution continues.

use coroner_process::registers::Arch;

/// A general register by its DWARF number on the architecture.
pub(crate) type Register = u8;

/// arm64's stack pointer.
#[cfg(feature = "decode")]
pub(crate) const ARM64_SP: Register = 31;
/// Register names in reports, by DWARF number ("System V ABI, AMD64", figure 3.36).
const X86_64: [&str; 16] =
    ["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];

/// Returns a register's name in reports.
pub(crate) fn name(arch: Arch, register: Register) -> Option<&'static str> {
    let register = usize::from(register);
    match arch {
        Arch::X86_64 => X86_64.get(register).copied(),
        Arch::Aarch64 if register == 31 => Some("sp"),
        Arch::Aarch64 => coroner_process::registers::AARCH64_NAMES.get(register).copied(),
    }
}

/// Returns the register with this name in reports.
pub(crate) fn number(arch: Arch, wanted: &str) -> Option<Register> {
    (0..32).find(|register| name(arch, *register) == Some(wanted))
}

/// Whether functions preserve a register for their caller.
pub(crate) fn is_preserved(arch: Arch, register: Register) -> bool {
    match arch {
        // rbx, rbp, rsp, r12 to r15.
        Arch::X86_64 => matches!(register, 3 | 6 | 7 | 12..=15),
        Arch::Aarch64 => matches!(register, 19..=29 | 31),
    }
}

/// The register in which a function returns a value.
pub(crate) const RETURNED: Register = 0;

/// An instruction's effects on registers.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) address: u64,
    /// Registers that the instruction may write, as bits.
    pub(crate) may_write: u32,
    /// Registers that the instruction certainly writes as a whole, with their values.
    pub(crate) writes: [Option<(Register, Effect)>; 3],
    pub(crate) flow: Flow,
}

impl Step {
    pub(crate) fn new(address: u64) -> Self {
        Step { address, may_write: 0, writes: [None; 3], flow: Flow::Next }
    }

    /// Adds a register that the instruction writes. From the fourth on, they only count as possibly
    /// written.
    pub(crate) fn writes(&mut self, register: Register, effect: Effect) {
        self.may_write |= bit(register);
        if let Some(free) = self.writes.iter_mut().find(|write| write.is_none()) {
            *free = Some((register, effect));
        }
    }

    pub(crate) fn may_write(&mut self, register: Register) {
        self.may_write |= bit(register);
    }

    /// Returns the value that the instruction certainly writes to a register.
    pub(crate) fn effect(&self, register: Register) -> Option<Effect> {
        self.writes.iter().flatten().find(|(written, _)| *written == register).map(|(_, effect)| *effect)
    }

    pub(crate) fn changes(&self, register: Register) -> bool {
        self.may_write & bit(register) != 0
    }
}

fn bit(register: Register) -> u32 {
    1_u32.checked_shl(register.into()).unwrap_or(0)
}

/// The value that a register is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A memory operand of `width` bytes without an index.
    Load {
        base: Base,
        displacement: i64,
        width: u32,
    },
    Copy(Register),
    /// The value of another or the same register plus a constant.
    Sum(Register, i64),
    Constant(u64),
    Other,
}

/// The base of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Register(Register),
    /// No base: the displacement is the address.
    Nothing,
}

/// The control flow after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    /// At the next instruction or at the target.
    Conditional(u64),
    Jump(u64),
    /// A jump to an unknown address: from a jump table, or to another function.
    AnyJump,
    /// A jump to an address stored at a fixed location, which isn't a jump table.
    Elsewhere,
    /// A call, with the target if known.
    Call(Option<u64>),
    /// A return, or an end.
    End,
}
