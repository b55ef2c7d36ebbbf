//! The [`Sink`] trait, which receives reports, and the sinks that come with Coroner.
//!
//! To add a sink, implement [`Sink`] in a file here or in the app, and pass it to
//! [`Config::sink`](crate::Config::sink).

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use coroner_report::model::{Id, Report, RunFacts};

use crate::Feedback;
use crate::bundle;
use crate::store::RawRun;

mod folder;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(feature = "sentry")]
mod sentry;
#[cfg(feature = "sentry-client")]
mod sentry_client;

pub use folder::FolderSink;
#[cfg(feature = "otlp")]
pub use otlp::OtlpSink;
#[cfg(feature = "sentry")]
pub use sentry::SentrySink;
#[cfg(feature = "sentry-client")]
pub use sentry_client::{SentryClientSink, SentryIntegration, mirror_scope};
#[cfg(feature = "sentry-client")]
pub(crate) use sentry_client::{client_release_and_environment, note_sentry_sink};

/// Receives reports, one at a time, on Coroner's delivery thread.
///
/// Crash reports arrive at the next launch. Non-fatal reports (handled exceptions, panics that end
/// a thread, hangs) arrive within seconds in the process itself.
///
/// Each sink gets each report independently of the other sinks and their answers. A report is kept
/// in the store until every sink has delivered or rejected it.
///
/// **The same report may arrive twice**: a process can be killed after a sink has accepted a report
/// and before that was recorded. A sink recognizes such a report by the event id in
/// [`Report::header`], which stays the same, and returns [`SinkAnswer::Delivered`] again.
///
/// A sink that panics, or crashes or hangs the app, gets the report again at the next launch, a few
/// times ([`Delivery::attempts`](crate::Delivery::attempts)); then the run is set aside in the
/// store.
///
/// ```
/// use coroner::{SinkAnswer, Sink, Submission};
///
/// struct Printer;
///
/// impl Sink for Printer {
///     fn name(&self) -> &str {
///         "printer"
///     }
///
///     fn deliver(&self, submission: &Submission<'_>) -> SinkAnswer {
///         eprintln!("run {} crashed", submission.run);
///         SinkAnswer::Delivered
///     }
/// }
/// # let _config = coroner::Config::new("app").sink(Printer);
/// ```
pub trait Sink: Send + Sync {
    /// Returns the sink's name, by which the store records what the sink has accepted.
    ///
    /// It must be unique, and the same at every launch.
    fn name(&self) -> &str;

    /// Delivers one report.
    ///
    /// It may block, because it runs on a Coroner thread. If the app ends in the meantime, the next
    /// launch delivers the report.
    fn deliver(&self, submission: &Submission<'_>) -> SinkAnswer;

    /// Stores a report as the crash left it, before [`deliver`](Self::deliver).
    ///
    /// Returns whether the report is stored. The default implementation does nothing.
    ///
    /// It is called in [`install`](crate::install) on the calling thread, so that even a launch of
    /// a few milliseconds stores reports. Function names are those that the crash itself found.
    /// `deliver` later gets the report with the same event id, and must replace what was stored.
    /// The call should take at most two milliseconds and wait for nothing, not even for the disk:
    /// the report stays in the store until `deliver` has answered.
    ///
    /// It is called at the first launch that finds the report, and again if
    /// [`Submission::SHORT_LAUNCHES`] launches have ended before the report was delivered.
    fn store_early(&self, submission: &Submission<'_>) -> bool {
        let _ = submission;
        false
    }

    /// Whether the sink is notified of runs, for release health.
    ///
    /// If so, [`run_began`](Self::run_began) and [`run_ended`](Self::run_ended) are called, and
    /// install starts the delivery thread even if there is nothing to deliver.
    fn follows_runs(&self) -> bool {
        false
    }

    /// Passes the store's directory, in which the sink may create a subdirectory with its name.
    ///
    /// It is called in [`install`](crate::install) on the calling thread, for work that must not
    /// wait for the delivery thread, such as storing the user's consent.
    fn opened(&self, store: &Path) {
        let _ = store;
    }

    /// Notifies the sink of this process's run, once, before the first report.
    fn run_began(&self, run: &BegunRun<'_>) {
        let _ = run;
    }

    /// Notifies the sink of a run that has ended in any way, after its reports were delivered.
    ///
    /// It may be called twice for one run.
    fn run_ended(&self, run: &FinishedRun<'_>) {
        let _ = run;
    }

    /// Notifies the sink that `reports` waiting reports were removed to meet the store's
    /// [`limits`](crate::Limits::retention).
    fn reports_evicted(&self, reports: usize) {
        let _ = reports;
    }

    /// Notifies the sink that `reports` non-fatal reports were never written.
    ///
    /// They exceeded the limit [`reports_per_hour`](crate::Limits::reports_per_hour).
    fn reports_left_out(&self, reports: u64) {
        let _ = reports;
    }

    /// Delivers user feedback about a crash. Returns whether the sink accepted it.
    fn feedback(&self, feedback: &Feedback) -> bool {
        let _ = feedback;
        false
    }

    /// Waits, at most for `timeout`, until all accepted reports have arrived.
    ///
    /// Returns whether they have. The default implementation returns `true`, for sinks that don't
    /// queue reports.
    fn flush(&self, timeout: Duration) -> bool {
        let _ = timeout;
        true
    }
}

impl<S: Sink + ?Sized> Sink for Arc<S> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn deliver(&self, submission: &Submission<'_>) -> SinkAnswer {
        (**self).deliver(submission)
    }

    fn store_early(&self, submission: &Submission<'_>) -> bool {
        (**self).store_early(submission)
    }

    fn follows_runs(&self) -> bool {
        (**self).follows_runs()
    }

    fn opened(&self, store: &Path) {
        (**self).opened(store);
    }

    fn run_began(&self, run: &BegunRun<'_>) {
        (**self).run_began(run);
    }

    fn run_ended(&self, run: &FinishedRun<'_>) {
        (**self).run_ended(run);
    }

    fn reports_evicted(&self, reports: usize) {
        (**self).reports_evicted(reports);
    }

    fn feedback(&self, feedback: &Feedback) -> bool {
        (**self).feedback(feedback)
    }

    fn reports_left_out(&self, reports: u64) {
        (**self).reports_left_out(reports);
    }

    fn flush(&self, timeout: Duration) -> bool {
        (**self).flush(timeout)
    }
}

/// One report on its way to a sink.
#[derive(Debug)]
#[non_exhaustive]
pub struct Submission<'a> {
    /// The report's run.
    pub run: Id,
    /// The report with the run state merged in and symbol names found, after the hooks.
    pub report: &'a Report,
    /// The report's index in [`RawRun::reports`].
    ///
    /// A run has several reports if the process survived a crash. A report that arrives again may
    /// have another index, but has the same event id.
    pub index: usize,
    /// The run's files in their original form. [`file`](Self::file) returns the report as one file.
    pub raw: &'a RawRun,
    /// The number of earlier attempts to deliver this report to this sink.
    pub tries: u32,
    /// The number of launches that found the run and ended before it was delivered; at least
    /// [`SHORT_LAUNCHES`](Self::SHORT_LAUNCHES) if the app's launches are short.
    pub launches: u32,
}

impl Submission<'_> {
    /// The number of launches after which [`Sink::store_early`] is called again, for sinks that
    /// otherwise wait for names.
    pub const SHORT_LAUNCHES: u32 = 2;
}

impl Submission<'_> {
    /// Returns the report as one file, as [`FolderSink`] writes it (`.coroner`).
    ///
    /// It contains the crash's report and the run state (tags, user, breadcrumbs, facts about the
    /// app), without the zeros reserved at its end. [`Report::read`] and `coroner show` read it.
    /// Secrets in its texts are not hidden.
    pub fn file(&self) -> Vec<u8> {
        let report = self.raw.reports.get(self.index).map_or(&[][..], Vec::as_slice);
        bundle::pack(report, &self.raw.state, self.raw.system_file(self.index))
    }
}

/// The run of this process.
#[derive(Debug)]
#[non_exhaustive]
pub struct BegunRun<'a> {
    /// The run's id.
    pub run: Id,
    /// The store's directory, in which a sink may create a subdirectory with its name.
    pub store: &'a Path,
    /// The facts about app and system.
    pub facts: &'a RunFacts,
}

/// A run that has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct FinishedRun<'a> {
    /// The run's id.
    pub run: Id,
    /// The facts about the run, including how it ended.
    pub facts: &'a RunFacts,
    /// The number of the run's reports of any kind.
    pub reports: usize,
    /// The number of the run's crash reports, without handled exceptions and hangs.
    pub crashes: usize,
}

/// A sink's answer to a report.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkAnswer {
    /// The sink accepted the report.
    Delivered,
    /// The sink rejected the report; it is not offered again.
    Rejected {
        /// The reason, for people.
        reason: String,
    },
    /// The sink can't accept the report now, for example without a network or disk space.
    Retry {
        /// Minimum time before the next attempt.
        ///
        /// The first launch or [`Coroner::flush`](crate::Coroner::flush) after that time tries
        /// again. The maximum is one day.
        after: Duration,
        /// The reason, for people.
        reason: String,
    },
}

/// A sink's value and the process that created it.
///
/// In a child created by fork, the value's threads don't exist and its locks may be taken.
#[cfg(any(feature = "otlp", feature = "sentry"))]
struct ProcessOwned<T>(Option<(u32, T)>);

#[cfg(any(feature = "otlp", feature = "sentry"))]
impl<T: Clone> ProcessOwned<T> {
    /// Returns the value if this process created it.
    fn get(&self) -> Option<T> {
        let own = self.0.as_ref().filter(|(process, _)| *process == std::process::id());
        own.map(|(_, value)| value.clone())
    }

    fn set(&mut self, value: T) {
        self.0 = Some((std::process::id(), value));
    }
}

#[cfg(any(feature = "otlp", feature = "sentry"))]
impl<T> Default for ProcessOwned<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl fmt::Debug for dyn Sink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Sink({})", self.name())
    }
}
