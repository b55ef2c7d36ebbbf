//! The next launch: every run that has ended becomes a report, and the report goes to the sinks.
//!
//! All of it happens on one background thread that exists only while there is something to do. Its order is made so that a
//! crash, a kill or a power failure at any point loses nothing:
//!
//! 1. A run is taken by its lock, so nobody else works on it.
//! 2. The attempt is counted *on disk* before anything of the run is read. A run whose processing has ended in a crash as
//!    often as is allowed is set aside unread.
//! 3. What each sink said is on disk before the next is asked.
//! 4. The run is removed when all sinks have it, or never want it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use coroner_report::model::{Id, Report, RunFacts};
use coroner_report::run_state::RunState;

use crate::bundle;
use crate::config::{BeforeDeliver, Config, OnCrashedLastRun};
use crate::last_run::LastRun;
use crate::processing::{self, SymbolSearch};
use crate::sink::{BegunRun, Delivery, FinishedRun, Sink, Submission};
use crate::store::progress::{Progress, SinkState};
use crate::store::{EndedRun, Limits, RawRun, Store};

/// Delivers what is in a store.
pub(crate) struct Deliverer {
    store: Store,
    /// This process's own run, which is not looked at.
    own: Id,
    /// Its run state, of which sinks are told once.
    own_state: Mutex<Option<RunState<'static>>>,
    sinks: Vec<Arc<dyn Sink>>,
    limits: Limits,
    /// After how many attempts a run is set aside.
    attempts: u32,
    symbolicate: bool,
    before_deliver: Option<Arc<BeforeDeliver>>,
    on_crashed_last_run: Mutex<Option<Box<OnCrashedLastRun>>>,
    state: Mutex<State>,
    /// Woken when `state` changes.
    changed: Condvar,
    /// The attempt that is being made.
    attempt: Mutex<Attempt>,
}

/// How far delivery has come.
#[derive(Debug, Default)]
struct State {
    /// A thread is at work.
    running: bool,
    /// Known from the first round on.
    last_run: Option<LastRun>,
    /// Reports that are still in the store after the last round, because a sink wants to be asked again.
    pending: usize,
}

/// What the process would have to take back if it ended now, by itself and in good order.
#[derive(Debug, Default)]
struct Attempt {
    /// Where to write it, and what; `None` while no run is being processed.
    current: Option<(Arc<crate::store::directory::Directory>, Progress)>,
    /// The process is ending: no more attempts are begun, and nothing is written any more.
    ended: bool,
}

/// A run whose end has been looked at.
struct Told {
    run: EndedRun,
    /// It was a launch of the app, and not a crashed child of one.
    was_launch: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is done under these locks that leaves the value half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Deliverer {
    /// A deliverer of what is in `store`, as `config` says. `own` is the process's own run.
    pub(crate) fn new(store: Store, own: Id, sinks: Vec<Arc<dyn Sink>>, config: Config) -> Self {
        Self {
            store,
            own,
            own_state: Mutex::default(),
            sinks,
            limits: config.limits,
            attempts: config.attempts,
            symbolicate: config.symbolicate,
            before_deliver: config.before_deliver,
            on_crashed_last_run: Mutex::new(config.on_crashed_last_run),
            state: Mutex::default(),
            changed: Condvar::new(),
            attempt: Mutex::default(),
        }
    }

    /// Has the sinks told of this process's own run, whose state is `state`, in the first round.
    pub(crate) fn announcing(self, state: RunState<'static>) -> Self {
        *locked(&self.own_state) = Some(state);
        self
    }

    /// Whether a sink wants to know of runs, and so a round is to be made even if there is nothing to deliver.
    pub(crate) fn follows_runs(&self) -> bool {
        self.sinks.iter().any(|sink| sink.follows_runs())
    }

    /// Tells the sinks of this process's run, the first time.
    fn announce(&self) {
        let Some(state) = locked(&self.own_state).take() else { return };
        match RunFacts::read(&state.to_bytes()) {
            Ok(facts) => {
                let run = BegunRun { run: self.own, store: self.store.path(), facts: &facts };
                self.tell_sinks(|sink| sink.run_began(&run));
            }
            Err(error) => log::warn!("coroner: this process's own run state can't be read: {error}"),
        }
    }

    /// Tells every sink; that one panics changes nothing for the others.
    fn tell_sinks(&self, tell: impl Fn(&dyn Sink)) {
        for sink in &self.sinks {
            if catch_unwind(AssertUnwindSafe(|| tell(sink.as_ref()))).is_err() {
                log::warn!("coroner: sink `{}` panicked", sink.name());
            }
        }
    }

    /// Starts a round in the background, unless one is going on.
    pub(crate) fn start(self: &Arc<Self>) {
        let mut state = locked(&self.state);
        if state.running {
            return;
        }
        let deliverer = Arc::clone(self);
        let thread = std::thread::Builder::new().name("coroner-delivery".into());
        match thread.spawn(move || deliverer.run()) {
            Ok(_) => state.running = true,
            // No thread to be had: the reports wait for the next launch.
            Err(error) => log::warn!("coroner: no delivery thread: {error}"),
        }
    }

    /// The background thread.
    fn run(&self) {
        let done = catch_unwind(AssertUnwindSafe(|| self.round()));
        let mut state = locked(&self.state);
        state.running = false;
        match done {
            Ok(pending) => state.pending = pending,
            // A panic of Coroner's own: no run was lost, and whoever waits must not wait for ever.
            Err(_) => state.pending = state.pending.max(1),
        }
        if state.last_run.is_none() {
            state.last_run = Some(LastRun::read(self.store.root()));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// How the last run ended. Waits for the thread to find out, if it is about to.
    pub(crate) fn last_run(&self) -> LastRun {
        let mut state = locked(&self.state);
        loop {
            if let Some(last_run) = &state.last_run {
                return last_run.clone();
            }
            if !state.running {
                // Nobody has looked, and nothing was there to look at: what an earlier launch noted.
                let last_run = LastRun::read(self.store.root());
                state.last_run = Some(last_run.clone());
                return last_run;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes a round, waits for its end and for the sinks, at most `timeout`. Says whether nothing is left to deliver.
    pub(crate) fn flush(self: &Arc<Self>, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        let left = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        self.start();
        let mut state = locked(&self.state);
        while state.running {
            let (guard, waited) = self.changed.wait_timeout(state, left()).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if waited.timed_out() && state.running {
                return false;
            }
        }
        let delivered = state.pending == 0;
        drop(state);
        self.sinks.iter().fold(delivered, |flushed, sink| sink.flush(left()) && flushed)
    }

    /// Looks at every run that has ended. Returns how many reports have to stay for another time.
    fn round(&self) -> usize {
        self.announce();
        let now = SystemTime::now();
        let ended = match self.store.take_ended(Some(self.own)) {
            Ok(ended) => ended,
            Err(error) => {
                log::warn!("coroner: can't list the runs in `{}`: {error}", self.store.path().display());
                return 0;
            }
        };
        let _ = self.store.root().clear_temporaries();
        for (path, why) in ended.foreign {
            log::warn!("coroner: `{}` {why}; it is left alone", path.display());
        }
        let (runs, unmade): (Vec<_>, Vec<_>) = ended.runs.into_iter().partition(EndedRun::was_made);
        for run in unmade {
            // An install that failed, for want of room as a rule; the app ran on without Coroner.
            if let Err(error) = self.store.remove(run) {
                log::warn!("coroner: what a failed install left can't be removed: {error}");
            }
        }
        let mut runs = match self.store.enforce(&self.limits, runs, now) {
            Ok((runs, 0)) => runs,
            Ok((runs, gone)) => {
                log::warn!("coroner: {gone} runs were removed to keep the store within its limits");
                runs
            }
            Err(error) => {
                log::warn!("coroner: the store's limits could not be kept: {error}");
                return 0;
            }
        };
        // The app is told of its last run before any is worked on, which can take long.
        while let Some(index) = runs.iter().rposition(|run| !run.progress.told && !self.is_spent(run)) {
            let Some(Told { run, was_launch }) = self.tell(runs.remove(index)) else { break };
            runs.push(run);
            if was_launch {
                break;
            }
        }
        self.publish(LastRun::read(self.store.root()));
        runs.into_iter().map(|run| self.process(run, now)).sum()
    }

    /// Whether all attempts on the run have been made.
    fn is_spent(&self, run: &EndedRun) -> bool {
        run.progress.attempts >= self.attempts
    }

    /// Counts an attempt on the run and reads its files. `None` where it is not to be worked on now.
    fn begin(&self, mut run: EndedRun) -> Option<(EndedRun, RawRun)> {
        {
            let mut attempt = locked(&self.attempt);
            if attempt.ended {
                return None;
            }
            let before = run.progress.clone();
            run.progress.attempts += 1;
            if let Err(error) = run.progress.write(&run.directory) {
                // A full disk, as a rule. What can't be counted is not begun, since it might be begun for ever.
                log::warn!("coroner: run {} has to wait: its progress can't be written: {error}", run.id);
                return None;
            }
            attempt.current = Some((Arc::clone(&run.directory), before));
        }
        match run.raw() {
            Ok(raw) => Some((run, raw)),
            Err(error) => {
                log::warn!("coroner: run {} can't be read, and is tried again later: {error}", run.id);
                None
            }
        }
    }

    /// Finds out how the last run ended, notes it, and tells the app. Gives the run back to be processed.
    fn tell(&self, run: EndedRun) -> Option<Told> {
        let attempts = run.progress.attempts;
        let (mut run, raw) = self.begin(run)?;
        let was_launch = !processing::is_of_child(&raw);
        run.progress.told = true;
        if was_launch {
            let last_run = processing::outcome(run.id, run.began, &raw);
            if let Err(error) = last_run.write(self.store.root()) {
                log::warn!("coroner: the last run's outcome can't be noted: {error}");
            }
            self.publish(last_run.clone());
            if last_run.crashed()
                && let Some(hook) = locked(&self.on_crashed_last_run).take()
                && catch_unwind(AssertUnwindSafe(|| hook(&last_run))).is_err()
            {
                log::warn!("coroner: the app's on_crashed_last_run hook panicked");
            }
        }
        // This attempt is over; processing counts its own.
        run.progress.attempts = attempts;
        self.note(&run);
        locked(&self.attempt).current = None;
        Some(Told { run, was_launch })
    }

    /// Says how the last run ended to who asks, unless that is known already.
    fn publish(&self, last_run: LastRun) {
        locked(&self.state).last_run.get_or_insert(last_run);
        self.changed.notify_all();
    }

    /// Delivers the reports of one run. Returns how many have to stay for another time.
    fn process(&self, run: EndedRun, now: SystemTime) -> usize {
        if self.is_spent(&run) {
            let why = format!(
                "its processing was begun {} times and ended in a crash each time, so it was not tried again",
                run.progress.attempts
            );
            self.set_aside(&run, &why);
            return 0;
        }
        let Some((mut run, raw)) = self.begin(run) else { return 1 };
        run.progress.told = true;
        if self.sinks.is_empty() && raw.reports.iter().any(|report| bundle::is_written(report)) {
            self.finish_attempt(&mut run, true);
            return 0;
        }
        let mut pending = 0;
        let mut healthy = true;
        for (index, file) in raw.reports.iter().enumerate() {
            if !bundle::is_written(file) {
                continue;
            }
            let due = self.sinks.iter().any(|sink| {
                let said = run.progress.reports.get(&index).and_then(|sinks| sinks.get(sink.name()));
                said.is_none_or(|state| state.may_be_asked(now))
            });
            let read = due.then(|| catch_unwind(AssertUnwindSafe(|| self.read(&raw, index))));
            match read {
                None => pending += usize::from(!self.is_done(&run.progress, index)),
                Some(Ok(Ok(report))) => {
                    healthy &= self.submit(&mut run, &raw, index, report.as_ref(), now);
                    pending += usize::from(!self.is_done(&run.progress, index));
                }
                Some(Ok(Err(why))) => {
                    self.set_aside(&run, &why);
                    return pending;
                }
                Some(Err(_)) => {
                    log::warn!("coroner: processing run {} panicked", run.id);
                    healthy = false;
                    pending += 1;
                }
            }
        }
        if self.follows_runs() && !processing::is_of_child(&raw) {
            let reports = raw.reports.iter().filter(|report| bundle::is_written(report)).count();
            match RunFacts::read(&raw.state) {
                Ok(facts) => {
                    let crashes = processing::crashes(&raw);
                    let finished = FinishedRun { run: run.id, facts: &facts, reports, crashes };
                    self.tell_sinks(|sink| sink.run_ended(&finished));
                }
                Err(error) => log::warn!("coroner: the state of run {} can't be read: {error}", run.id),
            }
        }
        if pending > 0 || !healthy {
            self.finish_attempt(&mut run, healthy);
            return pending.max(1);
        }
        let id = run.id;
        locked(&self.attempt).current = None;
        if let Err(error) = self.store.remove(run) {
            log::warn!("coroner: run {id} is done but can't be removed: {error}");
        }
        0
    }

    /// The report `index` of a run as the hook leaves it; `Ok(None)` if the hook dropped it.
    fn read(&self, raw: &RawRun, index: usize) -> Result<Option<Report>, String> {
        let mut report = processing::report(raw, index).map_err(|error| error.to_string())?;
        if self.symbolicate {
            SymbolSearch::default().symbolicate(&mut report);
        }
        Ok(match &self.before_deliver {
            Some(hook) => hook(report),
            None => Some(report),
        })
    }

    /// Asks each sink that has not finally answered. Says whether none panicked.
    fn submit(&self, run: &mut EndedRun, raw: &RawRun, index: usize, report: Option<&Report>, now: SystemTime) -> bool {
        let mut healthy = true;
        for sink in &self.sinks {
            let answers = run.progress.reports.entry(index).or_default();
            let tries = match answers.get(sink.name()) {
                Some(said) if !said.may_be_asked(now) => continue,
                Some(SinkState::Retry { tries, .. }) => *tries,
                _ => 0,
            };
            let answer = match report {
                None => Delivery::Rejected { reason: "the before_deliver hook dropped it".into() },
                Some(report) => {
                    let submission = Submission { run: run.id, report, index, raw, tries };
                    catch_unwind(AssertUnwindSafe(|| sink.deliver(&submission))).unwrap_or_else(|_| {
                        healthy = false;
                        Delivery::Retry { after: Duration::ZERO, reason: "the sink panicked".into() }
                    })
                }
            };
            let said = match answer {
                Delivery::Delivered => SinkState::Delivered,
                Delivery::Rejected { reason } => {
                    log::info!("coroner: sink `{}` rejected report {index} of run {}: {reason}", sink.name(), run.id);
                    SinkState::Rejected { reason }
                }
                Delivery::Retry { after, reason } => {
                    log::warn!(
                        "coroner: sink `{}` can't take report {index} of run {} now: {reason}",
                        sink.name(),
                        run.id
                    );
                    let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
                    let not_before = since_epoch.saturating_add(after).as_secs();
                    SinkState::Retry { not_before, tries: tries.saturating_add(1), reason }
                }
            };
            answers.insert(sink.name().to_owned(), said);
            self.note(run);
        }
        healthy
    }

    /// Whether every sink has finally answered for the report `index`.
    fn is_done(&self, progress: &Progress, index: usize) -> bool {
        let answers = progress.reports.get(&index);
        self.sinks
            .iter()
            .all(|sink| answers.and_then(|answers| answers.get(sink.name())).is_some_and(SinkState::is_final))
    }

    /// Writes what is known of the run, so that the next launch goes on from here.
    fn note(&self, run: &EndedRun) {
        let mut attempt = locked(&self.attempt);
        if attempt.ended {
            return;
        }
        if let Err(error) = run.progress.write(&run.directory) {
            // The worst that follows is that a sink sees this report twice.
            log::warn!("coroner: the progress of run {} can't be written: {error}", run.id);
        }
        if let Some((_, before)) = &mut attempt.current {
            let attempts = before.attempts;
            *before = Progress { attempts, ..run.progress.clone() };
        }
    }

    /// Notes that processing came to its end, though the run has to stay. A `healthy` end takes the attempts back: only those
    /// that ended in a crash count.
    fn finish_attempt(&self, run: &mut EndedRun, healthy: bool) {
        if healthy {
            run.progress.attempts = 0;
        }
        self.note(run);
        locked(&self.attempt).current = None;
    }

    fn set_aside(&self, run: &EndedRun, why: &str) {
        let id = run.id;
        locked(&self.attempt).current = None;
        match self.store.set_aside(run, why) {
            Ok(path) => log::warn!("coroner: run {id} is set aside in `{}`: {why}", path.display()),
            Err(error) => log::warn!("coroner: run {id} can't be set aside ({why}): {error}"),
        }
    }

    /// Called when the process ends in good order: an attempt that this cuts short was not a crash and does not count, or an
    /// app that runs for a second at a time would lose its reports.
    pub(crate) fn end(&self) {
        // Not a plain `lock`: `exit` can be called in a signal handler that interrupted the thread which holds it.
        const TRIES: u32 = 200;
        for _ in 0..TRIES {
            if let Ok(mut attempt) = self.attempt.try_lock() {
                attempt.ended = true;
                if let Some((directory, progress)) = attempt.current.take() {
                    let _ = progress.write(&directory);
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests;
