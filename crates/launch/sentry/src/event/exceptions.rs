//! What happened, in the protocol's words: exceptions and the mechanisms that caught them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use coroner_report::model::{Crash, Exception as Thrown, Report, RunFacts, TerminationReason};
use coroner_report::run_state::Foreground;
use coroner_report::wire::{Access, Language, Monitor};
use serde::{Deserialize, Serialize};

use super::stacktrace::{Stacks, Stacktrace};

/// An exception: what happened, where, and what noticed it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exception {
    /// Its type: a signal's or a Mach exception's name, or the type that a language's runtime threw.
    #[serde(rename = "type")]
    pub kind: String,
    /// The message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The thread on which it happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<u64>,
    /// What noticed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mechanism: Option<Mechanism>,
    /// The stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacktrace: Option<Stacktrace>,
}

/// What noticed an exception.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mechanism {
    /// `signalhandler`, `mach`, `cpp_exception`, `nsexception`, `panic`, `AppHang`, [`WATCHDOG_TERMINATION`], `generic` for what the
    /// app reported, `NSError` if that was one; `chained` for what caused another.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether the app went on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handled: Option<bool>,
    /// Whether type and message are made up from a signal, so that a server should group by the functions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<bool>,
    /// In a chain, which one it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception_id: Option<u64>,
    /// In a chain, the one that this one caused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<u64>,
    /// Where in that one it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Signal, Mach exception and error number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<MechanismMeta>,
    /// Anything else: `relevant_address`, `access`, `location`, and of a fault that is explained `fault`, `certainty`, `register`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, serde_json::Value>,
}

/// What the operating system said.
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
    /// An error of Cocoa's or Swift's that the app handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_error: Option<NsError>,
}

/// An `NSError`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NsError {
    /// Its domain.
    pub domain: String,
    /// Its code in that domain.
    pub code: i64,
}

impl NsError {
    /// The error that an exception of a report is, which the app reported as one with a domain and a code.
    fn of(crash: &Crash, thrown: &Thrown) -> Option<Self> {
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
    /// Its number on that system.
    pub number: i64,
    /// `si_code`.
    pub code: i64,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The code's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_name: Option<String>,
}

/// A Mach exception.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachExceptionMeta {
    /// Its number.
    pub exception: i64,
    /// The code. Servers take no negative ones, so this is its bits.
    pub code: u64,
    /// The subcode, in the same way.
    pub subcode: u64,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// An error number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errno {
    /// Its value on that system.
    pub number: i64,
}

/// The mechanism of an end that the system brought about without a word.
pub const WATCHDOG_TERMINATION: &str = "watchdog_termination";

/// The exceptions of a report: what caused it first, what ended the process last.
pub(super) fn of(report: &Report, stacks: &Stacks<'_>) -> Vec<Exception> {
    let Some(crash) = &report.crash else {
        // Cut before it says what happened: the event still says that something did.
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
        if let Some(error) = NsError::of(crash, thrown) {
            // As sentry-cocoa calls it.
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
        exception.stacktrace = stacks.of_exception(thrown);
        exception
    });
    let mut chain: Vec<Exception> = chain.collect();
    if let Some(uncaught) = chain.first_mut() {
        uncaught.thread_id = Some(crash.tid);
        // Where the runtime kept no stack of the throw, that of the thread is the best there is.
        uncaught.stacktrace = uncaught.stacktrace.take().or_else(|| stacks.of_thread_with_id(crash.tid));
    }
    chain.reverse();
    chain
}

fn torn(tid: u64, stacks: &Stacks<'_>) -> Exception {
    Exception {
        kind: "Crash".to_owned(),
        value: Some("the report was cut before it says what happened".to_owned()),
        thread_id: Some(tid),
        mechanism: Some(Mechanism {
            kind: "signalhandler".to_owned(),
            handled: Some(false),
            synthetic: Some(true),
            ..Mechanism::default()
        }),
        stacktrace: stacks.of_thread_with_id(tid),
    }
}

/// The exception of a report without one of a language: a signal, a Mach exception, a hang.
fn from_crash(report: &Report, crash: &Crash, stacks: &Stacks<'_>) -> Exception {
    let mut mechanism = mechanism(report, crash);
    let named = matches!(crash.monitor, Monitor::PANIC | Monitor::USER | Monitor::HANG);
    // A type that a program gave is one to group by; a signal says as good as nothing. A hang is not to be put together with a
    // crash at the same place.
    mechanism.synthetic = (crash.exception_type.is_none() && !named).then_some(true);
    Exception {
        kind: crash.kind(),
        value: report.explained_cause(),
        thread_id: Some(crash.tid),
        mechanism: Some(mechanism),
        stacktrace: stacks.of_profile().or_else(|| stacks.of_thread_with_id(crash.tid)).map(|stack| Stacktrace {
            // Where a thread is that hangs was looked at from outside.
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

/// What noticed the crash, with all that the system said of it.
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
        mach_exception: crash.mach.as_ref().map(|mach| MachExceptionMeta {
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

/// The exception of a run that the system ended without a word.
pub(super) fn watchdog_termination(run: &RunFacts) -> Exception {
    let place = match run.lifecycle.foreground {
        Foreground::BACKGROUND => " in the background",
        Foreground::FOREGROUND => " in the foreground",
        _ => "",
    };
    let known = run.termination.as_ref().filter(|found| found.reason == TerminationReason::OutOfMemory);
    let mut value = match known {
        Some(found) => format!("the app{place} {found}"),
        None => format!("the system ended the app{place}, for using too much memory or for not answering"),
    };
    if known.is_none()
        && let Some(used) = run.lifecycle.memory_used
    {
        let _ = write!(value, "; it used {used} bytes of memory");
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
