//! Delivery at the next launch: creates a report of every ended run and passes it to the sinks.
//!
//! The first step ([`intake`]) runs in install, on the calling thread. It determines how the last
//! run ended, and passes reports in their original form to sinks that can store them early, so that
//! even the shortest launch stores waiting reports. Everything else happens on one background
//! thread that exists only while there is work. Its steps are ordered so that a crash, a kill or a
//! power failure at any point loses nothing:
//!
//! 1. A run is claimed by its lock, so that no other process works on it. One run is claimed at a
//!    time, because there may be more runs than file descriptors.
//! 2. Before any of the run's files is read, this process's own run state records which run is
//!    being processed by which thread. If that thread crashes, the next launch counts the crash
//!    against the run ([`evidence`]); a kill doesn't count. A run whose processing has crashed too
//!    often is set aside unread.
//! 3. Each sink's answer is written to disk before the next sink is asked.
//! 4. The run is removed when all sinks have accepted or rejected its reports.
//! 5. Remaining runs are removed until the store's limits are met.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use coroner_report::model::{Id, Report, RunFacts};
use coroner_report::run_state::{ProcessIdentity, RunState};

use crate::bundle::is_written;
#[cfg(supported)]
use crate::clock::now_ns;
use crate::config::Config;
use crate::delivery_thread::{Left, Waiters, Work};
use crate::feedback::Feedback;
use crate::last_run::{LastRun, app_number};
use crate::naming::Naming;
use crate::run_end::{crashes, is_not_a_launch};
#[cfg(supported)]
use crate::scope::Scope;
use crate::sink::{BegunRun, FinishedRun, Sink};
use crate::store::progress::Answers;
use crate::store::{EndedRun, Evicted, ListedRun, RawRun, Retention, Store};
use crate::system_report::hand_over;
use crate::{device_state, termination, vitals};
use ended_runs::{EndedRuns, record};
use last_run_search::LastRunSearch;
use preparation::Preparation;
use scrubber::Scrubber;
use sinks::Sinks;

mod ended_runs;
mod evidence;
mod intake;
mod last_run_search;
mod own_reports;
mod preparation;
mod scrubber;
mod sinks;

/// Delivers the reports in the store, for the
/// [`DeliveryThread`](crate::delivery_thread::DeliveryThread).
pub(crate) struct Deliverer {
    runs: EndedRuns,
    sinks: Sinks,
    preparation: Preparation,
    last_run: LastRunSearch,
    retention: Retention,
    /// Sinks' answers about reports in this process's own run, by the reports' numbers.
    own_answers: Mutex<BTreeMap<u32, Answers>>,
    /// Whether the sinks have been notified of this process's own run.
    announced: AtomicBool,
}

impl Deliverer {
    /// Creates a deliverer for `store` with the options in `config`.
    ///
    /// `own` is the process's own run.
    pub(crate) fn new(store: Store, own: Id, sinks: Vec<Arc<dyn Sink>>, config: &Config) -> Self {
        let options = &config.delivery;
        let (app, attempts) = (app_number(&config.app), options.attempts);
        Self {
            preparation: Preparation {
                store: store.clone(),
                own,
                scrubber: Scrubber { secrets: options.scrub_secrets, own: options.scrub.clone() },
                names: options.symbolicate,
                naming_budget: options.naming_budget,
                before_deliver: options.before_deliver.clone(),
                waiters: Waiters::default(),
            },
            runs: EndedRuns { store, own, own_state: None, app, attempts },
            sinks: Sinks(sinks),
            last_run: LastRunSearch::new(options.on_crashed_last_run.clone()),
            retention: config.limits.retention,
            own_answers: Mutex::default(),
            announced: AtomicBool::new(false),
        }
    }

    /// Adds the state of this process's own run, which records the run that is being processed.
    ///
    /// The sinks are notified of that run in the first round.
    pub(crate) fn announcing(mut self, state: RunState<'static>) -> Self {
        self.runs.own_state = Some(state);
        self
    }

    /// Adds the run whose files this process's run reuses, if any.
    ///
    /// Without `others`, it is the last run.
    pub(crate) fn after(self, previous: Option<LastRun>, others: bool) -> Self {
        Self { last_run: self.last_run.after(previous, others), ..self }
    }

    /// Creates a deliverer for a child created by fork with its own run.
    ///
    /// It takes none of `self`'s locks, which a thread of the parent may have held at the fork.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) fn for_child(&self, own: Id, state: RunState<'static>) -> Self {
        Self {
            runs: EndedRuns { own, own_state: Some(state), ..self.runs.clone() },
            sinks: self.sinks.clone(),
            preparation: Preparation { own, waiters: Waiters::default(), ..self.preparation.clone() },
            last_run: LastRunSearch::default(),
            retention: self.retention,
            own_answers: Mutex::default(),
            announced: AtomicBool::new(false),
        }
    }

    /// Returns the number of this process's app ([`app_number`]).
    pub(crate) fn app(&self) -> u64 {
        self.runs.app
    }

    /// Returns the store.
    pub(crate) fn store(&self) -> &Store {
        &self.runs.store
    }

    /// Returns the counter of threads that wait for the delivery thread.
    pub(crate) fn waiters(&self) -> Waiters {
        self.preparation.waiters.clone()
    }

    /// Whether a sink follows runs, so that a round is needed even if there is nothing to deliver.
    pub(crate) fn follows_runs(&self) -> bool {
        self.sinks.follow_runs()
    }

    /// Returns how the last run ended. Waits only if another thread is determining it.
    pub(crate) fn last_run(&self) -> LastRun {
        self.last_run.known().unwrap_or_else(|| {
            let listed = self.runs.list().map(|found| found.runs).unwrap_or_default();
            let process = ProcessIdentity::of_this_process();
            self.last_run.look(&self.runs, &listed, &process, None).unwrap_or(LastRun::FIRST_LAUNCH)
        })
    }

    /// Passes user feedback to the sinks. Returns whether one accepted it.
    pub(crate) fn take_feedback(&self, feedback: &Feedback) -> bool {
        self.announce();
        self.sinks.take_feedback(feedback)
    }

    /// Notifies the sinks of this process's run, once.
    fn announce(&self) {
        let Some(state) = self.runs.own_state.filter(|_| !self.announced.swap(true, Ordering::Relaxed)) else { return };
        match RunFacts::read(&state.to_bytes()) {
            Ok(facts) => {
                let run = BegunRun { run: self.runs.own, store: self.runs.store.path(), facts: &facts };
                self.sinks.notify(|sink| sink.run_began(&run));
            }
            Err(error) => log::warn!("coroner: can't read this process's run state: {error}"),
        }
    }

    /// Processes every run that has ended. Returns how many reports have to stay for later.
    fn round(&self) -> usize {
        self.announce();
        #[cfg(supported)]
        if let Some(state) = self.runs.own_state {
            Scope::new(state).note_signal_owners(Some(now_ns()));
        }
        let now = SystemTime::now();
        let found = match self.runs.list() {
            Ok(found) => found,
            Err(error) => {
                log::warn!("coroner: can't list the runs in `{}`: {error}", self.runs.store.path().display());
                return 1;
            }
        };
        let _ = self.runs.store.root().and_then(|root| root.clear_temporaries());
        for (path, why) in found.foreign {
            log::warn!("coroner: ignoring `{}`, which {why}", path.display());
        }
        let process = ProcessIdentity::of_this_process();
        self.runs.count_processing_crashes(&found.runs, &process, None);
        self.last_run.look(&self.runs, &found.runs, &process, None);
        // Notify the app of its last run first, because processing can take long.
        for listed in found.runs.iter().rev() {
            let Ok(Some(run)) = self.runs.claim(listed, &process) else { continue };
            let is_new = !run.progress.notified && !self.runs.is_spent(&run) && run.is_complete_run();
            if is_new && self.last_run.notify_app(&self.runs, run) == Some(true) {
                break;
            }
        }
        // The newest report first, then runs without a report: they are processed quickly and free
        // space, and a launch may be killed soon.
        let mut pending = 0;
        // After a crash of a process that was processing a run, the oldest first: that run must be
        // tried until it is set aside.
        let is_suspect =
            |listed: &ListedRun| listed.progress.attempts > 0 || (listed.has_report && listed.processing.is_some());
        let newest = || found.runs.iter().rfind(|listed| listed.has_report);
        let newest = if found.runs.iter().any(is_suspect) { None } else { newest() };
        if let Some(newest) = newest {
            pending += self.runs.with_claimed(newest, &process, |run| self.process(run, now));
        }
        self.preparation.lower_priority();
        let mut waiting = Vec::new();
        for listed in found.runs.iter().filter(|listed| newest.is_none_or(|newest| newest.id != listed.id)) {
            pending += self.runs.with_claimed(listed, &process, |run| {
                let _mark = self.runs.mark(run.id);
                if run.raw().map_or(true, |raw| raw.reports.iter().any(|report| is_written(report))) {
                    waiting.push(listed);
                    return 0;
                }
                self.process(run, now)
            });
        }
        for listed in waiting {
            pending += self.runs.with_claimed(listed, &process, |run| self.process(run, now));
        }
        match self.runs.store.enforce(&self.retention, self.runs.own, now) {
            Ok(Evicted { reports: 0, runs: 0 }) => {}
            Ok(Evicted { reports, runs }) => {
                self.count_evicted(reports);
                log::warn!(
                    "coroner: removed {reports} reports and {runs} runs without a report to meet the store's limits"
                );
            }
            Err(error) => log::warn!("coroner: can't enforce the store's limits: {error}"),
        }
        pending
    }

    /// Records that `reports` reports were removed, and notifies the sinks.
    fn count_evicted(&self, reports: usize) {
        if reports > 0 {
            self.runs.store.set_evicted(self.runs.store.evicted().saturating_add(reports as u64));
            self.sinks.notify(|sink| sink.reports_evicted(reports));
        }
    }

    /// Delivers one run's reports. Returns how many have to stay for later.
    fn process(&self, mut run: EndedRun, now: SystemTime) -> usize {
        if self.runs.is_spent(&run) {
            let times = match run.progress.attempts {
                1 => "once".to_owned(),
                more => format!("{more} times"),
            };
            let why = format!("processing it crashed {times}");
            return self.runs.set_aside(&run, &why);
        }
        let _mark = self.runs.mark(run.id);
        if !run.is_complete_run() {
            // A failed install, usually because the disk is full. The app ran without Coroner.
            if let Err(error) = self.runs.store.remove(run) {
                log::warn!("coroner: can't remove the files of a failed install: {error}");
            }
            return 0;
        }
        let raw = match run.raw() {
            Ok(raw) => raw,
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::FileTooLarge) => {
                return self.runs.set_aside(&run, &error.to_string());
            }
            Err(error) => {
                log::warn!("coroner: can't read run {} now: {error}", run.id);
                return 1;
            }
        };
        if self.sinks.is_empty() && raw.reports.iter().any(|report| is_written(report)) {
            return 0;
        }
        let mut pending = 0;
        let mut healthy = true;
        let mut naming = None;
        for (index, file) in raw.reports.iter().enumerate() {
            if !is_written(file) {
                continue;
            }
            let due = self.sinks.is_any_due(run.progress.reports.get(&(index as u32)), now);
            let read = due.then(|| {
                let naming = *naming.get_or_insert_with(|| self.begin_naming(&mut run));
                catch_unwind(AssertUnwindSafe(|| self.preparation.prepare(&raw, index, naming)))
            });
            match read {
                None => pending += usize::from(!self.sinks.have_answered(run.progress.reports.get(&(index as u32)))),
                Some(Ok(Ok(report))) => {
                    healthy &= self.submit(&mut run, &raw, index, report.as_ref(), now);
                    if self.sinks.have_answered(run.progress.reports.get(&(index as u32))) {
                        // The report contains the number of removed reports, so reset it.
                        self.runs.store.set_evicted(0);
                    } else {
                        pending += 1;
                    }
                }
                Some(Ok(Err(why))) => return pending + self.runs.set_aside(&run, &why),
                Some(Err(_)) => {
                    log::warn!("coroner: processing run {} panicked", run.id);
                    healthy = false;
                    pending += 1;
                }
            }
        }
        if self.sinks.follow_runs() && !is_not_a_launch(&raw) {
            let reports = raw.reports.iter().filter(|report| is_written(report)).count();
            match RunFacts::read(&raw.state) {
                Ok(mut facts) => {
                    facts.termination = raw.termination.clone().or_else(|| termination::from_signal(&facts));
                    facts.scrub(&|key, text| self.preparation.scrubber.scrub(key, text));
                    let crashes = crashes(&raw);
                    let reports = reports.saturating_add(facts.lifecycle.reports_delivered as usize);
                    let finished = FinishedRun { run: run.id, facts: &facts, reports, crashes };
                    self.sinks.notify(|sink| sink.run_ended(&finished));
                }
                Err(error) => log::warn!("coroner: can't read the state of run {}: {error}", run.id),
            }
        }
        if pending > 0 || !healthy {
            run.progress.notified = true;
            // Naming has finished, but a sink wants the report later.
            run.progress.unnamed = 0;
            // Processing without a crash resets the count of crashes.
            run.progress.attempts = if healthy { 0 } else { run.progress.attempts + 1 };
            record(&run);
            return pending.max(1);
        }
        let id = run.id;
        let left_out = RunFacts::read(&raw.state).map_or(0, |facts| facts.lifecycle.reports_left_out);
        let left_out = left_out.saturating_add(run.children_left_out());
        if left_out > 0 && !is_not_a_launch(&raw) {
            self.sinks.notify(|sink| sink.reports_left_out(left_out));
        }
        if raw.reports.iter().any(|report| is_written(report))
            && let Ok(facts) = RunFacts::read(&raw.state)
            && let Err(error) = hand_over::note_reported(&self.runs.store, id, &facts)
        {
            log::warn!("coroner: can't record that run {id} had a report: {error}");
        }
        if let Err(error) = self.runs.store.remove(run) {
            log::warn!("coroner: can't remove the processed run {id}: {error}");
        }
        0
    }

    /// Returns how to name a run's reports at this launch.
    ///
    /// If launches ended while naming, later ones name less, so that the reports are eventually
    /// delivered.
    fn begin_naming(&self, run: &mut EndedRun) -> Naming {
        // Most launches that are too short end before naming.
        let cut_short = run.progress.cut_short / 4;
        let unfinished = run.progress.unnamed.max(cut_short);
        let naming = self.preparation.naming_after(unfinished);
        if naming != Naming::None {
            run.progress.unnamed += 1;
            record(run);
        }
        naming
    }

    /// Asks each sink that has not answered finally, and records the answers.
    ///
    /// Returns whether none panicked.
    fn submit(&self, run: &mut EndedRun, raw: &RawRun, index: usize, report: Option<&Report>, now: SystemTime) -> bool {
        let mut answers = run.progress.reports.remove(&(index as u32)).unwrap_or_default();
        self.sinks.ask(run.id, &mut answers, (raw, index, report), now, |answers| {
            run.progress.reports.insert(index as u32, answers.clone());
            record(run);
        })
    }
}

impl Work for Deliverer {
    fn deliver_ended(&self) -> usize {
        self.round()
    }

    fn deliver_own(&self) -> Left {
        if let Some(state) = &self.runs.own_state {
            device_state::note(state, self.runs.store.path());
            vitals::note(state);
        }
        self.announce();
        self.deliver_non_fatal()
    }

    fn flush(&self, timeout: Duration) -> bool {
        self.sinks.flush(timeout)
    }
}

#[cfg(test)]
mod tests;
