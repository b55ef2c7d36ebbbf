//! Finds an instruction's bad operand, and the register that made it bad.

use coroner_process::registers::Arch;
use coroner_report::model::Address;
use coroner_report::wire::Access;

use crate::instruction::{Decoded, MemoryOperand};
use crate::{architecture, poison_pattern};
use coroner_report::model::{BadOperand, Index};

/// Addresses below this one count as near null, where nothing is mapped: Linux's default of
/// `vm.mmap_min_addr`.
pub(crate) const NEAR_NULL: u64 = 0x1_0000;

/// Returns the operand with the address reported by the processor. `None` if there isn't exactly
/// one.
pub(crate) fn find_at_address(
    decoded: &Decoded,
    arch: Arch,
    address: Address,
    access: Option<Access>,
) -> Option<&MemoryOperand> {
    let mask = architecture::address_mask(arch);
    exactly_one(
        decoded.memory.iter().filter(|operand| operand.contains(address.0, mask) && operand.matches_access(access)),
    )
}

/// Returns the single operand with a non-canonical address: its use is a fault without an address.
pub(crate) fn find_non_canonical(decoded: &Decoded, arch: Arch) -> Option<&MemoryOperand> {
    exactly_one(decoded.memory.iter().filter(|operand| !architecture::is_canonical(arch, operand.address)))
}

/// Returns the single operand without the alignment that its instruction requires.
pub(crate) fn find_unaligned(decoded: &Decoded) -> Option<&MemoryOperand> {
    exactly_one(decoded.memory.iter().filter(|operand| {
        operand.alignment.is_some_and(|alignment| !operand.address.is_multiple_of(u64::from(alignment)))
    }))
}

fn exactly_one<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

/// Describes an operand.
///
/// `is_mapped`: whether memory is known to be mapped at an address.
pub(crate) fn describe(operand: &MemoryOperand, arch: Arch, is_mapped: impl Fn(u64) -> bool) -> BadOperand {
    let all = BadOperand {
        text: operand.text.clone(),
        displacement: (operand.displacement != 0 && (operand.base.is_some() || operand.index.is_some()))
            .then_some(operand.displacement),
        ..BadOperand::default()
    };
    let named = |(register, value, scale): (&str, u64, u32)| Index {
        register: register.to_owned(),
        value: Address(value),
        scale,
    };
    let index = operand.index.map(named);
    match find_culprit(operand, arch, is_mapped) {
        Some(Culprit::Base) => {
            let base = operand.base;
            BadOperand {
                register: base.map(|(name, _)| name.to_owned()),
                value: base.map(|(_, value)| Address(value)),
                pattern: base.and_then(|(_, value)| poison_pattern::describe(value)).map(str::to_owned),
                index,
                ..all
            }
        }
        Some(Culprit::Index) => BadOperand {
            value: index.as_ref().map(|index| index.value),
            pattern: index.as_ref().and_then(|index| poison_pattern::describe(index.value.0)).map(str::to_owned),
            register: index.map(|index| index.register),
            index: operand.base.map(|(register, value)| named((register, value, 1))),
            ..all
        },
        // If two small values are added unscaled, either may be the pointer.
        None if operand.base.is_some_and(|(_, base)| base < NEAR_NULL)
            && operand.index.is_some_and(|(_, index, scale)| index < NEAR_NULL && scale == 1) =>
        {
            all
        }
        None => BadOperand { index, ..all },
    }
}

enum Culprit {
    Base,
    Index,
}

/// Returns the register that held the bad value.
fn find_culprit(operand: &MemoryOperand, arch: Arch, is_mapped: impl Fn(u64) -> bool) -> Option<Culprit> {
    let ((_, base), (_, index, scale)) = match (operand.base, operand.index) {
        (Some(_), None) => return Some(Culprit::Base),
        (None, Some((_, _, 1))) => return Some(Culprit::Index),
        (Some(base), Some(index)) => (base, index),
        (None, _) => return None,
    };
    let is_pointer_like = |value: u64| value >= NEAR_NULL && architecture::is_canonical(arch, value);
    // One register holds a value that can't be a pointer, and the other does not.
    let is_bad = |value: u64| !architecture::is_canonical(arch, value) || poison_pattern::describe(value).is_some();
    match (is_bad(base), is_bad(index)) {
        (true, false) => return Some(Culprit::Base),
        (false, true) if is_pointer_like(base) => return Some(Culprit::Index),
        (_, true) => return None,
        (false, false) => {}
    }
    // A valid pointer with an index that leads elsewhere.
    match (is_mapped(base), is_mapped(index)) {
        (true, false) if index != 0 => return Some(Culprit::Index),
        (false, true) if base != 0 && scale == 1 => return Some(Culprit::Base),
        _ => {}
    }
    // A scaled register is the index; null is the pointer. If two are added unscaled, either may be
    // the pointer.
    (base == 0 && scale > 1 && index < NEAR_NULL).then_some(Culprit::Base)
}
