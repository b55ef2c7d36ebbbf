//! The crashed thread's stack from its stack pointer upwards.

use coroner_process::memory::Memory as _;
use coroner_report::wire::{Encoder, SectionKind, StackMemory};

use super::SectionResult;
use crate::recrash::RECRASH;
use crate::report_file::ReportWriter;
use crate::session::{CrashSession, memory};

/// The most stack memory that is kept.
const STACK_MEMORY: usize = 32 << 10;

/// Bytes that are read at once: the stack may end behind any of them.
const STEP: usize = 256;

/// How far above a stack pointer that can't be read the first readable page is looked for: beyond a guard page and the frame that
/// did not fit.
const SEARCHED: u64 = 64;
const PAGE: u64 = 4096;

pub(super) fn write(session: &mut CrashSession<'_>) -> SectionResult {
    let wanted = session.installed.options.stack_memory as usize;
    if wanted == 0 || RECRASH.is_expired() || session.context.hung.is_some() {
        return SectionResult::Empty;
    }
    let Some(address) = first_readable(session.context.registers.sp() & !15) else { return SectionResult::Empty };
    // The bytes wait at the end of the buffer, and are encoded in front of them.
    let payload = ReportWriter::payload_bytes(&mut session.workspace.buffer);
    let Some((front, into)) = payload.split_at_mut_checked(payload.len().saturating_sub(STACK_MEMORY)) else {
        return SectionResult::Empty;
    };
    let into = into.get_mut(..wanted.min(into.len())).unwrap_or_default();
    let mut filled = 0;
    for step in into.chunks_mut(STEP) {
        if memory().read(address.wrapping_add(filled as u64), step).is_err() {
            break;
        }
        filled += step.len();
    }
    if filled == 0 {
        return SectionResult::Empty;
    }
    let bytes = into.get(..filled).unwrap_or_default();
    let mut encoder = Encoder::new(front);
    encoder.begin_array();
    StackMemory { tid: session.context.tid as u64, address, bytes }.encode(&mut encoder);
    encoder.end();
    let length = encoder.position();
    session.seal(SectionKind::STACK_MEMORY, length)
}

/// The stack pointer, or the start of the first page above it that can be read: a stack that overflowed, or whose pointer is
/// broken, begins there. `None` if there is none near.
fn first_readable(sp: u64) -> Option<u64> {
    let page = sp & !(PAGE - 1);
    let above = (1..=SEARCHED).map(|number| page.saturating_add(number * PAGE));
    core::iter::once(sp).chain(above).find(|address| memory().read_u64(*address).is_ok())
}
