//! A decoded instruction with its register values, for both architectures.

use coroner_report::Report;
use coroner_report::model::{Address, Registers, StackMemory};
use coroner_report::wire::Access;

use crate::architecture;
use crate::trap::Meaning;

/// A decoded instruction.
#[derive(Clone, Debug)]
pub(crate) struct Decoded {
    pub(crate) text: String,
    pub(crate) length: usize,
    /// The memory operands. Empty if unknown.
    pub(crate) memory: Vec<MemoryOperand>,
    pub(crate) class: Class,
}

/// The class of an instruction, as far as it matters for crashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Other,
    /// An integer division, with the divisor if known.
    Division {
        divisor: Option<Divisor>,
    },
    Trap(Meaning),
    Breakpoint(Meaning),
    Privileged,
    /// Not a valid instruction.
    Invalid,
    /// A jump or a call to the address in a register.
    Branch {
        register: &'static str,
        value: u64,
    },
    /// A jump or a call to an address in memory.
    BranchByMemory,
    Return,
    /// A direct jump or call.
    OtherBranch,
}

/// The divisor of an integer division.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Divisor {
    pub(crate) text: String,
    pub(crate) register: Option<&'static str>,
    pub(crate) value: u64,
}

/// A memory operand.
#[derive(Clone, Debug)]
pub(crate) struct MemoryOperand {
    pub(crate) text: String,
    pub(crate) base: Option<(&'static str, u64)>,
    pub(crate) index: Option<(&'static str, u64, u32)>,
    pub(crate) displacement: i64,
    pub(crate) address: u64,
    pub(crate) width: Option<u32>,
    /// The access; `None` if the instruction reads and writes.
    pub(crate) access: Option<Access>,
    /// The alignment without which the instruction faults.
    pub(crate) alignment: Option<u32>,
}

impl MemoryOperand {
    /// Whether the operand contains the byte at `address`. Only the bits in `mask` are compared.
    pub(crate) fn contains(&self, address: u64, mask: u64) -> bool {
        (address.wrapping_sub(self.address) & mask) < u64::from(self.width.unwrap_or(1).max(1))
    }

    /// Whether the operand matches the access reported by the processor.
    pub(crate) fn matches_access(&self, reported: Option<Access>) -> bool {
        match (self.access, reported) {
            (Some(own), Some(reported)) => own == reported,
            (None, Some(reported)) => reported == Access::READ || reported == Access::WRITE,
            (_, None) => true,
        }
    }
}

/// The crashed thread's state.
pub(crate) struct State<'a> {
    pub(crate) registers: &'a Registers,
    memory: &'a [StackMemory],
}

impl<'a> State<'a> {
    pub(crate) fn new(report: &'a Report, registers: &'a Registers) -> Self {
        Self { registers, memory: &report.stack_memory }
    }

    /// Returns the value of a general register by its name in reports, with that name.
    pub(crate) fn register(&self, name: &str) -> Option<(&'static str, u64)> {
        self.registers.named().find(|(known, _)| *known == name)
    }

    /// Returns `width` bytes (at most 8) of saved memory as a little-endian number.
    ///
    /// Saved memory consists of the stacks and the memory at register values.
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
