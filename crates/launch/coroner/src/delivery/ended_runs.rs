//! Walking through the runs in the store that have ended: taking them one by one, and noting how far each has come.

use std::io;

use coroner_report::model::{Id, RunFacts};
use coroner_report::run_state::{ProcessIdentity, RunState};

use crate::last_run::app_number;
use crate::store::{Claim, EndedRun, ListedRun, RawRun, Store, Unprocessed};

/// The runs in the store but this process's own.
#[derive(Debug, Clone)]
pub(super) struct EndedRuns {
    pub(super) store: Store,
    /// This process's own run, which is not looked at.
    pub(super) own: Id,
    /// The state of its own run, in which it notes what it is processing.
    pub(super) own_state: Option<RunState<'static>>,
    /// The number of this process's app ([`app_number`]).
    pub(super) app: u64,
    /// How many times the processing of a run may end in a crash.
    pub(super) attempts: u32,
}

impl EndedRuns {
    /// Lists them, oldest first.
    pub(super) fn list(&self) -> io::Result<Unprocessed> {
        self.store.unprocessed(Some(self.own))
    }

    /// Takes a run; `None` if it lives, somebody else is working on it, or it is not a run of ours.
    pub(super) fn claim(&self, listed: &ListedRun, process: &ProcessIdentity) -> io::Result<Option<EndedRun>> {
        match self.store.claim(listed.id, process) {
            Ok(Claim::Taken(run)) => Ok(Some(*run)),
            Ok(Claim::Busy | Claim::Gone) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                log::warn!("coroner: run {} {error}; it is left alone", listed.id);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Does something with a run if it can be taken; returns how many of its reports have to stay for another time.
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
                log::debug!("coroner: run {} was removed by another process while this one took it", listed.id);
                0
            }
            Err(error) => {
                log::warn!("coroner: run {} can't be processed now: {error}", listed.id);
                1
            }
        }
    }

    /// Whether all attempts on the run have been made.
    pub(super) fn is_spent(&self, run: &EndedRun) -> bool {
        run.progress.attempts >= self.attempts
    }

    /// Returns the number of the run's app: this process's, where the run does not record it.
    pub(super) fn app_of(&self, raw: &RawRun) -> u64 {
        let app = RunFacts::read(&raw.state).ok().and_then(|facts| facts.app.id).filter(|id| !id.is_empty());
        app.map_or(self.app, |id| app_number(&id))
    }

    /// Sets a run aside; returns 1 if it has to stay for another time.
    pub(super) fn set_aside(&self, run: &EndedRun, why: &str) -> usize {
        let id = run.id;
        match self.store.set_aside(run, why) {
            Ok(path) => log::warn!("coroner: run {id} is set aside in `{}`: {why}", path.display()),
            Err(error) => {
                log::warn!("coroner: run {id} can't be set aside ({why}): {error}");
                return 1;
            }
        }
        0
    }
}

/// Writes what is known of the run, so that the next launch goes on from here.
pub(super) fn record(run: &EndedRun) {
    if let Err(error) = run.progress.write(&run.directory) {
        // Usually a full disk. The worst that follows is that a sink gets this report twice.
        log::warn!("coroner: the progress of run {} can't be written: {error}", run.id);
    }
}
