//! Finds where a function last set a register before an instruction, on every path to that
//! instruction.
//!
//! The whole function is decoded, including its parts elsewhere, and all jump targets are recorded.
//! The search goes backwards from the instruction until something sets the register. It continues
//! across conditional jumps and calls that return, but not across a jump target, nor across an
//! instruction that doesn't continue to the next one. A function with a jump to an unknown address
//! (from a table) may jump anywhere inside itself, so it has no result.

use std::collections::HashSet;

use coroner_process::registers::Arch;
use coroner_report::model::Address;

use crate::code_source::CodeSource;
use crate::decode;
use crate::step::{self, Flow, Register, Step};

/// Maximum size of a function, or of a part of one, that is decoded, in bytes.
const MAX_FUNCTION: u64 = 1 << 18;
/// Maximum number of a function's parts elsewhere.
const MAX_PARTS: usize = 16;
/// Size of a procedure linkage table entry's code that is searched, in bytes.
const LINKAGE_BYTES: usize = 32;

/// The instruction that last set a register.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Setter<'f> {
    Instruction(&'f Step),
    /// A call, which returned the value.
    Call(&'f Step),
}

/// A function's instructions.
pub(crate) struct Function {
    arch: Arch,
    steps: Vec<Step>,
    /// Addresses that are jumped to.
    entered: HashSet<u64>,
    pub(crate) is_verified: bool,
}

impl Function {
    /// Decodes the function at an address. `None` if its extent, its code or one of its jump
    /// targets is unknown.
    pub(crate) fn at(arch: Arch, address: Address, source: &dyn CodeSource) -> Option<Self> {
        let (extent, code) = read(address, source)?;
        let steps = decode::steps(arch, &code.bytes, extent.0)?;
        let mut function = Self { arch, steps, entered: HashSet::new(), is_verified: code.is_verified };
        let mut known = vec![extent];
        let mut open = function.record_targets(extent, None)?;
        while let Some(target) = open.pop() {
            if known.iter().any(|(start, end)| (*start..*end).contains(&target)) {
                continue;
            }
            if decode::is_linkage(arch, target, source, LINKAGE_BYTES) {
                continue;
            }
            if known.len() > MAX_PARTS {
                return None;
            }
            let (part, code) = read(Address(target), source)?;
            known.push(part);
            // A function elsewhere is called and doesn't jump into this one; a part of this
            // function may be jumped to in its middle.
            let steps = decode::steps(arch, &code.bytes, part.0)?;
            function.record_targets(extent, Some(&steps))?;
        }
        Some(function)
    }

    /// Records the jump targets in the function or in one of its parts. Returns the targets
    /// outside. `None` if a jump's target is unknown.
    fn record_targets(&mut self, (start, end): (u64, u64), part: Option<&[Step]>) -> Option<Vec<u64>> {
        let mut outside = Vec::new();
        let Self { steps, entered, .. } = self;
        for step in part.unwrap_or(steps) {
            match step.flow {
                Flow::Conditional(target) | Flow::Jump(target) if (start..end).contains(&target) => {
                    entered.insert(target);
                }
                Flow::Conditional(target) | Flow::Jump(target) => outside.push(target),
                // In a part: it may be another function, whose jump tables don't lead here.
                Flow::AnyJump if part.is_none() => return None,
                _ => {}
            }
        }
        Some(outside)
    }

    fn index(&self, address: Address) -> Option<usize> {
        self.steps.binary_search_by_key(&address.0, |step| step.address).ok()
    }

    /// Returns what last set a register before the instruction at an address.
    pub(crate) fn setter(&self, register: Register, before: Address) -> Option<Setter<'_>> {
        let mut index = self.index(before)?;
        loop {
            if self.entered.contains(&self.steps.get(index)?.address) {
                return None;
            }
            index = index.checked_sub(1)?;
            let step = self.steps.get(index)?;
            match step.flow {
                Flow::Next | Flow::Conditional(_) => {}
                Flow::Call(_) if register == step::RETURNED => return Some(Setter::Call(step)),
                Flow::Call(_) if step::is_preserved(self.arch, register) => continue,
                _ => return None,
            }
            if step.changes(register) {
                return step.effect(register).map(|_| Setter::Instruction(step));
            }
        }
    }

    /// Whether the instructions between `from` and `to` leave a register unchanged.
    ///
    /// Compares its value at `to` with that before the instruction at `from`.
    pub(crate) fn is_kept(&self, register: Register, from: Address, to: Address) -> bool {
        let (Some(from), Some(to)) = (self.index(from), self.index(to)) else { return false };
        let Some(between) = self.steps.get(from..to) else { return false };
        between.iter().all(|step| match step.flow {
            Flow::Next | Flow::Conditional(_) => !step.changes(register),
            // A call restores the stack pointer when it returns.
            Flow::Call(_) => step::is_preserved(self.arch, register),
            _ => false,
        })
    }

    /// Whether the code at an address sets the return register.
    ///
    /// A caller that uses the register after such a call can't expect its old value.
    pub(crate) fn returns_a_value(arch: Arch, target: u64, source: &dyn CodeSource) -> bool {
        if decode::is_linkage(arch, target, source, LINKAGE_BYTES) {
            return true;
        }
        let steps = read(Address(target), source).and_then(|(extent, code)| decode::steps(arch, &code.bytes, extent.0));
        steps.is_some_and(|steps| steps.iter().any(|step| step.effect(step::RETURNED).is_some()))
    }
}

/// Returns the extent of the function at an address, and its code.
fn read(address: Address, source: &dyn CodeSource) -> Option<((u64, u64), crate::Code)> {
    let (start, end) = source.function(address)?;
    let length = end.0.checked_sub(start.0).filter(|length| (1..=MAX_FUNCTION).contains(length))?;
    let length = usize::try_from(length).ok()?;
    let code = source.code(start, length).filter(|code| code.bytes.len() == length)?;
    Some(((start.0, end.0), code))
}
