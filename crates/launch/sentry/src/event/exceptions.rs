//! Exceptions and the mechanisms that caught them, in the protocol's form.
//!
//! A mechanism's type is one of `signalhandler`, `mach`, `cpp_exception`, `nsexception`, `panic`,
//! `AppHang`, [`WATCHDOG_TERMINATION`], `generic` for errors that the app reported, `NSError` for
//! reported `NSError`s; `chained` for the cause of another exception. Its `synthetic` means that
//! type and message are derived from a signal, so that a server should group by functions. Its
//! `data` are `relevant_address`, `access`, `location`; for an explained fault also `fault`,
//! `certainty`, `register`.

use std::fmt::Write as _;

use coroner_report::model::{Crash, Exception as Thrown, Report, RunFacts, TerminationReason};
use coroner_report::run_state::Foreground;
use coroner_report::wire::{Access, Language, Monitor};
use sentry_types::protocol::v7::{Exception, MachException, Map, Mechanism, MechanismMeta, PosixSignal, ThreadId};
use serde_json::{Value, json};

use super::stacktrace::Stacks;
use crate::extensions::{EXCEPTION_ID, HANG, NS_ERROR, PARENT_ID, SOURCE};

/// Makes a server use type and message as the title, which now ends with the place of the crash,
/// and not the function of an arbitrary frame.
pub(super) fn name_place(exception: &mut Exception, place: &str) {
    if let Some(mechanism) = &mut exception.mechanism {
        mechanism.synthetic = None;
    }
    let value = exception.value.take().filter(|value| !value.is_empty());
    exception.value = Some(match value {
        Some(value) if value.contains(place) => value,
        Some(value) => format!("{value} in {place}"),
        None => format!("in {place}"),
    });
}

/// Returns the `NSError` for an exception that the app reported with a domain and a code.
fn ns_error(crash: &Crash, thrown: &Thrown) -> Option<Value> {
    if crash.monitor != Monitor::USER || ![Language::OBJC, Language::SWIFT].contains(&thrown.language) {
        return None;
    }
    let (before, code) = thrown.message.as_deref()?.rsplit_once("Code: ")?;
    let code = if before.is_empty() { code } else { code.strip_suffix(')').filter(|_| before.ends_with(" ("))? };
    Some(json!({ "domain": thrown.type_name.as_ref()?, "code": code.parse::<i64>().ok()? }))
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
            mechanism.data.insert(EXCEPTION_ID.to_owned(), place.into());
        }
        if let Some(error) = ns_error(crash, thrown) {
            // The name that sentry-cocoa uses.
            if place == 0 {
                mechanism.ty = "NSError".to_owned();
            }
            mechanism.data.insert(NS_ERROR.to_owned(), error);
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
        uncaught.thread_id = Some(ThreadId::Int(crash.tid));
        // If the runtime kept no stack of the throw, the thread's stack is the best available.
        uncaught.stacktrace = uncaught.stacktrace.take().or_else(|| stacks.thread_by_id(crash.tid));
    }
    chain.reverse();
    chain
}

fn torn(tid: u64, stacks: &Stacks<'_>) -> Exception {
    Exception {
        ty: "Crash".to_owned(),
        value: Some("the report was truncated before its crash record".to_owned()),
        thread_id: Some(ThreadId::Int(tid)),
        mechanism: Some(Mechanism {
            ty: "signalhandler".to_owned(),
            handled: Some(false),
            synthetic: Some(true),
            ..Mechanism::default()
        }),
        stacktrace: stacks.thread_by_id(tid),
        ..Exception::default()
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
        ty: crash.kind(),
        value: report.explained_cause(),
        thread_id: Some(ThreadId::Int(crash.tid)),
        mechanism: Some(mechanism),
        stacktrace: stacks.profile().or_else(|| stacks.thread_by_id(crash.tid)),
        ..Exception::default()
    }
}

fn from_thrown(report: &Report, thrown: &Thrown) -> Exception {
    Exception {
        ty: thrown.kind(),
        value: report.message_of(thrown).map(ToOwned::to_owned),
        thread_id: Some(thrown.tid).filter(|tid| *tid != 0).map(ThreadId::Int),
        ..Exception::default()
    }
}

fn chained(report: &Report, place: usize) -> Mechanism {
    Mechanism {
        ty: "chained".to_owned(),
        handled: Some(report.is_handled()),
        data: Map::from([(PARENT_ID.to_owned(), (place - 1).into()), (SOURCE.to_owned(), "cause".into())]),
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
        Monitor::HANG => HANG,
        Monitor::USER => "generic",
        _ => "signalhandler",
    };
    let mut data = Map::<String, Value>::new();
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
        signal: crash.signal.as_ref().map(|signal| PosixSignal {
            number: signal.number,
            code: Some(signal.code),
            name: signal.name.map(ToOwned::to_owned),
            code_name: signal.code_name.map(ToOwned::to_owned),
        }),
        // The codes' bits as unsigned numbers, because servers accept no negative codes.
        mach_exception: crash.mach.as_ref().filter(|mach| !mach.unknown_codes).map(|mach| MachException {
            exception: mach.exception,
            code: mach.code as u64,
            subcode: mach.subcode as u64,
            name: mach.name.map(ToOwned::to_owned),
        }),
        errno: crash.signal.as_ref().map(|signal| signal.errno).filter(|errno| *errno != 0).map(Into::into),
    };
    Mechanism { ty: kind.to_owned(), handled: Some(report.is_handled()), meta, data, ..Mechanism::default() }
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
        ty: if known.is_some() { "OutOfMemory" } else { "WatchdogTermination" }.to_owned(),
        value: Some(value),
        mechanism: Some(Mechanism {
            ty: WATCHDOG_TERMINATION.to_owned(),
            handled: Some(false),
            ..Mechanism::default()
        }),
        ..Exception::default()
    }
}
