//! Code and mappings sections: the code around the crashed thread's program counter, and the
//! mappings around the fault address.

use coroner_report::wire::{Mapping, SectionKind};

use super::SectionResult;
use crate::crash_context::CrashContext;
use crate::run::{CODE_PIECE, ReportWriter, encode_code, encode_code_around};
use crate::session::{CrashSession, memory};
use crate::workspace::Workspace;

/// Number of return addresses whose code is written.
const CALLERS: usize = 4;
/// Nothing is mapped below this address.
const NEAR_NULL: u64 = 0x1_0000;
/// Maximum number of bad addresses for which similar valid ones are searched.
const SUSPECTS: usize = 2;

/// Writes the code around the program counter, or what is there if it isn't code, and around the
/// innermost return addresses.
pub(crate) fn write_code(session: &mut CrashSession<'_>) -> SectionResult {
    let (context, pc) = (session.context, session.context.registers.pc);
    // After a jump to a bad address, the return address is on top of the stack, or in the link
    // register.
    let is_jump = context.is_memory_fault && context.address == Some(pc);
    let Workspace { buffer, names, .. } = &mut *session.workspace;
    let addresses = names.as_deref().map(|names| &names.addresses);
    let mut encoder = ReportWriter::payload(buffer);
    encoder.begin_array();
    let mut last = pc;
    if is_jump || !encode_code_around(&mut encoder, memory(), pc) {
        _ = is_jump && encode_code(&mut encoder, memory(), pc, CODE_PIECE);
        // Only here: a stack that does not answer costs each reader of it a part of the time after
        // the deadline.
        last = return_address(context).unwrap_or(pc);
        encode_code_around(&mut encoder, memory(), last);
    }
    for number in 0..CALLERS {
        let caller = addresses.and_then(|addresses| addresses.return_address(number));
        if let Some(caller) = caller.filter(|caller| caller.abs_diff(last) >= CODE_PIECE as u64) {
            encode_code_around(&mut encoder, memory(), caller);
            last = caller;
        }
    }
    encoder.end();
    let length = encoder.position();
    session.seal(SectionKind::CODE, length)
}

/// Writes the mapping that contains the fault address, or the nearest ones; for other crashes those
/// at the program counter. For a stack pointer without readable memory, also writes the mapping
/// that contains the stack.
pub(crate) fn write_mappings(session: &mut CrashSession<'_>) -> SectionResult {
    let context = session.context;
    let address = context.address.filter(|_| context.is_memory_fault).unwrap_or(context.registers.pc);
    let workspace = &mut *session.workspace;
    let Some(images) = &workspace.images else { return SectionResult::Empty };
    let mut encoder = ReportWriter::payload(&mut workspace.buffer);
    encoder.begin_array();
    let mut last = None;
    let mut write = |mapping: &coroner_process::images::Mapping, name: &[u8]| {
        if last.replace(mapping.start) == Some(mapping.start) {
            return;
        }
        let allowed = mapping.permissions;
        let bits = [(allowed.execute, 1), (allowed.write, 2), (allowed.read, 4), (allowed.shared, 8)];
        Mapping {
            start: mapping.start,
            size: mapping.end.saturating_sub(mapping.start),
            protection: bits.into_iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit),
            name,
            file_offset: mapping.file_offset,
        }
        .encode(&mut encoder);
    };
    let mut name = [0; 512];
    images.mappings.around(address, &mut name, &mut write);
    // A frame that is larger than the rest of its stack may extend across other mappings.
    if session.is_bad_stack_pointer && workspace.ring.first_cfa != 0 {
        images.mappings.around(workspace.ring.first_cfa.wrapping_sub(8), &mut name, &mut write);
    }
    // The original address, if one bit of it flipped; the processor doesn't report a non-canonical
    // address.
    let is_open = context.is_memory_fault && address >= NEAR_NULL && images.mappings.at(address) == Ok(None);
    let said = is_open.then_some(address);
    let unsaid = context
        .registers
        .general()
        .iter()
        .filter(|value| context.address.is_none() && is_one_bit_from_address(**value));
    for bad in said.iter().chain(unsaid).take(SUSPECTS) {
        images.mappings.one_bit_away(*bad, &mut name, &mut write);
    }
    encoder.end();
    let length = encoder.position();
    session.seal(SectionKind::MAPPINGS, length)
}

/// Whether a value is a non-canonical address on x86_64, and flipping one bit makes it an address
/// of a process.
fn is_one_bit_from_address(value: u64) -> bool {
    cfg!(target_arch = "x86_64") && (value >> 47).is_power_of_two() && value << 17 >> 17 >= NEAR_NULL
}

#[cfg(target_arch = "x86_64")]
fn return_address(context: &CrashContext) -> Option<u64> {
    use coroner_process::memory::Memory as _;
    memory().read_u64(context.registers.sp()).ok()
}

#[cfg(target_arch = "aarch64")]
fn return_address(context: &CrashContext) -> Option<u64> {
    Some(context.registers.x[30] & !coroner_walk::authentication_mask())
}
