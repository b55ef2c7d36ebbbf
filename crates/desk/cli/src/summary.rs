//! A report's summary in one line.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use coroner::Report;
use coroner_explain::{FaultKind, NoCode, explain};
use coroner_report::model::{CrashFlag, Function, InApp, InAppRules, PURE_VIRTUAL_CALL, Timestamp};
use coroner_report::signature::Signature;
use coroner_report::text::short_function;
use coroner_report::wire::Monitor;
use serde::{Deserialize, Serialize};

/// Maximum characters of a function's name in a heading.
const MAX_FUNCTION: usize = 160;

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) event_id: String,
    /// Serialized as RFC 3339, UTC.
    pub(crate) time: Timestamp,
    /// The app's id, or else its process name.
    pub(crate) app: String,
    /// The app's version; empty if unknown.
    pub(crate) version: String,
    pub(crate) release: Option<String>,
    /// The cause, such as `null pointer` or a panic's message.
    pub(crate) what: String,
    /// The name of the fatal signal or Mach exception.
    pub(crate) signal: Option<String>,
    /// The function to look at first, or the line of a panic whose functions have no names.
    pub(crate) function: Option<String>,
    /// The function's file and line, such as `memory.rs:15`.
    pub(crate) line: Option<String>,
    /// The signature for grouping.
    pub(crate) signature: Signature,
    /// The id of the crash's location, independent of known names ([`Signature::id_of_places`]).
    #[serde(skip)]
    pub(crate) places: Option<String>,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) path: String,
    /// The report's state.
    pub(crate) state: State,
}

/// A report's progress towards delivery.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is", content = "why")]
pub(crate) enum State {
    /// Delivered to a folder.
    #[default]
    Stored,
    /// In the store, to be delivered at the app's next launch.
    Pending,
    /// Set aside, with the reason.
    Broken(String),
}

impl Summary {
    pub(crate) fn new(report: &Report, path: &Path, state: State) -> Self {
        let facts = report.run.as_ref().map(|run| &run.app);
        let app = facts.and_then(|app| app.name.clone().or_else(|| app.id.clone()));
        let crash = report.crash.as_ref();
        let release = report.run.as_ref().and_then(|run| run.release.clone());
        let (function, line) = key_function(report).unzip();
        Self {
            event_id: report.header.event_id.to_string(),
            time: crash.map_or(report.header.process_start, |crash| crash.time),
            app: app.unwrap_or_else(|| report.header.process_name.clone()),
            version: facts.and_then(|app| app.version.clone()).unwrap_or_default(),
            release: release.or_else(|| facts.and_then(|app| app.release.clone())),
            what: describe_event(report),
            signal: fatal_signal(report).map(ToOwned::to_owned),
            function,
            line: line.flatten(),
            signature: Signature::from_report(report),
            places: Signature::id_of_places(report),
            tags: report.run.as_ref().map(|run| run.tags.clone()).unwrap_or_default(),
            path: path.display().to_string(),
            state,
        }
    }

    /// Describes the crash and its function for a heading.
    ///
    /// Names are shortened, because C++ names can have thousands of characters.
    pub(crate) fn title(&self) -> String {
        match &self.function {
            Some(function) => {
                let line = self.line.as_ref().map_or_else(String::new, |line| format!(" ({line})"));
                format!("{} in {}{line}", self.what, short_function(function, MAX_FUNCTION))
            }
            None => self.what.clone(),
        }
    }
}

/// Returns the signal or Mach exception that ended the process.
///
/// An uncaught exception, or a panic that can't unwind, ends it by `abort()`; the report is written
/// before that and contains no signal.
fn fatal_signal(report: &Report) -> Option<&'static str> {
    let crash = report.crash.as_ref()?;
    let signal = crash.signal.as_ref().and_then(|signal| signal.name);
    let named = signal.or_else(|| crash.mach.as_ref()?.name);
    // A log of a panic doesn't show the panic strategy of its program.
    let is_own = !report.header.run_id.is_nil();
    let aborts = match crash.monitor {
        _ if crash.has(CrashFlag::NotFatal) => false,
        Monitor::CPP_EXCEPTION | Monitor::NS_EXCEPTION => true,
        // With `panic` the main thread may have unwound: the process then exits with 101.
        Monitor::PANIC => {
            let kind = report.exceptions.first().and_then(|exception| exception.type_name.as_deref());
            let on_main = report.threads.iter().any(|thread| thread.tid == crash.tid && thread.main);
            is_own && (kind.is_some_and(|kind| kind != "panic") || !on_main)
        }
        _ => false,
    };
    named.or(aborts.then_some("SIGABRT"))
}

fn describe_event(report: &Report) -> String {
    let Some(crash) = &report.crash else { return "unknown (the report is truncated)".into() };
    let explained = report.exceptions.is_empty().then(|| explain(report, &NoCode).kind);
    let mut what = if let Some(kind) = explained.filter(|kind| kind.is_fault() || *kind == FaultKind::Abort) {
        kind.words().to_owned()
    } else if let Some(exception) = report.exceptions.first() {
        let name = exception.type_name.clone().unwrap_or_else(|| exception.language.to_string());
        report.message_of(exception).map_or(name.clone(), |message| format!("{name}: {}", first_line(message)))
    } else if let Some(signal) = &crash.signal {
        let name = signal.name.map_or_else(|| format!("signal {}", signal.number), ToOwned::to_owned);
        match signal.code_name.filter(|_| explained == Some(FaultKind::Unknown)) {
            Some(code) => format!("{name} ({code})"),
            None => name,
        }
    } else if let Some(mach) = &crash.mach {
        mach.name.map_or_else(|| format!("Mach exception {}", mach.exception), ToOwned::to_owned)
    } else {
        // The name given by the app or a dump.
        crash.exception_type.clone().unwrap_or_else(|| crash.monitor.to_string())
    };
    // An exception's message was added above.
    let pure_virtual = || report.is_pure_virtual_call().then_some(PURE_VIRTUAL_CALL);
    let message = crash.message.as_deref().or_else(|| report.abort_message()).or_else(pure_virtual);
    if let Some(message) = message.filter(|_| report.exceptions.is_empty()) {
        let _ = write!(what, ": {}", first_line(message));
    }
    what
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Returns the function to look at first.
///
/// It is the innermost of the app's own functions ([`InAppRules`]) on the throw's stack, if there
/// is one, or else on the crashed stack. If the app has none there, it is the innermost named
/// function that is not a runtime's.
///
/// In a stripped program the app's function may have no name, and may belong to a runtime that is
/// linked into the program: then the exception's own location (`file:line`), if known, takes its
/// place, or else the image and offset.
///
/// Also returns the function's file and line.
fn key_function(report: &Report) -> Option<(String, Option<String>)> {
    let exception = report.exceptions.first();
    let thrown = exception.map(|exception| &exception.frames).filter(|frames| !frames.is_empty());
    let frames = match thrown {
        Some(frames) => frames,
        None => report.crashed_frames(),
    };
    let location = exception.and_then(|exception| exception.location.clone());
    let rules = InAppRules::default();
    let in_app = InApp::new(&rules, report);
    let mut other = None;
    for frame in frames {
        for function in in_app.functions(frame) {
            match function.name {
                Some(name) if function.in_app => return Some((name.to_owned(), line_of(&function))),
                Some(name) if !in_app.is_runtime(Some(name), function.file) => {
                    other.get_or_insert((name, line_of(&function)));
                }
                None if function.in_app && !function.is_inlined => {
                    let (module, offset) = (frame.module.as_deref()?, frame.module_offset?);
                    let file = module.rsplit('/').next().unwrap_or(module);
                    return Some((location.unwrap_or_else(|| format!("{file} + {offset}")), None));
                }
                _ => {}
            }
        }
    }
    other.map(|(name, line)| (name.to_owned(), line)).or_else(|| Some((location?, None)))
}

/// Returns a function's file, without its folders, and line.
fn line_of(function: &Function<'_>) -> Option<String> {
    let file = function.file?.rsplit(['/', '\\']).next()?;
    Some(format!("{file}:{}", function.line?))
}
