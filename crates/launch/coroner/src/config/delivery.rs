//! Options for what a launch does with the reports of earlier ones.

use std::sync::Arc;

use coroner_report::model::Report;

use crate::last_run::LastRun;
use crate::naming::NamingBudget;

use super::group::group;
use super::hook::Hook;

/// A callback that receives each report before the sinks and returns it, changed or not, or `None`.
pub(crate) type BeforeDeliver = Hook<dyn Fn(Report) -> Option<Report> + Send + Sync>;
/// A callback that receives a key and its text, and returns a replacement for the text.
pub(crate) type Scrub = Hook<dyn Fn(&str, &str) -> Option<String> + Send + Sync>;
/// A callback for a last run that crashed.
pub(crate) type OnCrashedLastRun = Hook<dyn Fn(&LastRun) + Send + Sync>;

group! {
    /// Options for processing the reports of earlier runs, before the sinks get them.
    ///
    /// By default, frames are named, obvious secrets are hidden, and delivery runs in the
    /// background from install on. Change this
    /// * to see or change each report ([`before_deliver`](Self::before_deliver)), or to hide what
    ///   only the app knows to be private ([`scrub`](Self::scrub)),
    /// * to notify the user of a crash ([`on_crashed_last_run`](Self::on_crashed_last_run)),
    /// * to choose when to deliver ([`at_install(false)`](Self::at_install)),
    /// * if a server has the symbols ([`symbolicate(false)`](Self::symbolicate)).
    ///
    /// ```
    /// use coroner::{Config, Delivery};
    ///
    /// let delivery = Delivery::new()
    ///     .on_crashed_last_run(|last| eprintln!("sorry about {:?}", last.event_id))
    ///     .before_deliver(|report| Some(report));
    /// let config = Config::new("com.example.paint").delivery(delivery);
    /// ```
    Delivery
    fields {
        attempts: u32 = 3,
        scrub: Option<Scrub> = None,
        before_deliver: Option<BeforeDeliver> = None,
        on_crashed_last_run: Option<OnCrashedLastRun> = None,
    }
    options {
        /// Sets whether to deliver in the background, starting at install. Default: yes.
        ///
        /// Reports of earlier runs are then delivered right away, and this run's non-fatal reports
        /// within seconds. Otherwise nothing is delivered before
        /// [`Coroner::flush`](crate::Coroner::flush).
        at_install: bool = true,
        /// Sets whether the next launch looks up function names, files and lines on this machine.
        ///
        /// Default: yes. Needs the feature `symbolicate`. A server that has the app's debug files
        /// can do this instead; reports are then a little smaller.
        symbolicate: bool = true,
        /// Sets how much memory and CPU time naming one report may take.
        ///
        /// Default: 32 MiB and one second. The report records which names were left out;
        /// `coroner show` adds them.
        naming_budget: NamingBudget = NamingBudget::default(),
        /// Sets whether to hide obvious secrets in the app's text from the sinks. Default: yes.
        ///
        /// Secrets are recognized by their form: see [`hide_secrets`](crate::hide_secrets).
        scrub_secrets: bool = true,
    }
}

impl Delivery {
    /// Sets how often processing a run may crash or panic before the run is set aside.
    ///
    /// Default: 3, at least 1. Crashes and panics of a sink, a hook or Coroner count; a kill, or a
    /// crash of another thread in the meantime, doesn't. The run is then moved to `broken` in the
    /// store.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// Sets a function that replaces text written by the app or a library.
    ///
    /// It is called for the text of tags, user, contexts, extra, breadcrumbs and messages. The
    /// first argument is the text's key, such as the tag's, and may be empty; the second is the
    /// text. It returns the replacement, or `None` to keep the text. It runs at the next launch,
    /// after [`scrub_secrets`](Self::scrub_secrets) and before
    /// [`before_deliver`](Self::before_deliver).
    pub fn scrub(mut self, scrub: impl Fn(&str, &str) -> Option<String> + Send + Sync + 'static) -> Self {
        self.scrub = Some(Hook(Arc::new(scrub)));
        self
    }

    /// Sets a function that receives each report before the sinks.
    ///
    /// It may change the report, or drop it by returning `None`. It runs at the next launch, in a
    /// healthy process: on the delivery thread, with named frames, and inside install for reports
    /// that a sink stores early ([`Sink::store_early`](crate::Sink::store_early)).
    pub fn before_deliver(mut self, hook: impl Fn(Report) -> Option<Report> + Send + Sync + 'static) -> Self {
        self.before_deliver = Some(Hook(Arc::new(hook)));
        self
    }

    /// Sets a function that is called once if the last run crashed.
    ///
    /// It is called on the delivery thread, if the app has not been notified yet.
    pub fn on_crashed_last_run(mut self, hook: impl Fn(&LastRun) + Send + Sync + 'static) -> Self {
        self.on_crashed_last_run = Some(Hook(Arc::new(hook)));
        self
    }
}
