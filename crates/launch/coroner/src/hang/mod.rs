//! Hangs: threads that do not answer any more.
//!
//! A thread of Coroner's, `coroner-watchdog`, looks at each watched thread several times in the time after which it counts as
//! hanging ([`Config::hang_threshold`](crate::Config::hang_threshold)). A watched thread shows that it is alive by
//! [`HangWatch::beat`], which is one store. On Apple's systems the main thread is watched without that: what is put into the main
//! queue does not come back while it hangs.
//!
//! What follows is written down at once, since a hang most often ends with the process: the run state says since when it lasts, and
//! there is a report of all threads. If the thread answers again, its report says how long the hang was; if the process is
//! ended before, the next launch reports it as fatal, and the run's session as abnormal. A report whose hang is over, or lasts for a
//! minute, is delivered while the process goes on.
//!
//! Only time in which the process ran counts: it may be stopped (SIGSTOP), the machine may sleep, or have no time for it. Under a debugger
//! nothing is a hang.

mod profile;
mod silence;

#[cfg(target_vendor = "apple")]
mod main_queue;

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coroner_report::run_state::{MAX_HANGS, RunState, Scalar};
use coroner_report::wire::Hang;

use crate::background_thread;
use crate::backtrace::{ThreadId, thread_id};
use crate::clock::now_ns;
use crate::locked::locked;
use crate::own_run;
use crate::system::capture::hang;
use profile::Sampler;
use silence::{Silence, Verdict};

/// The shortest threshold: what is shorter can't be distinguished from a machine that is busy.
pub(crate) const MIN_DURATION: Duration = Duration::from_millis(50);
/// Looks in the time of the threshold.
const LOOKS: u32 = 5;
/// The longest time between two looks.
const MAX_TICK: Duration = Duration::from_millis(500);
/// How long the end of the process waits for a report that is being written: one that is cut could be taken for a crash's.
const MAX_END: Duration = Duration::from_millis(500);

/// What a thread shows of itself: an odd number while it is at work, an even one while it waits for some. Each change makes it
/// greater.
#[derive(Debug)]
struct Beats {
    shown: AtomicU64,
    thread: AtomicU64,
}

impl Beats {
    const fn new(thread: u64) -> Self {
        Self { shown: AtomicU64::new(0), thread: AtomicU64::new(thread) }
    }

    /// Only the watched thread calls it, so that a load and a store do.
    #[inline]
    fn show(&self, busy: bool) {
        let shown = self.shown.load(Ordering::Relaxed);
        self.shown.store((shown | 1).wrapping_add(1) | u64::from(busy), Ordering::Relaxed);
    }
}

/// Watches the thread that made it, as long as it is there. Made at any time, before or after [`install`](crate::install); without
/// [`Config::hang_threshold`](crate::Config::hang_threshold) nobody looks.
///
/// ```no_run
/// # struct Event;
/// # fn wait_for_event() -> Event { Event }
/// # fn handle(event: Event) {}
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = coroner::Config::new("com.example.paint").hang_threshold(std::time::Duration::from_secs(2));
/// coroner::install(config)?;
///
/// let watch = coroner::HangWatch::new();
/// loop {
///     let event = wait_for_event();
///     let _busy = watch.busy();
///     handle(event);
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct HangWatch {
    beats: Arc<Beats>,
    /// It is of one thread: beats of another would hide that this one hangs.
    of_thread: PhantomData<*const ()>,
}

impl HangWatch {
    /// Watches the calling thread from its first [`beat`](Self::beat) on.
    #[must_use = "the thread is watched as long as this is there"]
    pub fn new() -> Self {
        let beats = Arc::new(Beats::new(thread_id() as u64));
        let mut watched = locked(&WATCHED);
        watched.retain(|other| other.strong_count() > 0);
        watched.push(Arc::downgrade(&beats));
        drop(watched);
        CHANGED.notify_all();
        Self { beats, of_thread: PhantomData }
    }

    /// The thread is alive, and at work: without another beat, or [`idle`](Self::idle), within the threshold it hangs. Wait-free, a
    /// store.
    #[inline]
    pub fn beat(&self) {
        self.beats.show(true);
    }

    /// The thread is alive, and is going to wait for work: it is not expected to show anything until its next beat. Wait-free, a
    /// store.
    #[inline]
    pub fn idle(&self) {
        self.beats.show(false);
    }

    /// A [`beat`](Self::beat), and [`idle`](Self::idle) when what it returns is dropped: around the handling of each event.
    pub fn busy(&self) -> Busy<'_> {
        self.beat();
        Busy { watch: self }
    }
}

impl Default for HangWatch {
    fn default() -> Self {
        Self::new()
    }
}

/// A watched thread is at work until this is dropped.
#[derive(Debug)]
#[must_use = "the thread counts as idle again when this is dropped"]
pub struct Busy<'a> {
    watch: &'a HangWatch,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.watch.idle();
    }
}

/// Threads that are watched, for whatever watchdog there is.
static WATCHED: Mutex<Vec<Weak<Beats>>> = Mutex::new(Vec::new());
/// Woken where a watchdog that sleeps has to look at `WATCHED` or at its end.
static CHANGED: Condvar = Condvar::new();
/// Held while a hang is written down.
static WRITING: Mutex<()> = Mutex::new(());
/// The process is ending: nothing more is written down.
static ENDED: AtomicBool = AtomicBool::new(false);

/// The watching thread of an install.
#[derive(Debug)]
pub(crate) struct Watchdog {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watchdog {
    /// Starts to watch. `None` where no thread is to be had: the app runs on unwatched.
    pub(crate) fn start(threshold: Duration, state: RunState<'static>) -> Option<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        WAITING.store(0, Ordering::Release);
        let mut watch = Watch::new(threshold, state, Arc::clone(&stop));
        match background_thread::spawn("coroner-watchdog", move || watch.run()) {
            Ok(thread) => Some(Self { stop, thread }),
            Err(error) => {
                log::warn!("coroner: hangs are not watched for, there is no thread: {error}");
                None
            }
        }
    }

    /// Ends it, and waits for its end.
    pub(crate) fn stop(self) {
        {
            // Under the lock, so that it does not fall between the thread's look at it and its sleep.
            let _watched = locked(&WATCHED);
            self.stop.store(true, Ordering::Release);
        }
        CHANGED.notify_all();
        let _ = self.thread.join();
    }
}

/// The hangs of this run whose reports wait in it, by their numbers.
static WAITING: AtomicU16 = AtomicU16::new(0);

/// The report of a hang is delivered.
pub(crate) fn delivered(number: u8) {
    WAITING.fetch_and(!1_u16.checked_shl(number.into()).unwrap_or(0), Ordering::AcqRel);
}

/// Called when the process ends in good order: a report that is being written is finished, no other is begun.
pub(crate) fn end() {
    ENDED.store(true, Ordering::SeqCst);
    let until = Instant::now() + MAX_END;
    // Not a plain `lock`: `exit` can be called in a signal handler that interrupted anything.
    while WRITING.try_lock().is_err_and(|error| matches!(error, std::sync::TryLockError::WouldBlock)) {
        if Instant::now() >= until {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What the watchdog knows.
#[derive(Debug)]
struct Watch {
    threshold: Duration,
    tick: Duration,
    state: RunState<'static>,
    stop: Arc<AtomicBool>,
    threads: Vec<Thread>,
    #[cfg(target_vendor = "apple")]
    main_queue: Option<main_queue::MainQueue>,
}

/// A watched thread, as the watchdog sees it.
#[derive(Debug)]
struct Thread {
    beats: Weak<Beats>,
    silence: Silence,
    /// When its hang began, nanoseconds since the Unix epoch.
    since: u64,
    /// The number of the report of its hang.
    report: Option<u8>,
    /// What it does while it hangs.
    sampler: Option<Sampler>,
}

impl Watch {
    fn new(threshold: Duration, state: RunState<'static>, stop: Arc<AtomicBool>) -> Self {
        let threshold = threshold.max(MIN_DURATION);
        Self {
            threshold,
            tick: (threshold / LOOKS).min(MAX_TICK),
            state,
            stop,
            threads: Vec::new(),
            #[cfg(target_vendor = "apple")]
            main_queue: main_queue::MainQueue::find(),
        }
    }

    fn run(&mut self) {
        let mut last = Instant::now();
        while self.sleep() {
            #[cfg(target_vendor = "apple")]
            if let Some(main_queue) = &self.main_queue {
                main_queue.ask();
            }
            let elapsed = last.elapsed();
            self.look(elapsed);
            for thread in &mut self.threads {
                thread.sample();
            }
            // What this thread did itself, such as a report, for which all threads stood still, is nobody's silence.
            last = Instant::now();
        }
        for thread in &mut self.threads {
            // Nobody looks any more; that it went on to hang is not known.
            let lasted = thread.silence.lasted();
            thread.answers(&self.state, lasted);
        }
        self.state.set_scalar(Scalar::HANG_SINCE, 0);
    }

    /// Waits for the next look; without anything to look at, for that. False at the end.
    fn sleep(&mut self) -> bool {
        let mut watched = locked(&WATCHED);
        self.adopt(&watched);
        let samples = self.threads.iter().filter_map(|thread| Some(thread.sampler.as_ref()?.next()));
        let until = samples.fold(Instant::now() + self.tick, Instant::min);
        loop {
            if self.stop.load(Ordering::Acquire) {
                return false;
            }
            #[cfg(target_vendor = "apple")]
            let asks = self.main_queue.is_some();
            #[cfg(not(target_vendor = "apple"))]
            let asks = false;
            watched = if self.threads.is_empty() && !asks {
                CHANGED.wait(watched).unwrap_or_else(PoisonError::into_inner)
            } else {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return true;
                }
                CHANGED.wait_timeout(watched, left).unwrap_or_else(PoisonError::into_inner).0
            };
            self.adopt(&watched);
        }
    }

    /// Takes up the threads that are new among those that are watched.
    fn adopt(&mut self, watched: &[Weak<Beats>]) {
        #[cfg(target_vendor = "apple")]
        let main_queue = self.main_queue.as_ref().and_then(main_queue::MainQueue::beats);
        #[cfg(not(target_vendor = "apple"))]
        let main_queue: Option<Weak<Beats>> = None;
        for beats in watched.iter().chain(main_queue.as_ref()) {
            if self.threads.iter().any(|thread| thread.beats.ptr_eq(beats)) {
                continue;
            }
            let Some(strong) = beats.upgrade() else { continue };
            let shown = strong.shown.load(Ordering::Relaxed);
            let silence = Silence::new(self.threshold, self.tick, shown);
            self.threads.push(Thread { beats: Weak::clone(beats), silence, since: 0, report: None, sampler: None });
        }
    }

    fn look(&mut self, elapsed: Duration) {
        let mut changed = false;
        let reported = self.threads.iter().filter_map(|thread| thread.report);
        let mut ongoing = reported.fold(0, |ongoing, number| ongoing | 1 << number);
        for thread in &mut self.threads {
            let beats = thread.beats.upgrade();
            // One that is watched no longer is idle.
            let shown = beats.as_ref().map_or(0, |beats| beats.shown.load(Ordering::Relaxed));
            match thread.silence.look(shown, elapsed) {
                Verdict::Nothing => {}
                Verdict::Hangs => {
                    changed |= beats.is_some_and(|beats| thread.hangs(&self.state, &beats, shown, ongoing));
                    ongoing |= thread.report.map_or(0, |number| 1 << number);
                }
                Verdict::Answers(lasted) => {
                    thread.answers(&self.state, lasted);
                    changed = true;
                }
            }
        }
        self.threads.retain(|thread| thread.beats.strong_count() > 0);
        if changed {
            let hanging = self.threads.iter().filter(|thread| thread.since > 0);
            let since = hanging.map(|thread| thread.since).min().unwrap_or(0);
            self.state.set_scalar(Scalar::HANG_SINCE, since);
        }
        self.state.set_scalar(Scalar::LAST_ALIVE, now_ns());
        crate::vitals::note_at(&self.state, now_ns());
    }
}

impl Thread {
    /// It hangs, and has shown `shown` since: notes it, and writes a report. False if it is not to be reported.
    fn hangs(&mut self, state: &RunState<'_>, beats: &Beats, shown: u64, ongoing: u16) -> bool {
        let _writing = locked(&WRITING);
        if ENDED.load(Ordering::SeqCst) {
            return false;
        }
        if let Some(debugged) = os::debugged() {
            state.set_scalar(Scalar::DEBUGGED, debugged.into());
            if debugged {
                return false;
            }
        }
        let number = beats.thread.load(Ordering::Relaxed);
        // Where it hangs, for certain: when the report stops all threads, it may have gone on.
        let mut sampler = Sampler::new(number as ThreadId);
        if !sampler.sample(|| beats.shown.load(Ordering::Acquire) == shown) {
            return false;
        }
        let lasted_ns = self.silence.lasted().as_nanos() as u64;
        self.since = now_ns().saturating_sub(lasted_ns).max(1);
        // Before the report: the process may be ended while that is written.
        let before = state.scalar(Scalar::HANG_SINCE);
        state.set_scalar(Scalar::HANG_SINCE, if before == 0 { self.since } else { before.min(self.since) });
        // The number of a hang that is over and delivered is free for another.
        let taken = WAITING.load(Ordering::Acquire) | ongoing;
        let free = (0..MAX_HANGS).find(|free| taken & 1 << free == 0);
        match free {
            Some(free) if hang::is_within_budget() => {
                if let Some(duration) = Scalar::hang_duration(free) {
                    state.set_scalar(duration, 0);
                }
                WAITING.fetch_or(1 << free, Ordering::AcqRel);
                if hang::report(number as ThreadId, Hang { number: free, lasted_ns }) {
                    self.report = Some(free);
                    self.sampler = own_run::report_of_hang(free).map(|file| {
                        sampler.attach(file);
                        sampler
                    });
                    own_run::survived();
                } else {
                    delivered(free);
                }
            }
            Some(_) => {}
            None => hang::left_out(),
        }
        true
    }

    /// Takes a sample of what it does, if it hangs and it is time for one.
    fn sample(&mut self) {
        let Some(sampler) = &mut self.sampler else { return };
        let (beats, silence) = (&self.beats, &self.silence);
        let hangs = || beats.upgrade().is_some_and(|beats| beats.shown.load(Ordering::Acquire) == silence.seen());
        let _writing = locked(&WRITING);
        if !ENDED.load(Ordering::SeqCst) {
            sampler.sample(hangs);
        }
    }

    /// Its hang is over, or it had none.
    fn answers(&mut self, state: &RunState<'_>, lasted: Duration) {
        self.since = 0;
        // Before it is said that the report is complete.
        if let Some(mut sampler) = self.sampler.take() {
            sampler.write();
        }
        if let Some(duration) = self.report.take().and_then(Scalar::hang_duration) {
            state.set_scalar(duration, lasted.as_nanos() as u64);
            own_run::survived();
        }
    }
}

#[cfg(any(target_vendor = "apple", not(supported)))]
mod os {
    use coroner_report::wire::ThreadState;

    use crate::backtrace::ThreadId;

    /// Whether a debugger traces this process.
    pub(super) fn debugged() -> Option<bool> {
        #[cfg(supported)]
        return Some(coroner_capture::is_traced());
        #[cfg(not(supported))]
        None
    }

    /// Clocks of a thread, which are not read here.
    #[derive(Debug)]
    pub(super) struct Clocks;

    pub(super) fn clocks(_thread: ThreadId) -> Option<Clocks> {
        None
    }

    /// What a thread is doing: not known.
    pub(super) fn activity(_thread: ThreadId, _clocks: Option<(&Clocks, &Clocks)>) -> (ThreadState, Option<i64>) {
        (ThreadState::default(), None)
    }
}

#[cfg(all(supported, not(target_vendor = "apple")))]
mod os {
    use coroner_report::wire::ThreadState;

    use crate::backtrace::ThreadId;

    pub(super) use coroner_process::vitals::debugged;

    /// How long a thread ran, and how long it waited for a processor, nanoseconds: `schedstat` (Documentation/scheduler/sched-stats.rst).
    #[derive(Debug)]
    pub(super) struct Clocks {
        ran: u64,
        waited: u64,
    }

    pub(super) fn clocks(thread: ThreadId) -> Option<Clocks> {
        let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
        let mut words = text.split_ascii_whitespace().map_while(|word| word.parse().ok());
        Some(Clocks { ran: words.next()?, waited: words.next()? })
    }

    /// What a thread is doing, and the system call that it waits in: the state of proc_pid_stat(5), and proc_pid_syscall(5). One that is ready
    /// for a processor ran or waited for one since the last sample, whichever was longer.
    pub(super) fn activity(thread: ThreadId, clocks: Option<(&Clocks, &Clocks)>) -> (ThreadState, Option<i64>) {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/task/{thread}/{name}")).unwrap_or_default();
        let stat = read("stat");
        // Behind the name in parentheses, which may have some itself.
        let letter = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        let state = match letter {
            Some('R') => {
                let is_longer = |before: &Clocks, now: &Clocks| {
                    now.waited.saturating_sub(before.waited) > now.ran.saturating_sub(before.ran)
                };
                let waited = clocks.is_some_and(|(before, now)| is_longer(before, now));
                if waited { ThreadState::RUNNABLE } else { ThreadState::RUNNING }
            }
            Some('S') => ThreadState::BLOCKED,
            Some('D') => ThreadState::UNINTERRUPTIBLE,
            Some('T' | 't') => ThreadState::STOPPED,
            _ => ThreadState::default(),
        };
        let waits = matches!(state, ThreadState::BLOCKED | ThreadState::UNINTERRUPTIBLE);
        let call = waits.then(|| read("syscall")).and_then(|text| text.split(' ').next()?.parse().ok());
        (state, call.filter(|call: &i64| *call >= 0))
    }
}
