//! A report as the event that Sentry's ingestion takes.
//!
//! The types here say what a native crash event can hold, by the names of the protocol (develop.sentry.dev, *Event Payloads*),
//! each in a form that Relay's normaliser keeps as it is: `cargo xtask sentry-check` sends every kind of crash through it and compares.
//! They are Coroner's own because `sentry-types` can't say what matters here: images of type `elf` and `macho`, `trust`,
//! `instruction_addr_adjustment`, the state of a thread.

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

/// Name under which events say who made them.
pub const SDK_NAME: &str = "coroner.rust";

/// A list as the protocol writes it: `{"values": […]}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Values<T> {
    /// The elements.
    pub values: Vec<T>,
}

impl<T> Values<T> {
    /// Whether there is none.
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

/// An event of a native program. Times are RFC 3339 in UTC, addresses `0x` and hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// 32 hexadecimal digits, made when the crash happened: a server that has it already drops a second one.
    pub event_id: String,
    /// When the crash happened.
    pub timestamp: String,
    /// Always `native`.
    pub platform: String,
    /// How grave: `fatal`, `error`, `warning`, `info` or `debug`.
    pub level: String,
    /// The app's release, such as `app@1.2.3+45`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// Its distribution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dist: Option<String>,
    /// Where it runs, such as `production`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// What the app was at, such as the name of a screen or a route: the tag `transaction`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<String>,
    /// By what a server is to group, instead of its own rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fingerprint: Vec<String>,
    /// Who made the event.
    pub sdk: Sdk,
    /// What happened: what caused it first, what ended the process last.
    #[serde(default, skip_serializing_if = "Values::is_empty")]
    pub exception: Values<Exception>,
    /// All threads. The one that an exception names has its stack there.
    #[serde(default, skip_serializing_if = "Values::is_empty")]
    pub threads: Values<Thread>,
    /// What a server needs to find names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug_meta: Option<DebugMeta>,
    /// App, system, device, and what the app set.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub contexts: Map<String, Value>,
    /// Who used the app.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub user: Map<String, Value>,
    /// Short texts to search by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// What the app set to be shown.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
    /// What led up to it, oldest first.
    #[serde(default, skip_serializing_if = "Values::is_empty")]
    pub breadcrumbs: Values<Breadcrumb>,
}

/// Who made an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sdk {
    /// [`SDK_NAME`].
    pub name: String,
    /// Its version.
    pub version: String,
    /// Parts of it that can tell of a crash.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub integrations: Vec<String>,
    /// What it is made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<Package>,
}

impl Sdk {
    /// Coroner of this version.
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
    /// Its version.
    pub version: String,
}

/// What a server needs to find names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugMeta {
    /// The loaded images.
    pub images: Vec<DebugImage>,
}

/// Something that happened before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Breadcrumb {
    /// When.
    pub timestamp: String,
    /// What kind of thing, such as `navigation`; `default` where that was not said.
    #[serde(rename = "type")]
    pub kind: String,
    /// Where it belongs, such as `ui.click`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// What happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How grave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// More of it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub data: Map<String, Value>,
}

/// What an event is made by, beside the report.
#[derive(Clone, Debug, Default)]
pub struct EventOptions {
    /// Which code is the app's own.
    pub in_app: InAppRules,
    /// The release, instead of the one that the report says.
    pub release: Option<String>,
    /// The distribution, in the same way.
    pub dist: Option<String>,
    /// The environment, in the same way.
    pub environment: Option<String>,
    /// Whether a device's name, its users' names and the like may be in the event. Paths below a home directory are written
    /// with `~` without it.
    pub send_default_pii: bool,
}

impl Event {
    /// The event of a report. What names the report has are in it; symbolicate it before.
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
        event.exception = exceptions::of(report, &stacks).into();
        event.threads = threads::of(report, &stacks).into();
        let (images, unidentified) = images::of(report);
        event.debug_meta = Some(DebugMeta { images }).filter(|meta| !meta.images.is_empty());
        event.contexts = contexts::of(report, unidentified, stacks.left_out());
        if let Some(run) = run {
            scope::add(&mut event, run);
        }
        if event.fingerprint.is_empty()
            && let Some(recursion) = Signature::recursion(report, &options.in_app)
        {
            // A server skips frames that repeat, but only those of one line: which function took the last page, and in which line, would
            // decide which issue it is.
            event.fingerprint = std::iter::once("stack overflow".to_owned()).chain(recursion).collect();
        }
        if !options.send_default_pii {
            event.hide_home_directory();
        }
        limits::cut_texts(&mut event);
        event
    }

    /// The event of a run that the system ended without a word, for using too much memory or for not answering: nothing is
    /// known of its threads.
    pub fn of_watchdog_termination(event_id: &str, time: Timestamp, run: &RunFacts, options: &EventOptions) -> Event {
        let report = Report { run: Some(run.clone()), ..Report::default() };
        let mut event = Event::from_report(&report, options);
        event_id.clone_into(&mut event.event_id);
        event.timestamp = time_text(time);
        "fatal".clone_into(&mut event.level);
        event.exception = vec![exceptions::watchdog_termination(run)].into();
        event
    }

    /// As the protocol wants it, and small enough for servers: where there is too much, what is worth least is left out, and the context `coroner`
    /// says what (`dropped_for_size`).
    pub fn to_json(&self) -> Vec<u8> {
        // It fails for map keys that are no text, of which there are none.
        limits::fitted(serde_json::to_vec(self).unwrap_or_default())
    }

    pub(crate) fn stacktraces_mut(&mut self) -> impl Iterator<Item = &mut Stacktrace> {
        let exceptions = self.exception.values.iter_mut().filter_map(|exception| exception.stacktrace.as_mut());
        let threads = self.threads.values.iter_mut().filter_map(|thread| thread.stacktrace.as_mut());
        exceptions.chain(threads)
    }

    /// Writes the user's home directory as `~` in the paths of images, which would tell the user's name.
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

/// A time as the protocol writes it, to the microsecond, which is what servers keep.
pub(crate) fn time_text(time: Timestamp) -> String {
    let micros = Timestamp(time.0 / 1000 * 1000);
    let text = micros.to_string();
    // Always with a fraction, so that times of one event have one length.
    if text.contains('.') { text } else { text.replace('Z', ".000000Z") }
}

fn level(report: &Report) -> String {
    let survived =
        report.crash.as_ref().is_some_and(|crash| crash.has(CrashFlag::NotFatal) || crash.monitor == Monitor::USER);
    // An app's own level is for what it goes on after: the end of the process is fatal.
    let set = report.run.as_ref().and_then(|run| run.level).and_then(Level::name);
    if survived { set.unwrap_or("error") } else { "fatal" }.to_owned()
}

fn sdk(report: &Report) -> Sdk {
    let mut sdk = Sdk::coroner();
    // The Coroner that was in the app when it crashed is the one that made the report.
    if !report.header.sdk_version.is_empty() {
        sdk.version.clone_from(&report.header.sdk_version);
        if let Some(package) = sdk.packages.first_mut() {
            package.version.clone_from(&report.header.sdk_version);
        }
    }
    sdk.integrations = report.crash.iter().map(|crash| crash.monitor.to_string()).collect();
    sdk
}
