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
//!
//! Systems give the same history at each launch: what has been seen is known by its identity ([`Known`]). What comes when the run's own report is delivered
//! and gone already adds nothing: the processes that had one are known ([`note_reported`]).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_process::registers::Arch;
use coroner_report::model::{Id, Report, RunFacts, Timestamp, Value};
use coroner_report::run_state::ProcessIdentity;
use coroner_report::wire::{
    self, Encoder, FILE_PREFIX, FORMAT_VERSION, Language, Monitor, Os, SectionKind, seal_header,
};
use serde::{Deserialize, Serialize};

use crate::frame_text;
use crate::naming;
use crate::outcome::Outcome;
use crate::store::directory::Directory;
use crate::store::{Claim, STATE, Store};

mod android;
#[cfg(feature = "system-reports")]
mod metric_kit;
mod trace;

pub use android::ExitInfo;
#[cfg(feature = "system-reports")]
pub use metric_kit::{MetricKitError, metric_kit_reports};

/// In a run's directory: what the system said of its end.
pub(crate) const FILE: &str = "system";
/// In the store: what is known of what each source says, a [`Known`] by its source.
const SEEN: &str = "system_reports.json";
/// How many identities of one source are kept. Android's history has 16 of a package, MetricKit's some of each day of a week.
const IDENTITIES_KEPT: usize = 1024;
/// In the store: the last processes whose death had a report of Coroner's own, with the time of their install.
const REPORTED: &str = "reported_processes.json";
/// How many they are.
const REPORTED_KEPT: usize = 32;
/// How far the system's time of a death may lie before the install of its run, by clocks that differ.
const SLACK: Duration = Duration::from_secs(2);
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
    fn run(&self) -> Id {
        self.run_id.unwrap_or_else(|| self.identity())
    }

    /// The same each time that the system says it, and of no other death.
    fn identity(&self) -> Id {
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

/// What is known of what one source says.
///
/// Not one time up to which all is known: a clock that was wrong dates a death in the future, and of two of one time the system may say one
/// later.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Known {
    /// Before this time, in nanoseconds since 1970, all is known: the identities of that are not kept.
    until: u64,
    /// Time and identity of what is known of that time and later.
    later: Vec<(u64, Id)>,
}

impl Known {
    fn has(&self, report: &SystemReport) -> bool {
        let identity = report.identity();
        Timestamp::from(report.time).0 < self.until || self.later.iter().any(|(_, known)| *known == identity)
    }

    fn add(&mut self, report: &SystemReport) {
        self.later.push((Timestamp::from(report.time).0, report.identity()));
        if self.later.len() > IDENTITIES_KEPT {
            self.later.sort_by_key(|(time, _)| *time);
            self.until = self.later.remove(0).0.saturating_add(1);
        }
    }
}

/// What is known in a store of what each source says.
fn known(store: &Directory) -> BTreeMap<String, Known> {
    let noted = store.read(OsStr::new(SEEN), 1 << 20).ok();
    noted.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default()
}

/// [`hand_over`].
pub(crate) type HandOver = fn(&Store, Id, Vec<SystemReport>) -> io::Result<()>;

/// Puts what the system says to the runs in the store that it is of, and makes runs of what is of none. `own` is this process's run.
pub(crate) fn hand_over(store: &Store, own: Id, mut reports: Vec<SystemReport>) -> io::Result<()> {
    let root = store.root()?;
    let mut seen = known(&root);
    reports.retain(|report| seen.get(&report.source).is_none_or(|known| !known.has(report)));
    if reports.is_empty() {
        return Ok(());
    }
    reports.sort_by_key(|report| report.time);
    let process = ProcessIdentity::of_this_process();
    // Process ids of runs that have ended, with the time of their install.
    let mut ended = Vec::new();
    for listed in store.unprocessed(Some(own))?.runs {
        if let Ok(Claim::Taken(run)) = store.claim(listed.id, &process)
            && let Ok(facts) = run.raw().map(|raw| RunFacts::read(&raw.state))
            && let Ok(facts) = facts
        {
            let pid = facts.process.map(|process| process.pid).or(facts.app.pid);
            let installed = facts.app.installed.map_or(run.began, |time| UNIX_EPOCH + Duration::from_nanos(time.0));
            ended.push((pid, installed, listed.id));
        }
    }
    let reported = reported(&root);
    let mut hand_over_one = |report: &SystemReport| {
        let until = report.time + SLACK;
        let of_it = ended.iter().filter(|(pid, installed, id)| match report.run_id {
            _ if report.end == SystemEnd::Survived => false,
            Some(run) => run == *id,
            None => *pid == Some(report.pid) && *installed <= until,
        });
        let found = of_it.max_by_key(|(_, installed, _)| *installed).map(|(_, _, id)| *id);
        let bytes = report.to_bytes();
        if let Some(id) = found {
            // A process id that came again has a run of its own by then.
            ended.retain(|(_, _, other)| *other != id);
            if let Claim::Taken(run) = store.claim(id, &process)? {
                run.directory.write_atomically(OsStr::new(FILE), &bytes)?;
            }
        } else if report.is_a_report() && (report.end == SystemEnd::Survived || !is_of(&reported, report, until)) {
            make_run(store, report, &bytes)?;
        }
        Ok(())
    };
    // One that fails is handed over at the next launch, those before it are not.
    let mut handed = Ok(());
    for report in reports {
        match hand_over_one(&report) {
            Ok(()) => seen.entry(report.source.clone()).or_default().add(&report),
            Err(error) => handed = Err(error),
        }
    }
    root.write_atomically(OsStr::new(SEEN), &serde_json::to_vec(&seen)?)?;
    handed
}

/// A process whose death had a report.
#[derive(Serialize, Deserialize)]
struct ReportedProcess {
    pid: u32,
    /// When Coroner was installed in it, nanoseconds since 1970.
    installed: u64,
    #[serde(default)]
    run: Option<Id>,
}

fn reported(store: &Directory) -> Vec<ReportedProcess> {
    let noted = store.read(OsStr::new(REPORTED), 1 << 16).ok();
    noted.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default()
}

fn is_of(reported: &[ReportedProcess], report: &SystemReport, until: SystemTime) -> bool {
    let until = Timestamp::from(until).0;
    reported.iter().any(|process| match report.run_id {
        Some(_) => process.run == report.run_id,
        None => process.pid == report.pid && process.installed <= until,
    })
}

/// Notes that the death of a run's process had a report, which is delivered: what the system says of it later is no other death.
pub(crate) fn note_reported(store: &Store, run: Id, facts: &RunFacts) -> io::Result<()> {
    let Some(pid) = facts.process.map(|process| process.pid).or(facts.app.pid) else { return Ok(()) };
    let root = store.root()?;
    let mut reported = reported(&root);
    let installed = facts.app.installed.map_or(0, |time| time.0);
    reported.push(ReportedProcess { pid, installed, run: Some(run) });
    let excess = reported.len().saturating_sub(REPORTED_KEPT);
    reported.drain(..excess);
    root.write_atomically(OsStr::new(REPORTED), &serde_json::to_vec(&reported)?)
}

/// Makes a run that has ended, of a process that had not installed Coroner.
fn make_run(store: &Store, report: &SystemReport, bytes: &[u8]) -> io::Result<()> {
    let id = report.run();
    let run = store.make_ended(id, report.time)?;
    run.write_atomically(OsStr::new(FILE), bytes)?;
    // Its report is made when it is read.
    run.write_atomically(OsStr::new(STATE), b"")
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
        let seen = r#"{"a":{"until":5,"later":[[6,"01010101010101010101010101010101"]]},"b":{}}"#;
        let seen: BTreeMap<String, Known> = serde_json::from_str(seen).unwrap();
        assert_eq!((seen["a"].until, &seen["a"].later[..]), (5, &[(6, Id([1; 16]))][..]));
        let reported = r#"[{"pid":1,"installed":2,"run":"01010101010101010101010101010101"},{"pid":3,"installed":4}]"#;
        let reported: Vec<ReportedProcess> = serde_json::from_str(reported).unwrap();
        assert_eq!((reported[0].run, reported[1].run), (Some(Id([1; 16])), None));
    }
}
