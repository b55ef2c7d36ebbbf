//! What a launch does with the reports of earlier ones.

use std::sync::Arc;

use coroner_report::model::Report;

use crate::last_run::LastRun;
use crate::naming::NamingBudget;

use super::group::group;
use super::hook::Hook;

/// Sees each report before the sinks do: changes it, or drops it with `None`.
pub(crate) type BeforeDeliver = Hook<dyn Fn(Report) -> Option<Report> + Send + Sync>;
/// Gives the text to stand in the place of one, which stands under a key.
pub(crate) type Scrub = Hook<dyn Fn(&str, &str) -> Option<String> + Send + Sync>;
/// Is called if the last run crashed.
pub(crate) type OnCrashedLastRun = Hook<dyn Fn(&LastRun) + Send + Sync>;

group! {
    /// What a launch does with the reports of earlier ones before the sinks get them. By default it names their frames, hides what is surely a
    /// secret, and delivers in the background from install on. You need this
    /// * to see or change each report ([`before_deliver`](Self::before_deliver)), or to hide what only the app knows to be private
    ///   ([`scrub`](Self::scrub)),
    /// * to tell the user of a crash ([`on_crashed_last_run`](Self::on_crashed_last_run)),
    /// * to deliver at a time of your own ([`at_install(false)`](Self::at_install)),
    /// * where a server has the symbols ([`symbolicate(false)`](Self::symbolicate)).
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
        /// Whether reports of earlier runs are delivered right from install on, in the background, and what this one survives within
        /// seconds. Default: yes; if not, nothing
        /// leaves the store before [`Coroner::flush`](crate::Coroner::flush).
        at_install: bool = true,
        /// Whether function names, files and lines are looked up on this machine, at the next launch. It needs the feature `symbolicate`. Default: yes. A server that
        /// has the app's debug files can do it as well, and reports are then a little smaller.
        symbolicate: bool = true,
        /// What naming one report may cost this app in memory and processor time. Default: 32 MiB and one second. What is left out, the
        /// report says, and `coroner show` adds.
        naming_budget: NamingBudget = NamingBudget::default(),
        /// Whether what is surely a secret by its form is hidden in texts of the app before the sinks get a report: see
        /// [`hide_secrets`](crate::hide_secrets). Default: yes.
        scrub_secrets: bool = true,
    }
}

impl Delivery {
    /// How many times the processing of one run may end in a crash or a panic (of a sink, of a hook, of Coroner) before the run is
    /// set aside in `broken` in the store. A kill, or a crash of another thread meanwhile, does not count. At least 1. Default: 3.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// A function that gives the text to stand in the place of one that the app or a library wrote (tags, user, contexts, extra,
    /// breadcrumbs, messages), and `None` for those that may stay. Its first argument is the key under which the text stands, such as
    /// the tag's, or empty. It comes after [`scrub_secrets`](Self::scrub_secrets), at the next launch, before [`before_deliver`](Self::before_deliver).
    pub fn scrub(mut self, scrub: impl Fn(&str, &str) -> Option<String> + Send + Sync + 'static) -> Self {
        self.scrub = Some(Hook(Arc::new(scrub)));
        self
    }

    /// A function that sees each report before the sinks: it may change it, or drop it with `None`. It runs at the next
    /// launch, in a healthy process: in install with what a sink stores early ([`Sink::store_early`](crate::Sink::store_early)), and
    /// on the delivery thread with names.
    pub fn before_deliver(mut self, hook: impl Fn(Report) -> Option<Report> + Send + Sync + 'static) -> Self {
        self.before_deliver = Some(Hook(Arc::new(hook)));
        self
    }

    /// A function that is called once, on the delivery thread, when the last run crashed and the app has not been notified yet.
    pub fn on_crashed_last_run(mut self, hook: impl Fn(&LastRun) + Send + Sync + 'static) -> Self {
        self.on_crashed_last_run = Some(Hook(Arc::new(hook)));
        self
    }
}
