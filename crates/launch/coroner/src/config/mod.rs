//! The app's settings for [`install`](crate::install): [`Config`], with its option groups.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::scope::{BeforeBreadcrumb, Breadcrumb};
use crate::sink::Sink;
use crate::system_report::SystemReport;

mod crashes;
mod delivery;
mod exceptions;
mod group;
mod hook;
mod limits;

pub use crashes::Crashes;
pub use delivery::Delivery;
pub use exceptions::{Exceptions, PanicPolicy};
pub use limits::Limits;

pub(crate) use delivery::{BeforeDeliver, OnCrashedLastRun, Scrub};
use hook::Hook;

/// Settings for [`install`](crate::install). Only the app's name has no default.
///
/// Most apps need no more than the settings here. The others are in four groups: [`Crashes`],
/// [`Exceptions`], [`Delivery`] and [`Limits`].
///
/// ```
/// use coroner::{Config, Crashes, Delivery, FolderSink};
///
/// let config = Config::new("com.example.paint")
///     .version("2.1.0")
///     .environment("beta")
///     .sink(FolderSink::new("/var/crash/paint"))
///     .crashes(Crashes::new().stack_memory(0))
///     .delivery(Delivery::new().before_deliver(|report| Some(report)));
/// ```
///
/// A group is set as a whole: setting it again replaces all of its options.
#[must_use = "a configuration does nothing until it is passed to `install`"]
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) app: String,
    pub(crate) version: Option<String>,
    pub(crate) environment: Option<String>,
    pub(crate) release: Option<String>,
    pub(crate) dist: Option<String>,
    pub(crate) store_dir: Option<PathBuf>,
    /// `None` means the default folder sink.
    pub(crate) sinks: Option<Vec<Arc<dyn Sink>>>,
    pub(crate) hang_threshold: Option<Duration>,
    pub(crate) system_reports: Vec<SystemReport>,
    pub(crate) before_breadcrumb: Option<Hook<BeforeBreadcrumb>>,
    pub(crate) keep_output: bool,
    pub(crate) run_id_thread: bool,
    pub(crate) crashes: Crashes,
    pub(crate) exceptions: Exceptions,
    pub(crate) delivery: Delivery,
    pub(crate) limits: Limits,
}

impl Config {
    /// Returns the default settings for `app`.
    ///
    /// `app` is the app's identifier, such as `com.example.paint`, or its name. It names the
    /// default store, so don't change it between versions.
    pub fn new(app: impl Into<String>) -> Self {
        Self {
            app: app.into(),
            version: None,
            environment: None,
            release: None,
            dist: None,
            store_dir: None,
            sinks: None,
            hang_threshold: None,
            system_reports: Vec::new(),
            before_breadcrumb: None,
            keep_output: false,
            run_id_thread: false,
            crashes: Crashes::default(),
            exceptions: Exceptions::default(),
            delivery: Delivery::default(),
            limits: Limits::default(),
        }
    }

    /// Sets the app's version, such as `env!("CARGO_PKG_VERSION")`.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Sets the environment that the app runs in, such as `production` or `beta`.
    pub fn environment(mut self, environment: impl Into<String>) -> Self {
        self.environment = Some(environment.into());
        self
    }

    /// Sets the release, by which servers distinguish an app's versions.
    ///
    /// Default: the app's name and version, as in `com.example.paint@2.1.0`.
    pub fn release(mut self, release: impl Into<String>) -> Self {
        self.release = Some(release.into());
        self
    }

    /// Sets the distribution: one of several builds of a release.
    pub fn dist(mut self, dist: impl Into<String>) -> Self {
        self.dist = Some(dist.into());
        self
    }

    /// Sets the store's directory, which install creates with access for its owner only.
    ///
    /// All processes of one app may share a store. An app and its extensions may share one, too,
    /// each under its own name ([`Config::new`]): the next of them to be launched then delivers the
    /// reports of all.
    ///
    /// Default ([`default_store_dir`](crate::default_store_dir)):
    /// * on Linux, `$STATE_DIRECTORY/<app>/coroner` in a service, otherwise
    ///   `$XDG_STATE_HOME/<app>/coroner` or `~/.local/state/<app>/coroner`, or
    ///   `/var/lib/<app>/coroner` for root without a home directory;
    /// * on macOS and iOS, `~/Library/Application Support/<app>/Coroner`;
    /// * on Windows, `%LOCALAPPDATA%\<app>\Coroner`.
    ///
    /// On Android there is no default: set a directory below `Context.getFilesDir()`.
    pub fn store_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.store_dir = Some(directory.into());
        self
    }

    /// Adds a sink.
    ///
    /// The first one replaces the default, a [`FolderSink`](crate::FolderSink) on `reports` in the
    /// store.
    pub fn sink(mut self, sink: impl Sink + 'static) -> Self {
        self.sinks.get_or_insert_with(Vec::new).push(Arc::new(sink));
        self
    }

    /// Removes all sinks, including the default one.
    ///
    /// Reports stay in the store for as long as [`Limits::retention`] allows.
    pub fn no_sinks(mut self) -> Self {
        self.sinks = Some(Vec::new());
        self
    }

    /// Sets how long a watched thread may be unresponsive before it counts as hung.
    ///
    /// Default: `None`, which watches nothing and starts no watchdog thread. The minimum is 50 ms;
    /// 2 s is usual on phones. Coroner watches threads with a [`HangWatch`](crate::HangWatch) and,
    /// on Apple systems, the main thread while it runs its run loop or the main queue.
    ///
    /// A hang is reported once, with the stacks of all threads at that time. The app continues, and
    /// when the hang ends, its length is added to the report. If the process is killed during the
    /// hang, the run's outcome is [`Outcome::Hung`](crate::Outcome::Hung).
    /// [`Limits::reports_per_hour`] limits the number of hangs reported per hour.
    pub fn hang_threshold(mut self, threshold: impl Into<Option<Duration>>) -> Self {
        self.hang_threshold = threshold.into();
        self
    }

    /// Adds the system's record of how an earlier process of the app died.
    ///
    /// An example is Android's [`ExitInfo`](crate::ExitInfo). The record is merged into that run's
    /// report and completes its outcome; for a crash without a report it becomes the report. Adding
    /// the same record at each launch is harmless.
    pub fn system_report(mut self, report: impl Into<SystemReport>) -> Self {
        self.system_reports.push(report.into());
        self
    }

    /// Sets a function that may change each breadcrumb, or drop it by returning `None`.
    ///
    /// It runs on the thread that adds the breadcrumb.
    pub fn before_breadcrumb(
        mut self,
        hook: impl for<'a> Fn(Breadcrumb<'a>) -> Option<Breadcrumb<'a>> + Send + Sync + 'static,
    ) -> Self {
        self.before_breadcrumb = Some(Hook(Arc::new(hook)));
        self
    }

    /// Sets whether to attach the last 60 KiB of the process's stderr and of its stdout. Default:
    /// no.
    ///
    /// The attachments are named `stderr` and `stdout`. This works for streams that are regular
    /// files at install. The file is read at the crash; if the process appends to it, what it
    /// contained before install is left out. Output to a terminal, a pipe or a socket is not kept,
    /// because a pipe in between could block or kill the app and its children. The output may
    /// contain user input. If it contains a message of the C library or a runtime, such as an
    /// assertion of musl or libc++, the last one becomes the report's message.
    pub fn keep_output(mut self, keep: bool) -> Self {
        self.keep_output = keep;
        self
    }

    /// Sets whether to start a thread whose stack encodes the run's id (macOS, iOS). Default: no.
    ///
    /// With it, a report from MetricKit or the system's crash reporter can be matched to this run.
    /// Without it, the match is by process id and time, which is less reliable, and before iOS 17
    /// and macOS 14 there is none. The thread waits forever and costs some tens of KiB of memory;
    /// reports and live backtraces leave it out.
    pub fn run_id_thread(mut self, start: bool) -> Self {
        self.run_id_thread = start;
        self
    }

    /// Sets the options for crashes. Replaces all options of an earlier call.
    pub fn crashes(mut self, crashes: Crashes) -> Self {
        self.crashes = crashes;
        self
    }

    /// Sets the exceptions and panics to report. Replaces all options of an earlier call.
    pub fn exceptions(mut self, exceptions: Exceptions) -> Self {
        self.exceptions = exceptions;
        self
    }

    /// Sets how the reports of earlier runs are processed. Replaces all options of an earlier call.
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Sets the limits on reports. Replaces all options of an earlier call.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}

#[cfg(test)]
mod tests;
