//! Where a jump to no code came from.

use coroner_process::registers::Arch;
use coroner_report::model::{Address, Thread};
use coroner_report::wire::{AddressKind, FoundBy};

use crate::code_source::CodeSource;
use crate::decoded::{Class, State};
use crate::{machine, pattern};
use coroner_report::model::{BadOperand, Explanation, Instruction};

/// Fills in the call that led to `pc`, if the caller's code says one alone.
pub(crate) fn from(
    thread: &Thread,
    arch: Arch,
    pc: Address,
    code: &dyn CodeSource,
    state: &State<'_>,
    explanation: &mut Explanation,
) {
    let Some(caller) = thread.frames.get(1) else { return };
    if caller.found_by == FoundBy::SCAN || caller.address_kind != AddressKind::RETURN {
        return;
    }
    let calls = machine::calls_before(arch, caller.address, code, state);
    // A register that still has the address is what was called by.
    let by_register: Vec<_> =
        calls.iter().filter(|(_, call)| matches!(call.class, Class::Branch { value, .. } if value == pc.0)).collect();
    let chosen = match (by_register.as_slice(), calls.as_slice()) {
        ([one], _) => *one,
        ([], [one]) if one.1.class == Class::BranchByMemory => one,
        _ => return,
    };
    let (address, call) = chosen;
    explanation.call = Some(Instruction { address: *address, text: call.text.clone() });
    if let Class::Branch { register, value } = call.class {
        explanation.operand = Some(BadOperand {
            text: register.to_owned(),
            register: Some(register.to_owned()),
            value: Some(Address(value)),
            pattern: pattern::of(value).map(str::to_owned),
            ..BadOperand::default()
        });
    }
}
