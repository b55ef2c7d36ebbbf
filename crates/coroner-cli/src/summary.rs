//! One report in one line.

use std::fmt::Write;

use coroner::Report;
use coroner_report::model::{CrashFlag, Frame, is_runtime_function};
use serde::Serialize;

/// What a list shows of a report.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Summary {
    /// The event id.
    pub(crate) event_id: String,
    /// RFC 3339, UTC.
    pub(crate) time: String,
    /// The app, as it called itself, or else its process.
    pub(crate) app: String,
    /// Its version; empty if it told none.
    pub(crate) version: String,
    /// What happened, such as `SIGSEGV (SEGV_MAPERR) at 0x0`.
    pub(crate) what: String,
    /// The function to look at first.
    pub(crate) function: Option<String>,
    /// The file or directory.
    pub(crate) path: String,
    /// Where it stands on its way.
    pub(crate) state: State,
}

/// Where a report stands on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is", content = "why")]
pub(crate) enum State {
    /// Delivered to a folder.
    Stored,
    /// In the store, to be delivered at the app's next launch.
    Pending,
    /// Set aside, with the reason.
    Broken(String),
}

impl Summary {
    pub(crate) fn of(report: &Report, path: &std::path::Path, state: State) -> Self {
        let facts = report.run.as_ref().map(|run| &run.app);
        let app = facts.and_then(|app| app.name.clone().or_else(|| app.id.clone()));
        Self {
            event_id: report.header.event_id.to_string(),
            time: report.crash.as_ref().map_or(report.header.process_start, |crash| crash.time).to_string(),
            app: app.unwrap_or_else(|| report.header.process_name.clone()),
            version: facts.and_then(|app| app.version.clone()).unwrap_or_default(),
            what: what(report),
            function: function(report).map(ToOwned::to_owned),
            path: path.display().to_string(),
            state,
        }
    }
}

/// What happened, in a line.
fn what(report: &Report) -> String {
    let Some(crash) = &report.crash else { return "unknown: the report was cut before it says".into() };
    let mut what = if crash.has(CrashFlag::StackOverflow) {
        "stack overflow".to_owned()
    } else if let Some(exception) = report.exceptions.first() {
        let name = exception.type_name.clone().unwrap_or_else(|| exception.language.to_string());
        exception.message.as_ref().map_or(name.clone(), |message| format!("{name}: {}", first_line(message)))
    } else if let Some(signal) = &crash.signal {
        let name = signal.name.map_or_else(|| format!("signal {}", signal.number), ToOwned::to_owned);
        match signal.code_name {
            Some(code) => format!("{name} ({code})"),
            None => name,
        }
    } else if let Some(mach) = &crash.mach {
        mach.name.map_or_else(|| format!("Mach exception {}", mach.exception), ToOwned::to_owned)
    } else {
        crash.monitor.to_string()
    };
    if let Some(address) = crash.address.filter(|_| report.exceptions.is_empty()) {
        let _ = write!(what, " at {address}");
    }
    // What an exception says was said above.
    if let Some(message) = crash.message.as_ref().filter(|_| report.exceptions.is_empty()) {
        let _ = write!(what, ": {}", first_line(message));
    }
    what
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// The functions of a frame, the innermost first: those that were inlined, then the one that the code belongs to.
fn names(frame: &Frame) -> impl Iterator<Item = &str> + Clone {
    frame.inlined.iter().filter_map(|inlined| inlined.function.as_deref()).chain(frame.function.as_deref())
}

/// The function to look at first: the innermost of the app's own, or, where it is not known which those are, the
/// innermost of the program itself that is no runtime's, else the innermost with a name. Of the stack of a throw, if there is
/// one.
fn function(report: &Report) -> Option<&str> {
    let thrown = report.exceptions.first().map(|exception| &exception.frames).filter(|frames| !frames.is_empty());
    let frames = match thrown {
        Some(frames) => frames,
        None => &report.crashed_thread()?.frames,
    };
    let program = report.images.iter().find(|image| image.is_main).map(|image| image.path.as_str());
    let is_own = |frame: &Frame| match frame.in_app {
        Some(own) => own,
        None => program.is_some() && frame.module.as_deref() == program,
    };
    first_to_look_at(frames.iter().flat_map(|frame| {
        let own = is_own(frame);
        names(frame).map(move |name| (name, own))
    }))
}

/// Of the functions of a stack, the innermost first, each with whether its image is the app's own: the one to look at first.
pub(crate) fn first_to_look_at<'a>(functions: impl Iterator<Item = (&'a str, bool)> + Clone) -> Option<&'a str> {
    let own = functions.clone().find(|(name, own)| *own && !is_runtime_function(name));
    own.or_else(|| functions.clone().next()).map(|(name, _)| name)
}
