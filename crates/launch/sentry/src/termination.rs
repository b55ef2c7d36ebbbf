//! Runs that the system ended without a word.
//!
//! Nothing shows them but what is missing: there is no report, no exit was noted. Each other explanation is ruled out first, as
//! sentry-cocoa does (`SentryWatchdogTerminationLogic`).

use coroner_report::model::{Id, RunFacts, TerminationCertainty, TerminationReason, Timestamp};
use coroner_report::run_state::{ExitKind, Foreground};

/// A device was started at the same time if that is known to differ by less: it is worked out of a clock, which is set now and then.
const SAME_BOOT_NS: u64 = 60_000_000_000;

/// Under what a run was, as far as a change of it explains its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conditions {
    release: Option<String>,
    build: Option<String>,
    build_id: Option<String>,
    system: Option<String>,
    boot: Option<Timestamp>,
}

impl Conditions {
    pub(crate) fn of(run: &RunFacts) -> Self {
        Self {
            release: run.app.release.clone(),
            build: run.app.build.clone(),
            build_id: run.app.build_id.clone(),
            system: run.os.build.clone().or_else(|| run.os.version.clone()),
            boot: run.device.boot_time,
        }
    }

    /// Whether nothing of it is another.
    fn hold(&self, now: &Self) -> bool {
        let same_boot = match (self.boot, now.boot) {
            (Some(then), Some(now)) => then.0.abs_diff(now.0) < SAME_BOOT_NS,
            (then, now) => then == now,
        };
        let same_build_id = self.build_id == now.build_id || self.build_id.is_none() || now.build_id.is_none();
        same_boot
            && same_build_id
            && (&self.release, &self.build, &self.system) == (&now.release, &now.build, &now.system)
    }
}

/// Whether the run of `ended`, which left no report, was ended by the system for using too much memory or for not answering, as far
/// as it can be known. `now` is this run's.
pub(crate) fn is_watchdog(ended: &RunFacts, now: &Conditions) -> bool {
    let lifecycle = &ended.lifecycle;
    let may_be = match &ended.termination {
        Some(found) if found.reason == TerminationReason::OutOfMemory => {
            found.certainty > TerminationCertainty::Possible
        }
        // What was looked for and not found leaves somebody's SIGKILL, or `_exit`.
        Some(found) => found.reason == TerminationReason::Unknown && found.evidence.is_empty(),
        None => true,
    };
    may_be && lifecycle.exit == ExitKind::RUNNING
        && lifecycle.crashed_by.is_none()
        && !lifecycle.debugged
        // In the background apps are ended as a matter of course.
        && lifecycle.foreground != Foreground::BACKGROUND
        && ended.app.installed.is_some()
        && Conditions::of(ended).hold(now)
}

/// The id of its event: the run's own, changed so that it is no other thing's, and the same however often it is reported.
pub(crate) fn event_id(run: &RunFacts) -> String {
    let mut id = run.run_id.0.map(|byte| !byte);
    // Version 4 and variant 1 of RFC 9562.
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    Id(id).to_string()
}

/// The last time at which it is known to have lived.
pub(crate) fn last_sign(run: &RunFacts) -> Timestamp {
    let lifecycle = &run.lifecycle;
    let breadcrumb = run.breadcrumbs.last().map(|breadcrumb| breadcrumb.time);
    let signs =
        [run.app.installed, lifecycle.last_alive, lifecycle.foreground_changed, lifecycle.hang_since, breadcrumb];
    signs.into_iter().flatten().max().unwrap_or_default()
}

#[cfg(test)]
mod tests;
