//! Converts a report to a Sentry event.
//!
//! The event is built from the types of `sentry-types`, and from
//! [what these lack](crate::extensions). It is in a form that Relay's normaliser leaves unchanged:
//! `cargo xtask sentry-check` sends every kind of crash through it and compares.

mod contexts;
mod exceptions;
mod images;
mod limits;
mod scope;
mod stacktrace;
mod threads;

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use std::time::SystemTime;

pub(crate) use coroner_report::model::hide_home;
use coroner_report::model::{CrashFlag, Id, Report, RunFacts, Timestamp};
use coroner_report::signature::Signature;
use coroner_report::wire::Monitor;
use sentry_types::protocol::v7::{self, ClientSdkInfo, ClientSdkPackage, DebugImage, Stacktrace, Uuid};
use serde::{Serialize, Serializer};
use serde_json::Value;

pub use coroner_report::model::InAppRules;
pub use exceptions::WATCHDOG_TERMINATION;
pub(crate) use limits::{environment, release, shrink};
pub use stacktrace::MAX_FRAMES;

use crate::extensions::Extensions;
pub use crate::extensions::OWN_CONTEXTS;

/// The SDK name in events.
pub const SDK_NAME: &str = "coroner.rust";

/// An event from a native program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    /// The event in the model of `sentry-types`; this type derefs to it.
    ///
    /// Its id was generated at the time of the crash. Servers drop a second event with the same id.
    pub protocol: v7::Event<'static>,
    /// Fields that this model lacks.
    pub extensions: Extensions,
}

impl Deref for Event {
    type Target = v7::Event<'static>;

    fn deref(&self) -> &Self::Target {
        &self.protocol
    }
}

impl DerefMut for Event {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.protocol
    }
}

/// Writes [`to_value`](Event::to_value).
impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_value().serialize(serializer)
    }
}

/// Returns the SDK description for a version of Coroner.
pub(crate) fn sdk(version: &str, integrations: Vec<String>) -> ClientSdkInfo {
    let package = |name: &str| ClientSdkPackage { name: name.to_owned(), version: version.to_owned() };
    let packages = vec![package("cargo:coroner"), package("cargo:coroner-sentry")];
    ClientSdkInfo { name: SDK_NAME.to_owned(), version: version.to_owned(), integrations, packages }
}

/// Options for creating an event from a report.
#[derive(Clone, Debug, Default)]
pub struct EventOptions {
    /// Rules that decide which code is the app's own.
    pub in_app: InAppRules,
    /// The release; overrides the report's.
    pub release: Option<String>,
    /// The distribution; overrides the report's.
    pub dist: Option<String>,
    /// The environment; overrides the report's.
    pub environment: Option<String>,
    /// Whether an event may contain personal data such as the device's name and user names. If not,
    /// paths below a home directory start with `~`.
    pub send_default_pii: bool,
}

impl Event {
    /// Creates a report's event. It contains only names already in the report; symbolicate the
    /// report first.
    pub fn from_report(report: &Report, options: &EventOptions) -> Event {
        let run = report.run.as_ref();
        let app = run.map(|run| &run.app);
        let time = report.crash.as_ref().map_or(report.header.process_start, |crash| crash.time);
        let choose = |set: &Option<String>, recorded: Option<&String>| set.clone().or_else(|| recorded.cloned());
        let release = choose(&options.release, run.and_then(|run| run.release.as_ref().or(run.app.release.as_ref())));
        let recorded = run.and_then(|run| run.environment.as_ref().or(run.app.environment.as_ref()));
        let environment = choose(&options.environment, recorded);
        let dist = choose(&options.dist, app.and_then(|app| app.dist.as_ref()));
        // The report was created by the version of Coroner that was in the app when it crashed.
        let version = Some(report.header.sdk_version.as_str()).filter(|version| !version.is_empty());
        let integrations = report.crash.iter().map(|crash| crash.monitor.to_string()).collect();
        let protocol = v7::Event {
            event_id: Uuid::from_bytes(report.event_id().0),
            timestamp: micros(time),
            platform: Cow::Borrowed("native"),
            level: level(report),
            release: release.and_then(limits::release).map(Cow::Owned),
            dist: dist.and_then(limits::dist).map(Cow::Owned),
            environment: environment.and_then(limits::environment).map(Cow::Owned),
            sdk: Some(Cow::Owned(sdk(version.unwrap_or(env!("CARGO_PKG_VERSION")), integrations))),
            ..v7::Event::default()
        };
        let mut event = Event { protocol, extensions: Extensions::default() };
        let stacks = stacktrace::Stacks::new(report, &options.in_app);
        event.exception = exceptions::from_report(report, &stacks).into();
        threads::add(&mut event, report, &stacks);
        let unidentified = images::add(&mut event, report);
        contexts::add(&mut event, report, unidentified, stacks.left_out());
        if let Some(run) = run {
            scope::add(&mut event, run);
        }
        if run.is_none_or(|run| run.fingerprint.is_empty()) {
            event.group(report, &options.in_app);
        }
        if !options.send_default_pii {
            event.hide_home_directory();
        }
        event
    }

    /// Sets the fingerprint of an event that a server's own rules would group badly.
    fn group(&mut self, report: &Report, in_app: &InAppRules) {
        let fingerprint: Vec<String> = if let Some(recursion) = Signature::recursion(report, in_app) {
            // A server only collapses repeated frames of the same line. Otherwise the issue would
            // depend on which function, and which line, touched the last page.
            std::iter::once("stack overflow".to_owned()).chain(recursion).collect()
        } else if let Some([kind, place]) = Signature::unnamed_place(report, in_app) {
            if let Some(exception) = self.exception.values.last_mut() {
                exceptions::name_place(exception, &place);
            }
            vec![kind, place]
        } else {
            return;
        };
        self.fingerprint = fingerprint.into_iter().map(Cow::Owned).collect();
    }

    /// Creates the event for a run that the system killed without notice.
    ///
    /// Such runs used too much memory or did not respond. The state of their threads is unknown.
    pub fn from_watchdog_termination(event_id: Id, time: Timestamp, run: &RunFacts, options: &EventOptions) -> Event {
        let report = Report { run: Some(run.clone()), ..Report::default() };
        let mut event = Event::from_report(&report, options);
        event.event_id = Uuid::from_bytes(event_id.0);
        event.timestamp = micros(time);
        event.level = v7::Level::Fatal;
        event.exception = vec![exceptions::watchdog_termination(run)].into();
        event
    }

    /// Returns the event's id as in the protocol: 32 hexadecimal digits.
    pub fn id(&self) -> String {
        self.event_id.simple().to_string()
    }

    /// Returns the event as JSON, with the extensions, and with texts cut to servers' limits.
    pub fn to_value(&self) -> Value {
        let mut json = self.to_whole_value();
        limits::cut_texts(&mut json);
        json
    }

    /// Returns the event as JSON with the extensions.
    pub(crate) fn to_whole_value(&self) -> Value {
        // Serialization only fails for times before 1970, which only a hook could set.
        let mut json = serde_json::to_value(&self.protocol).unwrap_or_default();
        self.extensions.add(&mut json);
        json
    }

    /// Returns the event as JSON that fits the server's size limit.
    ///
    /// If the event is too large, the least important parts are left out and listed in
    /// `dropped_for_size` in the context `coroner`.
    pub fn to_json(&self) -> Vec<u8> {
        limits::fitted(self.to_value())
    }

    fn stacktraces_mut(&mut self) -> impl Iterator<Item = &mut Stacktrace> {
        let v7::Event { exception, threads, .. } = &mut self.protocol;
        let exceptions = exception.values.iter_mut().filter_map(|exception| exception.stacktrace.as_mut());
        exceptions.chain(threads.values.iter_mut().filter_map(|thread| thread.stacktrace.as_mut()))
    }

    /// Replaces the user's home directory, which contains the user's name, with `~` in paths.
    fn hide_home_directory(&mut self) {
        for image in &mut self.debug_meta.to_mut().images {
            if let DebugImage::Symbolic(image) = image {
                hide_home(&mut image.name);
            }
        }
        for stack in self.stacktraces_mut() {
            for frame in &mut stack.frames {
                [&mut frame.package, &mut frame.abs_path, &mut frame.filename]
                    .into_iter()
                    .flatten()
                    .for_each(hide_home);
            }
        }
    }
}

/// Returns a time with microseconds, the precision that servers keep.
pub(crate) fn micros(time: Timestamp) -> SystemTime {
    Timestamp(time.0 / 1000 * 1000).into()
}

/// Formats a time as the protocol requires, with microseconds.
pub(crate) fn time_text(time: Timestamp) -> String {
    let micros = Timestamp(time.0 / 1000 * 1000);
    let text = micros.to_string();
    // Always include a fraction, so that all times in an event have the same length.
    if text.contains('.') { text } else { text.replace('Z', ".000000Z") }
}

fn level(report: &Report) -> v7::Level {
    let survived =
        report.crash.as_ref().is_some_and(|crash| crash.has(CrashFlag::NotFatal) || crash.monitor == Monitor::USER);
    if !survived {
        return v7::Level::Fatal;
    }
    // A level set by the app only applies to events that the process survived; termination is
    // always fatal.
    let set = report.run.as_ref().and_then(|run| run.level?.name()?.parse().ok());
    set.unwrap_or(v7::Level::Error)
}
