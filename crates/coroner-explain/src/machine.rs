//! What differs between the architectures.

use coroner_process::registers::Arch;
use coroner_report::model::Address;

use crate::code_source::{Code, CodeSource};
use crate::decoded::{Decoded, State};
use crate::{aarch64, x86_64};

/// Bytes before a return address that its call may have.
const CALL: usize = 8;

/// The instruction at `address`, and whether its bytes are known to be those that ran.
pub(crate) fn decode(
    arch: Arch,
    address: Address,
    code: &dyn CodeSource,
    state: &State<'_>,
) -> Option<(Decoded, Code)> {
    let code = code.code(address, x86_64::MAX_LENGTH)?;
    let decoded = match arch {
        Arch::X86_64 => x86_64::decode(&code.bytes, address.0, state)?,
        Arch::Aarch64 => aarch64::decode(&code.bytes, state)?,
    };
    Some((decoded, code))
}

/// The calls that may return to `address`, with where they are.
pub(crate) fn calls_before(
    arch: Arch,
    address: Address,
    code: &dyn CodeSource,
    state: &State<'_>,
) -> Vec<(Address, Decoded)> {
    let known = (2..=CALL).rev().find_map(|length| {
        let start = address.0.checked_sub(length as u64)?;
        code.code(Address(start), length).filter(|code| code.bytes.len() == length)
    });
    let Some(known) = known else { return Vec::new() };
    let calls = match arch {
        Arch::X86_64 => x86_64::calls_before(&known.bytes, address.0, state),
        Arch::Aarch64 => aarch64::calls_before(&known.bytes, state),
    };
    let at = |call: &Decoded| Address(address.0.wrapping_sub(call.length as u64));
    calls.into_iter().map(|call| (at(&call), call)).collect()
}

/// Whether a process can have the address.
pub(crate) fn is_canonical(arch: Arch, address: u64) -> bool {
    match arch {
        Arch::X86_64 => x86_64::is_canonical(address),
        Arch::Aarch64 => aarch64::is_canonical(address),
    }
}

/// The bits of a pointer that address memory.
pub(crate) fn address_mask(arch: Arch) -> u64 {
    match arch {
        Arch::X86_64 => u64::MAX,
        Arch::Aarch64 => aarch64::ADDRESS,
    }
}
