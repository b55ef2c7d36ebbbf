//! What an instruction does to the general registers, and where the next one is.

use coroner_process::registers::Arch;

/// A general register, by DWARF's number on the architecture.
pub(crate) type Register = u8;

/// Register of arm64 that is the stack pointer.
#[cfg(feature = "decode")]
pub(crate) const ARM64_SP: Register = 31;
/// Names by DWARF's numbers, as reports have them ("System V ABI, AMD64", figure 3.36).
const X86_64: [&str; 16] =
    ["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];

/// The name that reports have for a register.
pub(crate) fn name(arch: Arch, register: Register) -> Option<&'static str> {
    let register = usize::from(register);
    match arch {
        Arch::X86_64 => X86_64.get(register).copied(),
        Arch::Aarch64 if register == 31 => Some("sp"),
        Arch::Aarch64 => coroner_process::registers::AARCH64_NAMES.get(register).copied(),
    }
}

/// The register that reports have under a name.
pub(crate) fn number(arch: Arch, wanted: &str) -> Option<Register> {
    (0..32).find(|register| name(arch, *register) == Some(wanted))
}

/// Registers that a function keeps for its caller.
pub(crate) fn is_preserved(arch: Arch, register: Register) -> bool {
    match arch {
        // rbx, rbp, rsp, r12 to r15.
        Arch::X86_64 => matches!(register, 3 | 6 | 7 | 12..=15),
        Arch::Aarch64 => matches!(register, 19..=29 | 31),
    }
}

/// The register in which a function returns a value.
pub(crate) const RETURNED: Register = 0;

/// An instruction, as far as registers go.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) address: u64,
    /// Registers, as bits, that it may write.
    pub(crate) may_write: u32,
    /// Those of which it is known that it writes all of them, with what.
    pub(crate) writes: [Option<(Register, Effect)>; 3],
    pub(crate) flow: Flow,
}

impl Step {
    pub(crate) fn new(address: u64) -> Self {
        Step { address, may_write: 0, writes: [None; 3], flow: Flow::Next }
    }

    /// Notes a register that is written. A fourth is one that may be written.
    pub(crate) fn writes(&mut self, register: Register, effect: Effect) {
        self.may_write |= bit(register);
        if let Some(free) = self.writes.iter_mut().find(|write| write.is_none()) {
            *free = Some((register, effect));
        }
    }

    pub(crate) fn may_write(&mut self, register: Register) {
        self.may_write |= bit(register);
    }

    /// What it writes into a register for certain.
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

/// What a register is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// What is in memory, of `width` bytes and without an index.
    Load {
        base: Base,
        displacement: i64,
        width: u32,
    },
    Copy(Register),
    /// What another register, or the same, holds and a number.
    Sum(Register, i64),
    Constant(u64),
    Other,
}

/// Where an address counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Register(Register),
    /// From 0: the displacement is the address.
    Nothing,
}

/// Where the next instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    /// Here or at the target.
    Conditional(u64),
    Jump(u64),
    /// A jump to where is not known: of a table, or to another function.
    AnyJump,
    /// A jump by an address at a fixed place, which is no table's.
    Elsewhere,
    /// A call, and where to if that is known.
    Call(Option<u64>),
    /// A return, or an end.
    End,
}
