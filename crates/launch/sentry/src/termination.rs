//! Detects runs that the system killed without notice.
//!
//! Such runs leave neither a report nor a recorded exit. All other explanations are ruled out
//! first, as in sentry-cocoa (`SentryWatchdogTerminationLogic`).

use coroner_report::model::{Id, RunFacts, TerminationCertainty, TerminationReason, Timestamp};
use coroner_report::run_state::{ExitKind, Foreground};

/// Maximum difference between two boot times of the same boot, in nanoseconds. Boot times are
/// computed from the wall clock, which is adjusted now and then.
const SAME_BOOT_NS: u64 = 60_000_000_000;

/// The conditions of a run whose change explains its termination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conditions {
    release: Option<String>,
    build: Option<String>,
    build_id: Option<String>,
    system: Option<String>,
    boot: Option<Timestamp>,
}

impl Conditions {
    pub(crate) fn from_run(run: &RunFacts) -> Self {
        Self {
            release: run.app.release.clone(),
            build: run.app.build.clone(),
            build_id: run.app.build_id.clone(),
            system: run.os.build.clone().or_else(|| run.os.version.clone()),
            boot: run.device.boot_time,
        }
    }

    /// Returns `true` if none of the conditions changed.
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

/// Whether the system probably killed the run `ended`, which left no report.
///
/// It kills runs for using too much memory or for not responding. `now` has the conditions of the
/// current run.
pub(crate) fn is_watchdog(ended: &RunFacts, now: &Conditions) -> bool {
    let lifecycle = &ended.lifecycle;
    let may_be = match &ended.termination {
        Some(found) if found.reason == TerminationReason::OutOfMemory => {
            found.certainty > TerminationCertainty::Possible
        }
        // If evidence was searched for and not found, somebody's SIGKILL or `_exit` remains.
        Some(found) => found.reason == TerminationReason::Unknown && found.evidence.is_empty(),
        None => true,
    };
    may_be && lifecycle.exit == ExitKind::RUNNING
        && lifecycle.crashed_by.is_none()
        && !lifecycle.debugged
        // The system routinely kills apps in the background.
        && lifecycle.foreground != Foreground::BACKGROUND
        && ended.app.installed.is_some()
        && Conditions::from_run(ended).hold(now)
}

/// Returns the id of the run's event: the run's id with its bits inverted, as a version 4 UUID.
///
/// It differs from all other ids but is the same each time the run is reported.
pub(crate) fn event_id(run: &RunFacts) -> Id {
    let mut id = run.run_id.0.map(|byte| !byte);
    // Version 4 and variant 1 of RFC 9562.
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    Id(id)
}

/// Returns the last time at which the run is known to have been alive.
pub(crate) fn last_sign(run: &RunFacts) -> Timestamp {
    let lifecycle = &run.lifecycle;
    let breadcrumb = run.breadcrumbs.last().map(|breadcrumb| breadcrumb.last.unwrap_or(breadcrumb.time));
    let signs =
        [run.app.installed, lifecycle.last_alive, lifecycle.foreground_changed, lifecycle.hang_since, breadcrumb];
    signs.into_iter().flatten().max().unwrap_or_default()
}

#[cfg(test)]
mod tests;
