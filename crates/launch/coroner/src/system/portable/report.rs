//! Encodes reports that the process writes about itself in memory, and writes each as a whole.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use coroner_process::registers::Arch;
use coroner_report::wire::{
    Crash, CrashFlags, Encoder, End, Exception, FILE_PREFIX, FORMAT_VERSION, Header, Monitor, Os, SectionKind, Thread,
    ThreadFlags, WalkEnd, seal_header,
};

use super::run::{Current, random_id};
use crate::store::directory::Directory;

/// The number of a run's first non-fatal report.
pub(crate) const FIRST_NON_FATAL: u32 = 9;
/// Maximum size of a section's payload in bytes. The text of an exception's frames is at most 24
/// KiB.
const ROOM: usize = 256 << 10;
/// Maximum number of a run's fatal reports. Further ones reuse the last number.
///
/// One more number is reserved for a fault (`windows_crash`).
const MAX_REPORTS: u32 = FIRST_NON_FATAL - 2;

/// The end of the process after the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Fatal,
    /// Replaces the fatal report that this thread has already written.
    FatalAgain,
    NonFatal,
}

/// The threads to report. The calling thread is always included.
#[derive(Clone, Copy)]
pub(crate) enum Threads {
    AsInstalled,
    This,
}

/// A report that is being written.
struct Sections {
    bytes: Vec<u8>,
    /// Whether a section or one of its elements was left out.
    is_cut: bool,
}

impl Sections {
    fn add(&mut self, kind: SectionKind, write: impl FnOnce(&mut Encoder<'_>)) {
        let mut payload = vec![0; ROOM];
        let mut encoder = Encoder::new(&mut payload);
        write(&mut encoder);
        self.is_cut |= encoder.overflowed();
        let length = encoder.position();
        let payload = &payload[..length];
        match seal_header(kind, payload) {
            Some(header) => {
                self.bytes.extend_from_slice(&header);
                self.bytes.extend_from_slice(payload);
            }
            None => self.is_cut = true,
        }
    }
}

/// The subject of a report.
pub(super) struct What<'a> {
    pub(super) monitor: Monitor,
    /// The reported exception, followed by its causes.
    pub(super) exceptions: &'a [Exception<'a>],
    pub(super) ending: Ending,
    pub(super) tid: u64,
    pub(super) time_ns: u64,
}

fn encode(run: &Current, what: &What<'_>) -> Vec<u8> {
    let began = Instant::now();
    let mut sections = Sections { bytes: FILE_PREFIX.to_vec(), is_cut: false };
    let header = Header {
        format_version: FORMAT_VERSION,
        run_id: run.id,
        event_id: random_id(),
        pid: run.pid as u32,
        ppid: 0,
        arch: Arch::OF_THIS_PROCESS,
        os: Os::NATIVE,
        page_size: 0,
        pointer_auth_mask: 0,
        sdk_version: env!("CARGO_PKG_VERSION").as_bytes(),
        process_start_ns: run.process_start,
        process_name: run.process_name.as_bytes(),
    };
    sections.add(SectionKind::HEADER, |encoder| header.encode(encoder));
    let about = what.exceptions.first().copied().unwrap_or_default();
    let is_fatal = what.ending != Ending::NonFatal;
    let crash = Crash {
        time_ns: what.time_ns,
        since_install_ns: run.age().as_nanos() as u64,
        monitor: what.monitor,
        tid: what.tid,
        flags: if is_fatal { CrashFlags::default() } else { CrashFlags::NOT_FATAL },
        message: about.message,
        exception_type: about.type_name,
        location: about.location,
        ..Crash::default()
    };
    sections.add(SectionKind::CRASH, |encoder| crash.encode(encoder));
    sections.add(SectionKind::EXCEPTIONS, |encoder| {
        encoder.begin_array();
        for exception in what.exceptions {
            encoder.element(|encoder| exception.encode(encoder));
        }
        encoder.end();
    });
    let this = std::thread::current();
    // The stack is the exception's.
    let thread = Thread {
        tid: what.tid,
        name: this.name().map(str::as_bytes),
        flags: ThreadFlags::CRASHED.with(ThreadFlags::CURRENT),
        ..Thread::default()
    };
    sections.add(SectionKind::THREADS, |encoder| {
        encoder.begin_array();
        thread.encode(encoder, &[], WalkEnd::default());
        encoder.end();
    });
    let end = End {
        complete: !sections.is_cut,
        total_ns: began.elapsed().as_nanos() as u64,
        threads: 1,
        threads_captured: 1,
        ..End::default()
    };
    sections.add(SectionKind::END, |encoder| end.encode(encoder));
    sections.bytes
}

/// Writes a report into the run's directory, durably.
pub(super) fn write(run: &Current, what: &What<'_>) -> io::Result<()> {
    let next = |counter: &std::sync::atomic::AtomicU32| counter.fetch_add(1, Ordering::AcqRel).saturating_add(1);
    let number = match what.ending {
        Ending::NonFatal => FIRST_NON_FATAL - 1 + next(&run.non_fatal),
        // Replace the earlier report of the same death.
        Ending::FatalAgain => run.reports.load(Ordering::Acquire).clamp(1, MAX_REPORTS),
        Ending::Fatal => next(&run.reports).min(MAX_REPORTS),
    };
    let name = if number == 1 { "report".to_owned() } else { format!("report-{number}") };
    Directory::open(&run.directory)?.write_atomically(name.as_ref(), &encode(run, what))
}
