//! The first step of delivery: determines the last run's outcome, and passes reports to sinks that
//! store them early.
//!
//! It runs in install, so it takes at most a few milliseconds if a report waits, and no time if no
//! run waits. It waits for nothing, not even for the disk, and reads only a few runs. The runs stay
//! in the store until the delivery thread has finished with them, and that thread repeats work that
//! a power failure undid. A crash of this step counts like one of that thread
//! ([`evidence`](super::evidence)).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime};

use coroner_report::model::Id;
use coroner_report::run_state::ProcessIdentity;

use super::Deliverer;
use super::last_run_search::record_end_of_other_app;
use crate::bundle::is_written;
use crate::last_run::LastRun;
use crate::naming::Naming;
use crate::run_end::is_not_a_launch;
use crate::sink::Submission;
use crate::store::progress::Progress;
use crate::store::{EndedRun, Kept, ListedRun, RawRun, Retention, Worth};

/// Number of runs whose reserved space a launch frees. More than one, so that launches catch up.
const MAX_RELEASED: usize = 2;

/// Number of launches too short to finish a run, after which a launch waits for the delivery
/// thread.
const MAX_CUT_SHORT: u32 = 10;
/// Maximum time that the first such launch waits.
///
/// Each later one waits twice as long, doubled at most [`MAX_DOUBLED`] times, so that the work also
/// finishes on a slow machine or with a large report.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const MAX_DOUBLED: u32 = 4;
/// Number of runs whose reports a launch tries to store after its time is over, as long as none
/// could be stored.
const MAX_LATE: usize = 4;
/// Number of runs that a launch removes to meet the store's limits; more than it creates.
const MAX_REMOVED: usize = 8;

/// The result of the first step.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Intake {
    /// Whether there is work for the delivery thread.
    pub(crate) left: bool,
    /// Whether a sink did not store a report.
    pub(crate) unstored: bool,
    /// Whether a report was passed to the sinks.
    stored: bool,
    /// Whether this launch was counted for the oldest run that was stored early.
    counted: bool,
    /// The time that this launch has to wait, if too many launches were too short to finish the
    /// run.
    pub(crate) waits: Option<Duration>,
    /// Number of runs with a report that were claimed.
    tried: usize,
    /// Whether a run without a report was removed. Each launch removes at least one, so that their
    /// number doesn't grow if all launches are killed.
    removed: bool,
}

impl Intake {
    /// Whether to stop after the time is over.
    fn is_over(&self) -> bool {
        self.stored || self.tried >= MAX_LATE
    }
}

impl Deliverer {
    /// Runs the first step.
    ///
    /// After `until`, runs without a report stay for the delivery thread, and the step ends once a
    /// report is stored.
    pub(crate) fn intake(&self, until: Instant) -> Intake {
        let Ok(found) = self.runs.list() else {
            return Intake { left: true, unstored: true, ..Intake::default() };
        };
        let process = ProcessIdentity::of_this_process();
        // First free the space that runs reserved and did not use, regardless of the time, so that
        // launches that are killed early don't fill the disk.
        for listed in found.runs.iter().rev().filter(|listed| listed.has_reserved).take(MAX_RELEASED) {
            if let Ok(Some(run)) = self.runs.claim(listed, &process) {
                run.release_reserved();
            }
        }
        self.runs.count_processing_crashes(&found.runs, &process, Some(until));
        self.last_run.look(&self.runs, &found.runs, &process, Some(until));
        let mut intake = Intake { left: !found.foreign.is_empty(), ..Intake::default() };
        let follows_runs = self.sinks.follow_runs();
        for listed in &found.runs {
            // It waits for the delivery thread, and reading it takes longer than all else here.
            if follows_runs && !listed.has_report {
                intake.left = true;
                continue;
            }
            let is_late = Instant::now() >= until;
            let is_done = listed.progress.stored_early || listed.progress.attempts >= self.runs.attempts;
            if is_done || (is_late && if listed.has_report { intake.is_over() } else { intake.removed }) {
                intake.left = true;
                if listed.progress.stored_early && !std::mem::replace(&mut intake.counted, true) {
                    intake.waits = self.count_launch(listed, &process);
                }
                continue;
            }
            intake.tried += usize::from(listed.has_report);
            match self.runs.claim(listed, &process) {
                Ok(Some(run)) => intake.left |= self.store_early(run, until, &mut intake),
                // The run is live, or another process is working on it.
                Ok(None) => {}
                Err(_) => intake.left = true,
            }
        }
        self.make_room(&found.runs, &process);
        intake
    }

    /// Removes runs whose reports an earlier launch has passed to the sinks, if they exceed the
    /// limits.
    ///
    /// Runs whose reports all sinks have stored are removed first, which loses nothing. In a crash
    /// loop, only this enforces the limits.
    fn make_room(&self, runs: &[ListedRun], process: &ProcessIdentity) {
        let shown = runs.iter().filter(|listed| listed.progress.stored_early && listed.has_report);
        let kept = shown.map(|listed| Kept {
            worth: match &listed.progress {
                Progress { stored: true, .. } => Worth::Stored,
                Progress { whole: true, .. } => Worth::Report,
                _ => Worth::Partial,
            },
            since: listed.began,
            bytes: listed.bytes,
            item: listed,
        });
        // Reports that are too old are delivered first, if possible.
        let retention = Retention { age: Duration::MAX, ..self.retention };
        let mut lost = 0;
        for kept in retention.beyond(kept.collect(), SystemTime::now()).into_iter().take(MAX_REMOVED) {
            let Ok(Some(run)) = self.runs.claim(kept.item, process) else { continue };
            let is_removed = self.runs.store.remove(run).is_ok();
            lost += usize::from(is_removed && kept.worth > Worth::Stored);
        }
        self.count_evicted(lost);
        if lost > 0 {
            log::warn!("coroner: removed {lost} reports to meet the store's limits");
        }
    }

    /// Counts this launch for a run that was stored early.
    ///
    /// Returns how long to wait for the delivery thread if too many launches were too short for it.
    fn count_launch(&self, listed: &ListedRun, process: &ProcessIdentity) -> Option<Duration> {
        let Ok(Some(mut run)) = self.runs.claim(listed, process) else { return None };
        if self.runs.is_spent(&run) || !run.is_complete_run() {
            return None;
        }
        run.progress.cut_short = run.progress.cut_short.saturating_add(1);
        let _ = run.progress.write(&run.directory);
        let launches = run.progress.cut_short;
        if launches == Submission::SHORT_LAUNCHES
            && let Ok(raw) = run.raw()
        {
            self.show_as_they_are(run.id, &raw, launches);
        }
        let doubled = (launches / MAX_CUT_SHORT).saturating_sub(1).min(MAX_DOUBLED);
        launches.is_multiple_of(MAX_CUT_SHORT).then(|| FIRST_WAIT * (1 << doubled))
    }

    /// Passes a run's reports to the sinks as they are.
    ///
    /// Returns whether work is left for the run. A run without a report is removed if there is time
    /// and its end needs no notification.
    fn store_early(&self, mut run: EndedRun, until: Instant, intake: &mut Intake) -> bool {
        let _mark = self.runs.mark(run.id);
        if run.progress.stored_early || self.runs.is_spent(&run) || !run.is_complete_run() {
            return true;
        }
        let Ok(raw) = run.raw() else { return true };
        if !raw.reports.iter().any(|report| is_written(report)) {
            if intake.removed && Instant::now() >= until {
                return true;
            }
            intake.removed = true;
            let app = self.runs.app_number_of_run(&raw);
            if app != self.runs.app && !run.progress.notified && !is_not_a_launch(&raw) {
                record_end_of_other_app(&self.runs, app, &run, &raw);
            }
            return !self.remove_unused(run);
        }
        let (is_stored, is_whole) = self.show_as_they_are(run.id, &raw, 0);
        intake.unstored |= !is_stored;
        intake.stored = true;
        (run.progress.stored, run.progress.whole) = (is_stored, is_whole);
        run.progress.stored_early = true;
        let _ = run.progress.write(&run.directory);
        true
    }

    /// Passes a run's reports to the sinks as they are. Returns whether all sinks have stored all
    /// of them, and whether one of them is complete.
    fn show_as_they_are(&self, run: Id, raw: &RawRun, launches: u32) -> (bool, bool) {
        let (mut is_stored, mut is_whole) = (!self.sinks.is_empty(), false);
        for index in (0..raw.reports.len()).filter(|index| is_written(&raw.reports[*index])) {
            let Ok(Ok(Some(report))) =
                catch_unwind(AssertUnwindSafe(|| self.preparation.prepare(raw, index, Naming::None)))
            else {
                is_stored = false;
                continue;
            };
            is_whole |= report.complete;
            let submission = Submission { run, report: &report, index, raw, tries: 0, launches };
            is_stored &= self.sinks.store_early(&submission);
        }
        (is_stored, is_whole)
    }

    /// Removes a run that left no report; returns `false` if it has to stay.
    fn remove_unused(&self, run: EndedRun) -> bool {
        if self.sinks.follow_runs() {
            return false;
        }
        // The last run has not been determined yet, and this may be the one.
        let Some(last_run) = self.last_run.known() else { return false };
        let write =
            |last_run: LastRun| self.runs.store.root().and_then(|root| last_run.write(&root, self.runs.app)).is_ok();
        let noted = last_run.run != Some(run.id) || write(last_run);
        noted && self.runs.store.remove(run).is_ok()
    }
}
