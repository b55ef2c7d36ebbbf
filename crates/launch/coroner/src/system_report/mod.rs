//! What the system itself says of the app's deaths, at a later launch: why it ended a process, and a trace that it took.
//!
//! A source makes [`SystemReport`]s of what its system hands over ([`ExitInfo`] of Android, [`metric_kit_reports`] of Apple's systems); a new
//! one is a file beside `android.rs`. What is handed over ([`Config::system_report`](crate::Config::system_report),
//! [`Coroner::add_system_reports`](crate::Coroner::add_system_reports)) is put to the run that it is of, by the run's id where the system's account has it
//! ([`Config::run_id_thread`](crate::Config::run_id_thread)), else by process id and time:
//!
//! * the run's outcome is completed by it, where the run itself left no trace of its end;
//! * a report that the run left of its death takes in what it says: one death, one report;
//! * without such a report, a crash or a hang with a trace becomes one; also where there is no run, since the app died before it installed
//!   Coroner;
//! * what the process went on from ([`SystemEnd::Survived`]) is always a report of its own, and no run's end.
//!
//! Traces are read with the feature `system-reports`; without it a death has no stacks but those that the run itself left.

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
pub use metric_kit::{MetricKitError, metric_kit_reports};

/// In a run's directory: what the system said of its end.
pub(crate) const FILE: &str = "system";
/// Longest trace that is kept, bytes.
const MAX_TRACE: usize = 16 << 20;

/// How the system says that a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SystemEnd {
    /// By itself.
    Exited,
    /// It was asked to (SIGTERM).
    Terminated,
    /// It crashed.
    Crashed,
    /// It did not answer.
    Hung,
    /// The system needed its memory.
    OutOfMemory,
    /// Its user ended it.
    EndedByUser,
    /// The system ended it for another reason.
    EndedBySystem,
    /// It did not: this is of something that it went on from, such as a hang, and is a report of its own.
    Survived,
    /// The system does not say.
    Unknown,
}

impl SystemEnd {
    /// The outcome of a run that is `known` to have ended so by what it left itself.
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

/// What a system says of the end of one process of the app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemReport {
    /// Who says it, such as `ApplicationExitInfo`: the same at each launch.
    pub source: String,
    /// The process; 0 if the system does not say.
    pub pid: u32,
    /// The run, where what the system says has its id ([`Config::run_id_thread`](crate::Config::run_id_thread)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<Id>,
    /// When it ended.
    pub time: SystemTime,
    /// How.
    pub end: SystemEnd,
    /// What else the system says, for people: it stands in the report's context `system_report`.
    pub details: BTreeMap<String, String>,
    /// The system's account with stacks, as it handed it over: a tombstone or the trace of an ANR. May be empty.
    #[serde(skip)]
    pub trace: Vec<u8>,
}

impl SystemReport {
    /// As a file: a line of JSON and the trace.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // A text, numbers and texts: they have JSON.
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes.extend_from_slice(self.trace.get(..MAX_TRACE).unwrap_or(&self.trace));
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote; `None` if it is damaged.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let read: Self = serde_json::from_slice(&bytes[..end]).ok()?;
        Some(Self { trace: bytes[end + 1..].to_vec(), ..read })
    }

    /// Whether it is a report also where the process left none.
    pub(crate) fn is_a_report(&self) -> bool {
        matches!(self.end, SystemEnd::Crashed | SystemEnd::Hung | SystemEnd::Survived) && trace::is_known(&self.trace)
    }

    /// The run that it is of where the store has none.
    pub(super) fn run(&self) -> Id {
        self.run_id.unwrap_or_else(|| self.identity())
    }

    /// The same each time that the system says it, and of no other death.
    pub(super) fn identity(&self) -> Id {
        let hash = |seed: u64| {
            let text = format!("{}\0{}\0{}", self.source, self.pid, Timestamp::from(self.time).0);
            // Several of them may have one time. A process ends once, and its trace may not be there each time.
            let trace: &[u8] = if self.end == SystemEnd::Survived || self.pid == 0 { &self.trace } else { &[] };
            text.bytes().chain(trace.iter().copied()).fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        };
        let mut id = (u128::from(hash(0)) << 64 | u128::from(hash(0x9e37_79b9_7f4a_7c15))).to_be_bytes();
        // Version 8 of RFC 9562: of no other run.
        (id[6], id[8]) = (id[6] & 0x0F | 0x80, id[8] & 0x3F | 0x80);
        Id(id)
    }

    /// The bytes of a report file with nothing but a header, which this report completes.
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

/// Completes a report that was read: by what the system said of the death, which a file has as a section; Java's exceptions by their stack
/// traces, those of other runtimes by their frames; types of C++ exceptions by their names in the source.
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

/// Java's exceptions are reported with their stack traces as text: frames and causes are made of that.
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

/// Adds to a report what the system said of the same death.
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

/// The system's report in the place of one that has nothing but a header.
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

/// What the system's report has and the process's own has not.
fn add(report: &mut Report, traced: Report) -> Option<RunFacts> {
    let of_hang = traced.crash.as_ref().is_some_and(|crash| crash.monitor == Monitor::HANG);
    if let (Some(crash), Some(other)) = (&mut report.crash, &traced.crash)
        && crash.message.is_none()
    {
        crash.message.clone_from(&other.message);
    }
    report.annotations.extend(traced.annotations);
    if of_hang {
        // The process knows its native frames, the runtime those of Java.
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
