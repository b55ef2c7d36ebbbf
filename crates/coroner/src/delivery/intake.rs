//! The first look at a launch: how the last run ended, and reports that sinks store as the crash left them.
//!
//! Install waits for it, so it costs a few milliseconds where a report waits, and nothing if no run does. It waits for nothing
//! itself, not even for the disk: the runs stay in the store until the delivery thread is done with them, and that thread does
//! again what a power failure undid. What a crash of it is evidence against is the same as for that thread ([`evidence`](super::evidence)).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::Instant;

use coroner_report::run_state::ProcessIdentity;

use super::{Deliverer, locked};
use crate::bundle::is_written;
use crate::last_run::LastRun;
use crate::outcome::{is_of_child, outcome};
use crate::sink::Submission;
use crate::store::{EndedRun, ListedRun};

/// Of how many runs a launch releases what was reserved: more than one, so that it is soon done of all.
const MAX_RELEASED: usize = 2;

/// What the first look left to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Intake {
    /// There is something for the delivery thread.
    pub(crate) left: bool,
    /// A sink has not stored a report.
    pub(crate) unstored: bool,
    /// A report was shown to the sinks.
    stored: bool,
    /// A run without a report was removed: one a launch at least, so that launches that are killed leave no more and more of them.
    removed: bool,
}

impl Deliverer {
    /// Takes the first look. From `until` on, runs without a report stay for the delivery thread; once a report is stored, it ends then.
    pub(crate) fn intake(&self, until: Instant) -> Intake {
        let Ok(found) = self.store.unprocessed(Some(self.own)) else {
            return Intake { left: true, unstored: true, stored: false, removed: false };
        };
        let process = ProcessIdentity::of_this_process();
        // First of all, and however long it takes, so that launches that are killed before more is done do not fill the disk: what
        // runs did not use of what was reserved for them.
        for listed in found.runs.iter().rev().filter(|listed| listed.has_reserved).take(MAX_RELEASED) {
            if let Ok(Some(run)) = self.claim(listed, &process) {
                run.release_reserved();
            }
        }
        self.count_evidence(&found.runs, &process);
        self.look(&found.runs, &process);
        let mut intake = Intake { left: !found.foreign.is_empty(), unstored: false, stored: false, removed: false };
        for listed in &found.runs {
            if intake.stored && Instant::now() >= until {
                return Intake { left: true, ..intake };
            }
            match self.claim(listed, &process) {
                Ok(Some(run)) => intake.left |= self.store_early(run, until, &mut intake),
                // It lives, or somebody else is at it.
                Ok(None) => {}
                Err(_) => intake.left = true,
            }
        }
        intake
    }

    /// How the last run ended. Nobody is waited for but who is finding that out.
    pub(crate) fn last_run(&self) -> LastRun {
        if let Some(last_run) = &locked(&self.state).last_run {
            return last_run.clone();
        }
        let runs = self.store.unprocessed(Some(self.own)).map(|found| found.runs).unwrap_or_default();
        self.look(&runs, &ProcessIdentity::of_this_process())
    }

    /// Finds out how the last run ended, the first time: of the ended `runs` that no launch has looked at, and the one whose files
    /// this process uses, the one that began last; else what an earlier launch noted.
    pub(super) fn look(&self, runs: &[ListedRun], process: &ProcessIdentity) -> LastRun {
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last_run) = &locked(&self.state).last_run {
            return last_run.clone();
        }
        let newest = runs.iter().rev().find_map(|listed| {
            let run = self.claim(listed, process).ok()??;
            let is_new = !run.progress.notified && !self.is_spent(&run) && run.was_made();
            is_new.then(|| self.outcome_of(&run)).flatten()
        });
        let noted = self.store.root().map_or(LastRun::FIRST_LAUNCH, |root| LastRun::read(&root));
        let known = [Some(noted), newest, self.previous.clone()].into_iter().flatten();
        let last_run = known.max_by_key(|last_run| last_run.began).unwrap_or(LastRun::FIRST_LAUNCH);
        locked(&self.state).last_run = Some(last_run.clone());
        last_run
    }

    /// How a run ended; `None` if it can't be read, or was no launch of the app.
    fn outcome_of(&self, run: &EndedRun) -> Option<LastRun> {
        let _mark = self.mark(run.id);
        let raw = run.raw().ok()?;
        (!is_of_child(&raw)).then(|| outcome(run.id, run.began, &raw))
    }

    /// Shows the reports of a run to the sinks as they are. A run without one, of which nobody is to be notified, is removed, if there is
    /// time. Whether there is something left to be done for it.
    fn store_early(&self, mut run: EndedRun, until: Instant, intake: &mut Intake) -> bool {
        let _mark = self.mark(run.id);
        if run.progress.stored_early || self.is_spent(&run) || !run.was_made() {
            return true;
        }
        let Ok(raw) = run.raw() else { return true };
        let mut written = (0..raw.reports.len()).filter(|index| is_written(&raw.reports[*index])).peekable();
        if written.peek().is_none() {
            if intake.removed && Instant::now() >= until {
                return true;
            }
            intake.removed = true;
            return !self.remove_unused(run);
        }
        for index in written {
            let Ok(Ok(Some(report))) = catch_unwind(AssertUnwindSafe(|| self.read(&raw, index, false))) else {
                continue;
            };
            for sink in &self.sinks {
                let submission = Submission { run: run.id, report: &report, index, raw: &raw, tries: 0 };
                let stored = catch_unwind(AssertUnwindSafe(|| sink.store_early(&submission)));
                intake.unstored |= !matches!(stored, Ok(true));
            }
        }
        intake.stored = true;
        run.progress.stored_early = true;
        let _ = run.progress.write(&run.directory);
        true
    }

    /// Removes a run that left no report; false if it has to stay.
    fn remove_unused(&self, run: EndedRun) -> bool {
        if self.follows_runs() {
            return false;
        }
        let last_run = locked(&self.state).last_run.clone().filter(|last_run| last_run.run == Some(run.id));
        let noted = last_run.is_none_or(|last_run| self.store.root().and_then(|root| last_run.write(&root)).is_ok());
        noted && self.store.remove(run).is_ok()
    }
}
