//! Combines a report with its run's state, which supplies what the report file lacks.

use super::{Address, Crash, CrashFlag, CrashRecord, Frame, Header, Mach, Report, RunFacts, Signal, Thread};
use crate::run_state::ExitKind;
use crate::wire::{
    self, AddressKind, CaptureMethod, Encoder, FILE_PREFIX, FORMAT_VERSION, FoundBy, Monitor, Os, SectionKind,
    seal_header,
};
use coroner_process::registers::Arch;

/// Bytes reserved for a header section, whose longest texts are names and versions.
const HEADER_ROOM: usize = 4096;
/// Maximum length of the process name and the version in a report made from a run state, in bytes.
const MAX_NAME: usize = 256;

impl Report {
    /// Adds the run state of the report's run, and fills in what only the run state contains.
    ///
    /// These are a hang's duration and whether the process was killed during the hang, which makes
    /// it fatal. If the beginning of the report is missing, they are also the identity of the
    /// process and the crash.
    pub fn stitch(&mut self, run: RunFacts) {
        if let Some(crash) = &mut self.crash
            && let Some(hang) = &mut crash.hang
        {
            hang.duration_ns = run.lifecycle.hang_durations_ns.get(&hang.number).copied();
            let went_on = run.lifecycle.hang_since.is_some() && run.lifecycle.exit == ExitKind::RUNNING;
            if went_on && hang.duration_ns.is_none() && !run.lifecycle.debugged {
                crash.flags.retain(|flag| *flag != CrashFlag::NotFatal);
            }
        }
        if self.header.run_id.is_nil() {
            self.header = run.header();
        }
        if self.header.event_id.is_nil() {
            self.header.event_id = self.header.run_id;
        }
        // On Linux the header contains the time at which Coroner was installed.
        if let Some(start) = run.app.process_start.filter(|_| self.header.run_id == run.run_id) {
            self.header.process_start = start;
        }
        if self.crash.is_none()
            && let Some(record) = run.fatal_crash()
        {
            self.take_crash(record, &run);
        }
        self.run = Some(run);
    }

    /// Fills in the crash from its record, and the crashed thread's first frame if it is missing.
    fn take_crash(&mut self, record: &CrashRecord, run: &RunFacts) {
        let is_of_child = self.header.run_id != run.run_id;
        let installed = run.app.installed.map_or(record.time.0, |installed| installed.0);
        let is_mach = record.monitor == Monitor::MACH;
        let subcode = record.address.map_or(0, |address| address.0.cast_signed());
        let signal = (!is_mach && record.signal != 0).then(|| {
            let code = i32::try_from(record.code).unwrap_or(0);
            let mut signal = Signal { number: record.signal, code, errno: record.errno, ..Signal::default() };
            signal.address = record.address;
            signal.name_for(self.header.os, self.header.arch);
            signal
        });
        self.crash = Some(Crash {
            time: record.time,
            since_install_ns: record.time.0.saturating_sub(installed),
            monitor: record.monitor,
            signal,
            mach: is_mach.then(|| Mach::new(record.signal, record.code, subcode)),
            tid: record.tid,
            flags: is_of_child.then_some(CrashFlag::ForkChild).into_iter().collect(),
            address: record.address,
            ..Crash::default()
        });
        if record.pc != Address(0) && self.crashed_thread().is_none_or(|thread| thread.tid != record.tid) {
            let frame = Frame {
                address: record.pc,
                found_by: FoundBy::CONTEXT,
                address_kind: AddressKind::INSTRUCTION,
                sp: Some(record.sp),
                ..Frame::default()
            };
            let captured_by = Some(CaptureMethod::CRASH_CONTEXT);
            let main = run.process.is_some_and(|process| u64::from(process.pid) == record.tid);
            let thread =
                Thread { tid: record.tid, crashed: true, main, captured_by, frames: vec![frame], ..Thread::default() };
            self.threads.insert(0, thread);
            self.attribute_frames();
        }
    }
}

impl RunFacts {
    /// The record of the crash that ended the process.
    ///
    /// `None` if no crash is recorded, or if the process continued after it or recorded another end
    /// later.
    pub fn fatal_crash(&self) -> Option<&CrashRecord> {
        self.crash.as_ref().filter(|crash| !crash.not_fatal && self.lifecycle.exit == ExitKind::CRASHED)
    }

    /// Returns a report file for a crash that is known only from its record in the run state.
    ///
    /// The file contains only a header. After [stitching](Report::stitch) the run state in, the
    /// report contains the record's data.
    ///
    /// `run` is the run whose directory contains the run state: for a child created by `fork` it
    /// differs from the run that the state was copied from. The event's id is that of the run, so
    /// it is the same each time.
    pub fn report_of_record(&self, run: super::Id) -> Option<Vec<u8>> {
        self.fatal_crash()?;
        let header = Header { run_id: run, event_id: run, ..self.header() };
        let mut payload = [0; HEADER_ROOM];
        let mut encoder = Encoder::new(&mut payload);
        wire::Header {
            format_version: FORMAT_VERSION,
            run_id: run.0,
            event_id: run.0,
            pid: header.pid,
            ppid: 0,
            arch: header.arch,
            os: header.os,
            page_size: 0,
            pointer_auth_mask: 0,
            sdk_version: header.sdk_version.as_bytes().get(..MAX_NAME).unwrap_or(header.sdk_version.as_bytes()),
            process_start_ns: header.process_start.0,
            process_name: header.process_name.as_bytes().get(..MAX_NAME).unwrap_or(header.process_name.as_bytes()),
        }
        .encode(&mut encoder);
        let payload = encoder.written();
        let seal = seal_header(SectionKind::HEADER, payload)?;
        Some([&FILE_PREFIX[..], &seal, payload].concat())
    }

    /// The report header, as far as the run state has its data.
    fn header(&self) -> Header {
        let arch = match self.device.arch.as_deref() {
            Some("x86_64") => Some(Arch::X86_64),
            Some("arm64" | "arm64e" | "aarch64") => Some(Arch::Aarch64),
            _ => None,
        };
        let os = match self.os.name.as_deref() {
            // Android's kernel has this name, too.
            Some("Linux") if Os::NATIVE == Os::ANDROID => Os::ANDROID,
            name => name.and_then(|name| Os::from_name(&name.to_ascii_lowercase())).unwrap_or(Os::NATIVE),
        };
        Header {
            format_version: FORMAT_VERSION,
            run_id: self.run_id,
            event_id: self.run_id,
            pid: self.process.map(|process| process.pid).or(self.app.pid).unwrap_or(0),
            process_name: self.app.process_name.clone().unwrap_or_default(),
            arch,
            os,
            sdk_version: self.app.sdk_version.clone().unwrap_or_default(),
            process_start: self.app.process_start.unwrap_or_default(),
            ..Header::default()
        }
    }
}
