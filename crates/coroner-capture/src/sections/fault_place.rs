//! What the crashed thread ran, and what is mapped where it could not go: the code around the program counter, the mappings around the
//! fault's address.

use coroner_process::memory::Memory as _;
use coroner_report::wire::{Code, Mapping, SectionKind};

use super::SectionResult;
use crate::session::{CrashSession, memory};
use coroner_run::ReportWriter;

/// Bytes of code before the program counter, and from it on.
const EACH: usize = 256;
/// Below it nothing is mapped.
const NEAR_NULL: u64 = 0x1_0000;
/// Addresses for which good ones are looked for.
const SUSPECTS: usize = 2;
/// The smallest page: behind its end there may be nothing.
const PAGE: u64 = 4096;

/// Writes the code around the program counter or, where there is none, that of the innermost call.
pub(super) fn write_code(session: &mut CrashSession<'_>) -> SectionResult {
    let pc = session.context.registers.pc;
    let (mut before, mut after) = ([0; EACH], [0; EACH]);
    let ran = code_from(pc, &mut after);
    // After a jump to nowhere what it returns to is on top of the stack, or in the link register.
    let is_jump = session.context.is_memory_fault && session.context.address == Some(pc);
    let at = if ran.is_some() && !is_jump { Some(pc) } else { return_address(session) };
    let led_there = at.and_then(|at| code_up_to(at, &mut before));
    session.section(SectionKind::CODE, |encoder| {
        encoder.begin_array();
        for code in [led_there, ran].into_iter().flatten() {
            code.encode(encoder);
        }
        encoder.end();
    })
}

/// Writes the mapping that the fault's address lies in, or the nearest; of other crashes those at the program counter.
pub(super) fn write_mappings(session: &mut CrashSession<'_>) -> SectionResult {
    let context = session.context;
    let address = context.address.filter(|_| context.is_memory_fault).unwrap_or(context.registers.pc);
    let workspace = &mut *session.workspace;
    let Some(images) = &workspace.images else { return SectionResult::Empty };
    let mut encoder = ReportWriter::payload(&mut workspace.buffer);
    encoder.begin_array();
    let mut write = |mapping: &coroner_process::images::Mapping, name: &[u8]| {
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
    // What the bad address was, if a bit of it flipped; the processor does not say one that none can be.
    let is_open = context.is_memory_fault && address >= NEAR_NULL && images.mappings.at(address) == Ok(None);
    let said = Some(address).filter(|_| is_open);
    let unsaid = context.registers.general().iter().filter(|value| context.address.is_none() && is_no_address(**value));
    for bad in said.iter().chain(unsaid).take(SUSPECTS) {
        images.mappings.one_bit_away(*bad, &mut name, &mut write);
    }
    encoder.end();
    let length = encoder.position();
    session.seal(SectionKind::MAPPINGS, length)
}

/// Whether a value is no address of x86_64, and one bit less or more makes it one of a process.
fn is_no_address(value: u64) -> bool {
    cfg!(target_arch = "x86_64") && (value >> 47).is_power_of_two() && value << 17 >> 17 >= NEAR_NULL
}

/// The code from an address on, at most to the end of its page where no more can be read.
fn code_from(address: u64, into: &mut [u8; EACH]) -> Option<Code<'_>> {
    let in_page = PAGE.wrapping_sub(address % PAGE) as usize;
    let length = [EACH, in_page].into_iter().find(|length| is_read(address, into, *length))?;
    Some(Code { address, bytes: into.get(..length)? })
}

/// The code before an address, at most from the start of its page where no more can be read.
fn code_up_to(address: u64, into: &mut [u8; EACH]) -> Option<Code<'_>> {
    let in_page = (address % PAGE) as usize;
    let length =
        [EACH, in_page].into_iter().find(|length| is_read(address.wrapping_sub(*length as u64), into, *length))?;
    Some(Code { address: address.wrapping_sub(length as u64), bytes: into.get(..length)? })
}

fn is_read(address: u64, into: &mut [u8; EACH], length: usize) -> bool {
    length > 0 && into.get_mut(..length).is_some_and(|into| memory().read(address, into).is_ok())
}

#[cfg(target_arch = "x86_64")]
fn return_address(session: &CrashSession<'_>) -> Option<u64> {
    memory().read_u64(session.context.registers.sp()).ok()
}

#[cfg(target_arch = "aarch64")]
fn return_address(session: &CrashSession<'_>) -> Option<u64> {
    Some(session.context.registers.x[30] & !coroner_walk::authentication_mask())
}
