//! The system's own records of how the app's processes ended: the reason and a trace.
//!
//! They become available at a later launch. A source creates [`SystemReport`]s from what its system
//! provides (Android's [`ExitInfo`], Apple's [`metric_kit_reports`]); a new source is one file
//! beside `android.rs`. The app passes them by
//! [`Config::system_report`](crate::Config::system_report) or
//! [`Coroner::add_system_reports`](crate::Coroner::add_system_reports). They are assigned to their
//! run by the run's id, if the record contains it
//! ([`Config::run_id_thread`](crate::Config::run_id_thread)), otherwise by process id and time:
//!
//! * The record completes the run's outcome, if the run itself left no trace of its end.
//! * It is merged into the run's own report of its death: one death, one report.
//! * Without such a report, a crash or a hang with a trace becomes one; also without a run, if the
//!   app died before it installed Coroner.
//! * Something that the process survived ([`SystemEnd::Survived`]) is always a report of its own,
//!   and not the end of a run.
//!
//! Traces are read with the feature `system-reports`; without it, a death has no stacks except
//! those that the run itself left.

use std::collections::BTreeMap;
use std::time::SystemTime;

use coroner_process::registers::Arch;
use coroner_report::model::{Id, Report, RunFacts, Timestamp, Value};
use coroner_report::wire::{
    self, Encoder, FILE_PREFIX, FORMAT_VERSION, Language, Monitor, Os, SectionKind, seal_header,
};
use serde::{Deserialize, Serialize};

use crate::frame_text;
use crate::naming;
use crate::outcome::Outcome;

mod android;
pub(crate) mod hand_over;
#[cfg(feature = "system-reports")]
mod metric_kit;
mod trace;

pub use android::ExitInfo;
#[cfg(feature = "system-reports")]
pub use metric_kit::{MetricKitError, is_metric_kit, metric_kit_reports, read_metric_kit};

/// In a run's directory: the system's record of its end.
pub(crate) const FILE: &str = "system";
/// Maximum length in bytes of a trace that is kept.
const MAX_TRACE: usize = 16 << 20;

/// The kind of a process's end, according to the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SystemEnd {
    /// The process exited.
    Exited,
    /// The process was terminated by SIGTERM.
    Terminated,
    /// The process crashed.
    Crashed,
    /// The process hung.
    Hung,
    /// The system killed the process to free memory.
    OutOfMemory,
    /// The user quit or force-stopped the process.
    EndedByUser,
    /// The system terminated the process for another reason.
    EndedBySystem,
    /// The process did not end, but had a problem such as a hang. It becomes a separate report.
    Survived,
    /// The system does not provide a reason.
    Unknown,
}

impl SystemEnd {
    /// Returns the outcome of a run whose own files give the outcome `known`.
    pub(crate) fn complete(self, known: Outcome) -> Outcome {
        match (known, self) {
            (Outcome::Crashed, _) | (_, Self::Crashed) => Outcome::Crashed,
            (Outcome::Unknown | Outcome::Uninstalled, end) => match end {
                Self::Exited => Outcome::CleanExit,
                Self::Terminated => Outcome::Terminated,
                Self::Hung => Outcome::Hung,
                Self::OutOfMemory => Outcome::OutOfMemory,
                Self::EndedByUser => Outcome::EndedByUser,
                Self::EndedBySystem => Outcome::EndedBySystem,
                Self::Crashed | Self::Survived | Self::Unknown => known,
            },
            (known, _) => known,
        }
    }
}

/// The system's record of how a process of the app ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemReport {
    /// The source of the record, such as `ApplicationExitInfo`: the same at each launch.
    pub source: String,
    /// The process id; 0 if unknown.
    pub pid: u32,
    /// The id of the run, if recorded ([`Config::run_id_thread`](crate::Config::run_id_thread)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<Id>,
    /// When the process ended.
    pub time: SystemTime,
    /// The kind of the end.
    pub end: SystemEnd,
    /// Further data from the system, for people. It becomes the report's context `system_report`.
    pub details: BTreeMap<String, String>,
    /// The system's trace with stacks, unchanged: a tombstone or the trace of an ANR. May be empty.
    #[serde(skip)]
    pub trace: Vec<u8>,
}

impl SystemReport {
    /// Serializes the record: a line of JSON and the trace.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // The conversion of texts and numbers to JSON can't fail.
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes.extend_from_slice(self.trace.get(..MAX_TRACE).unwrap_or(&self.trace));
        bytes
    }

    /// Reads the output of [`to_bytes`](Self::to_bytes); `None` if it is damaged.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let read: Self = serde_json::from_slice(&bytes[..end]).ok()?;
        Some(Self { trace: bytes[end + 1..].to_vec(), ..read })
    }

    /// Whether the record becomes a report if the process left none.
    pub(crate) fn is_a_report(&self) -> bool {
        matches!(self.end, SystemEnd::Crashed | SystemEnd::Hung | SystemEnd::Survived) && trace::is_known(&self.trace)
    }

    /// Returns the id of the record's run if the store has none for it.
    pub(super) fn run(&self) -> Id {
        self.run_id.unwrap_or_else(|| self.identity())
    }

    /// Returns an id that is the same each time that the system provides this record, and different
    /// for each death.
    pub(super) fn identity(&self) -> Id {
        let hash = |seed: u64| {
            let text = format!("{}\0{}\0{}", self.source, self.pid, Timestamp::from(self.time).0);
            // Several records may have the same time. But a process ends once, and its trace may
            // not be available each time.
            let trace: &[u8] = if self.end == SystemEnd::Survived || self.pid == 0 { &self.trace } else { &[] };
            text.bytes().chain(trace.iter().copied()).fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        };
        let mut id = (u128::from(hash(0)) << 64 | u128::from(hash(0x9e37_79b9_7f4a_7c15))).to_be_bytes();
        // Version 8 of RFC 9562, which no other run has.
        (id[6], id[8]) = (id[6] & 0x0F | 0x80, id[8] & 0x3F | 0x80);
        Id(id)
    }

    /// Returns the bytes of a report file with only a header, which this record completes.
    pub(crate) fn bare_report(&self, run: Id) -> Option<Vec<u8>> {
        let mut payload = [0; 512];
        let mut encoder = Encoder::new(&mut payload);
        wire::Header {
            format_version: FORMAT_VERSION,
            run_id: run.0,
            event_id: run.0,
            pid: self.pid,
            ppid: 0,
            arch: Arch::OF_THIS_PROCESS,
            os: Os::NATIVE,
            page_size: 0,
            pointer_auth_mask: 0,
            sdk_version: env!("CARGO_PKG_VERSION").as_bytes(),
            process_start_ns: 0,
            process_name: b"",
        }
        .encode(&mut encoder);
        let payload = encoder.written();
        Some([&FILE_PREFIX[..], &seal_header(SectionKind::HEADER, payload)?, payload].concat())
    }
}

/// Completes a report that was read.
///
/// Merges the system's record of the death, which the file contains as a section. Converts the
/// stack traces of Java and other runtimes to frames, and demangles C++ exception types.
pub fn complete_report(report: &mut Report) {
    let at = report.unknown_sections.iter().position(|section| section.kind == SectionKind::SYSTEM_REPORT);
    if let Some(at) = at {
        let section = report.unknown_sections.remove(at);
        match section.value {
            Value::Bytes(bytes) if SystemReport::read(&bytes).is_some() => {
                SystemReport::read(&bytes).iter().for_each(|system| complete(report, system));
            }
            _ => report.unknown_sections.push(section),
        }
    }
    name_java_exceptions(report);
    frame_text::name_frames(report);
    naming::demangle_exception_types(report);
}

/// Converts the stack traces of Java exceptions, which are reported as text, to frames and causes.
fn name_java_exceptions(report: &mut Report) {
    let Some(place) = report.exceptions.iter().position(|exception| exception.language == Language::JAVA) else {
        return;
    };
    let exception = &report.exceptions[place];
    let Some(text) = &exception.user_info else { return };
    let chain = trace::exceptions_of_stack_trace(text, exception.tid);
    if !chain.is_empty() {
        report.exceptions.splice(place..=place, chain);
    }
}

/// Merges the system's record of the same death into a report.
pub(crate) fn complete(report: &mut Report, system: &SystemReport) {
    let is_bare = report.crash.is_none() && report.threads.is_empty();
    if let Some(traced) = trace::read(&system.trace) {
        let run = if is_bare { take(report, traced) } else { add(report, traced) };
        if report.run.is_none() {
            report.run = run;
        }
    }
    if let Some(crash) = report.crash.as_mut().filter(|crash| crash.time.0 == 0) {
        crash.time = Timestamp::from(system.time);
    }
    let text = |(key, text): (&String, &String)| (Value::from(key.as_str()), Value::from(text.as_str()));
    let mut context = vec![(Value::from("source"), Value::from(system.source.as_str()))];
    context.push((Value::from("time"), Value::Text(Timestamp::from(system.time).to_string())));
    context.extend(system.details.iter().map(text));
    let run = report.run.get_or_insert_default();
    run.contexts.insert("system_report".to_owned(), Value::Map(context));
}

/// Replaces a report that has only a header with the system's report.
fn take(report: &mut Report, traced: Report) -> Option<RunFacts> {
    let own = std::mem::take(report);
    *report = traced;
    let header = &mut report.header;
    (header.run_id, header.event_id, header.sdk_version) =
        (own.header.run_id, own.header.event_id, own.header.sdk_version);
    report.problems.extend(own.problems.into_iter().filter(|problem| problem.section.is_none()));
    let traced = report.run.take();
    report.run = own.run;
    if let (Some(run), Some(traced)) = (&mut report.run, &traced) {
        run.contexts.extend(traced.contexts.clone());
    }
    traced
}

/// Adds the system's data that the process's own report lacks.
fn add(report: &mut Report, traced: Report) -> Option<RunFacts> {
    let of_hang = traced.crash.as_ref().is_some_and(|crash| crash.monitor == Monitor::HANG);
    if let (Some(crash), Some(other)) = (&mut report.crash, &traced.crash)
        && crash.message.is_none()
    {
        crash.message.clone_from(&other.message);
    }
    report.annotations.extend(traced.annotations);
    if of_hang {
        // The process has its native frames, the runtime those of Java.
        for thread in traced.threads {
            let managed = thread.frames.into_iter().filter(trace::is_managed);
            if let Some(own) = report.threads.iter_mut().find(|own| own.tid == thread.tid) {
                own.frames.extend(managed);
                own.name = own.name.take().or(thread.name);
            }
        }
    }
    traced.run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_earlier_builds_are_read_and_written() {
        let line = concat!(
            r#"{"source":"ApplicationExitInfo","pid":7,"run_id":"01010101010101010101010101010101","#,
            r#""time":{"secs_since_epoch":1,"nanos_since_epoch":2},"end":"hung","details":{"reason":"ANR"}}"#,
            "\n\n\0trace",
        );
        let report = SystemReport::read(line.as_bytes()).unwrap();
        assert_eq!(
            (report.run_id, report.end, &report.trace[..]),
            (Some(Id([1; 16])), SystemEnd::Hung, &b"\n\0trace"[..])
        );
        assert_eq!(report.to_bytes(), line.as_bytes());
        assert_eq!(SystemReport::read(&SystemReport { run_id: None, ..report }.to_bytes()).unwrap().run_id, None);
    }
}
