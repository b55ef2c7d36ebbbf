//! One report in one line.

use std::fmt::Write;

use coroner::Report;
use coroner_report::model::{CrashFlag, is_runtime_code};
use serde::Serialize;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Summary {
    pub(crate) event_id: String,
    /// RFC 3339, UTC.
    pub(crate) time: String,
    /// The app, as it called itself, or else its process.
    pub(crate) app: String,
    /// Its version; empty if it gave none.
    pub(crate) version: String,
    /// What happened, such as `SIGSEGV (SEGV_MAPERR) at 0x0`.
    pub(crate) what: String,
    /// The function to look at first, or the line of a panic whose functions have no names.
    pub(crate) function: Option<String>,
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
            function: function(report),
            path: path.display().to_string(),
            state,
        }
    }
}

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
    let message = crash.message.as_deref().or_else(|| report.abort_message());
    if let Some(message) = message.filter(|_| report.exceptions.is_empty()) {
        let _ = write!(what, ": {}", first_line(message));
    }
    what
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// A place in a stack.
struct Place {
    /// The function's name, or else the image's and the offset in it.
    label: String,
    is_named: bool,
    /// Its image is the app's own.
    is_own: bool,
    /// Its code is of a runtime or a library, whatever image it is in.
    is_runtime: bool,
}

impl Place {
    /// The place of a function with a name.
    fn named(function: &str, file: Option<&str>, is_own: bool) -> Place {
        let is_runtime = is_runtime_code(Some(function), file);
        Place { label: function.to_owned(), is_named: true, is_own, is_runtime }
    }

    /// The place of a frame without a name: `program + 0x1234`, the offset from the image's load address.
    fn unnamed(module: &str, offset: &str, is_own: bool) -> Place {
        let file = module.rsplit('/').next().unwrap_or(module);
        Place { label: format!("{file} + {offset}"), is_named: false, is_own, is_runtime: false }
    }
}

/// The function to look at first: the innermost of the app's own, or, where it is not known which those are, the innermost of the
/// program itself. Of the stack of a throw, if there is one.
fn function(report: &Report) -> Option<String> {
    let exception = report.exceptions.first();
    let thrown = exception.map(|exception| &exception.frames).filter(|frames| !frames.is_empty());
    let frames = match thrown {
        Some(frames) => frames,
        None => &report.crashed_thread()?.frames,
    };
    let location = exception.and_then(|exception| exception.location.as_deref());
    let program = report.images.iter().find(|image| image.is_main).map(|image| image.path.as_str());
    first_to_look_at(
        location,
        frames.iter().flat_map(|frame| {
            let is_own = frame.in_app.unwrap_or_else(|| program.is_some() && frame.module.as_deref() == program);
            let inlined = frame.inlined.iter().map(|inlined| (inlined.function.as_deref(), inlined.file.as_deref()));
            let named = inlined.chain([(frame.function.as_deref(), frame.file.as_deref())]);
            let named = named.filter_map(move |(name, file)| Some(Place::named(name?, file, is_own)));
            let unnamed = match (&frame.module, frame.module_offset, &frame.function) {
                (Some(module), Some(offset), None) => Some(Place::unnamed(module, &offset.to_string(), is_own)),
                _ => None,
            };
            named.chain(unnamed)
        }),
    )
}

/// Of the places of a stack, the innermost first: the one to look at first, which is the first of the app's own that is no runtime's,
/// with a name or without (a stripped program), else the first with a name that is no runtime's. In place of one without a name, which may be
/// of a runtime that is linked into the program, the `location` (`file:line`) where the exception says that it is from.
fn first_to_look_at(location: Option<&str>, places: impl Iterator<Item = Place>) -> Option<String> {
    let mut other = None;
    for place in places.filter(|place| !place.is_runtime) {
        if place.is_own {
            return location.filter(|_| !place.is_named).map(ToOwned::to_owned).or(Some(place.label));
        }
        if place.is_named {
            other.get_or_insert(place.label);
        }
    }
    other.or_else(|| location.map(ToOwned::to_owned))
}
