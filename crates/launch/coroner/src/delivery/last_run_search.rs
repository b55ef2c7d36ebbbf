//! Determines how the last run ended, and notifies the app of it once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Instant;

use coroner_report::run_state::ProcessIdentity;

use super::ended_runs::{EndedRuns, record};
use crate::config::OnCrashedLastRun;
use crate::last_run::{LastRun, MAX_CRASHES};
use crate::locked::locked;
use crate::outcome::Outcome;
use crate::run_end::{is_not_a_launch, outcome};
use crate::store::{EndedRun, ListedRun, RawRun};

/// The state of the search for the last run.
#[derive(Debug, Default)]
pub(super) struct LastRunSearch {
    /// The run whose files this process's run reuses, which ended cleanly.
    previous: Option<LastRun>,
    /// The last run, once it has been determined.
    known: Mutex<Option<LastRun>>,
    /// Held by the thread that determines how the last run ended.
    looking: Mutex<()>,
    /// The app's hook. Called at most once.
    on_crashed: Mutex<Option<OnCrashedLastRun>>,
}

impl LastRunSearch {
    pub(super) fn new(on_crashed: Option<OnCrashedLastRun>) -> Self {
        Self { on_crashed: Mutex::new(on_crashed), ..Self::default() }
    }

    /// Adds the run whose files this process's run reuses, if any.
    ///
    /// Without `others`, it is the last run.
    pub(super) fn after(self, previous: Option<LastRun>, others: bool) -> Self {
        Self { known: Mutex::new(previous.clone().filter(|_| !others)), previous, ..self }
    }

    /// Returns the last run, if it has already been determined.
    pub(super) fn known(&self) -> Option<LastRun> {
        locked(&self.known).clone()
    }

    /// Determines how the last run ended, the first time it is called.
    ///
    /// The last run is the most recently started of the unprocessed ended runs and the run whose
    /// files this process reuses. If there is none, it is the one that an earlier launch recorded.
    ///
    /// After `until`, if set, at most one run is read, and the result may be `None`.
    pub(super) fn look(
        &self,
        runs: &EndedRuns,
        listed: &[ListedRun],
        process: &ProcessIdentity,
        until: Option<Instant>,
    ) -> Option<LastRun> {
        let _looking = locked(&self.looking);
        if let Some(last_run) = self.known() {
            return Some(last_run);
        }
        let noted = runs.store.root().map_or(LastRun::FIRST_LAUNCH, |root| LastRun::read(&root, runs.app));
        let mut newest: Option<LastRun> = None;
        let (mut is_read, mut is_whole) = (false, false);
        for listed in listed.iter().rev().filter(|listed| !listed.progress.notified) {
            let is_late = is_read && until.is_some_and(|until| Instant::now() >= until);
            match &newest {
                // In a crash loop no launch gets as far as recording them, so earlier crashes are
                // counted from their files.
                Some(last_run) if is_late || !last_run.crashed() || last_run.crashes.len() >= MAX_CRASHES => break,
                None if is_late => return None,
                _ => {}
            }
            let Ok(Some(run)) = runs.claim(listed, process) else { continue };
            if run.progress.notified || runs.is_spent(&run) || !run.is_complete_run() {
                continue;
            }
            is_read = true;
            let Some(outcome) = read_launch_outcome(runs, &run) else { continue };
            match &mut newest {
                None => newest = Some(outcome),
                Some(last_run) if outcome.crashed() => last_run.crashes.extend(outcome.crashes),
                Some(_) => {
                    is_whole = true;
                    break;
                }
            }
        }
        // An earlier launch's record is about the run before those.
        let newest = newest.map(|last_run| if is_whole { last_run } else { last_run.following(&noted) });
        let mut last_run = noted;
        for other in [newest, self.previous.clone()].into_iter().flatten() {
            if other.began >= last_run.began {
                last_run = other;
            }
        }
        *locked(&self.known) = Some(last_run.clone());
        Some(last_run)
    }

    /// Records how a run ended, and notifies the app if it was the last run and crashed.
    ///
    /// Returns whether the run was a launch of the app rather than a crashed child; `None` if its
    /// files can't be read.
    pub(super) fn notify_app(&self, runs: &EndedRuns, mut run: EndedRun) -> Option<bool> {
        let _mark = runs.mark(run.id);
        let raw = run.raw().ok()?;
        let was_launch = !is_not_a_launch(&raw);
        run.progress.notified = true;
        let app = runs.app_number_of_run(&raw);
        if was_launch && app != runs.app {
            record_end_of_other_app(runs, app, &run, &raw);
        } else if was_launch {
            let noted = runs.store.root().map_or(LastRun::FIRST_LAUNCH, |root| LastRun::read(&root, app));
            let known = self.known().filter(|last_run| last_run.run == Some(run.id));
            let last_run = outcome(run.id, run.began, &raw).following(&known.unwrap_or(noted));
            let is_last = self.previous.as_ref().is_none_or(|previous| previous.began < last_run.began);
            if is_last && let Err(error) = runs.store.root().and_then(|root| last_run.write(&root, app)) {
                log::warn!("coroner: can't record the last run's outcome: {error}");
            }
            self.notify(&last_run);
        }
        record(&run);
        Some(was_launch)
    }

    fn notify(&self, last_run: &LastRun) {
        if last_run.termination.is_some() {
            log::info!("coroner: the last run {last_run}");
        }
        if let (Outcome::Unknown, Some(taken)) = (last_run.outcome, &last_run.signals_taken) {
            log::warn!("coroner: the last run ended without a trace, and in it {taken}");
        }
        if last_run.crashed()
            && let Some(hook) = locked(&self.on_crashed).take()
            && catch_unwind(AssertUnwindSafe(|| hook(last_run))).is_err()
        {
            log::warn!("coroner: the app's on_crashed_last_run hook panicked");
        }
    }
}

/// Records how a run of another app that shares this store ended, for that app's next launch.
///
/// This app is not notified of it.
pub(super) fn record_end_of_other_app(runs: &EndedRuns, app: u64, run: &EndedRun, raw: &RawRun) {
    let noted = runs.store.root().and_then(|root| {
        let noted = LastRun::read(&root, app);
        let last_run = outcome(run.id, run.began, raw).following(&noted);
        if noted.began <= last_run.began { last_run.write(&root, app) } else { Ok(()) }
    });
    if let Err(error) = noted {
        log::warn!("coroner: can't record the outcome of another app's run: {error}");
    }
}

/// Returns how a run ended; `None` if it can't be read or was not a launch of this app.
fn read_launch_outcome(runs: &EndedRuns, run: &EndedRun) -> Option<LastRun> {
    let _mark = runs.mark(run.id);
    let raw = run.raw().ok()?;
    (!is_not_a_launch(&raw) && runs.app_number_of_run(&raw) == runs.app).then(|| outcome(run.id, run.began, &raw))
}
