//! Sections of a report, one file each; [`crate::report_steps`] defines their order.
//!
//! A section is a function that encodes its payload into the workspace's buffer and writes it. It
//! runs inside [`guarded`]: a fault in a section ends that section, not the report.

pub(crate) mod app_memory;
pub(crate) mod crash;
pub(crate) mod crashed_thread;
pub(crate) mod end;
pub(crate) mod exceptions;
pub(crate) mod fault_surroundings;
mod frames;
pub(crate) mod header;
pub(crate) mod images;
pub(crate) mod other_threads;
pub(crate) mod register_memory;
pub(crate) mod stack_memory;
pub(crate) mod symbol_names;
#[cfg(target_vendor = "apple")]
pub(crate) mod zombies;

use coroner_report::wire::{Encoder, SectionKind};

use crate::crash_context::Ending;
use crate::run::ReportWriter;
use crate::session::{CrashSession, guarded};

/// Result of writing a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectionResult {
    Written,
    /// The section is empty.
    Empty,
    /// The file has no room for the section.
    NoRoom,
}

/// Writes a section, and records a fault in it.
pub(crate) fn section<R>(
    session: &mut CrashSession<'_>,
    kind: SectionKind,
    tid: Option<u64>,
    write: impl Fn(&mut CrashSession<'_>) -> R,
) {
    guarded(session, kind, tid, |session| _ = write(session));
    write_fault(session);
}

/// Writes the fault section if the crash path faulted.
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

    /// Seals and writes the payload of `length` bytes that was just encoded into the workspace's
    /// buffer.
    pub(crate) fn seal(&mut self, kind: SectionKind, length: usize) -> SectionResult {
        if self.report.section(&mut self.workspace.buffer, kind, length) {
            SectionResult::Written
        } else {
            SectionResult::NoRoom
        }
    }

    /// Returns `true` if the process continues after the report.
    pub(crate) fn is_non_fatal(&self) -> bool {
        self.context.ending() == Ending::NonFatal
    }

    /// Returns `true` if the thread is the hung one.
    pub(crate) fn is_hung(&self, tid: u64) -> bool {
        self.context.hung.is_some() && self.context.tid as u64 == tid
    }
}
