//! Attributes crashes during processing to the report that was being processed.
//!
//! Processing a report may crash because of a bug in Coroner, a hook or a sink. Such a report must
//! not crash every launch. That the process ended while it processed a report proves little: it may
//! have been killed, have exited, or have crashed elsewhere. Only a crash of *the processing
//! thread*, *while* it was processing, counts. Therefore that thread records the processed run in
//! its own run state, which takes three stores and survives any end of the process. At the next
//! launch, if a run crashed in that thread, the crash counts against the run that it was
//! processing.

use std::time::Instant;

use coroner_report::model::{Id, Processing};
use coroner_report::run_state::{ProcessIdentity, RunState, Scalar};

use super::ended_runs::{EndedRuns, record};
use crate::run_end::crash_threads;
use crate::store::ListedRun;

/// Records in this process's run state that the calling thread is processing a run, until dropped.
pub(super) struct Mark<'a> {
    state: Option<&'a RunState<'static>>,
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.state {
            state.set_scalar(Scalar::PROCESSING_THREAD, 0);
        }
    }
}

impl EndedRuns {
    /// Records that the calling thread processes `run`.
    pub(super) fn mark(&self, run: Id) -> Mark<'_> {
        if let Some(state) = &self.own_state {
            let id = u128::from_be_bytes(run.0);
            state.set_scalar(Scalar::PROCESSING_THREAD, 0);
            state.set_scalar(Scalar::PROCESSING_RUN_HIGH, (id >> 64) as u64);
            state.set_scalar(Scalar::PROCESSING_RUN_LOW, id as u64);
            // Stored last, because the other values are only valid with a thread.
            state.set_scalar(Scalar::PROCESSING_THREAD, crate::system::process::threads::this_thread() as u64);
        }
        Mark { state: self.own_state.as_ref() }
    }

    /// Counts earlier launches' crashes in a processing thread against the run that it was
    /// processing.
    ///
    /// After `until`, if set, at most one crash is counted at this launch.
    pub(super) fn count_processing_crashes(
        &self,
        runs: &[ListedRun],
        process: &ProcessIdentity,
        until: Option<Instant>,
    ) {
        let mut counted = false;
        for listed in runs.iter().filter(|listed| !listed.progress.counted) {
            let Some(Processing { run: suspect, tid }) = listed.processing else { continue };
            if counted && until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            let Ok(Some(mut crashed)) = self.claim(listed, process) else { continue };
            if crashed.progress.counted {
                continue;
            }
            counted = true;
            let threads = {
                let _mark = self.mark(crashed.id);
                crashed.raw().map(|raw| crash_threads(&raw)).unwrap_or_default()
            };
            if threads.contains(&tid) && suspect == crashed.id {
                // The thread was processing its own run.
                crashed.progress.attempts = crashed.progress.attempts.saturating_add(1);
            } else if threads.contains(&tid)
                && let Some(suspect) = runs.iter().find(|run| run.id == suspect)
                && let Ok(Some(mut suspect)) = self.claim(suspect, process)
            {
                suspect.progress.attempts = suspect.progress.attempts.saturating_add(1);
                record(&suspect);
            }
            crashed.progress.counted = true;
            record(&crashed);
        }
    }
}
