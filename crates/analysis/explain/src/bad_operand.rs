//! Which operand of an instruction was the bad one, and by which register.

use coroner_process::registers::Arch;
use coroner_report::model::Address;
use coroner_report::wire::Access;

use crate::instruction::{Decoded, MemoryOperand};
use crate::{architecture, poison_pattern};
use coroner_report::model::{BadOperand, Index};

/// Addresses near 0 at which nothing is mapped: Linux's default of `vm.mmap_min_addr`.
pub(crate) const NEAR_NULL: u64 = 0x1_0000;

/// The operand whose address the processor said. `None` if there is none, or if it may be one of several.
pub(crate) fn at(decoded: &Decoded, arch: Arch, address: Address, access: Option<Access>) -> Option<&MemoryOperand> {
    let mask = architecture::address_mask(arch);
    only(decoded.memory.iter().filter(|operand| operand.has(address.0, mask) && operand.can_be(access)))
}

/// The one operand whose address no process can have: its use is a fault without an address.
pub(crate) fn non_canonical(decoded: &Decoded, arch: Arch) -> Option<&MemoryOperand> {
    only(decoded.memory.iter().filter(|operand| !architecture::is_canonical(arch, operand.address)))
}

/// The one operand that is not aligned as its instruction needs it.
pub(crate) fn unaligned(decoded: &Decoded) -> Option<&MemoryOperand> {
    only(decoded.memory.iter().filter(|operand| {
        operand.alignment.is_some_and(|alignment| !operand.address.is_multiple_of(u64::from(alignment)))
    }))
}

fn only<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

/// What is said of an operand.
pub(crate) fn describe(operand: &MemoryOperand, arch: Arch) -> BadOperand {
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
    match culprit(operand, arch) {
        Some(Culprit::Base) => {
            let base = operand.base;
            BadOperand {
                register: base.map(|(name, _)| name.to_owned()),
                value: base.map(|(_, value)| Address(value)),
                pattern: base.and_then(|(_, value)| poison_pattern::of(value)).map(str::to_owned),
                index,
                ..all
            }
        }
        Some(Culprit::Index) => BadOperand {
            value: index.as_ref().map(|index| index.value),
            pattern: index.as_ref().and_then(|index| poison_pattern::of(index.value.0)).map(str::to_owned),
            register: index.map(|index| index.register),
            index: operand.base.map(|(register, value)| named((register, value, 1))),
            ..all
        },
        // Of two small values that are added as they are, either may be the pointer.
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

/// Which register held the bad value.
fn culprit(operand: &MemoryOperand, arch: Arch) -> Option<Culprit> {
    let ((_, base), (_, index, scale)) = match (operand.base, operand.index) {
        (Some(_), None) => return Some(Culprit::Base),
        (None, Some((_, _, 1))) => return Some(Culprit::Index),
        (Some(base), Some(index)) => (base, index),
        (None, _) => return None,
    };
    let is_pointer_like = |value: u64| value >= NEAR_NULL && architecture::is_canonical(arch, value);
    // A register that holds what no pointer is made of, beside one that does not.
    let is_bad = |value: u64| !architecture::is_canonical(arch, value) || poison_pattern::of(value).is_some();
    match (is_bad(base), is_bad(index)) {
        (true, false) => return Some(Culprit::Base),
        (false, true) if is_pointer_like(base) => return Some(Culprit::Index),
        (_, true) => return None,
        (false, false) => {}
    }
    // What is scaled is the index, null is the pointer. Of two that are added as they are, either may be the pointer.
    (base == 0 && scale > 1 && index < NEAR_NULL).then_some(Culprit::Base)
}
