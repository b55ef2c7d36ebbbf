//! Prepares reports for the sinks: completes, scrubs, names and explains them, and calls the hook.

use coroner_report::model::{CrashFlag, Id, Report, Value};

use super::scrubber::Scrubber;
use crate::config::BeforeDeliver;
use crate::delivery_thread::Waiters;
use crate::naming::{self, Naming, NamingBudget};
use crate::store::{RawRun, Store};
use crate::{background_thread, device_state, run_reports};

/// The report's context with the numbers of lost reports.
///
/// It counts earlier reports that were removed to meet the store's limits, and reports of the run
/// that were not written because of the hourly limit.
pub(super) const STORE_CONTEXT: &str = "coroner_store";

/// Prepares reports for sinks.
#[derive(Debug, Clone)]
pub(super) struct Preparation {
    pub(super) store: Store,
    /// This process's own run.
    pub(super) own: Id,
    pub(super) scrubber: Scrubber,
    /// Whether frames are named on this machine.
    pub(super) names: bool,
    pub(super) naming_budget: NamingBudget,
    pub(super) before_deliver: Option<BeforeDeliver>,
    /// The threads that wait for the preparing thread.
    pub(super) waiters: Waiters,
}

impl Preparation {
    /// Returns how to name the reports of a run after `unfinished` launches ended while they named
    /// them.
    pub(super) fn naming_after(&self, unfinished: u32) -> Naming {
        if cfg!(feature = "symbolicate") && self.names { Naming::after(unfinished) } else { Naming::None }
    }

    /// Lowers the calling thread's priority before it names further reports, but not while the app
    /// is blocked in `flush`.
    pub(super) fn lower_priority(&self) {
        if self.names && self.waiters.is_empty() {
            background_thread::lower_priority();
        }
    }

    /// Returns the run's report `index`, named and passed through the hook; `Ok(None)` if the hook
    /// dropped it.
    pub(super) fn prepare(&self, raw: &RawRun, index: usize, naming: Naming) -> Result<Option<Report>, String> {
        let mut report = run_reports::report(raw, index).map_err(|error| error.to_string())?;
        if let Some(run) = &mut report.run {
            device_state::complete(run, self.store.path());
        }
        if raw.run == Some(self.own)
            && let Some(crash) = report.crash.as_mut().filter(|crash| !crash.has(CrashFlag::NotFatal))
        {
            // An ongoing hang is fatal in an ended run, but not in this one.
            crash.flags.push(CrashFlag::NotFatal);
        }
        if let Some(run) = &mut report.run {
            let counts =
                [("evicted_reports", self.store.evicted()), ("left_out_reports", run.lifecycle.reports_left_out)];
            let counts = counts.into_iter().filter(|(_, count)| *count > 0);
            let counts: Vec<_> = counts.map(|(name, count)| (Value::from(name), Value::Unsigned(count))).collect();
            if !counts.is_empty() {
                run.contexts.insert(STORE_CONTEXT.to_owned(), Value::Map(counts));
            }
        }
        report.scrub(&|key, text| self.scrubber.scrub(key, text));
        naming::name(&mut report, naming, self.naming_budget);
        #[cfg(feature = "symbolicate")]
        {
            // Uses only the report's contents and opens no file.
            report.explanation = Some(coroner_explain::explain(&report, &coroner_explain::NoCode));
        }
        Ok(match &self.before_deliver {
            Some(hook) => hook(report),
            None => Some(report),
        })
    }
}
