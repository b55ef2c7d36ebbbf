//! Thread sections of the other threads, in batches; for a hang, the hung thread comes first.

use coroner_report::wire::{Encoder, NotCaptured, SectionKind, ThreadFlags, WalkEnd};

use super::frames::{CRASHED, OTHER, Walk};
use super::write_fault;
use crate::concurrent_crashes::CONCURRENT;
use crate::os::other_threads::{self, OtherThread, OtherThreads};
use crate::recrash::RECRASH;
use crate::run::{ROOM, ReportWriter};
use crate::session::{CrashSession, guarded, memory};
use crate::workspace::Workspace;

/// Writes the hung thread, which is stopped like the others.
pub(crate) fn write_hung(session: &mut CrashSession<'_>) {
    session.counts.captured = 0;
    let Some(threads) = session.threads.take() else { return };
    if let Some(thread) = threads.threads().find(|thread| session.is_hung(thread.tid())) {
        let mut length = begin_batch(session.workspace);
        if add(session, &thread, &mut length) {
            session.counts.captured = u64::from(thread.is_captured());
            write_batch(session, length, Some(thread.tid()));
        } else {
            session.counts.dropped_threads = session.counts.dropped_threads.saturating_add(1);
        }
    }
    session.threads = Some(threads);
}

/// Writes all other threads.
pub(crate) fn write(session: &mut CrashSession<'_>) {
    let Some(threads) = session.threads.take() else { return };
    write_each(session, &threads);
    let overflow = threads.overflow() as u64;
    session.counts.dropped_threads = session.counts.dropped_threads.saturating_add(overflow);
    session.counts.threads = session.counts.threads.saturating_add(overflow);
    if !threads.are_listed() {
        note_unlisted(session);
    }
    session.threads = Some(threads);
}

/// Notes the threads that are missing because the system refused a list of them. Without `/proc`,
/// their number is missing, too: then those count that were announced.
pub(crate) fn note_unlisted(session: &mut CrashSession<'_>) {
    let Some(all) = other_threads::count(&session.held.resources) else { return };
    let counts = &mut session.counts;
    let missing = all.saturating_sub(counts.threads);
    counts.threads = counts.threads.saturating_add(missing);
    counts.dropped_threads = counts.dropped_threads.saturating_add(missing);
}

/// Not inlined, so that `xtask signal-safety` can identify its loop by name.
#[inline(never)]
fn write_each(session: &mut CrashSession<'_>, threads: &OtherThreads<'_>) {
    let hung = session.context.hung.map(|_| session.context.tid as u64);
    let mut threads = threads.threads().filter(|thread| Some(thread.tid()) != hung);
    let mut pending = threads.next();
    while pending.is_some() {
        let mut length = begin_batch(session.workspace);
        let empty = length;
        while let Some(thread) = &pending {
            let fits = add(session, thread, &mut length);
            if !fits && length > empty {
                break;
            }
            let counts = &mut session.counts;
            counts.threads = counts.threads.saturating_add(1);
            if !fits {
                counts.dropped_threads = counts.dropped_threads.saturating_add(1);
            } else if thread.is_captured() {
                counts.captured = counts.captured.saturating_add(1);
            }
            pending = threads.next();
        }
        write_batch(session, length, None);
        write_fault(session);
    }
}

/// Starts an array of threads; returns its length in bytes.
fn begin_batch(workspace: &mut Workspace) -> usize {
    let mut encoder = ReportWriter::payload(&mut workspace.buffer);
    // The array stays open across the threads' own encoders: its first byte now, its last in
    // `write_batch`.
    encoder.raw(&[0x9f]);
    encoder.position()
}

/// Ends the array after `length` bytes and writes it.
fn write_batch(session: &mut CrashSession<'_>, length: usize, tid: Option<u64>) {
    guarded(session, SectionKind::THREADS, tid, |session| {
        if let Some(byte) = ReportWriter::payload_bytes(&mut session.workspace.buffer).get_mut(length) {
            *byte = 0xff;
        }
        session.seal(SectionKind::THREADS, length.saturating_add(1));
    });
}

/// Adds one thread to the batch that is `length` bytes long so far. Returns `false` if it does not
/// fit.
fn add(session: &mut CrashSession<'_>, thread: &OtherThread<'_>, length: &mut usize) -> bool {
    let tid = thread.tid();
    let start = *length;
    let mut encoded = None;
    let given_up = RECRASH.is_expired().then_some(NotCaptured::DEADLINE);
    let whole = guarded(session, SectionKind::THREADS, Some(tid), |session| {
        encoded = Some(encode(session, thread, start, given_up));
    });
    if !whole {
        // The walk faulted: the thread is included without frames. The fault is written after the
        // batch, whose buffer is in use.
        encoded = Some(encode(session, thread, start, Some(NotCaptured::FAULT)));
    }
    match encoded {
        Some(Some(end)) => {
            *length = end;
            true
        }
        _ => false,
    }
}

/// Encodes one thread at `start` in the payload; returns its end, or `None` if it does not fit.
fn encode(
    session: &mut CrashSession<'_>,
    thread: &OtherThread<'_>,
    start: usize,
    given_up: Option<NotCaptured>,
) -> Option<usize> {
    let described = thread.describe(session.installed, session.context, given_up, &mut memory());
    let is_hung = session.is_hung(thread.tid());
    let mut wire = described.wire(thread.tid());
    if is_hung || CONCURRENT.has(thread.tid()) {
        wire.flags = wire.flags.with(ThreadFlags::CRASHED);
    }
    let (walk, buffer) = Walk::of(session.workspace)?;
    // The last byte of the payload closes the batch.
    let bytes = ReportWriter::payload_bytes(buffer).get_mut(start..).unwrap_or_default();
    let room = bytes.len().saturating_sub(1);
    if room < ROOM && start > 1 {
        return None;
    }
    let mut encoder = Encoder::new(bytes.get_mut(..room).unwrap_or_default());
    let fits = match &described.registers {
        Some(registers) => {
            let depth = if is_hung { CRASHED } else { OTHER };
            walk.encode(&mut encoder, &wire, registers, memory(), depth, described.swift_async)
        }
        None => wire.encode(&mut encoder, &[], WalkEnd::default()),
    };
    fits.then(|| start.saturating_add(encoder.position()))
}
