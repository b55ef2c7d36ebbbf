//! An instruction with the values that its registers had, of either architecture.

use coroner_report::Report;
use coroner_report::model::{Address, Registers, StackMemory};
use coroner_report::wire::Access;

use crate::architecture;
use crate::trap::Meaning;

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) struct Decoded {
    pub(crate) text: String,
    pub(crate) length: usize,
    /// What it reads and writes. Empty where that is not known, too.
    pub(crate) memory: Vec<MemoryOperand>,
    pub(crate) class: Class,
}

/// What an instruction is, as far as crashes are about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Other,
    /// An integer division, by a divisor that is known or not.
    Division {
        divisor: Option<Divisor>,
    },
    Trap(Meaning),
    Breakpoint(Meaning),
    Privileged,
    /// No instruction.
    Invalid,
    /// A jump or a call by a register.
    Branch {
        register: &'static str,
        value: u64,
    },
    /// A jump or a call by an address in memory.
    BranchByMemory,
    Return,
    /// A direct jump or call.
    OtherBranch,
}

/// What an integer was divided by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Divisor {
    pub(crate) text: String,
    pub(crate) register: Option<&'static str>,
    pub(crate) value: u64,
}

/// An operand in memory.
#[derive(Clone, Debug)]
pub(crate) struct MemoryOperand {
    pub(crate) text: String,
    pub(crate) base: Option<(&'static str, u64)>,
    pub(crate) index: Option<(&'static str, u64, u32)>,
    pub(crate) displacement: i64,
    pub(crate) address: u64,
    pub(crate) width: Option<u32>,
    /// `None`: it reads and writes.
    pub(crate) access: Option<Access>,
    /// The alignment without which the instruction faults.
    pub(crate) alignment: Option<u32>,
}

impl MemoryOperand {
    /// Whether the operand has the byte at `address`, of which only the bits of `mask` count.
    pub(crate) fn has(&self, address: u64, mask: u64) -> bool {
        (address.wrapping_sub(self.address) & mask) < u64::from(self.width.unwrap_or(1).max(1))
    }

    /// Whether it may have been the access that the processor says.
    pub(crate) fn can_be(&self, said: Option<Access>) -> bool {
        match (self.access, said) {
            (Some(own), Some(said)) => own == said,
            (None, Some(said)) => said == Access::READ || said == Access::WRITE,
            (_, None) => true,
        }
    }
}

/// What the thread had when it crashed.
pub(crate) struct State<'a> {
    pub(crate) registers: &'a Registers,
    memory: &'a [StackMemory],
}

impl<'a> State<'a> {
    pub(crate) fn of(report: &'a Report, registers: &'a Registers) -> Self {
        Self { registers, memory: &report.stack_memory }
    }

    /// The value of a general register, by the name that the report has for it, with that name.
    pub(crate) fn register(&self, name: &str) -> Option<(&'static str, u64)> {
        self.registers.named().find(|(known, _)| *known == name)
    }

    /// `width` bytes (at most 8) of the saved stacks and of what the registers pointed to, as a little-endian number.
    pub(crate) fn saved(&self, address: u64, width: u32) -> Option<u64> {
        let width = usize::try_from(width).ok().filter(|width| (1..=8).contains(width))?;
        let mask = self.registers.arch.map_or(u64::MAX, architecture::address_mask);
        self.memory.iter().find_map(|piece| {
            let from = usize::try_from((address & mask).checked_sub(piece.address.0 & mask)?).ok()?;
            let bytes = piece.bytes.get(from..from.checked_add(width)?)?;
            Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
        })
    }

    pub(crate) fn stack_pointer(&self) -> Option<u64> {
        self.register("rsp").or_else(|| self.register("sp")).map(|(_, value)| value)
    }

    pub(crate) fn pc(&self) -> Option<Address> {
        self.registers.pc()
    }
}
