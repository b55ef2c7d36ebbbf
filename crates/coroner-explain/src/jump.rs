//! Where a jump or a return to no code came from.

use coroner_process::registers::Arch;
use coroner_report::model::{Address, Frame, Thread};
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
    let mask = machine::address_mask(arch);
    let is_there = |value: u64| (value ^ pc.0) & mask == 0;
    let by_register: Vec<_> =
        calls.iter().filter(|(_, call)| matches!(call.class, Class::Branch { value, .. } if is_there(value))).collect();
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

/// Where the address came from if a return led to `pc`, and not a call or a jump. `None` if that is not certain.
///
/// A return leaves the address where it took it from: just below the stack pointer (x86_64), in the link register (arm64). A call would have
/// put its own return address in that place (arm64) or above it (x86_64), where the walk would have found it; a jump that ends a function
/// leaves that of the function's caller there.
pub(crate) fn returned_by(thread: &Thread, arch: Arch, pc: Address, state: &State<'_>) -> Option<BadOperand> {
    let is_called = |frame: &Frame| !matches!(frame.found_by, FoundBy::SCAN | FoundBy::FRAME_POINTER);
    if thread.frames.get(1).is_some_and(is_called) {
        return None;
    }
    let (text, register, value) = match arch {
        Arch::X86_64 => ("[rsp-8]", None, state.saved(state.registers.sp()?.0.checked_sub(8)?, 8)?),
        Arch::Aarch64 => {
            let (_, value) = state.register("lr")?;
            ("lr", Some("lr".to_owned()), value)
        }
    };
    let is_there = (value ^ pc.0) & machine::address_mask(arch) == 0;
    is_there.then(|| BadOperand {
        text: text.to_owned(),
        register,
        value: Some(Address(value)),
        pattern: pattern::of(value).map(str::to_owned),
        ..BadOperand::default()
    })
}
