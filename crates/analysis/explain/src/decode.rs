//! Decodes instructions of both architectures, and finds the calls before a return address.

use coroner_process::registers::Arch;
use coroner_report::model::Address;

use crate::code_source::{Code, CodeSource};
use crate::instruction::{Decoded, State};
use crate::step::Step;
#[cfg(feature = "decode")]
use crate::{aarch64, aarch64_step, step::Flow, x86_64, x86_64_step};

/// Length of the longest instruction, in bytes.
const MAX_INSTRUCTION: usize = 15;
/// Maximum length of a call before a return address, in bytes.
const CALL: usize = 8;

/// Decodes the instruction at `address`; also returns whether its bytes are known to be those that
/// ran. `None` without the feature `decode`.
pub(crate) fn decode(
    arch: Arch,
    address: Address,
    code: &dyn CodeSource,
    state: &State<'_>,
) -> Option<(Decoded, Code)> {
    if cfg!(not(feature = "decode")) {
        return None;
    }
    let code = code.code(address, MAX_INSTRUCTION)?;
    let decoded = decoded(arch, &code.bytes, address, state)?;
    Some((decoded, code))
}

#[cfg(feature = "decode")]
fn decoded(arch: Arch, bytes: &[u8], address: Address, state: &State<'_>) -> Option<Decoded> {
    match arch {
        Arch::X86_64 => x86_64::decode(bytes, address.0, state),
        Arch::Aarch64 => aarch64::decode(bytes, state),
    }
}

#[cfg(not(feature = "decode"))]
fn decoded(_: Arch, _: &[u8], _: Address, _: &State<'_>) -> Option<Decoded> {
    None
}

#[cfg(feature = "decode")]
fn calls(arch: Arch, bytes: &[u8], address: Address, state: &State<'_>) -> Vec<Decoded> {
    match arch {
        Arch::X86_64 => x86_64::calls_before(bytes, address.0, state),
        Arch::Aarch64 => aarch64::calls_before(bytes, state),
    }
}

#[cfg(not(feature = "decode"))]
fn calls(_: Arch, _: &[u8], _: Address, _: &State<'_>) -> Vec<Decoded> {
    Vec::new()
}

/// Returns the processor feature that the instruction requires, unless every processor has it.
/// `None` for arm64.
#[cfg(feature = "decode")]
pub(crate) fn needed_feature(arch: Arch, bytes: &[u8]) -> Option<String> {
    if arch == Arch::X86_64 { x86_64::needed_feature(bytes) } else { None }
}

#[cfg(not(feature = "decode"))]
pub(crate) fn needed_feature(_: Arch, _: &[u8]) -> Option<String> {
    None
}

/// Decodes a function's instructions. `None` if one of them is invalid, or without the feature
/// `decode`.
#[cfg(feature = "decode")]
pub(crate) fn steps(arch: Arch, code: &[u8], start: u64) -> Option<Vec<Step>> {
    match arch {
        Arch::X86_64 => x86_64_step::steps(code, start),
        Arch::Aarch64 => aarch64_step::steps(code, start),
    }
}

#[cfg(not(feature = "decode"))]
pub(crate) fn steps(_: Arch, _: &[u8], _: u64) -> Option<Vec<Step>> {
    None
}

/// Whether the code at an address jumps to a function in another image.
///
/// A procedure linkage table does. `length` bytes are searched.
#[cfg(feature = "decode")]
pub(crate) fn is_linkage(arch: Arch, address: u64, source: &dyn CodeSource, length: usize) -> bool {
    let Some(code) = source.code(Address(address), length) else { return false };
    let first = match arch {
        Arch::X86_64 => x86_64_step::leading(&code.bytes, address, 3),
        Arch::Aarch64 => aarch64_step::steps(code.bytes.get(..16).unwrap_or_default(), address).unwrap_or_default(),
    };
    let last = first.iter().find(|step| step.flow != Flow::Next).map(|step| step.flow);
    match arch {
        Arch::X86_64 => last == Some(Flow::Elsewhere),
        // `br x17`, which is not used for the jump table of a `switch`: registers 16 and 17 are
        // reserved for the linker.
        Arch::Aarch64 => {
            let word = |step: &Step| {
                let at = usize::try_from(step.address.wrapping_sub(address)).ok()?;
                Some(u32::from_le_bytes(*code.bytes.get(at..)?.first_chunk()?))
            };
            first.iter().find(|step| step.flow != Flow::Next).and_then(word) == Some(0xd61f_0220)
        }
    }
}

#[cfg(not(feature = "decode"))]
pub(crate) fn is_linkage(_: Arch, _: u64, _: &dyn CodeSource, _: usize) -> bool {
    false
}

/// Returns the calls that may return to `address`, with their addresses.
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
    let calls = calls(arch, &known.bytes, address, state);
    let at = |call: &Decoded| Address(address.0.wrapping_sub(call.length as u64));
    calls.into_iter().map(|call| (at(&call), call)).collect()
}
