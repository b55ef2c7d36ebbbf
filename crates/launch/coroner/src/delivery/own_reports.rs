//! Delivers non-fatal reports of this process.
//!
//! These are handled exceptions, panics that ended a thread, and finished hangs. A server may run
//! for weeks, so these reports don't wait for the next launch: the delivery thread takes them from
//! the process's own run within seconds. It is started when such a report was written, and ends
//! when none waits. A report is removed from the run when all sinks have given a final answer.
//! Until then the answers are in [`LIVE`], so that the next launch continues from there if the
//! process ends first. Crash reports are left alone, because the process may be dying.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_report::model::{Report, RunFacts};
use coroner_report::run_state::{RunState, Scalar};
use coroner_report::wire::Monitor;

use super::Deliverer;
use crate::delivery_thread::Left;
use crate::hang;
use crate::locked::locked;
use crate::naming::Naming;
use crate::own_run::SETTLE;
use crate::store::RawRun;
use crate::store::directory::Directory;
use crate::store::progress::{Answers, LIVE};
use crate::system::capture::{FIRST_NON_FATAL, exception};

/// Age at which an ongoing hang is delivered.
///
/// A shorter hang is delivered once it is over, so that its report contains its length.
const LONG_HANG: Duration = Duration::from_mins(1);

impl Deliverer {
    /// Delivers this process's non-fatal reports so far.
    pub(super) fn deliver_non_fatal(&self) -> Left {
        let mut left = Left::default();
        let Some(state) = self.runs.own_state.filter(|_| !self.sinks.is_empty()) else { return left };
        // A run that is only in memory has no directory.
        let Ok((directory, reports)) = self.runs.store.reports_of(self.runs.own) else { return left };
        let mut all = locked(&self.own_answers);
        let now = SystemTime::now();
        let mut delivered = false;
        for (number, name) in reports.into_iter().filter(|(number, _)| (FIRST_NON_FATAL..u32::MAX).contains(number)) {
            let answers = all.entry(number).or_default();
            if let Some(wait) = self.sinks.wait_before_next_attempt(answers, now, self.runs.attempts) {
                left.wait(wait);
                continue;
            }
            let _mark = self.runs.mark(self.runs.own);
            let Ok(raw) = self.own_report(&directory, &name, number, &state) else { continue };
            let index = raw.reports.len() - 1;
            // A report that another thread is writing is delivered when it is complete, a torn one
            // at the next launch.
            let Some(report) = Report::read(&raw.reports[index]).ok().filter(|report| report.end.is_some()) else {
                continue;
            };
            let hang = report.crash.as_ref().and_then(|crash| crash.hang.as_ref()).map(|hang| hang.number);
            if let Some(wait) = hang.and_then(|number| hang_wait(number, &report, &raw, now)) {
                left.wait(wait);
                continue;
            }
            let naming = if self.preparation.names { Naming::Lines } else { Naming::None };
            // Panics are not caught here: the next launch processes the rest.
            let Ok(Ok(report)) = catch_unwind(AssertUnwindSafe(|| self.preparation.prepare(&raw, index, naming)))
            else {
                log::warn!("coroner: can't process report {number} of this run; leaving it to the next launch");
                continue;
            };
            self.sinks.ask(self.runs.own, answers, (&raw, index, report.as_ref()), now, |_| {});
            if !self.sinks.have_answered(Some(answers)) {
                left.wait(self.sinks.wait_before_next_attempt(answers, now, self.runs.attempts).unwrap_or(SETTLE));
                continue;
            }
            if directory.remove_file(&name).is_ok() {
                state.add_scalar(Scalar::REPORTS_DELIVERED, 1);
                match hang {
                    Some(number) => hang::delivered(number),
                    None => exception::delivered(),
                }
            }
            all.remove(&number);
            self.preparation.lower_priority();
            self.runs.store.set_evicted(0);
            delivered = true;
        }
        all.retain(|_, answers| !answers.is_empty());
        note(&directory, &all);
        if delivered {
            self.notify_left_out(&state);
        }
        left
    }

    /// Returns the report with this number at its index, and the current run state.
    fn own_report(&self, directory: &Directory, name: &OsStr, number: u32, state: &RunState<'_>) -> io::Result<RawRun> {
        let mut reports = vec![Vec::new(); number as usize];
        reports[number as usize - 1] = RawRun::read_report(directory, name)?;
        let (state, system) = (state.to_bytes(), Vec::new());
        Ok(RawRun {
            run: Some(self.runs.own),
            reports,
            state,
            system,
            termination: None,
            made_of_system: None,
            minidump: None,
        })
    }

    /// Notifies the sinks of the number of dropped reports, once.
    fn notify_left_out(&self, state: &RunState<'_>) {
        let left_out = state.scalar(Scalar::REPORTS_LEFT_OUT);
        let new = left_out.saturating_sub(state.scalar(Scalar::LEFT_OUT_NOTIFIED));
        if new > 0 {
            state.set_scalar(Scalar::LEFT_OUT_NOTIFIED, left_out);
            self.sinks.notify(|sink| sink.reports_left_out(new));
        }
    }
}

/// Stores the sinks' answers about reports that stay, for the next launch.
fn note(directory: &Directory, all: &BTreeMap<u32, Answers>) {
    let name = OsStr::new(LIVE);
    let noted = if all.is_empty() {
        directory.remove_file(name).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })
    } else {
        serde_json::to_vec(all).map_err(io::Error::from).and_then(|json| directory.write_quickly(name, &json))
    };
    if let Err(error) = noted {
        log::warn!("coroner: can't store the sinks' answers about this run's reports: {error}");
    }
}

/// Returns how long to wait for the end of a hang; `None` if it is over or long enough.
fn hang_wait(number: u8, report: &Report, raw: &RawRun, now: SystemTime) -> Option<Duration> {
    let is_over = RunFacts::read(&raw.state).is_ok_and(|facts| facts.lifecycle.hang_durations_ns.contains_key(&number));
    let since = report.crash.as_ref().filter(|crash| !is_over && crash.monitor == Monitor::HANG)?.time.0;
    let age = Duration::from_nanos((now.duration_since(UNIX_EPOCH).ok()?.as_nanos() as u64).saturating_sub(since));
    LONG_HANG.checked_sub(age).filter(|wait| !wait.is_zero())
}
