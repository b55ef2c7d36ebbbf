//! Exceptions and the mechanisms that caught them, in the protocol's form.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use coroner_report::model::{Crash, Exception as Thrown, Report, RunFacts, TerminationReason};
use coroner_report::run_state::Foreground;
use coroner_report::wire::{Access, Language, Monitor};
use serde::{Deserialize, Serialize};

use super::stacktrace::{Stacks, Stacktrace};

/// An exception: what happened, where, and which mechanism detected it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exception {
    /// Type: a signal's or a Mach exception's name, or the type that a language's runtime threw.
    #[serde(rename = "type")]
    pub kind: String,
    /// The message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The thread that raised it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<u64>,
    /// The mechanism that detected it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mechanism: Option<Mechanism>,
    /// The stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacktrace: Option<Stacktrace>,
}

impl Exception {
    /// Makes a server use type and message as the title, which now ends with the place of the
    /// crash, and not the function of an arbitrary frame.
    pub(super) fn name_place(&mut self, place: &str) {
        if let Some(mechanism) = &mut self.mechanism {
            mechanism.synthetic = None;
        }
        let value = self.value.take().filter(|value| !value.is_empty());
        self.value = Some(match value {
            Some(value) if value.contains(place) => value,
            Some(value) => format!("{value} in {place}"),
            None => format!("in {place}"),
        });
    }
}

/// The mechanism that detected an exception.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mechanism {
    /// The mechanism's type.
    ///
    /// One of `signalhandler`, `mach`, `cpp_exception`, `nsexception`, `panic`, `AppHang`,
    /// [`WATCHDOG_TERMINATION`], `generic` for errors that the app reported, `NSError` for reported
    /// `NSError`s; `chained` for the cause of another exception.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether the app continued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handled: Option<bool>,
    /// Whether type and message are derived from a signal, so that a server should group by
    /// functions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<bool>,
    /// In a chain, the exception's index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception_id: Option<u64>,
    /// In a chain, the index of the exception that this one caused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<u64>,
    /// In a chain, the attribute of the parent exception that holds this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Signal, Mach exception and error number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<MechanismMeta>,
    /// Other data: `relevant_address`, `access`, `location`; for an explained fault also `fault`,
    /// `certainty`, `register`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, serde_json::Value>,
}

/// Error details from the operating system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MechanismMeta {
    /// The signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<SignalMeta>,
    /// The Mach exception.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mach_exception: Option<MachExceptionMeta>,
    /// The error number that came with the signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno: Option<Errno>,
    /// A Cocoa or Swift error that the app handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_error: Option<NsError>,
}

/// An `NSError`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NsError {
    /// The error's domain.
    pub domain: String,
    /// The error's code in its domain.
    pub code: i64,
}

impl NsError {
    /// Returns the error for an exception that the app reported with a domain and a code.
    fn from_exception(crash: &Crash, thrown: &Thrown) -> Option<Self> {
        if crash.monitor != Monitor::USER || ![Language::OBJC, Language::SWIFT].contains(&thrown.language) {
            return None;
        }
        let (before, code) = thrown.message.as_deref()?.rsplit_once("Code: ")?;
        let code = if before.is_empty() { code } else { code.strip_suffix(')').filter(|_| before.ends_with(" ("))? };
        Some(Self { domain: thrown.type_name.clone()?, code: code.parse().ok()? })
    }
}

/// A POSIX signal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalMeta {
    /// The signal's number on the event's system.
    pub number: i64,
    /// `si_code`.
    pub code: i64,
    /// The signal's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The name of `code`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_name: Option<String>,
}

/// A Mach exception.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachExceptionMeta {
    /// The exception's number.
    pub exception: i64,
    /// The code's bits as an unsigned number, because servers accept no negative codes.
    pub code: u64,
    /// The subcode's bits as an unsigned number.
    pub subcode: u64,
    /// The exception's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// An error number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errno {
    /// Its value on the event's system.
    pub number: i64,
}

/// The mechanism of a termination by the system without notice.
pub const WATCHDOG_TERMINATION: &str = "watchdog_termination";

/// Returns a report's exceptions: the root cause first, the one that terminated the process last.
pub(super) fn from_report(report: &Report, stacks: &Stacks<'_>) -> Vec<Exception> {
    let Some(crash) = &report.crash else {
        // The report was truncated before the crash record: the event still shows that there was a
        // crash.
        return report.crashed_thread().map(|thread| torn(thread.tid, stacks)).into_iter().collect();
    };
    if report.exceptions.is_empty() {
        return vec![from_crash(report, crash, stacks)];
    }
    let chain = report.exceptions.iter().enumerate().map(|(place, thrown)| {
        let mut exception = from_thrown(report, thrown);
        let mut mechanism = if place == 0 { mechanism(report, crash) } else { chained(report, place) };
        if report.exceptions.len() > 1 {
            mechanism.exception_id = Some(place as u64);
        }
        if let Some(error) = NsError::from_exception(crash, thrown) {
            // The name that sentry-cocoa uses.
            if place == 0 {
                mechanism.kind = "NSError".to_owned();
            }
            mechanism.meta.get_or_insert_default().ns_error = Some(error);
        }
        if let Some(location) = &thrown.location {
            mechanism.data.insert("location".to_owned(), location.as_str().into());
        }
        if let Some(user_info) = &thrown.user_info {
            mechanism.data.insert("user_info".to_owned(), user_info.as_str().into());
        }
        exception.mechanism = Some(mechanism);
        exception.stacktrace = stacks.exception(thrown);
        exception
    });
    let mut chain: Vec<Exception> = chain.collect();
    if let Some(uncaught) = chain.first_mut() {
        uncaught.thread_id = Some(crash.tid);
        // If the runtime kept no stack of the throw, the thread's stack is the best available.
        uncaught.stacktrace = uncaught.stacktrace.take().or_else(|| stacks.thread_by_id(crash.tid));
    }
    chain.reverse();
    chain
}

fn torn(tid: u64, stacks: &Stacks<'_>) -> Exception {
    Exception {
        kind: "Crash".to_owned(),
        value: Some("the report was truncated before its crash record".to_owned()),
        thread_id: Some(tid),
        mechanism: Some(Mechanism {
            kind: "signalhandler".to_owned(),
            handled: Some(false),
            synthetic: Some(true),
            ..Mechanism::default()
        }),
        stacktrace: stacks.thread_by_id(tid),
    }
}

/// Creates the exception for a report without a language exception: a signal, a Mach exception, a
/// hang.
fn from_crash(report: &Report, crash: &Crash, stacks: &Stacks<'_>) -> Exception {
    let mut mechanism = mechanism(report, crash);
    let named = matches!(crash.monitor, Monitor::PANIC | Monitor::USER | Monitor::HANG);
    // A type that the program set is useful for grouping; a signal is not. A hang must not be
    // grouped with a crash at the same place.
    mechanism.synthetic = (crash.exception_type.is_none() && !named).then_some(true);
    Exception {
        kind: crash.kind(),
        value: report.explained_cause(),
        thread_id: Some(crash.tid),
        mechanism: Some(mechanism),
        stacktrace: stacks.profile().or_else(|| stacks.thread_by_id(crash.tid)).map(|stack| Stacktrace {
            // A hanging thread's stack was captured from outside.
            snapshot: (crash.monitor == Monitor::HANG).then_some(true),
            ..stack
        }),
    }
}

fn from_thrown(report: &Report, thrown: &Thrown) -> Exception {
    Exception {
        kind: thrown.kind(),
        value: report.message_of(thrown).map(ToOwned::to_owned),
        thread_id: Some(thrown.tid).filter(|tid| *tid != 0),
        mechanism: None,
        stacktrace: None,
    }
}

fn chained(report: &Report, place: usize) -> Mechanism {
    Mechanism {
        kind: "chained".to_owned(),
        handled: Some(report.is_handled()),
        parent_id: Some(place as u64 - 1),
        source: Some("cause".to_owned()),
        ..Mechanism::default()
    }
}

/// Returns the mechanism that detected the crash, with all details from the system.
fn mechanism(report: &Report, crash: &Crash) -> Mechanism {
    let kind = match crash.monitor {
        Monitor::MACH => "mach",
        Monitor::CPP_EXCEPTION => "cpp_exception",
        Monitor::NS_EXCEPTION => "nsexception",
        Monitor::PANIC => "panic",
        Monitor::HANG => "AppHang",
        Monitor::USER => "generic",
        _ => "signalhandler",
    };
    let mut data = BTreeMap::new();
    let mut note = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            data.insert(key.to_owned(), value.into());
        }
    };
    let unknown = || crash.is_address_unknown().then(|| "not known".to_owned());
    note("relevant_address", crash.address.map(|address| address.to_string()).or_else(unknown));
    let explained = report.explanation.as_ref().filter(|explanation| explanation.kind.is_fault());
    let of_instruction = || explained.and_then(|explanation| explanation.access?.kind);
    note("access", crash.access.or_else(of_instruction).and_then(Access::name).map(ToOwned::to_owned));
    note("fault", explained.map(|explanation| explanation.kind.name()));
    note("certainty", explained.map(|explanation| explanation.certainty.name().to_owned()));
    note("register", explained.and_then(|explanation| explanation.operand.as_ref()?.register.clone()));
    note("location", crash.location.clone());
    if let Some(signal) = &crash.signal {
        note("sender_pid", signal.sender_pid.map(|pid| pid.to_string()));
        let name = |number: i32| signal.syscall_name.map_or_else(|| number.to_string(), ToOwned::to_owned);
        note("syscall", signal.syscall.map(name));
    }
    let meta = MechanismMeta {
        ns_error: None,
        signal: crash.signal.as_ref().map(|signal| SignalMeta {
            number: signal.number.into(),
            code: signal.code.into(),
            name: signal.name.map(ToOwned::to_owned),
            code_name: signal.code_name.map(ToOwned::to_owned),
        }),
        mach_exception: crash.mach.as_ref().filter(|mach| !mach.unknown_codes).map(|mach| MachExceptionMeta {
            exception: mach.exception.into(),
            code: mach.code as u64,
            subcode: mach.subcode as u64,
            name: mach.name.map(ToOwned::to_owned),
        }),
        errno: crash
            .signal
            .as_ref()
            .filter(|signal| signal.errno != 0)
            .map(|signal| Errno { number: signal.errno.into() }),
    };
    Mechanism {
        kind: kind.to_owned(),
        handled: Some(report.is_handled()),
        meta: Some(meta).filter(|meta| *meta != MechanismMeta::default()),
        data,
        ..Mechanism::default()
    }
}

/// Creates the exception for a run that the system killed without notice.
pub(super) fn watchdog_termination(run: &RunFacts) -> Exception {
    let place = match run.lifecycle.foreground {
        Foreground::BACKGROUND => " in the background",
        Foreground::FOREGROUND => " in the foreground",
        _ => "",
    };
    let known = run.termination.as_ref().filter(|found| found.reason == TerminationReason::OutOfMemory);
    let mut value = match known {
        Some(found) => format!("the app{place} {found}"),
        None => format!("the system killed the app{place}, for using too much memory or for not responding"),
    };
    if known.is_none()
        && let Some(used) = run.lifecycle.memory_used
    {
        let _ = write!(value, "; the app used {used} bytes of memory");
    }
    Exception {
        kind: if known.is_some() { "OutOfMemory" } else { "WatchdogTermination" }.to_owned(),
        value: Some(value),
        mechanism: Some(Mechanism {
            kind: WATCHDOG_TERMINATION.to_owned(),
            handled: Some(false),
            ..Mechanism::default()
        }),
        ..Exception::default()
    }
}
