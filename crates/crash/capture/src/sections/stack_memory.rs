//! Stack memory sections, each from a little below its stack pointer upwards: the crashed thread's,
//! and the others' if the app requests them.

use core::ops::Range;

use coroner_process::{memory::Memory as _, memory::first_readable, shadow_stack};
use coroner_report::wire::{Encoder, SectionKind, StackMemory};

use super::{SectionResult, section};
use crate::limits::{CRASHED_STACK, OTHER_STACKS};
use crate::os::other_threads::OtherThreads;
use crate::recrash::RECRASH;
use crate::run::ReportWriter;
use crate::session::{CrashSession, memory};

/// Maximum stack memory in one section, in bytes; a stack of which more is kept has several
/// consecutive ones.
const PIECE: usize = 32 << 10;

/// Maximum number of bytes kept of each other thread's stack.
const OTHER_STACK: usize = 16 << 10;

/// Bytes that are read at once: the stack may end after any of them.
const STEP: usize = 256;

/// Number of bytes below the stack pointer that are also kept: a leaf's variables (the red zone:
/// System V ABI of x86_64, 3.2.2), values that a return popped.
const RED_ZONE: u64 = 128;

/// Number of bytes kept of a shadow stack: 256 return addresses, from the step that contains its
/// pointer.
const SHADOW_STACK: usize = 8 * 256 + STEP;

/// Writes the crashed thread's stack memory.
pub(crate) fn write(session: &mut CrashSession<'_>) {
    let options = &session.installed.options;
    let wanted = if options.stack_memory_all { CRASHED_STACK } else { (options.stack_memory as usize).min(PIECE) };
    let (tid, context) = (session.context.tid as u64, session.context);
    if context.hung.is_none() {
        session.stack_kept = write_stack(session, tid, context.registers.sp(), wanted);
    }
    if let Some(pointer) = shadow_stack::at_signal(context.shadow_stack, &mut memory()) {
        write_piece(session, tid, pointer & !(STEP as u64 - 1), SHADOW_STACK);
    }
}

/// Writes the stack memory of the other threads, which are still stopped.
pub(crate) fn write_others(session: &mut CrashSession<'_>) {
    if !session.installed.options.stack_memory_all || !session.wants_all_threads() {
        return;
    }
    let Some(threads) = session.threads.take() else { return };
    write_each(session, &threads);
    session.threads = Some(threads);
}

/// Not inlined, so that `xtask signal-safety` can identify its loop by name.
#[inline(never)]
fn write_each(session: &mut CrashSession<'_>, threads: &OtherThreads<'_>) {
    let captured = threads.threads().filter(crate::os::other_threads::OtherThread::is_captured).count().max(1);
    let each = OTHER_STACKS.checked_div(captured).unwrap_or_default().min(OTHER_STACK) & !(STEP - 1);
    for thread in threads.threads() {
        if RECRASH.is_expired() {
            return;
        }
        let Some(sp) = thread.stack_pointer(session.installed) else { continue };
        let tid = thread.tid();
        let wanted = if session.is_hung(tid) { CRASHED_STACK } else { each };
        section(session, SectionKind::STACK_MEMORY, Some(tid), |session| write_stack(session, tid, sp, wanted));
    }
}

/// Writes a stack from below its stack pointer on, as far as it can be read, in pieces. Returns the
/// range that was written.
fn write_stack(session: &mut CrashSession<'_>, tid: u64, sp: u64, wanted: usize) -> Range<u64> {
    if wanted == 0 || RECRASH.is_expired() {
        return 0..0;
    }
    let below = ((wanted as u64 / 4) & !15).min(RED_ZONE);
    let Some(start) = first_readable(&mut memory(), sp & !15, below) else { return 0..0 };
    let mut written = 0;
    while written < wanted {
        let piece = (wanted - written).min(PIECE);
        let filled = write_piece(session, tid, start.wrapping_add(written as u64), piece);
        written += filled;
        if filled < piece {
            break;
        }
    }
    start..start.wrapping_add(written as u64)
}

/// Writes `wanted` bytes of a stack, or as many as can be read; returns their number, 0 if the
/// report has no room.
fn write_piece(session: &mut CrashSession<'_>, tid: u64, address: u64, wanted: usize) -> usize {
    // The bytes are read to the end of the buffer, and encoded in front of it.
    let payload = ReportWriter::payload_bytes(&mut session.workspace.buffer);
    let Some((front, into)) = payload.split_at_mut_checked(payload.len().saturating_sub(PIECE)) else { return 0 };
    let into = into.get_mut(..wanted.min(PIECE)).unwrap_or_default();
    let mut filled = 0;
    for step in into.chunks_mut(STEP) {
        if memory().read(address.wrapping_add(filled as u64), step).is_err() {
            break;
        }
        filled += step.len();
    }
    if filled == 0 {
        return 0;
    }
    let bytes = into.get(..filled).unwrap_or_default();
    let mut encoder = Encoder::new(front);
    encoder.begin_array();
    StackMemory { tid, address, bytes }.encode(&mut encoder);
    encoder.end();
    let length = encoder.position();
    if session.seal(SectionKind::STACK_MEMORY, length) == SectionResult::Written { filled } else { 0 }
}
