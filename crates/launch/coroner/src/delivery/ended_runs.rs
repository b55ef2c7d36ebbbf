//! Iterates over the store's ended runs, claims them one by one, and records their progress.

use std::io;

use coroner_report::model::{Id, RunFacts};
use coroner_report::run_state::{ProcessIdentity, RunState};

use crate::last_run::app_number;
use crate::store::{Claim, EndedRun, ListedRun, RawRun, Store, Unprocessed};

/// The runs in the store except this process's own.
#[derive(Debug, Clone)]
pub(super) struct EndedRuns {
    pub(super) store: Store,
    /// This process's own run, which is skipped.
    pub(super) own: Id,
    /// The state of this process's own run, which records the run that is being processed.
    pub(super) own_state: Option<RunState<'static>>,
    /// The number of this process's app ([`app_number`]).
    pub(super) app: u64,
    /// Maximum number of crashes during a run's processing.
    pub(super) attempts: u32,
}

impl EndedRuns {
    /// Lists the runs, oldest first.
    pub(super) fn list(&self) -> io::Result<Unprocessed> {
        self.store.unprocessed(Some(self.own))
    }

    /// Claims a run; `None` if it is still running, if another process is working on it, or if it
    /// doesn't belong to this user.
    pub(super) fn claim(&self, listed: &ListedRun, process: &ProcessIdentity) -> io::Result<Option<EndedRun>> {
        match self.store.claim(listed.id, process) {
            Ok(Claim::Taken(run)) => Ok(Some(*run)),
            Ok(Claim::Busy | Claim::Gone) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                log::warn!("coroner: ignoring run {}, which {error}", listed.id);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Calls `act` with a run if it can be claimed; returns how many of its reports have to stay.
    pub(super) fn with_claimed(
        &self,
        listed: &ListedRun,
        process: &ProcessIdentity,
        act: impl FnOnce(EndedRun) -> usize,
    ) -> usize {
        match self.claim(listed, process) {
            Ok(Some(run)) => act(run),
            Ok(None) => 0,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                log::debug!("coroner: another process removed run {} while this one claimed it", listed.id);
                0
            }
            Err(error) => {
                log::warn!("coroner: can't process run {} now: {error}", listed.id);
                1
            }
        }
    }

    /// Whether processing the run has crashed as often as allowed.
    pub(super) fn is_spent(&self, run: &EndedRun) -> bool {
        run.progress.attempts >= self.attempts
    }

    /// Returns the number of the run's app; this process's if the run doesn't record it.
    pub(super) fn app_number_of_run(&self, raw: &RawRun) -> u64 {
        let app = RunFacts::read(&raw.state).ok().and_then(|facts| facts.app.id).filter(|id| !id.is_empty());
        app.map_or(self.app, |id| app_number(&id))
    }

    /// Sets a run aside; returns 1 if that fails and it has to stay.
    pub(super) fn set_aside(&self, run: &EndedRun, why: &str) -> usize {
        let id = run.id;
        match self.store.set_aside(run, why) {
            Ok(path) => log::warn!("coroner: moved run {id} to `{}`: {why}", path.display()),
            Err(error) => {
                log::warn!("coroner: can't set run {id} aside ({why}): {error}");
                return 1;
            }
        }
        0
    }
}

/// Writes the run's progress, so that the next launch continues from there.
pub(super) fn record(run: &EndedRun) {
    if let Err(error) = run.progress.write(&run.directory) {
        // Usually the disk is full. At worst, a sink gets this report twice.
        log::warn!("coroner: can't write the progress of run {}: {error}", run.id);
    }
}
