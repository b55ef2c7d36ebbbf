//! What an app decides before [`install`](crate::install): [`Config`], with a group of options in each file beside this one.

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

/// What an app decides. Only the app's name has no default, and most apps set no more than is here; the rest is in four groups: [`Crashes`],
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
/// A group is set as a whole: one that is given again replaces the one before.
#[must_use = "a configuration does nothing until it is given to `install`"]
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) app: String,
    pub(crate) version: Option<String>,
    pub(crate) environment: Option<String>,
    pub(crate) release: Option<String>,
    pub(crate) dist: Option<String>,
    pub(crate) store_dir: Option<PathBuf>,
    /// `None`: the default folder sink.
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
    /// The defaults for the app `app`: its name or, better, its identifier, such as `com.example.paint`. It names the
    /// default store, so it should stay the same from version to version.
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

    /// The app's version, such as `env!("CARGO_PKG_VERSION")`.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Where the app runs, such as `production` or `beta`.
    pub fn environment(mut self, environment: impl Into<String>) -> Self {
        self.environment = Some(environment.into());
        self
    }

    /// The release, by which servers distinguish versions of an app. Default: the app's name and version, as in
    /// `com.example.paint@2.1.0`.
    pub fn release(mut self, release: impl Into<String>) -> Self {
        self.release = Some(release.into());
        self
    }

    /// The distribution: one of several builds of a release.
    pub fn dist(mut self, dist: impl Into<String>) -> Self {
        self.dist = Some(dist.into());
        self
    }

    /// The directory of the store, made at install for its owner only. All processes of one app may share it, and so may an app and its extensions,
    /// each under a name of its own ([`Config::new`]): then whichever is launched next delivers what any has left.
    ///
    /// Default ([`default_store_dir`](crate::default_store_dir)): on Linux `$STATE_DIRECTORY/<app>/coroner` in a service,
    /// `$XDG_STATE_HOME/<app>/coroner` or `~/.local/state/<app>/coroner`, or for root without a home directory `/var/lib/<app>/coroner`,
    /// `~/Library/Application Support/<app>/Coroner` on macOS and iOS,
    /// `%LOCALAPPDATA%\<app>\Coroner` on Windows. On Android it must be given: a directory below
    /// `Context.getFilesDir()`.
    pub fn store_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.store_dir = Some(directory.into());
        self
    }

    /// Adds a sink. With the first, the default (a [`FolderSink`](crate::FolderSink) on `reports` in the store) is no longer
    /// there.
    pub fn sink(mut self, sink: impl Sink + 'static) -> Self {
        self.sinks.get_or_insert_with(Vec::new).push(Arc::new(sink));
        self
    }

    /// Takes away all sinks, the default one too: reports stay in the store, as long as [`Limits::retention`] says.
    pub fn no_sinks(mut self) -> Self {
        self.sinks = Some(Vec::new());
        self
    }

    /// After what time a watched thread that does not answer hangs; at least 50 ms, and on phones 2 s are usual. Threads are watched
    /// that have a [`HangWatch`](crate::HangWatch), and on Apple's systems the main thread, where it works through its run loop
    /// or the main queue. Default: `None`, nothing is watched, and there is no thread for it.
    ///
    /// A hang is reported once, with the stacks of all threads at that time; the app goes on, and what the report says of its length is
    /// what it was at its end. If the process is ended while it hangs, the next launch finds that out: the run's outcome is
    /// [`Outcome::Hung`](crate::Outcome::Hung). As many hangs an hour are reported as [`Limits::reports_per_hour`] says.
    pub fn hang_threshold(mut self, threshold: impl Into<Option<Duration>>) -> Self {
        self.hang_threshold = threshold.into();
        self
    }

    /// What the system says of the death of an earlier process of the app, such as an [`ExitInfo`](crate::ExitInfo) of Android. It is
    /// joined with the report of that run and completes its outcome; a crash without a report becomes one. The same may be given at each
    /// launch.
    pub fn system_report(mut self, report: impl Into<SystemReport>) -> Self {
        self.system_reports.push(report.into());
        self
    }

    /// A function that sees each breadcrumb before it is kept, on the thread that leaves it: it may change it, or drop it with `None`.
    pub fn before_breadcrumb(
        mut self,
        hook: impl for<'a> Fn(Breadcrumb<'a>) -> Option<Breadcrumb<'a>> + Send + Sync + 'static,
    ) -> Self {
        self.before_breadcrumb = Some(Hook(Arc::new(hook)));
        self
    }

    /// Whether the last 60 KiB that the process wrote to stderr and to stdout go with its reports, as attachments `stderr` and `stdout`, where
    /// those are regular files at install: a file is read again at the crash, and one that the process appends to from where it ended at install. Of a terminal, a pipe or a socket nothing is kept, since a pipe of
    /// Coroner's between could block or kill the app and its children. They may hold what users typed. What a C library or a runtime says there of its
    /// end (an assertion of musl or libc++) is the report's message. Default: no.
    pub fn keep_output(mut self, keep: bool) -> Self {
        self.keep_output = keep;
        self
    }

    /// Whether a thread is started whose stack says the run's id, so that what MetricKit, or the system's crash report, says of this process's death is
    /// known to be of this run (macOS, iOS): by the process id and the time it is known less well, and before iOS 17 and macOS 14 not at
    /// all. The thread waits for ever and costs some tens of KiB of memory; neither reports nor live backtraces have it. Default: no.
    pub fn run_id_thread(mut self, start: bool) -> Self {
        self.run_id_thread = start;
        self
    }

    /// What happens when the process crashes. It replaces the group that was given before.
    pub fn crashes(mut self, crashes: Crashes) -> Self {
        self.crashes = crashes;
        self
    }

    /// Which exceptions and panics are reported. It replaces the group that was given before.
    pub fn exceptions(mut self, exceptions: Exceptions) -> Self {
        self.exceptions = exceptions;
        self
    }

    /// What a launch does with the reports of earlier ones. It replaces the group that was given before.
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// How much reports may take. It replaces the group that was given before.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}

#[cfg(test)]
mod tests;
