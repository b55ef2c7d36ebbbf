//! The next launch: every run that has ended becomes a report, and the report goes to the sinks.
//!
//! The first look ([`intake`]) is taken in install, by the thread that calls it: how the last run ended, and reports as the crash
//! left them for the sinks that store such. So the shortest launch stores what waits. All else happens on one background thread
//! that exists only while there is something to do. Its order is made so that a crash, a kill or a power failure at any point
//! loses nothing:
//!
//! 1. A run is taken by its lock, so nobody else works on it. One is held at a time: there may be more runs than descriptors.
//! 2. Which run is being processed, and by which thread, is noted in this process's own run state before anything of the run is
//!    read. If that thread crashes, the next launch counts it against the run ([`evidence`]); a kill is no evidence. A run whose
//!    processing has crashed as often as is allowed is set aside unread.
//! 3. What each sink said is on disk before the next is asked.
//! 4. The run is removed when all sinks have it, or never want it.
//! 5. What has to stay is kept within the limits.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use coroner_report::model::{CrashFlag, Id, Report, RunFacts, Value, hide_secrets};
use coroner_report::run_state::{ProcessIdentity, RunState};

use crate::background_thread;
use crate::bundle;
use crate::config::{Config, Delivery, OnCrashedLastRun};
use crate::last_run::{LastRun, app_number};
use crate::locked::locked;
use crate::naming::{self, Naming};
use crate::outcome::Outcome;
use crate::run_end::{crashes, is_no_launch, outcome};
use crate::run_reports;
use crate::sink::{BegunRun, FinishedRun, Sink, SinkAnswer, Submission};
use crate::store::progress::{Answers, Progress, SinkState};
use crate::store::{Claim, EndedRun, Evicted, ListedRun, RawRun, Retention, Store};
use crate::system_report::{SystemReport, hand_over};

mod evidence;
mod intake;
pub(crate) mod own_run;

/// The context in a report that says how many reports were removed before it to keep the store within its limits, and how many of its run
/// were not written, since there were too many.
const STORE_CONTEXT: &str = "coroner_store";

pub(crate) struct Deliverer {
    store: Store,
    /// This process's own run, which is not looked at.
    own: Id,
    /// The number of this process's app ([`app_number`]).
    pub(crate) app: u64,
    /// The state of its own run.
    own_state: Option<RunState<'static>>,
    /// The process whose own run that is; 0 without one.
    pid: i32,
    /// What sinks said of reports in it, by the reports' numbers.
    own_answers: Mutex<BTreeMap<u32, Answers>>,
    /// The sinks have been notified of it.
    announced: AtomicBool,
    sinks: Vec<Arc<dyn Sink>>,
    retention: Retention,
    /// Without the hook that is called once.
    options: Delivery,
    on_crashed_last_run: Mutex<Option<OnCrashedLastRun>>,
    /// The run whose files this process's run uses, which ended by itself.
    previous: Option<LastRun>,
    /// Held while somebody finds out how the last run ended.
    looking: Mutex<()>,
    state: Mutex<State>,
    /// Woken when `state` changes.
    changed: Condvar,
}

/// How far delivery has come.
#[derive(Debug, Default)]
struct State {
    running: bool,
    /// How many threads of the app wait for it.
    waiting: usize,
    /// How often something was asked for.
    asked: u64,
    /// How much of that the last round that came to its end had seen.
    served: u64,
    /// A look at all runs was asked for, and not only at this process's own.
    all: bool,
    /// When the next round is due.
    due: Option<Instant>,
    /// Reports of this process's own run that wait.
    own_pending: usize,
    /// Known from the first round on.
    last_run: Option<LastRun>,
    /// Reports that are still in the store after the last round, because a sink wants to be asked again.
    pending: usize,
}

/// Whether every sink has finally answered.
fn all_final(sinks: &[Arc<dyn Sink>], answers: Option<&Answers>) -> bool {
    sinks.iter().all(|sink| answers.and_then(|answers| answers.get(sink.name())).is_some_and(SinkState::is_final))
}

impl Deliverer {
    /// A deliverer of what is in `store`, as `config` says. `own` is the process's own run.
    pub(crate) fn new(store: Store, own: Id, sinks: Vec<Arc<dyn Sink>>, config: Config) -> Self {
        let mut options = config.delivery;
        Self {
            store,
            own,
            app: app_number(&config.app),
            own_state: None,
            pid: 0,
            own_answers: Mutex::default(),
            announced: AtomicBool::new(false),
            sinks,
            retention: config.limits.retention,
            on_crashed_last_run: Mutex::new(options.on_crashed_last_run.take()),
            options,
            previous: None,
            looking: Mutex::new(()),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The same with the state of this process's own run: the sinks are notified of it in the first round, and it says what is
    /// being processed. `pid` is this process.
    pub(crate) fn announcing(self, state: RunState<'static>, pid: i32) -> Self {
        Self { own_state: Some(state), pid, ..self }
    }

    /// The same with the run whose files this process's run uses, if there is one.
    /// That was the last one, if there are no others.
    pub(crate) fn after(self, previous: Option<LastRun>, others: bool) -> Self {
        let state = State { last_run: previous.clone().filter(|_| !others), ..State::default() };
        Self { previous, state: Mutex::new(state), ..self }
    }

    #[cfg(not(target_vendor = "apple"))]
    /// One for a child made by fork with a run of its own. No lock of this one is taken: a thread of the parent may have held it.
    pub(crate) fn of_child(&self, own: Id, state: RunState<'static>) -> Self {
        Self {
            store: self.store.clone(),
            own,
            own_state: Some(state),
            pid: crate::system::process::threads::process_id(),
            own_answers: Mutex::default(),
            announced: AtomicBool::new(false),
            sinks: self.sinks.clone(),
            options: self.options.clone(),
            on_crashed_last_run: Mutex::new(None),
            previous: None,
            looking: Mutex::new(()),
            state: Mutex::default(),
            changed: Condvar::new(),
            ..*self
        }
    }

    /// Takes what the system says of earlier runs, and starts a round.
    pub(crate) fn hand_over(self: &Arc<Self>, reports: Vec<SystemReport>) -> io::Result<()> {
        hand_over::hand_over(&self.store, self.own, reports)?;
        self.start();
        Ok(())
    }

    /// Whether a sink wants to know of runs, and so a round is to be made even if there is nothing to deliver.
    pub(crate) fn follows_runs(&self) -> bool {
        self.sinks.iter().any(|sink| sink.follows_runs())
    }

    /// Notifies the sinks of this process's run, the first time.
    fn announce(&self) {
        let Some(state) = self.own_state.filter(|_| !self.announced.swap(true, Ordering::Relaxed)) else { return };
        match RunFacts::read(&state.to_bytes()) {
            Ok(facts) => {
                let run = BegunRun { run: self.own, store: self.store.path(), facts: &facts };
                self.notify_sinks(|sink| sink.run_began(&run));
            }
            Err(error) => log::warn!("coroner: this process's own run state can't be read: {error}"),
        }
    }

    /// Gives the sinks what a user says. Whether one took it.
    pub(crate) fn take_feedback(&self, feedback: &crate::Feedback) -> bool {
        self.announce();
        let take = |sink: &Arc<dyn Sink>| catch_unwind(AssertUnwindSafe(|| sink.feedback(feedback))).unwrap_or(false);
        self.sinks.iter().filter(|sink| take(sink)).count() > 0
    }

    /// Notifies every sink; that one panics changes nothing for the others.
    fn notify_sinks(&self, notify: impl Fn(&dyn Sink)) {
        for sink in &self.sinks {
            if catch_unwind(AssertUnwindSafe(|| notify(sink.as_ref()))).is_err() {
                log::warn!("coroner: sink `{}` panicked", sink.name());
            }
        }
    }

    /// Starts a round in the background, unless one is going on.
    pub(crate) fn start(self: &Arc<Self>) {
        self.ask(true, Duration::ZERO);
    }

    /// Asks for a round in that time, and says which [`State::served`] tells that it is over; `None` where there is no thread to be
    /// had: the reports wait for the next launch.
    fn ask(self: &Arc<Self>, all: bool, within: Duration) -> Option<u64> {
        let due = Instant::now() + within;
        let mut state = locked(&self.state);
        state.asked += 1;
        state.all |= all;
        state.due = Some(state.due.map_or(due, |other| other.min(due)));
        if !state.running {
            let deliverer = Arc::clone(self);
            match background_thread::spawn("coroner-delivery", move || deliverer.run()) {
                Ok(_) => state.running = true,
                Err(error) => {
                    log::warn!("coroner: no delivery thread: {error}");
                    return None;
                }
            }
        }
        let asked = state.asked;
        drop(state);
        self.changed.notify_all();
        Some(asked)
    }

    /// The background thread: it ends when nothing of this process's own run waits.
    fn run(&self) {
        let mut state = locked(&self.state);
        while let Some(due) = state.due {
            let wait = due.saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            state.due = None;
            let (asked, all) = (state.asked, std::mem::take(&mut state.all));
            drop(state);
            let done = all.then(|| catch_unwind(AssertUnwindSafe(|| self.round())));
            let own = catch_unwind(AssertUnwindSafe(|| {
                if let Some(state) = &self.own_state {
                    crate::device_state::note(state, self.store.path());
                    crate::vitals::note(state);
                }
                self.announce();
                self.deliver_own()
            }));
            state = locked(&self.state);
            state.served = asked;
            match done {
                Some(Ok(pending)) => state.pending = pending,
                // A panic of Coroner's own: no run was lost, and whoever waits must not wait for ever.
                Some(Err(_)) => state.pending = state.pending.max(1),
                None => {}
            }
            let own = own.unwrap_or(own_run::Left { pending: 1, again: None });
            state.own_pending = own.pending;
            let again =
                own.again.filter(|_| self.options.at_install).and_then(|again| Instant::now().checked_add(again));
            state.due = [state.due, again].into_iter().flatten().min();
            self.changed.notify_all();
        }
        state.running = false;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the delivery thread has done what it was asked for, at most `limit`. Not for what sinks go on with by themselves.
    pub(crate) fn wait(&self, limit: Duration) {
        let mut state = locked(&self.state);
        state.waiting += 1;
        let asked = state.asked;
        let is_busy = |state: &mut State| state.running && state.served < asked;
        let waited = self.changed.wait_timeout_while(state, limit, is_busy);
        waited.unwrap_or_else(PoisonError::into_inner).0.waiting -= 1;
    }

    /// Makes a round, waits for its end and for the sinks, at most `timeout`. Says whether nothing is left to deliver.
    pub(crate) fn flush(self: &Arc<Self>, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        let left = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        let asked = self.ask(true, Duration::ZERO);
        let mut state = locked(&self.state);
        state.waiting += 1;
        while asked.is_some_and(|asked| state.served < asked) {
            let (guard, waited) = self.changed.wait_timeout(state, left()).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if waited.timed_out() && asked.is_some_and(|asked| state.served < asked) {
                state.waiting -= 1;
                return false;
            }
        }
        state.waiting -= 1;
        let delivered = asked.is_some() && state.pending == 0 && state.own_pending == 0;
        drop(state);
        self.sinks.iter().fold(delivered, |flushed, sink| sink.flush(left()) && flushed)
    }

    /// Looks at every run that has ended. Returns how many reports have to stay for another time.
    fn round(&self) -> usize {
        self.announce();
        #[cfg(supported)]
        crate::signal_owners::look(crate::clock::now_ns());
        let now = SystemTime::now();
        let found = match self.store.unprocessed(Some(self.own)) {
            Ok(found) => found,
            Err(error) => {
                log::warn!("coroner: can't list the runs in `{}`: {error}", self.store.path().display());
                return 1;
            }
        };
        let _ = self.store.root().and_then(|root| root.clear_temporaries());
        for (path, why) in found.foreign {
            log::warn!("coroner: `{}` {why}; it is left alone", path.display());
        }
        let process = ProcessIdentity::of_this_process();
        self.count_evidence(&found.runs, &process, None);
        self.look(&found.runs, &process);
        // The app is notified of its last run before any is processed, which can take long.
        for listed in found.runs.iter().rev() {
            let Ok(Some(run)) = self.claim(listed, &process) else { continue };
            let is_new = !run.progress.notified && !self.is_spent(&run) && run.was_made();
            if is_new && self.notify_of(run) == Some(true) {
                break;
            }
        }
        // What left no report is done in a moment, and makes room: a launch may be killed soon.
        let mut pending = 0;
        let mut waiting = Vec::new();
        for listed in &found.runs {
            pending += self.with_claimed(listed, &process, |run| {
                let _mark = self.mark(run.id);
                if run.raw().map_or(true, |raw| raw.reports.iter().any(|report| bundle::is_written(report))) {
                    waiting.push(listed);
                    return 0;
                }
                self.process(run, now)
            });
        }
        for listed in waiting {
            pending += self.with_claimed(listed, &process, |run| self.process(run, now));
        }
        match self.store.enforce(&self.retention, self.own, now) {
            Ok(Evicted { reports: 0, runs: 0 }) => {}
            Ok(Evicted { reports, runs }) => {
                self.count_evicted(reports);
                log::warn!(
                    "coroner: {reports} reports and {runs} runs without one were removed to keep the store within its limits"
                );
            }
            Err(error) => log::warn!("coroner: the store's limits could not be kept: {error}"),
        }
        pending
    }

    /// Says to whom it matters that so many reports went.
    fn count_evicted(&self, reports: usize) {
        if reports > 0 {
            self.store.set_evicted(self.store.evicted().saturating_add(reports as u64));
            self.notify_sinks(|sink| sink.reports_evicted(reports));
        }
    }

    /// Does something with a run if it can be taken; returns how many of its reports have to stay for another time.
    fn with_claimed(
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

    /// Takes a run; `None` if it lives, somebody else is working on it, or it is not a run of ours.
    fn claim(&self, listed: &ListedRun, process: &ProcessIdentity) -> io::Result<Option<EndedRun>> {
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

    /// Whether all attempts on the run have been made.
    fn is_spent(&self, run: &EndedRun) -> bool {
        run.progress.attempts >= self.options.attempts
    }

    /// Finds out how the last run ended, records it, and notifies the app. Returns whether the run was a launch of the app, and
    /// not a crashed child of one; `None` if its files can't be read.
    fn notify_of(&self, mut run: EndedRun) -> Option<bool> {
        let _mark = self.mark(run.id);
        let raw = run.raw().ok()?;
        let was_launch = !is_no_launch(&raw);
        run.progress.notified = true;
        let app = self.app_of(&raw);
        if was_launch && app != self.app {
            self.note_of_other(app, &run, &raw);
        } else if was_launch {
            let noted = self.store.root().map_or(LastRun::FIRST_LAUNCH, |root| LastRun::read(&root, app));
            let known = locked(&self.state).last_run.clone().filter(|last_run| last_run.run == Some(run.id));
            let last_run = outcome(run.id, run.began, &raw).following(&known.unwrap_or(noted));
            let is_last = self.previous.as_ref().is_none_or(|previous| previous.began < last_run.began);
            if is_last && let Err(error) = self.store.root().and_then(|root| last_run.write(&root, app)) {
                log::warn!("coroner: the last run's outcome can't be recorded: {error}");
            }
            if last_run.termination.is_some() {
                log::info!("coroner: the last run {last_run}");
            }
            if let (Outcome::Unknown, Some(taken)) = (last_run.outcome, &last_run.signals_taken) {
                log::warn!("coroner: the last run ended without a trace. In it, {taken}");
            }
            if last_run.crashed()
                && let Some(hook) = locked(&self.on_crashed_last_run).take()
                && catch_unwind(AssertUnwindSafe(|| hook(&last_run))).is_err()
            {
                log::warn!("coroner: the app's on_crashed_last_run hook panicked");
            }
        }
        self.record(&run);
        Some(was_launch)
    }

    /// Whose run it is, by the number of its app: this process's, where the run does not say.
    fn app_of(&self, raw: &RawRun) -> u64 {
        let app = RunFacts::read(&raw.state).ok().and_then(|facts| facts.app.id).filter(|id| !id.is_empty());
        app.map_or(self.app, |id| app_number(&id))
    }

    /// Notes how a run of another app ended that has this store, for that app's next launch: this one is not notified of it.
    fn note_of_other(&self, app: u64, run: &EndedRun, raw: &RawRun) {
        let noted = self.store.root().and_then(|root| {
            let noted = LastRun::read(&root, app);
            let last_run = outcome(run.id, run.began, raw).following(&noted);
            if noted.began <= last_run.began { last_run.write(&root, app) } else { Ok(()) }
        });
        if let Err(error) = noted {
            log::warn!("coroner: how another app's run ended can't be recorded: {error}");
        }
    }

    /// Delivers the reports of one run. Returns how many have to stay for another time.
    fn process(&self, mut run: EndedRun, now: SystemTime) -> usize {
        if self.is_spent(&run) {
            let times = match run.progress.attempts {
                1 => "once".to_owned(),
                more => format!("{more} times"),
            };
            let why = format!("its processing crashed {times}, so it was not tried again");
            return self.set_aside(&run, &why);
        }
        let _mark = self.mark(run.id);
        if !run.was_made() {
            // An install that failed, for want of room as a rule; the app ran on without Coroner.
            if let Err(error) = self.store.remove(run) {
                log::warn!("coroner: what a failed install left can't be removed: {error}");
            }
            return 0;
        }
        let raw = match run.raw() {
            Ok(raw) => raw,
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::FileTooLarge) => {
                return self.set_aside(&run, &error.to_string());
            }
            Err(error) => {
                log::warn!("coroner: run {} can't be read, and is tried again later: {error}", run.id);
                return 1;
            }
        };
        if self.sinks.is_empty() && raw.reports.iter().any(|report| bundle::is_written(report)) {
            return 0;
        }
        let mut pending = 0;
        let mut healthy = true;
        let mut naming = None;
        for (index, file) in raw.reports.iter().enumerate() {
            if !bundle::is_written(file) {
                continue;
            }
            let due = self.sinks.iter().any(|sink| {
                let said = run.progress.reports.get(&(index as u32)).and_then(|sinks| sinks.get(sink.name()));
                said.is_none_or(|state| state.may_be_asked(now))
            });
            let read = due.then(|| {
                let naming = *naming.get_or_insert_with(|| self.begin_naming(&mut run));
                catch_unwind(AssertUnwindSafe(|| self.read(&raw, index, naming)))
            });
            match read {
                None => pending += usize::from(!self.is_done(&run.progress, index)),
                Some(Ok(Ok(report))) => {
                    healthy &= self.submit(&mut run, &raw, index, report.as_ref(), now);
                    if self.is_done(&run.progress, index) {
                        // It says how many went; they are said once.
                        self.store.set_evicted(0);
                    } else {
                        pending += 1;
                    }
                }
                Some(Ok(Err(why))) => return pending + self.set_aside(&run, &why),
                Some(Err(_)) => {
                    log::warn!("coroner: processing run {} panicked", run.id);
                    healthy = false;
                    pending += 1;
                }
            }
        }
        if self.follows_runs() && !is_no_launch(&raw) {
            let reports = raw.reports.iter().filter(|report| bundle::is_written(report)).count();
            match RunFacts::read(&raw.state) {
                Ok(mut facts) => {
                    facts.termination = raw.termination.clone().or_else(|| crate::termination::of_signal(&facts));
                    facts.scrub(&|key, text| self.scrubbed(key, text));
                    let crashes = crashes(&raw);
                    let reports = reports.saturating_add(facts.lifecycle.reports_delivered as usize);
                    let finished = FinishedRun { run: run.id, facts: &facts, reports, crashes };
                    self.notify_sinks(|sink| sink.run_ended(&finished));
                }
                Err(error) => log::warn!("coroner: the state of run {} can't be read: {error}", run.id),
            }
        }
        if pending > 0 || !healthy {
            run.progress.notified = true;
            // It was named; a sink wants it later.
            run.progress.unnamed = 0;
            // An end without a fault takes back the attempts that ended in one.
            run.progress.attempts = if healthy { 0 } else { run.progress.attempts + 1 };
            self.record(&run);
            return pending.max(1);
        }
        let id = run.id;
        let left_out = RunFacts::read(&raw.state).map_or(0, |facts| facts.lifecycle.reports_left_out);
        if left_out > 0 && !is_no_launch(&raw) {
            self.notify_sinks(|sink| sink.reports_left_out(left_out));
        }
        if raw.reports.iter().any(|report| bundle::is_written(report))
            && let Ok(facts) = RunFacts::read(&raw.state)
            && let Err(error) = hand_over::note_reported(&self.store, id, &facts)
        {
            log::warn!("coroner: that run {id} had a report can't be noted: {error}");
        }
        if let Err(error) = self.store.remove(run) {
            log::warn!("coroner: run {id} is done but can't be removed: {error}");
        }
        0
    }

    /// How the reports of a run are named now. Launches that are too short for it have less to do each, so that what they deliver does not
    /// wait for names that never come.
    fn begin_naming(&self, run: &mut EndedRun) -> Naming {
        // Most launches that were too short did not get as far as to begin with names.
        let cut_short = run.progress.cut_short / 4;
        let unfinished = run.progress.unnamed.max(cut_short);
        let naming = if cfg!(feature = "symbolicate") && self.options.symbolicate {
            Naming::after(unfinished)
        } else {
            Naming::None
        };
        if naming != Naming::None {
            run.progress.unnamed += 1;
            self.record(run);
        }
        naming
    }

    /// The report `index` of a run as the hook leaves it, with such names; `Ok(None)` if the hook dropped it.
    fn read(&self, raw: &RawRun, index: usize, naming: Naming) -> Result<Option<Report>, String> {
        let mut report = run_reports::report(raw, index).map_err(|error| error.to_string())?;
        if let Some(run) = &mut report.run {
            crate::device_state::complete(run, self.store.path());
        }
        if raw.run == Some(self.own)
            && let Some(crash) = report.crash.as_mut().filter(|crash| !crash.has(CrashFlag::NotFatal))
        {
            // A hang that goes on would have been the end of a run that is over.
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
        report.scrub(&|key, text| self.scrubbed(key, text));
        // Nobody is helped by an app that waits for a thread of low priority.
        if naming != Naming::None && locked(&self.state).waiting == 0 {
            background_thread::lower_priority();
        }
        naming::name(&mut report, naming, self.options.naming_budget);
        #[cfg(feature = "symbolicate")]
        {
            // By what the report has alone: no file is opened for it.
            report.explanation = Some(coroner_explain::explain(&report, &coroner_explain::NoCode));
        }
        Ok(match &self.options.before_deliver {
            Some(hook) => hook(report),
            None => Some(report),
        })
    }

    /// The text to stand in the place of one; `None` if that may stay.
    fn scrubbed(&self, key: &str, text: &str) -> Option<String> {
        let hidden = self.options.scrub_secrets.then(|| hide_secrets(key, text)).flatten();
        let own = self.options.scrub.as_ref().and_then(|scrub| scrub(key, hidden.as_deref().unwrap_or(text)));
        own.or(hidden)
    }

    /// Asks each sink that has not finally answered, and notes what they say. Says whether none panicked.
    fn submit(&self, run: &mut EndedRun, raw: &RawRun, index: usize, report: Option<&Report>, now: SystemTime) -> bool {
        let mut answers = run.progress.reports.remove(&(index as u32)).unwrap_or_default();
        self.ask_sinks(run.id, &mut answers, (raw, index, report), now, |answers| {
            run.progress.reports.insert(index as u32, answers.clone());
            self.record(run);
        })
    }

    /// Asks each sink that has not finally answered about the report `index` of a run. What one said is noted before the next is asked.
    /// Says whether none panicked.
    fn ask_sinks(
        &self,
        run: Id,
        answers: &mut Answers,
        (raw, index, report): (&RawRun, usize, Option<&Report>),
        now: SystemTime,
        mut note: impl FnMut(&Answers),
    ) -> bool {
        let mut healthy = true;
        for sink in &self.sinks {
            let tries = match answers.get(sink.name()) {
                Some(said) if !said.may_be_asked(now) => continue,
                Some(SinkState::Retry { tries, .. }) => *tries,
                _ => 0,
            };
            let answer = match report {
                None => SinkAnswer::Rejected { reason: "the before_deliver hook dropped it".into() },
                Some(report) => {
                    let submission = Submission { run, report, index, raw, tries };
                    catch_unwind(AssertUnwindSafe(|| sink.deliver(&submission))).unwrap_or_else(|_| {
                        healthy = false;
                        SinkAnswer::Retry { after: Duration::ZERO, reason: "the sink panicked".into() }
                    })
                }
            };
            let said = match answer {
                SinkAnswer::Delivered => SinkState::Delivered,
                SinkAnswer::Rejected { reason } => {
                    log::info!("coroner: sink `{}` rejected report {index} of run {run}: {reason}", sink.name());
                    SinkState::Rejected { reason }
                }
                SinkAnswer::Retry { after, reason } => {
                    log::warn!(
                        "coroner: sink `{}` can't take report {index} of run {} now: {reason}",
                        sink.name(),
                        run
                    );
                    let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
                    // A clock that was set back meanwhile must not hold back what may be asked at once.
                    let not_before = if after.is_zero() { 0 } else { since_epoch.saturating_add(after).as_secs() };
                    SinkState::Retry { not_before, tries: tries.saturating_add(1), reason }
                }
            };
            answers.insert(sink.name().to_owned(), said);
            note(answers);
        }
        healthy
    }

    /// Whether every sink has finally answered for the report `index`.
    fn is_done(&self, progress: &Progress, index: usize) -> bool {
        all_final(&self.sinks, progress.reports.get(&(index as u32)))
    }

    /// Writes what is known of the run, so that the next launch goes on from here.
    #[allow(clippy::unused_self)] // As the other steps of a round.
    fn record(&self, run: &EndedRun) {
        if let Err(error) = run.progress.write(&run.directory) {
            // A full disk, as a rule. The worst that follows is that a sink gets this report twice.
            log::warn!("coroner: the progress of run {} can't be written: {error}", run.id);
        }
    }

    /// Sets a run aside; returns 1 if it has to stay for another time.
    fn set_aside(&self, run: &EndedRun, why: &str) -> usize {
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

#[cfg(test)]
mod tests;
