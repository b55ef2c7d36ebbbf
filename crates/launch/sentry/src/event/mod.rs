//! Converts a report to a Sentry event.
//!
//! The types here cover what a native crash event can contain, with the protocol's names
//! (develop.sentry.dev, *Event Payloads*), each in a form that Relay's normaliser leaves unchanged:
//! `cargo xtask sentry-check` sends every kind of crash through it and compares. Coroner defines
//! its own types because `sentry-types` can't represent what matters here: images of type `elf` and
//! `macho`, `trust`, `instruction_addr_adjustment`, a thread's state.

mod contexts;
mod exceptions;
mod images;
mod limits;
mod scope;
mod stacktrace;
mod threads;

use std::collections::BTreeMap;

pub(crate) use coroner_report::model::hide_home;
use coroner_report::model::{CrashFlag, Report, RunFacts, Timestamp};
use coroner_report::run_state::Level;
use coroner_report::signature::Signature;
use coroner_report::wire::Monitor;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use contexts::OWN_CONTEXTS;
pub use coroner_report::model::InAppRules;
pub use exceptions::{Errno, Exception, MachExceptionMeta, Mechanism, MechanismMeta, SignalMeta, WATCHDOG_TERMINATION};
pub use images::DebugImage;
pub(crate) use limits::{environment, release, shrink};
pub use stacktrace::{Frame, MAX_FRAMES, Stacktrace};
pub use threads::{HeldLock, Thread};

/// The SDK name in events.
pub const SDK_NAME: &str = "coroner.rust";

/// A list in the protocol's form: `{"values": […]}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Values<T> {
    /// The elements.
    pub values: Vec<T>,
}

impl<T> Values<T> {
    /// Returns `true` if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl<T> Default for Values<T> {
    fn default() -> Self {
        Self { values: Vec::new() }
    }
}

impl<T> From<Vec<T>> for Values<T> {
    fn from(values: Vec<T>) -> Self {
        Self { values }
    }
}

/// An event from a native program. Times are RFC 3339 in UTC; addresses are `0x` and hexadecimal
/// digits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The event's id: 32 hexadecimal digits, generated at the time of the crash.
    ///
    /// Servers drop a second event with the same id.
    pub event_id: String,
    /// When the crash happened.
    pub timestamp: String,
    /// Always `native`.
    pub platform: String,
    /// Severity: `fatal`, `error`, `warning`, `info` or `debug`.
    pub level: String,
    /// The app's release, such as `app@1.2.3+45`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// The app's distribution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dist: Option<String>,
    /// The app's environment, such as `production`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// The app's current activity, such as a screen or a route: the tag `transaction`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<String>,
    /// Grouping key that replaces the server's own rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fingerprint: Vec<String>,
    /// The SDK that created the event.
    pub sdk: Sdk,
    /// The exceptions: the root cause first, the one that terminated the process last.
    #[serde(default, skip_serializing_if = "Values::is_empty")]
    pub exception: Values<Exception>,
    /// All threads. If an exception refers to a thread, its stack is in the exception.
    #[serde(default, skip_serializing_if = "Values::is_empty")]
    pub threads: Values<Thread>,
    /// The images, which a server needs for symbolication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug_meta: Option<DebugMeta>,
    /// App, system, device and contexts set by the app.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub contexts: Map<String, Value>,
    /// The app's user.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub user: Map<String, Value>,
    /// Short texts that can be searched for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Additional data set by the app.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
    /// Breadcrumbs, oldest first.
    #[serde(default, skip_serializing_if = "Values::is_empty")]
    pub breadcrumbs: Values<Breadcrumb>,
}

/// The SDK that created an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sdk {
    /// [`SDK_NAME`].
    pub name: String,
    /// The SDK's version.
    pub version: String,
    /// The parts of the SDK that detected the crash.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub integrations: Vec<String>,
    /// The packages that make up the SDK.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<Package>,
}

impl Sdk {
    /// Returns the SDK description for this version of Coroner.
    pub fn coroner() -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let package = |name: &str| Package { name: name.to_owned(), version: version.clone() };
        Self {
            name: SDK_NAME.to_owned(),
            integrations: Vec::new(),
            packages: vec![package("cargo:coroner"), package("cargo:coroner-sentry")],
            version,
        }
    }
}

/// A package of an [`Sdk`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// `cargo:` and the crate's name.
    pub name: String,
    /// The package's version.
    pub version: String,
}

/// The images, which a server needs for symbolication.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugMeta {
    /// The loaded images.
    pub images: Vec<DebugImage>,
}

/// A breadcrumb.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Breadcrumb {
    /// When it happened.
    pub timestamp: String,
    /// Kind, such as `navigation`; `default` if none was given.
    #[serde(rename = "type")]
    pub kind: String,
    /// Category, such as `ui.click`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// Description of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Severity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Additional data.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub data: Map<String, Value>,
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
        let mut event = Event {
            event_id: report.event_id().to_string(),
            timestamp: time_text(time),
            platform: "native".to_owned(),
            level: level(report),
            release: choose(&options.release, run.and_then(|run| run.release.as_ref().or(run.app.release.as_ref()))),
            dist: choose(&options.dist, app.and_then(|app| app.dist.as_ref())),
            environment: choose(
                &options.environment,
                run.and_then(|run| run.environment.as_ref().or(run.app.environment.as_ref())),
            ),
            sdk: sdk(report),
            ..Event::default()
        };
        let stacks = stacktrace::Stacks::new(report, &options.in_app);
        event.exception = exceptions::from_report(report, &stacks).into();
        event.threads = threads::from_report(report, &stacks).into();
        let (images, unidentified) = images::from_report(report);
        event.debug_meta = Some(DebugMeta { images }).filter(|meta| !meta.images.is_empty());
        event.contexts = contexts::from_report(report, unidentified, stacks.left_out());
        if let Some(run) = run {
            scope::add(&mut event, run);
        }
        if event.fingerprint.is_empty()
            && let Some(recursion) = Signature::recursion(report, &options.in_app)
        {
            // A server only collapses repeated frames of the same line. Otherwise the issue would
            // depend on which function, and which line, touched the last page.
            event.fingerprint = std::iter::once("stack overflow".to_owned()).chain(recursion).collect();
        }
        if event.fingerprint.is_empty()
            && let Some([kind, place]) = Signature::unnamed_place(report, &options.in_app)
        {
            if let Some(exception) = event.exception.values.last_mut() {
                exception.name_place(&place);
            }
            event.fingerprint = vec![kind, place];
        }
        if !options.send_default_pii {
            event.hide_home_directory();
        }
        limits::cut_texts(&mut event);
        event
    }

    /// Creates the event for a run that the system killed without notice.
    ///
    /// Such runs used too much memory or did not respond. The state of their threads is unknown.
    pub fn from_watchdog_termination(event_id: &str, time: Timestamp, run: &RunFacts, options: &EventOptions) -> Event {
        let report = Report { run: Some(run.clone()), ..Report::default() };
        let mut event = Event::from_report(&report, options);
        event_id.clone_into(&mut event.event_id);
        event.timestamp = time_text(time);
        "fatal".clone_into(&mut event.level);
        event.exception = vec![exceptions::watchdog_termination(run)].into();
        event
    }

    /// Returns the event as JSON that fits the server's size limit.
    ///
    /// If the event is too large, the least important parts are left out and listed in
    /// `dropped_for_size` in the context `coroner`.
    pub fn to_json(&self) -> Vec<u8> {
        // Serialization only fails for map keys that are not strings, and there are none.
        limits::fitted(serde_json::to_vec(self).unwrap_or_default())
    }

    pub(crate) fn stacktraces_mut(&mut self) -> impl Iterator<Item = &mut Stacktrace> {
        let exceptions = self.exception.values.iter_mut().filter_map(|exception| exception.stacktrace.as_mut());
        let threads = self.threads.values.iter_mut().filter_map(|thread| thread.stacktrace.as_mut());
        exceptions.chain(threads)
    }

    /// Replaces the user's home directory, which contains the user's name, with `~` in paths.
    fn hide_home_directory(&mut self) {
        let images = self.debug_meta.iter_mut().flat_map(|meta| &mut meta.images);
        for image in images {
            hide_home(&mut image.code_file);
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

/// Formats a time as the protocol requires, with microseconds, the precision that servers keep.
pub(crate) fn time_text(time: Timestamp) -> String {
    let micros = Timestamp(time.0 / 1000 * 1000);
    let text = micros.to_string();
    // Always include a fraction, so that all times in an event have the same length.
    if text.contains('.') { text } else { text.replace('Z', ".000000Z") }
}

fn level(report: &Report) -> String {
    let survived =
        report.crash.as_ref().is_some_and(|crash| crash.has(CrashFlag::NotFatal) || crash.monitor == Monitor::USER);
    // A level set by the app only applies to events that the process survived; termination is
    // always fatal.
    let set = report.run.as_ref().and_then(|run| run.level).and_then(Level::name);
    if survived { set.unwrap_or("error") } else { "fatal" }.to_owned()
}

fn sdk(report: &Report) -> Sdk {
    let mut sdk = Sdk::coroner();
    // The report was created by the version of Coroner that was in the app when it crashed.
    if !report.header.sdk_version.is_empty() {
        sdk.version.clone_from(&report.header.sdk_version);
        if let Some(package) = sdk.packages.first_mut() {
            package.version.clone_from(&report.header.sdk_version);
        }
    }
    sdk.integrations = report.crash.iter().map(|crash| crash.monitor.to_string()).collect();
    sdk
}
