//! References from a function's machine code.
//!
//! Code is read from a function's first byte to its last regardless of branches: all of a
//! function's code counts as executed.

pub(super) mod aarch64;
mod aarch64_operations;
pub(super) mod operation;
pub(super) mod x86_64;
mod x86_64_operations;

use super::program::{Function, Machine, Program};

/// The target of a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A call or jump to an address.
    Code(u64),
    /// A call or jump to the address stored in a slot.
    CodeThrough(u64),
    /// The address of code or data.
    Address(u64),
    /// A load from a data address.
    Load(u64),
    /// A call or jump to an address known only at run time.
    Unknown,
    /// A system call, with its number if the nearby code sets it.
    SystemCall(Option<u32>),
    /// A thread-local variable at a fixed distance from the thread pointer.
    ///
    /// It needs no allocation.
    ThreadLocal,
}

/// A reference and the instruction that contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) at: u64,
    pub(super) target: Target,
}

/// Returns a function's references outside itself.
pub(super) fn references(program: &Program, function: &Function) -> Vec<Reference> {
    let code = program.code(function);
    let mut found = match program.machine {
        Machine::X86_64 => x86_64::references(code, function.start),
        Machine::Aarch64 => aarch64::references(code, function.start),
    };
    found.retain(|reference| match reference.target {
        Target::Code(to) | Target::Address(to) => !(function.start..function.end).contains(&to),
        _ => true,
    });
    found
}
