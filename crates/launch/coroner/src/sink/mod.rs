//! Where reports go: the [`Sink`] trait and the sinks that come with it.
//!
//! A new sink is one file here (or a type in the app) that implements [`Sink`], and one [`Config::sink`](crate::Config::sink).

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
pub(crate) use sentry_client::{beside_sentry_client, release_and_environment_of_client};

/// Takes reports, one at a time, on Coroner's delivery thread: of crashes at the launch after, of what a process survives (handled
/// exceptions, panics that end a thread, hangs) some seconds later in that process itself.
///
/// Each sink is asked for each report on its own: that one took it or can't take it now changes nothing for the others.
/// A report is kept in the store until every sink has delivered or rejected it.
///
/// **The same report may come twice**: a process can be killed after a sink has taken a report and before that was noted.
/// A sink knows by [`Report::header`]'s event id, which stays the same, that it has it already, and says
/// [`SinkAnswer::Delivered`] again.
///
/// A sink that panics, crashes or hangs the app is asked again at the next launch, a few times
/// ([`Delivery::attempts`](crate::Delivery::attempts)); then the run is set aside in the store.
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
    /// Its name, by which the store remembers what it has taken: the same at every launch, and no other sink's.
    fn name(&self) -> &str;

    /// Takes one report. It may take its time: it runs on a thread of its own, and an app that ends in between delivers the
    /// report at its next launch.
    fn deliver(&self, submission: &Submission<'_>) -> SinkAnswer;

    /// Is shown a report as the crash left it, in [`install`](crate::install) on the thread that calls it, so that a launch of a few
    /// milliseconds is enough; names of functions are those that the crash itself found. What it stores is replaced by what
    /// [`deliver`](Self::deliver) brings for the same event id, in this launch or a later one. It should take a
    /// millisecond or two and wait for nothing, not even for the disk: the report stays in the store until `deliver` has
    /// answered. Returns whether the report is stored; a sink that has no use for it does nothing.
    fn store_early(&self, submission: &Submission<'_>) -> bool {
        let _ = submission;
        false
    }

    /// Whether it wants to be notified of runs, [`run_began`](Self::run_began) and [`run_ended`](Self::run_ended): for figures of how
    /// many runs of an app crash. Install then starts the delivery thread also where nothing is to be delivered.
    fn follows_runs(&self) -> bool {
        false
    }

    /// Is notified of the store's directory, in which it may have one of its own with its name, in [`install`](crate::install) on the thread
    /// that calls it: for what must not wait for the delivery thread, such as what the user said of sending.
    fn opened(&self, store: &Path) {
        let _ = store;
    }

    /// Is notified of the run that this process is, once, before any report comes.
    fn run_began(&self, run: &BegunRun<'_>) {
        let _ = run;
    }

    /// Is notified of each launch of the app that has ended, however it did, after its reports have come. It may be notified twice of one.
    fn run_ended(&self, run: &FinishedRun<'_>) {
        let _ = run;
    }

    /// Is notified that so many reports that waited were removed unasked, to keep the store within its
    /// [`limits`](crate::Limits::retention).
    fn reports_evicted(&self, reports: usize) {
        let _ = reports;
    }

    /// Is notified that so many reports of what a run survived were never written, since there were more of them than
    /// [`reports_per_hour`](crate::Limits::reports_per_hour) allows.
    fn reports_left_out(&self, reports: u64) {
        let _ = reports;
    }

    /// Takes what a user says of a crash; says whether it has it.
    fn feedback(&self, feedback: &Feedback) -> bool {
        let _ = feedback;
        false
    }

    /// Waits until what was taken is where it should be, at most `timeout`; says whether it is. Sinks that keep nothing back
    /// have nothing to do.
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
    /// The run that it is of.
    pub run: Id,
    /// The report, with the run state stitched in and symbol names found, as the hooks left it.
    pub report: &'a Report,
    /// The place in [`RawRun::reports`]: a process can survive a crash and have another. A report that comes again may have another place;
    /// its event id stays.
    pub index: usize,
    /// The run's files as the crash left them. [`file`](Self::file) is the report as one file.
    pub raw: &'a RawRun,
    /// How many times this sink has been asked for this report before.
    pub tries: u32,
}

impl Submission<'_> {
    /// The report as one file, as [`FolderSink`] writes it (`.coroner`): what the crash left, with the run state (tags, user, breadcrumbs, facts of the
    /// app) and without the zeros that were reserved behind it. [`Report::read`] and `coroner show` read it. Secrets in its texts are not hidden.
    pub fn file(&self) -> Vec<u8> {
        let report = self.raw.reports.get(self.index).map_or(&[][..], Vec::as_slice);
        bundle::pack(report, &self.raw.state, self.raw.system_file(self.index))
    }
}

/// The run that this process is.
#[derive(Debug)]
#[non_exhaustive]
pub struct BegunRun<'a> {
    /// The run.
    pub run: Id,
    /// The store's directory, in which a sink may have a directory of its own with its name.
    pub store: &'a Path,
    /// What is known of app and system.
    pub facts: &'a RunFacts,
}

/// A run that has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct FinishedRun<'a> {
    /// The run.
    pub run: Id,
    /// What is known of it, how it ended included.
    pub facts: &'a RunFacts,
    /// How many reports it left, of any kind.
    pub reports: usize,
    /// How many of them are of crashes: not of exceptions that the app handled, nor of hangs.
    pub crashes: usize,
}

/// What a sink made of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkAnswer {
    /// It has it, for good.
    Delivered,
    /// It will never take it, and must not be asked again.
    Rejected {
        /// Why, for people.
        reason: String,
    },
    /// It could not take it now: no network, no room.
    Retry {
        /// How long to wait at least before it is asked again. A launch of the app, or
        /// [`Coroner::flush`](crate::Coroner::flush), after that time asks; waits of more than a day count as a day.
        after: Duration,
        /// Why, for people.
        reason: String,
    },
}

/// What a sink has made, with the process that made it: in a child made by fork its threads are not there, and its locks may be
/// taken.
#[cfg(any(feature = "otlp", feature = "sentry"))]
struct OfProcess<T>(Option<(u32, T)>);

#[cfg(any(feature = "otlp", feature = "sentry"))]
impl<T: Clone> OfProcess<T> {
    /// What this process has made.
    fn get(&self) -> Option<T> {
        let own = self.0.as_ref().filter(|(process, _)| *process == std::process::id());
        own.map(|(_, made)| made.clone())
    }

    fn set(&mut self, made: T) {
        self.0 = Some((std::process::id(), made));
    }
}

#[cfg(any(feature = "otlp", feature = "sentry"))]
impl<T> Default for OfProcess<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl fmt::Debug for dyn Sink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Sink({})", self.name())
    }
}
