//! The sections of a report, one file each, in the order of worth and risk; [`crate::session`] has the table.
//!
//! A section is a function that encodes its payload into the workspace's buffer and writes it. It runs inside
//! [`guarded`]: a fault in it ends it and not the report.

mod app_memory;
mod crash;
mod crashed_thread;
mod end;
mod exceptions;
mod fault_place;
pub(crate) mod frames;
mod header;
mod images;
pub(crate) mod other_threads;
mod register_memory;
pub(crate) mod stack_memory;
pub(crate) mod symbol_names;
#[cfg(target_vendor = "apple")]
mod zombies;

use coroner_process::identity::start_and_memory;
use coroner_process::memory::Memory as _;
use coroner_process::memory_use::available;
use coroner_report::run_state::Scalar;
use coroner_report::wire::{Encoder, Phase, SectionKind};

use crate::concurrent_crashes::CONCURRENT;
use crate::installed::Installed;
use crate::monitor::exception::Ending;
use crate::os::other_threads::OtherThreads;
use crate::run::ReportWriter;
use crate::session::{CrashSession, guarded, memory};
use crate::stack_overflow;

/// What became of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectionResult {
    Written,
    /// There is nothing to say.
    Empty,
    /// The file has no room for it.
    NoRoom,
}

/// What needs neither another thread nor memory of the app: what happened, and the crashed thread's registers.
pub(crate) fn write_first(session: &mut CrashSession<'_>) {
    guarded(session, SectionKind::HEADER, None, |session| {
        session.clear_stale();
        header::write(session);
    });
    guarded(session, SectionKind::CRASH, None, |session| _ = crash::write(session));
    if session.context.hung.is_none() {
        guarded(session, SectionKind::THREADS, Some(session.context.tid as u64), |session| {
            crashed_thread::write_registers(session);
        });
    }
    write_fault(session);
    session.phases.end(Phase::ENTRY);
}

/// Writes a section, and down what faulted in it.
fn section<R>(
    session: &mut CrashSession<'_>,
    kind: SectionKind,
    tid: Option<u64>,
    write: impl Fn(&mut CrashSession<'_>) -> R,
) {
    guarded(session, kind, tid, |session| _ = write(session));
    write_fault(session);
}

/// All else.
pub(crate) fn write_rest(session: &mut CrashSession<'_>) {
    let (hangs, tid) = (session.context.hung.is_some(), Some(session.context.tid as u64));
    section(session, SectionKind::EXCEPTIONS, None, exceptions::write);
    if session.wants_all_threads() || hangs {
        session.threads = OtherThreads::begin(session.installed, session.context);
    }
    guarded(session, SectionKind::IMAGES, None, images::list);
    guarded(session, SectionKind::CRASH, None, classify);
    if hangs {
        // It is one of the others, and must stand still before it is walked.
        if let Some(threads) = &mut session.threads {
            threads.stop(session.installed);
            session.phases.end(Phase::STOP_THREADS);
            other_threads::write_hung(session);
        }
    } else {
        section(session, SectionKind::THREADS, tid, crashed_thread::write);
        if session.is_overflow {
            guarded(session, SectionKind::CRASH, None, confirm_overflow);
        }
        section(session, SectionKind::CODE, None, fault_place::write_code);
        section(session, SectionKind::MAPPINGS, None, fault_place::write_mappings);
        #[cfg(target_vendor = "apple")]
        section(session, SectionKind::ZOMBIES, None, zombies::write);
    }
    write_fault(session);
    session.phases.end(Phase::CRASHED_THREAD);
    section(session, SectionKind::IMAGES, None, images::write);
    section(session, SectionKind::ANNOTATIONS, None, images::write_annotations);
    session.phases.end(Phase::IMAGES);
    if let Some(threads) = &mut session.threads {
        if !hangs {
            threads.stop(session.installed);
            session.phases.end(Phase::STOP_THREADS);
        }
        if session.wants_all_threads() {
            other_threads::write(session);
            session.phases.end(Phase::OTHER_THREADS);
        }
    }
    CONCURRENT.close();
    if CONCURRENT.count(session.context.tid as u64) > session.concurrent_written
        || session.is_overflow
        || session.is_bad_stack_pointer
    {
        // Once more, with what was not known at first: the last one counts.
        section(session, SectionKind::CRASH, None, crash::write);
    }
    section(session, SectionKind::STACK_MEMORY, tid, stack_memory::write);
    stack_memory::write_others(session);
    session.phases.end(Phase::STACK_MEMORY);
    symbol_names::write_all(session);
    session.phases.end(Phase::SYMBOL_NAMES);
    app_memory::write_all(session);
    section(session, SectionKind::STACK_MEMORY, tid, register_memory::write);
    // Before the end, which says how long all of it took.
    if session.context.pid == session.installed.run.pid {
        guarded(session, SectionKind::RUN_STATE, None, |session| note_memory(session.installed));
    }
    section(session, SectionKind::END, None, end::write);
}

/// How much memory the process had, and could still have had; and when it started.
fn note_memory(installed: &Installed) {
    let (start, used) = start_and_memory(installed.run.page_size);
    let values =
        [(Scalar::MEMORY_USED, used), (Scalar::MEMORY_AVAILABLE, available()), (Scalar::PROCESS_STARTED, start)];
    for (scalar, value) in values {
        installed.run.state.set_scalar(scalar, value.unwrap_or(0));
    }
}

/// What the mappings and the stack say of the crash. Reads memory of the app.
fn classify(session: &mut CrashSession<'_>) {
    if session.context.hung.is_some() {
        return;
    }
    if let Some(images) = &session.workspace.images {
        session.is_overflow = stack_overflow::is_overflow(session.context, &images.mappings);
    }
    session.is_bad_stack_pointer = memory().read_u64(session.context.registers.sp()).is_err();
}

/// A stack that is full has its caller's frame; of one that was unmapped nothing can be read.
fn confirm_overflow(session: &mut CrashSession<'_>) {
    let ring = &session.workspace.ring;
    let own = match ring.first_cfa {
        0 => session.context.registers.sp(),
        // Below it x86_64 has the return address.
        cfa if cfg!(target_arch = "x86_64") => cfa.wrapping_sub(8),
        // arm64 may have no memory there: a call stores nothing, and what the caller has at the end of its frame it may not have used yet.
        // Its own caller, the third frame, is found in memory.
        _ if ring.walked > 2 => return,
        cfa => cfa,
    };
    session.is_overflow = memory().read_u64(own).is_ok();
}

/// Writes down a fault of the crash path, if there was one.
pub(crate) fn write_fault(session: &mut CrashSession<'_>) {
    let Some(fault) = session.workspace.fault.take() else { return };
    guarded(session, SectionKind::FAULT, None, |session| {
        session.section(SectionKind::FAULT, |encoder| fault.encode(encoder));
    });
}

impl CrashSession<'_> {
    /// Encodes a section's payload and writes it.
    fn section(&mut self, kind: SectionKind, encode: impl FnOnce(&mut Encoder<'_>)) -> SectionResult {
        let mut encoder = ReportWriter::payload(&mut self.workspace.buffer);
        encode(&mut encoder);
        let length = encoder.position();
        self.seal(kind, length)
    }

    /// Seals and writes the payload of `length` bytes that was just encoded into the workspace's buffer.
    pub(crate) fn seal(&mut self, kind: SectionKind, length: usize) -> SectionResult {
        if self.report.section(&mut self.workspace.buffer, kind, length) {
            SectionResult::Written
        } else {
            SectionResult::NoRoom
        }
    }

    /// Whether the process goes on after the report.
    pub(crate) fn is_non_fatal(&self) -> bool {
        self.context.ending() == Ending::NonFatal
    }

    /// Whether that thread is the one that hangs.
    pub(crate) fn is_hung(&self, tid: u64) -> bool {
        self.context.hung.is_some() && self.context.tid as u64 == tid
    }
}
