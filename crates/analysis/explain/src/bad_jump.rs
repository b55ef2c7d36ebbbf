//! Finds the origin of a jump or a return to an address without code.

use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Address, Frame, Thread};
use coroner_report::wire::{Access, AddressKind, FoundBy};

use crate::code_source::CodeSource;
use crate::instruction::{Class, Decoded, State};
use crate::last_set::{Function, Setter};
use crate::step::{self, Base, Effect, Register};
use crate::{architecture, decode, poison_pattern};
use coroner_report::model::{BadOperand, Explanation, Instruction};

/// Size of a procedure linkage table entry, in bytes.
const LINKAGE_BYTES: usize = 32;
/// Maximum number of loads, copies and sums that are followed.
const MAX_STEPS: usize = 4;

/// Fills in the call that led to `pc`, if its operand provably had that address.
///
/// A call to another function whose last instruction was a jump to `pc` has the same return
/// address.
pub(crate) fn find_call(
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
    let calls = decode::calls_before(arch, caller.address, code, state);
    if calls.iter().any(|(_, call)| call.class == Class::OtherBranch) {
        return;
    }
    let mask = architecture::address_mask(arch);
    let is_there = |value: u64| (value ^ pc.0) & mask == 0;
    // The call's target, if it is the bad address.
    let target = |address: Address, call: &Decoded| {
        let before = Before { arch, call: address, state, function: Function::at(arch, address, code) };
        let target = match call.class {
            // The register's current value proves nothing: a called function may have jumped
            // through the same register.
            Class::Branch { register, .. } => before.register(register),
            Class::BranchByMemory => before.target(call),
            _ => None,
        };
        target.filter(|target| is_there(*target))
    };
    let mut all = calls.iter().filter_map(|(address, call)| Some((address, call, target(*address, call)?)));
    let (Some((address, call, target)), None) = (all.next(), all.next()) else { return };
    explanation.call = Some(Instruction { address: *address, text: call.text.clone() });
    if let Class::Branch { register, .. } = call.class {
        explanation.operand = Some(BadOperand {
            text: register.to_owned(),
            register: Some(register.to_owned()),
            value: Some(Address(target)),
            pattern: poison_pattern::describe(target).map(str::to_owned),
            ..BadOperand::default()
        });
    }
}

/// Register values at a call, from the registers that functions preserve and from the saved stacks.
struct Before<'a> {
    arch: Arch,
    call: Address,
    state: &'a State<'a>,
    function: Option<Function>,
}

impl Before<'_> {
    fn register(&self, name: &str) -> Option<u64> {
        self.value_before(step::number(self.arch, name)?, self.call, MAX_STEPS)
    }

    fn value_before(&self, register: Register, at: Address, left: usize) -> Option<u64> {
        let left = left.checked_sub(1)?;
        let is_kept =
            || at == self.call || self.function.as_ref().is_some_and(|all| all.is_kept(register, at, self.call));
        if step::is_preserved(self.arch, register) && is_kept() {
            let name = step::name(self.arch, register)?;
            let pushed = if matches!(name, "rsp" | "sp") { architecture::pushed_by_call(self.arch) } else { 0 };
            return Some(self.state.register(name)?.1.wrapping_add(pushed));
        }
        let Setter::Instruction(setter) = self.function.as_ref()?.setter(register, at)? else { return None };
        let before = Address(setter.address);
        match setter.effect(register)? {
            Effect::Load { base: Base::Register(base), displacement, width } => {
                self.state.saved(self.value_before(base, before, left)?.wrapping_add(displacement as u64), width)
            }
            Effect::Copy(from) => self.value_before(from, before, left),
            Effect::Sum(from, number) => Some(self.value_before(from, before, left)?.wrapping_add(number as u64)),
            Effect::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the address that a call takes from memory.
    fn target(&self, call: &Decoded) -> Option<u64> {
        let operand = call.memory.iter().find(|operand| operand.access == Some(Access::READ))?;
        let (base, _) = operand.base.filter(|_| operand.index.is_none())?;
        self.state.saved(self.register(base)?.wrapping_add(operand.displacement as u64), 8)
    }
}

/// Whether the innermost frame's caller was found from a stale link register (arm64).
///
/// The register may be left over from a call that returned, and that doesn't lead to the innermost
/// frame's function.
pub(crate) fn is_link_register_stale(report: &Report, code: &dyn CodeSource) -> bool {
    /// Arm's reference manual: BL, with the 26 bits of its offset.
    const BL: u32 = 0x9400_0000;
    let Some([first, caller, ..]) = report.crashed_thread().map(|thread| thread.frames.as_slice()) else {
        return false;
    };
    let arch =
        report.crashed_thread().and_then(|thread| thread.registers.as_ref()).and_then(|registers| registers.arch);
    if arch != Some(Arch::Aarch64) || caller.found_by != FoundBy::LINK_REGISTER {
        return false;
    }
    let Some(at) = caller.address.0.checked_sub(4).map(Address) else { return false };
    let call = code.code(at, 4).and_then(|code| Some(u32::from_le_bytes(*code.bytes.first_chunk()?)));
    let Some(call) = call else { return false };
    let target = (call & 0xfc00_0000 == BL).then(|| at.0.wrapping_add((i64::from((call << 6) as i32) >> 4) as u64));
    let extent = code.function(first.address).map(|(start, end)| start.0..end.0);
    match (target, extent) {
        (Some(target), Some(extent)) => {
            let may_lead_elsewhere =
                !extent.contains(&at.0) && decode::is_linkage(Arch::Aarch64, target, code, LINKAGE_BYTES);
            !extent.contains(&target) && !may_lead_elsewhere
        }
        (None, Some(extent)) => extent.contains(&at.0),
        (Some(_), None) => report.image_at(first.address).is_none(),
        (None, None) => false,
    }
}

/// Returns the origin of the address if a return led to `pc`, rather than a call or a jump. `None`
/// if that is not certain.
///
/// A return leaves the address where it took it from: just below the stack pointer (x86_64), in the
/// link register (arm64). A call would have put its own return address in that place (arm64) or
/// above it (x86_64), where the walk would have found it; a jump that ends a function leaves the
/// return address of the function's caller there.
pub(crate) fn find_return(thread: &Thread, arch: Arch, pc: Address, state: &State<'_>) -> Option<BadOperand> {
    let is_called = |frame: &Frame| !matches!(frame.found_by, FoundBy::SCAN | FoundBy::FRAME_POINTER);
    if thread.frames.get(1).is_some_and(is_called) {
        return None;
    }
    let (text, register, value) = match arch {
        // A function without calls keeps its variables below the stack pointer, where its frame
        // pointer also points: it may have jumped through one of them.
        Arch::X86_64 if state.register("rbp").map(|(_, value)| Address(value)) == state.registers.sp() => return None,
        Arch::X86_64 => ("[rsp-8]", None, state.saved(state.registers.sp()?.0.checked_sub(8)?, 8)?),
        Arch::Aarch64 => {
            let (_, value) = state.register("lr")?;
            ("lr", Some("lr".to_owned()), value)
        }
    };
    let is_there = (value ^ pc.0) & architecture::address_mask(arch) == 0;
    is_there.then(|| BadOperand {
        text: text.to_owned(),
        register,
        value: Some(Address(value)),
        pattern: poison_pattern::describe(value).map(str::to_owned),
        ..BadOperand::default()
    })
}
