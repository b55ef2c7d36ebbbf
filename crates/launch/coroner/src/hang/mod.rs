//! Hang detection for watched threads.
//!
//! A Coroner thread, `coroner-watchdog`, checks each watched thread several times within the
//! threshold ([`Config::hang_threshold`](crate::Config::hang_threshold)). A watched thread shows
//! that it is alive by [`HangWatch::beat`], which is one store. On Apple systems the main thread is
//! watched without this: work that is queued to the main queue doesn't run while the main thread
//! hangs.
//!
//! A hang is recorded at once, because the process is often killed while it hangs: the hang's start
//! is written to the run state, and a report of all threads is written. If the thread responds
//! again, the hang's length is added to the report. If the process is killed before, the next
//! launch reports the hang as fatal, and the run's session as abnormal. A report is delivered while
//! the process continues if its hang is over or has lasted for a minute.
//!
//! Only time in which the process ran counts, because it may be stopped (SIGSTOP), and the machine
//! may sleep or be too busy to run it. Under a debugger nothing counts as a hang.

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

/// Minimum threshold. A shorter hang can't be distinguished from a busy machine.
pub(crate) const MIN_DURATION: Duration = Duration::from_millis(50);
/// Number of checks per threshold.
const LOOKS: u32 = 5;
/// Maximum time between two checks.
const MAX_TICK: Duration = Duration::from_millis(500);
/// Maximum time that the process's exit waits for a report that is being written. A truncated
/// report could be mistaken for a crash's.
const MAX_END: Duration = Duration::from_millis(500);

/// A watched thread's beats: a number that is odd while the thread is busy and even while it waits
/// for work. Each beat increases it.
#[derive(Debug)]
struct Beats {
    shown: AtomicU64,
    thread: AtomicU64,
}

impl Beats {
    const fn new(thread: u64) -> Self {
        Self { shown: AtomicU64::new(0), thread: AtomicU64::new(thread) }
    }

    /// Shows that the thread is alive.
    ///
    /// Only called by the watched thread, so a load and a store are enough.
    #[inline]
    fn show(&self, busy: bool) {
        let shown = self.shown.load(Ordering::Relaxed);
        self.shown.store((shown | 1).wrapping_add(1) | u64::from(busy), Ordering::Relaxed);
    }
}

/// Watches the thread that created it until it is dropped.
///
/// It can be created before or after [`install`](crate::install). Without
/// [`Config::hang_threshold`](crate::Config::hang_threshold), it has no effect.
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
    /// Makes the type `!Send`: beats of another thread would hide that this one hangs.
    of_thread: PhantomData<*const ()>,
}

impl HangWatch {
    /// Watches the calling thread from its first [`beat`](Self::beat) on.
    #[must_use = "the thread is no longer watched when this is dropped"]
    pub fn new() -> Self {
        let beats = Arc::new(Beats::new(thread_id() as u64));
        let mut watched = locked(&WATCHED);
        watched.retain(|other| other.strong_count() > 0);
        watched.push(Arc::downgrade(&beats));
        drop(watched);
        CHANGED.notify_all();
        Self { beats, of_thread: PhantomData }
    }

    /// Shows that the thread is alive and busy. Wait-free: one store.
    ///
    /// The thread is hung if it calls neither this nor [`idle`](Self::idle) again within the
    /// threshold.
    #[inline]
    pub fn beat(&self) {
        self.beats.show(true);
    }

    /// Shows that the thread is alive and about to wait for work. Wait-free: one store.
    ///
    /// No further call is expected until its next beat.
    #[inline]
    pub fn idle(&self) {
        self.beats.show(false);
    }

    /// Calls [`beat`](Self::beat) now, and [`idle`](Self::idle) when the return value is dropped.
    ///
    /// Use it around the handling of each event.
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

/// Keeps a watched thread marked as busy until dropped.
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

/// The watched threads, for the watchdog of any install.
static WATCHED: Mutex<Vec<Weak<Beats>>> = Mutex::new(Vec::new());
/// Notified when a sleeping watchdog has to check `WATCHED` or stop.
static CHANGED: Condvar = Condvar::new();
/// Held while a hang is recorded.
static WRITING: Mutex<()> = Mutex::new(());
/// Set when the process is ending: nothing more is recorded.
static ENDED: AtomicBool = AtomicBool::new(false);

/// The watchdog thread of an install.
#[derive(Debug)]
pub(crate) struct Watchdog {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watchdog {
    /// Starts the watchdog. `None` if its thread can't be started; hangs are then not reported.
    pub(crate) fn start(threshold: Duration, state: RunState<'static>) -> Option<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        WAITING.store(0, Ordering::Release);
        let mut watch = Watch::new(threshold, state, Arc::clone(&stop));
        match background_thread::spawn("coroner-watchdog", move || watch.run()) {
            Ok(thread) => Some(Self { stop, thread }),
            Err(error) => {
                log::warn!("coroner: can't start the watchdog thread, so hangs are not reported: {error}");
                None
            }
        }
    }

    /// Stops the thread and waits for its end.
    pub(crate) fn stop(self) {
        {
            // Store it under the lock, so that it doesn't fall between the thread's check and its
            // sleep.
            let _watched = locked(&WATCHED);
            self.stop.store(true, Ordering::Release);
        }
        CHANGED.notify_all();
        let _ = self.thread.join();
    }
}

/// Bits of the numbers of this run's hangs whose reports wait for delivery.
static WAITING: AtomicU16 = AtomicU16::new(0);

/// Records that a hang's report was delivered.
pub(crate) fn delivered(number: u8) {
    WAITING.fetch_and(!1_u16.checked_shl(number.into()).unwrap_or(0), Ordering::AcqRel);
}

/// Called on a clean exit: waits for a report that is being written, and prevents further ones.
pub(crate) fn end() {
    ENDED.store(true, Ordering::SeqCst);
    let until = Instant::now() + MAX_END;
    // Not a plain `lock`, because `exit` may be called in a signal handler that interrupted
    // anything.
    while WRITING.try_lock().is_err_and(|error| matches!(error, std::sync::TryLockError::WouldBlock)) {
        if Instant::now() >= until {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The state of the watchdog thread.
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

/// A watched thread, as seen by the watchdog.
#[derive(Debug)]
struct Thread {
    beats: Weak<Beats>,
    silence: Silence,
    /// Start of the thread's hang in nanoseconds since the Unix epoch; 0 if it doesn't hang.
    since: u64,
    /// The number of the hang's report.
    report: Option<u8>,
    /// Samples the thread's stack while it hangs.
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
            // Time of this thread's own work, such as a report for which all threads were stopped,
            // doesn't count as silence.
            last = Instant::now();
        }
        for thread in &mut self.threads {
            // Nothing is watched from now on, so it is unknown how long the hang lasts.
            let lasted = thread.silence.lasted();
            thread.answers(&self.state, lasted);
        }
        self.state.set_scalar(Scalar::HANG_SINCE, 0);
    }

    /// Waits until the next check or, if no thread is watched, until there is one.
    ///
    /// Returns `false` at the end.
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

    /// Adds the newly watched threads.
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
            // A thread that is no longer watched counts as idle.
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
    /// Records that the thread hangs since its beat `shown`, and writes a report.
    ///
    /// Returns `false` if the hang must not be recorded.
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
        // Sample the stack first: the thread may continue before the report stops all threads.
        let mut sampler = Sampler::new(number as ThreadId);
        if !sampler.sample(|| beats.shown.load(Ordering::Acquire) == shown) {
            return false;
        }
        let lasted_ns = self.silence.lasted().as_nanos() as u64;
        self.since = now_ns().saturating_sub(lasted_ns).max(1);
        // Before the report, because the process may be killed while the report is written.
        let before = state.scalar(Scalar::HANG_SINCE);
        state.set_scalar(Scalar::HANG_SINCE, if before == 0 { self.since } else { before.min(self.since) });
        // The number of a finished and delivered hang can be reused.
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

    /// Samples the thread's stack if it hangs and a sample is due.
    fn sample(&mut self) {
        let Some(sampler) = &mut self.sampler else { return };
        let (beats, silence) = (&self.beats, &self.silence);
        let hangs = || beats.upgrade().is_some_and(|beats| beats.shown.load(Ordering::Acquire) == silence.seen());
        let _writing = locked(&WRITING);
        if !ENDED.load(Ordering::SeqCst) {
            sampler.sample(hangs);
        }
    }

    /// Records that the thread responds again. It may not have been hung.
    fn answers(&mut self, state: &RunState<'_>, lasted: Duration) {
        self.since = 0;
        // Before the scalar that marks the report as complete.
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

    /// A thread's clocks, which are not read on this system.
    #[derive(Debug)]
    pub(super) struct Clocks;

    pub(super) fn clocks(_thread: ThreadId) -> Option<Clocks> {
        None
    }

    /// Returns a thread's state, which is unknown on this system.
    pub(super) fn activity(_thread: ThreadId, _clocks: Option<(&Clocks, &Clocks)>) -> (ThreadState, Option<i64>) {
        (ThreadState::default(), None)
    }
}

#[cfg(all(supported, not(target_vendor = "apple")))]
mod os {
    use coroner_report::wire::ThreadState;

    use crate::backtrace::ThreadId;

    pub(super) use coroner_process::vitals::debugged;

    /// A thread's running time and its waiting time for a CPU in nanoseconds, from `schedstat`
    /// (Documentation/scheduler/sched-stats.rst).
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

    /// Returns a thread's state and the system call that it waits in, from proc_pid_stat(5) and
    /// proc_pid_syscall(5).
    ///
    /// For a runnable thread, the state is what it did longer since the last sample: run, or wait
    /// for a CPU.
    pub(super) fn activity(thread: ThreadId, clocks: Option<(&Clocks, &Clocks)>) -> (ThreadState, Option<i64>) {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/task/{thread}/{name}")).unwrap_or_default();
        let stat = read("stat");
        // The state follows the name in parentheses, which may itself contain parentheses.
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
