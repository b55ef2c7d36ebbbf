//! What a function's machine code refers to.
//!
//! Code is read from a function's first byte to its last, branch or not: what stands in a function counts as executed.

pub(super) mod aarch64;
mod aarch64_operations;
pub(super) mod operation;
pub(super) mod x86_64;
mod x86_64_operations;

use super::program::{Function, Machine, Program};

/// One thing that an instruction refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// It calls or jumps to that address.
    Code(u64),
    /// It calls or jumps to where the slot at that address points.
    CodeThrough(u64),
    /// It takes that address, of code or of data.
    Address(u64),
    /// It loads from that address of data.
    Load(u64),
    /// It calls or jumps to an address that only the running program knows.
    Unknown,
    /// It enters the kernel, with that number if the code near it says so.
    SystemCall(Option<u32>),
    /// It uses a thread-local variable at a fixed distance from the thread pointer (which allocates nothing).
    ThreadLocal,
}

/// A reference and the instruction that makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) at: u64,
    pub(super) target: Target,
}

/// Everything that a function refers to outside itself.
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
