//! Threads of real processes hand over their contexts.

#![allow(clippy::items_after_statements, reason = "a case's statics stand in the case")]

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::support::{self, Flag, block_signals, gettid, set_limit, unblock_signals, until};
use coroner_process::context::Context;
use coroner_process::memory::LoadGuarded;
use coroner_process::stop_the_world::{
    Capture, Config, NotCaptured, PrepareError, Progress, StoppedThreads, ThreadStopper,
};
use coroner_process::syscall::Errno;
use coroner_process::threads::{
    Activity, KernelState, Listing, TaskDirectory, monotonic_now, this_thread, withdraw_thread,
};

const MS: u64 = 1_000_000;
/// Generous: the tests run on loaded machines and under an emulator.
const GRACE: u64 = 2_000 * MS;

support::forked![
    one_thread_is_captured_where_it_waits,
    ten_threads_are_captured,
    a_thousand_threads_are_captured,
    threads_whose_ids_follow_the_processs_need_no_listing,
    a_thread_whose_id_is_far_away_is_listed,
    a_thread_in_a_tight_loop_stands_still_and_goes_on,
    threads_that_start_meanwhile_are_captured,
    threads_that_end_meanwhile_are_left_out,
    a_thread_that_ends_without_an_answer_is_not_waited_for,
    a_blocked_signal_makes_a_thread_silent_and_its_late_answer_is_harmless,
    stray_signals_are_harmless,
    a_reset_handler_is_put_back,
    excluded_threads_are_left_alone,
    a_full_signal_queue_is_drained_and_a_closed_one_is_a_reason,
    a_table_that_is_too_small_counts_the_rest,
    a_thread_that_crashes_too_is_parked_before_the_stop,
    a_thread_that_crashes_too_is_parked_during_the_stop,
    a_stop_whose_asker_has_ended_blocks_no_thread,
    a_forked_child_stops_its_own_threads,
    one_thread_is_interrupted_and_goes_on,
    a_thread_that_is_held_for_long_sleeps_and_goes_on,
    a_thread_whose_asker_has_ended_goes_on,
    an_asker_that_fell_asleep_is_woken_by_the_answer,
    threads_of_one_processor_interrupt_each_other,
    an_interruption_that_fails_says_why,
    threads_interrupt_each_other_at_once,
    a_round_takes_over_a_thread_that_is_interrupted_already,
    errno_is_untouched,
    left_stopped_threads_end_with_the_process,
    a_short_alternate_stack_is_enough,
    withdrawing_restores_what_was_there,
    a_signal_that_is_taken_is_refused,
    names_and_states_of_threads,
    threads_are_listed_when_no_descriptor_is_free_and_after_all_were_closed,
];

fn prepare() -> (ThreadStopper, TaskDirectory) {
    note_strangers();
    prepare_again()
}

/// Like [`prepare`], after the case has had threads: a joined one may still be listed for a moment.
fn prepare_again() -> (ThreadStopper, TaskDirectory) {
    (ThreadStopper::prepare(Config::default()).unwrap(), TaskDirectory::open().unwrap())
}

static STRANGERS: Mutex<&[i32]> = Mutex::new(&[]);

/// Must be called before the case, or its forked child, starts a thread.
fn note_strangers() {
    *STRANGERS.lock().unwrap() = support::strangers();
}

/// Returns the threads that every stop excludes.
fn strangers() -> &'static [i32] {
    *STRANGERS.lock().unwrap()
}

const LIMIT: u64 = 20_000 * MS;

/// Threads that wait for one condition, eleven frames deep.
struct Parked {
    gate: Arc<(Mutex<bool>, Condvar)>,
    threads: Vec<JoinHandle<u32>>,
    tids: Vec<i32>,
}

#[inline(never)]
fn wait_deep(depth: u32, gate: &(Mutex<bool>, Condvar)) -> u32 {
    if depth == 0 {
        let open = gate.0.lock().unwrap();
        drop(gate.1.wait_while(open, |open| !*open).unwrap());
        return 1;
    }
    std::hint::black_box(wait_deep(depth - 1, gate)) + 1
}

impl Parked {
    fn start(count: usize) -> Parked {
        Self::start_after(count, || {})
    }

    /// Starts threads that no `pthread_create` has announced.
    ///
    /// As a library does that makes system calls itself.
    fn start_unannounced(count: usize) -> Parked {
        Self::start_after(count, withdraw_thread)
    }

    fn start_after(count: usize, first: fn()) -> Parked {
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let tids = Arc::new(Mutex::new(Vec::new()));
        let threads = (0..count)
            .map(|index| {
                let (gate, tids) = (gate.clone(), tids.clone());
                let run = move || {
                    first();
                    tids.lock().unwrap().push(gettid());
                    wait_deep(10, &gate)
                };
                Builder::new().name(format!("worker {index}")).stack_size(64 << 10).spawn(run).unwrap()
            })
            .collect();
        until("all threads run", || tids.lock().unwrap().len() == count);
        let tasks = TaskDirectory::open().unwrap();
        let tids = tids.lock().unwrap().clone();
        // Waiting for the lock of `tids` is also sleeping, but it ends.
        until("all threads wait", || tids.iter().all(|tid| tasks.state(*tid) == Ok(KernelState::Sleeping)));
        tasks.close();
        Parked { gate, threads, tids }
    }

    fn finish(self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
        for thread in self.threads {
            assert_eq!(thread.join().unwrap(), 11);
        }
    }
}

fn captures_all(count: usize) {
    let (stopper, tasks) = prepare();
    let parked = Parked::start(count);
    for _ in 0..3 {
        let begun = monotonic_now();
        let mut stop = stopper.begin(&tasks, strangers()).unwrap();
        let progress = stop.wait(GRACE, LIMIT);
        let ended = monotonic_now();
        assert_eq!((progress.threads, progress.captured, progress.silent), (count, count, 0));
        assert_eq!((stop.overflow(), stop.listing().error), (0, None));
        let mut seen = Vec::new();
        for thread in stop.threads() {
            seen.push(thread.tid);
            let name = thread.name.unwrap();
            assert!(name.as_bytes().starts_with(b"worker "), "{name:?}");
            assert!((begun..=ended).contains(&thread.time));
            let Capture::Stopped(context) = thread.capture else { panic!("{:?}", thread.capture) };
            let registers = context.registers();
            assert_eq!((registers.pc, registers.sp()), (context.pc(), context.sp()));
            // SAFETY: the thread is in code that it was running.
            let mut memory = unsafe { LoadGuarded::new() };
            let activity = Activity::of(&registers, &mut memory);
            let Activity::InSystemCall { number } = activity else { panic!("{activity:?} at {:#x}", registers.pc) };
            assert!(number.is_none_or(|number| i64::from(number) == libc::SYS_futex), "{number:?}");
        }
        seen.sort_unstable();
        let mut tids = parked.tids.clone();
        tids.sort_unstable();
        assert_eq!(seen, tids);
        stop.release();
    }
    parked.finish();
}

fn one_thread_is_captured_where_it_waits() {
    captures_all(1);
}

fn ten_threads_are_captured() {
    captures_all(10);
}

fn a_thousand_threads_are_captured() {
    captures_all(1000);
}

fn threads_whose_ids_follow_the_processs_need_no_listing() {
    let (stopper, tasks) = prepare();
    let parked = Parked::start_unannounced(10);
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    let listing = stop.listing();
    let progress = stop.wait(GRACE, LIMIT);
    assert_eq!((progress.threads, progress.captured, progress.silent), (10, 10, 0));
    stop.release();
    // If others start processes meanwhile, the ids are farther apart than the probe reaches; an
    // emulator has threads of its own.
    let farthest = parked.tids.iter().max().unwrap() - std::process::id() as i32;
    if farthest < 72 && strangers().is_empty() {
        assert_eq!(listing, Listing::default(), "the farthest was {farthest} away");
    }
    parked.finish();
}

fn a_thread_whose_id_is_far_away_is_listed() {
    let (stopper, tasks) = prepare();
    for _ in 0..200 {
        std::thread::spawn(|| {}).join().unwrap();
    }
    let parked = Parked::start_unannounced(3);
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    let progress = stop.wait(GRACE, LIMIT);
    assert_eq!((progress.threads, progress.captured, progress.silent), (3, 3, 0));
    assert!(stop.listing().found >= 4, "{:?}", stop.listing());
    stop.release();
    parked.finish();
}

static COUNTER: AtomicU64 = AtomicU64::new(0);
static STOP: Flag = Flag::new();
static READY: Flag = Flag::new();
static TID: AtomicI32 = AtomicI32::new(0);

#[inline(never)]
fn count_until_stopped() {
    while !STOP.is_set() {
        COUNTER.fetch_add(1, Ordering::Relaxed);
    }
}

fn start_counting() -> JoinHandle<()> {
    let thread = std::thread::spawn(|| {
        TID.store(gettid(), Ordering::SeqCst);
        READY.set();
        count_until_stopped();
    });
    READY.await_set("the loop runs");
    until("it counts", || COUNTER.load(Ordering::Relaxed) > 1000);
    thread
}

fn a_thread_in_a_tight_loop_stands_still_and_goes_on() {
    let (stopper, tasks) = prepare();
    let thread = start_counting();
    for _ in 0..100 {
        let mut stop = stopper.begin(&tasks, strangers()).unwrap();
        assert_eq!(stop.wait(GRACE, LIMIT).captured, 1);
        let before = COUNTER.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_micros(300));
        assert_eq!(COUNTER.load(Ordering::SeqCst), before, "it stands still");
        drop(stop);
        until("it goes on", || COUNTER.load(Ordering::SeqCst) > before);
    }
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    stop.wait(GRACE, LIMIT);
    let registers = stop.threads().next().unwrap().capture.registers().unwrap();
    // SAFETY: the thread is in code that it was running.
    assert_eq!(Activity::of(&registers, &mut unsafe { LoadGuarded::new() }), Activity::Running);
    stop.release();
    STOP.set();
    thread.join().unwrap();
}

/// Waits until the only silent threads are those that block the signal and sleep.
///
/// A glibc thread (since 2.35) blocks all signals when it exits; a detached one then waits for the
/// lock of the list of stacks (`_dl_stack_cache_lock`, in `__nptl_free_tcb`), which a thread
/// stopped in `pthread_create` may hold.
fn wait_for_all_that_can_answer(
    stopper: &ThreadStopper,
    tasks: &TaskDirectory,
    stop: &mut StoppedThreads<'_>,
) -> Progress {
    loop {
        let progress = stop.wait(10 * MS, LIMIT);
        // Nothing here allocates.
        let is_silent = |capture: &Capture<'_>| matches!(capture, Capture::Not(NotCaptured::NoAnswer));
        let mut silent = stop.threads().filter(|thread| is_silent(&thread.capture));
        let blocks = |tid| support::blocked_signals(tid).is_some_and(|mask| mask & 1 << (stopper.signal() - 1) != 0);
        // A thread that has just been created, or is about to create another, also blocks it, but
        // runs.
        let sleeps = |tid| tasks.state(tid) == Ok(KernelState::Sleeping);
        if silent.all(|thread| blocks(thread.tid) && sleeps(thread.tid)) {
            return progress;
        }
    }
}

fn threads_that_start_meanwhile_are_captured() {
    let (stopper, tasks) = prepare();
    static STARTED: AtomicU32 = AtomicU32::new(0);
    fn start_another() {
        STARTED.fetch_add(1, Ordering::SeqCst);
        if !STOP.is_set() && STARTED.load(Ordering::SeqCst) < 3000 {
            let next = Builder::new().stack_size(64 << 10).spawn(start_another);
            drop(next);
            // Each lives for a while, so that there are several.
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let first = std::thread::spawn(start_another);
    let mut most = 0;
    // Nothing may be allocated during a stop: a stopped thread may hold the allocator's lock.
    let (mut captured, mut listed) = (Vec::with_capacity(4096), Vec::with_capacity(4096));
    for _ in 0..200 {
        let mut stop = stopper.begin(&tasks, strangers()).unwrap();
        let progress = wait_for_all_that_can_answer(&stopper, &tasks, &mut stop);
        most = most.max(progress.captured);
        // Nothing runs now: the listed threads are the captured ones.
        captured.clear();
        captured.extend(stop.threads().map(|thread| thread.tid));
        listed.clear();
        tasks.list(&mut |tid| listed.push(tid));
        let before = STARTED.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_micros(100));
        assert_eq!(STARTED.load(Ordering::SeqCst), before);
        let threads = listed.iter().filter(|tid| **tid != this_thread() && !strangers().contains(tid));
        for tid in threads {
            let alive = tasks.state(*tid).is_ok_and(|state| state != KernelState::Zombie && state != KernelState::Dead);
            assert!(captured.contains(tid) || !alive);
        }
        stop.release();
        std::thread::sleep(Duration::from_micros(500));
    }
    assert!(most > 1, "several threads at once");
    STOP.set();
    first.join().unwrap();
}

fn threads_that_end_meanwhile_are_left_out() {
    let (stopper, tasks) = prepare();
    let done = Arc::new(Flag::new());
    let ending = {
        let done = done.clone();
        std::thread::spawn(move || {
            while !done.is_set() {
                let _ = Builder::new().stack_size(64 << 10).spawn(|| {}).map(JoinHandle::join);
            }
        })
    };
    for _ in 0..300 {
        let mut stop = stopper.begin(&tasks, strangers()).unwrap();
        stop.wait(20 * MS, LIMIT);
        for thread in stop.threads() {
            if let Capture::Not(reason) = thread.capture {
                // It was exiting when it was asked, too late to run a handler.
                let state = tasks.state(thread.tid);
                assert!(state.is_err() || reason == NotCaptured::NoAnswer, "{reason:?} {state:?}");
            }
        }
    }
    done.set();
    ending.join().unwrap();
}

fn a_thread_that_ends_without_an_answer_is_not_waited_for() {
    let (stopper, tasks) = prepare();
    let thread = std::thread::spawn(|| {
        block_signals();
        READY.set();
        STOP.await_set("stop");
    });
    READY.await_set("it blocks");
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    assert_eq!(stop.progress().silent, 1);
    STOP.set();
    // Without a limit: only the thread's end ends this.
    let progress = stop.wait(u64::MAX / 4, u64::MAX / 2);
    assert_eq!((progress.threads, progress.captured, progress.silent), (1, 0, 0));
    assert_eq!(stop.threads().count(), 0, "it is not of this stop any more");
    stop.release();
    thread.join().unwrap();
}

fn a_blocked_signal_makes_a_thread_silent_and_its_late_answer_is_harmless() {
    let (stopper, tasks) = prepare();
    static UNBLOCK: Flag = Flag::new();
    static UNBLOCKED: Flag = Flag::new();
    let thread = std::thread::spawn(|| {
        block_signals();
        READY.set();
        UNBLOCK.await_set("unblock");
        unblock_signals();
        UNBLOCKED.set();
        STOP.await_set("stop");
    });
    READY.await_set("it blocks");
    let parked = Parked::start(5);
    for _ in 0..3 {
        let mut stop = stopper.begin(&tasks, strangers()).unwrap();
        let progress = stop.wait(30 * MS, LIMIT);
        assert_eq!((progress.captured, progress.silent), (5, 1));
        let silent = stop.threads().filter(|thread| matches!(thread.capture, Capture::Not(NotCaptured::NoAnswer)));
        let tids: Vec<i32> = silent.map(|thread| thread.tid).collect();
        assert_eq!(tids.len(), 1);
        let blocked = support::blocked_signals(tids[0]).unwrap();
        assert_ne!(blocked & 1 << (stopper.signal() - 1), 0);
        stop.release();
    }
    // Its answer to a finished stop doesn't hold it …
    UNBLOCK.set();
    UNBLOCKED.await_set("it goes on");
    // … and it answers the next one.
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    assert_eq!(stop.wait(GRACE, LIMIT).captured, 6);
    stop.release();
    // An answer that comes after `wait` has given up, but during the stop, counts.
    STOP.set();
    thread.join().unwrap();
    parked.finish();
}

fn stray_signals_are_harmless() {
    let (stopper, tasks) = prepare();
    let parked = Parked::start(3);
    // SAFETY: signals to this process, whose handler accepts any value.
    unsafe {
        for value in [0_usize, 7, usize::MAX, 1 << 32, 1 << 32 | 1 << 31, 1 << 31] {
            let value = libc::sigval { sival_ptr: value as *mut _ };
            assert_eq!(libc::sigqueue(libc::getpid(), stopper.signal(), value), 0);
        }
        assert_eq!(libc::kill(libc::getpid(), stopper.signal()), 0);
        for tid in &parked.tids {
            assert_eq!(libc::syscall(libc::SYS_tgkill, libc::getpid(), *tid, stopper.signal()), 0);
        }
    }
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    // A parked thread receives them, too.
    let value = libc::sigval { sival_ptr: (1_usize << 32) as *mut _ };
    // SAFETY: as above.
    unsafe { libc::sigqueue(libc::getpid(), stopper.signal(), value) };
    assert_eq!(stop.wait(GRACE, LIMIT).captured, 3);
    stop.release();
    parked.finish();
}

fn a_reset_handler_is_put_back() {
    let (stopper, tasks) = prepare();
    let parked = Parked::start(3);
    // SAFETY: an app that resets every handler it doesn't know.
    unsafe { libc::signal(stopper.signal(), libc::SIG_DFL) };
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    assert_eq!(stop.wait(GRACE, LIMIT).captured, 3);
    stop.release();
    parked.finish();
}

fn excluded_threads_are_left_alone() {
    let (stopper, tasks) = prepare();
    let parked = Parked::start(2);
    let counting = start_counting();
    let excluded = [strangers(), &[TID.load(Ordering::SeqCst)]].concat();
    let mut stop = stopper.begin(&tasks, &excluded).unwrap();
    assert_eq!(stop.wait(GRACE, LIMIT).threads, 2);
    let before = COUNTER.load(Ordering::SeqCst);
    until("it runs on", || COUNTER.load(Ordering::SeqCst) > before + 1000);
    stop.release();
    STOP.set();
    counting.join().unwrap();
    parked.finish();
}

fn a_full_signal_queue_is_drained_and_a_closed_one_is_a_reason() {
    let (stopper, tasks) = prepare();
    let parked = Parked::start(60);
    // Signals are counted per user: with a user of our own, the limit is ours alone.
    support::drop_root();
    set_limit(libc::RLIMIT_SIGPENDING as i32, 4);
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    let progress = stop.wait(GRACE, LIMIT);
    assert_eq!((progress.captured, progress.silent), (60, 0));
    stop.release();
    set_limit(libc::RLIMIT_SIGPENDING as i32, 0);
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    stop.wait(GRACE, LIMIT);
    if !support::is_emulated() {
        assert!(
            stop.threads().all(|thread| matches!(thread.capture, Capture::Not(NotCaptured::SignalQueueFull))),
            "every thread has the reason"
        );
    }
    stop.release();
    parked.finish();
}

fn a_table_that_is_too_small_counts_the_rest() {
    note_strangers();
    let stopper = ThreadStopper::prepare(Config { threads: 8, ..Config::default() }).unwrap();
    let tasks = TaskDirectory::open().unwrap();
    assert_eq!(stopper.capacity(), 8);
    let parked = Parked::start(20);
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    let progress = stop.wait(GRACE, LIMIT);
    assert_eq!((progress.threads, progress.captured, stop.overflow()), (8, 8, 12));
    stop.release();
    parked.finish();
}

static STOPPER: std::sync::OnceLock<ThreadStopper> = std::sync::OnceLock::new();
static HELD: Flag = Flag::new();
/// Set when the report that includes the other crashed thread is finished.
static OVER: Flag = Flag::new();

extern "C" fn crash_handler(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    HELD.set();
    // SAFETY: the third argument of a handler with SA_SIGINFO.
    let context = unsafe { Context::from_pointer(context) };
    let parked = STOPPER.get().unwrap().park_crashing_thread(context).unwrap();
    OVER.await_set("the report is over");
    drop(parked);
}

/// Installs an app's crash handler: SIGUSR1 represents the crash.
fn install_crash_handler() {
    // SAFETY: the handler only waits.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = crash_handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigfillset(&raw mut action.sa_mask);
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
}

fn assert_parked(stop: &coroner_process::stop_the_world::StoppedThreads<'_>) {
    let thread = stop.threads().find(|thread| thread.tid == TID.load(Ordering::SeqCst)).unwrap();
    let Capture::Crashed(context) = thread.capture else { panic!("{:?}", thread.capture) };
    // It is after the system call of `raise`, not in our handler.
    // SAFETY: the thread is in code that it was running.
    let mut memory = unsafe { LoadGuarded::new() };
    let mut registers = context.registers();
    #[cfg(target_arch = "x86_64")]
    {
        registers.pc -= 2;
        registers.gpr[0] = libc::SYS_tgkill as u64;
    }
    #[cfg(target_arch = "aarch64")]
    {
        registers.pc -= 4;
    }
    assert!(matches!(Activity::of(&registers, &mut memory), Activity::InSystemCall { .. }));
}

fn a_thread_that_crashes_too_is_parked_before_the_stop() {
    let (stopper, tasks) = prepare();
    let stopper = STOPPER.get_or_init(|| stopper);
    install_crash_handler();
    let crashing = std::thread::spawn(|| {
        TID.store(gettid(), Ordering::SeqCst);
        // SAFETY: the handler only waits.
        unsafe { libc::raise(libc::SIGUSR1) };
    });
    HELD.await_set("it crashed");
    std::thread::sleep(Duration::from_millis(5));
    let parked = Parked::start(4);
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    assert_eq!(stop.wait(GRACE, LIMIT).captured, 5);
    assert_parked(&stop);
    stop.release();
    OVER.set();
    crashing.join().unwrap();
    parked.finish();
}

fn a_thread_that_crashes_too_is_parked_during_the_stop() {
    static GO: Flag = Flag::new();
    let (stopper, tasks) = prepare();
    let stopper = STOPPER.get_or_init(|| stopper);
    install_crash_handler();
    // It is about to be parked, with all signals blocked by its crash handler's mask, when the stop
    // begins.
    let crashing = std::thread::spawn(|| {
        block_signals();
        TID.store(gettid(), Ordering::SeqCst);
        READY.set();
        GO.await_set("the stop has begun");
        std::thread::sleep(Duration::from_millis(30));
        // SAFETY: the handler only waits.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGUSR1);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            libc::raise(libc::SIGUSR1);
        }
    });
    READY.await_set("it blocks");
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    GO.set();
    assert_eq!(stop.wait(GRACE, LIMIT).captured, 1);
    assert_parked(&stop);
    stop.release();
    OVER.set();
    crashing.join().unwrap();
}

fn a_stop_whose_asker_has_ended_blocks_no_thread() {
    let (stopper, tasks) = prepare();
    let parked = Parked::start(3);
    let counting = start_counting();
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let excluded = [strangers(), &[main_thread()]].concat();
                let mut stop = stopper.begin(&tasks, &excluded).unwrap();
                assert_eq!(stop.wait(GRACE, LIMIT).captured, 4);
                stop.leave_stopped();
            })
            .join()
            .unwrap();
    });
    let before = COUNTER.load(Ordering::SeqCst);
    until("they go on by themselves", || COUNTER.load(Ordering::SeqCst) > before + 1000);
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    assert_eq!(stop.wait(GRACE, LIMIT).captured, 4);
    stop.release();
    STOP.set();
    counting.join().unwrap();
    parked.finish();
}

fn main_thread() -> i32 {
    // SAFETY: only asks.
    unsafe { libc::getpid() }
}

fn a_forked_child_stops_its_own_threads() {
    static SHARED: std::sync::OnceLock<(ThreadStopper, TaskDirectory)> = std::sync::OnceLock::new();
    let (stopper, tasks) = SHARED.get_or_init(prepare);
    let parked = Parked::start(10);
    let failure = support::in_child(|| {
        note_strangers();
        let (stopper, tasks) = SHARED.get().unwrap();
        let mut stop = stopper.begin(tasks, strangers()).unwrap();
        assert_eq!(stop.wait(GRACE, LIMIT).threads, 0, "the parent's threads are not the child's");
        stop.release();
        captures_own(stopper, tasks);
    });
    assert_eq!(failure, None);
    let mut stop = stopper.begin(tasks, strangers()).unwrap();
    assert_eq!(stop.wait(GRACE, LIMIT).captured, 10, "the parent is unharmed");
    stop.release();
    parked.finish();
}

fn captures_own(stopper: &ThreadStopper, tasks: &TaskDirectory) {
    let parked = Parked::start(3);
    let mut stop = stopper.begin(tasks, strangers()).unwrap();
    assert_eq!(stop.wait(GRACE, LIMIT).captured, 3);
    stop.release();
    parked.finish();
}

fn one_thread_is_interrupted_and_goes_on() {
    let (stopper, _) = prepare();
    let thread = start_counting();
    let tid = TID.load(Ordering::SeqCst);
    let first = count_until_stopped as *const () as u64;
    let mut inside = 0;
    for _ in 0..1000 {
        let interrupted = stopper.interrupt(tid, GRACE).unwrap();
        let before = COUNTER.load(Ordering::SeqCst);
        let pc = interrupted.context().pc();
        inside += u32::from((first..first + 256).contains(&pc));
        assert_eq!(COUNTER.load(Ordering::SeqCst), before);
        drop(interrupted);
    }
    if !cfg!(debug_assertions) {
        assert!(inside > 900, "{inside}");
    }
    let before = COUNTER.load(Ordering::SeqCst);
    until("it goes on", || COUNTER.load(Ordering::SeqCst) > before);
    STOP.set();
    thread.join().unwrap();
}

/// A held thread spins for its release at first; later it sleeps, and must be woken.
fn a_thread_that_is_held_for_long_sleeps_and_goes_on() {
    let (stopper, tasks) = prepare();
    let thread = start_counting();
    let tid = TID.load(Ordering::SeqCst);
    for _ in 0..20 {
        let interrupted = stopper.interrupt(tid, GRACE).unwrap();
        let before = COUNTER.load(Ordering::SeqCst);
        until("it sleeps", || tasks.state(tid) == Ok(KernelState::Sleeping));
        assert_eq!(COUNTER.load(Ordering::SeqCst), before);
        drop(interrupted);
        until("it goes on", || COUNTER.load(Ordering::SeqCst) > before);
    }
    STOP.set();
    thread.join().unwrap();
}

/// An asker spins for the answer at first; later it sleeps, and must be woken.
fn an_asker_that_fell_asleep_is_woken_by_the_answer() {
    static ASKER: AtomicI32 = AtomicI32::new(0);
    static MAY_ANSWER: Flag = Flag::new();
    let (stopper, tasks) = prepare();
    let thread = std::thread::spawn(|| {
        block_signals();
        TID.store(gettid(), Ordering::SeqCst);
        READY.set();
        MAY_ANSWER.await_set("it may answer");
        unblock_signals();
        STOP.await_set("stop");
    });
    READY.await_set("it blocks");
    let asker = std::thread::spawn(move || {
        ASKER.store(gettid(), Ordering::SeqCst);
        stopper.interrupt(TID.load(Ordering::SeqCst), u64::MAX).map(drop)
    });
    until("it sleeps", || tasks.state(ASKER.load(Ordering::SeqCst)) == Ok(KernelState::Sleeping));
    MAY_ANSWER.set();
    until("it has its answer", || asker.is_finished());
    assert_eq!(asker.join().unwrap(), Ok(()));
    STOP.set();
    thread.join().unwrap();
}

/// Spinning doesn't help there: the other thread runs when this one sleeps.
fn a_thread_whose_asker_has_ended_goes_on() {
    let (stopper, _) = prepare();
    let thread = start_counting();
    let tid = TID.load(Ordering::SeqCst);
    // More often than there are slots: those of exited askers are free again.
    for _ in 0..17 {
        std::thread::scope(|scope| {
            scope.spawn(|| std::mem::forget(stopper.interrupt(tid, GRACE).unwrap()));
        });
        let before = COUNTER.load(Ordering::SeqCst);
        until("it goes on", || COUNTER.load(Ordering::SeqCst) > before);
    }
    STOP.set();
    thread.join().unwrap();
}

fn threads_of_one_processor_interrupt_each_other() {
    // SAFETY: plain data, filled by the kernel and read by it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set), 0);
    }
    // Threads that it starts run there, too.
    threads_interrupt_each_other_at_once();
}

fn an_interruption_that_fails_says_why() {
    let (stopper, _) = prepare();
    let ended = std::thread::spawn(gettid).join().unwrap();
    until("it is gone", || stopper.interrupt(ended, MS).err() == Some(NotCaptured::ThreadGone));
    static TAKEN: Flag = Flag::new();
    let thread = std::thread::spawn(|| {
        block_signals();
        TID.store(gettid(), Ordering::SeqCst);
        READY.set();
        TAKEN.await_set("tried");
        unblock_signals();
        STOP.await_set("stop");
    });
    READY.await_set("it blocks");
    let tid = TID.load(Ordering::SeqCst);
    for _ in 0..40 {
        // While it runs, it may be about to await signals.
        let reason = stopper.interrupt(tid, MS).err();
        assert!(matches!(reason, Some(NotCaptured::NoAnswer | NotCaptured::SignalUnsafe)), "{reason:?}");
    }
    TAKEN.set();
    until("it answers", || stopper.interrupt(tid, GRACE).is_ok());
    STOP.set();
    thread.join().unwrap();
}

fn threads_interrupt_each_other_at_once() {
    static SHARED: std::sync::OnceLock<ThreadStopper> = std::sync::OnceLock::new();
    static TIDS: [AtomicI32; 4] = [const { AtomicI32::new(0) }; 4];
    SHARED.get_or_init(|| prepare().0);
    let barrier = Arc::new(Barrier::new(TIDS.len()));
    let threads: Vec<_> = (0..TIDS.len())
        .map(|index| {
            let barrier = barrier.clone();
            std::thread::spawn(move || {
                TIDS[index].store(gettid(), Ordering::SeqCst);
                barrier.wait();
                for turn in 0..500 {
                    // In pairs, and in circles of four.
                    let other = TIDS[(index + 1 + turn % 3) % 4].load(Ordering::SeqCst);
                    let interrupted = SHARED.get().unwrap().interrupt(other, GRACE).unwrap();
                    assert_ne!(interrupted.context().pc(), 0);
                }
                barrier.wait();
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn a_round_takes_over_a_thread_that_is_interrupted_already() {
    let (stopper, tasks) = prepare();
    let thread = start_counting();
    let interrupted = stopper.interrupt(TID.load(Ordering::SeqCst), GRACE).unwrap();
    let pc = interrupted.context().pc();
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    let progress = stop.wait(GRACE, LIMIT);
    assert_eq!((progress.captured, progress.silent), (1, 0));
    let captured = stop.threads().next().unwrap().capture.registers().unwrap();
    assert_eq!(captured.pc, pc);
    stop.release();
    drop(interrupted);
    let before = COUNTER.load(Ordering::SeqCst);
    until("it goes on", || COUNTER.load(Ordering::SeqCst) > before);
    STOP.set();
    thread.join().unwrap();
}

#[cfg(target_os = "android")]
use libc::__errno as errno_location;
#[cfg(not(target_os = "android"))]
use libc::__errno_location as errno_location;

fn errno_is_untouched() {
    let (stopper, tasks) = prepare();
    let thread = std::thread::spawn(|| {
        TID.store(gettid(), Ordering::SeqCst);
        // SAFETY: errno of this thread.
        unsafe { *errno_location() = 77 };
        READY.set();
        while !STOP.is_set() {
            // SAFETY: as above.
            assert_eq!(unsafe { *errno_location() }, 77);
        }
    });
    READY.await_set("it runs");
    for _ in 0..200 {
        drop(stopper.interrupt(TID.load(Ordering::SeqCst), GRACE).unwrap());
        let mut stop = stopper.begin(&tasks, strangers()).unwrap();
        stop.wait(GRACE, LIMIT);
        stop.release();
    }
    STOP.set();
    thread.join().unwrap();
}

fn left_stopped_threads_end_with_the_process() {
    let failure = support::in_child(|| {
        let (stopper, tasks) = prepare();
        let _parked = Parked::start(20);
        let _counting = start_counting();
        let mut stop = stopper.begin(&tasks, strangers()).unwrap();
        assert_eq!(stop.wait(GRACE, LIMIT).captured, 21);
        stop.leave_stopped();
        let before = COUNTER.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(COUNTER.load(Ordering::SeqCst), before);
    });
    assert_eq!(failure, None);
}

fn a_short_alternate_stack_is_enough() {
    /// Space left for our handler after the kernel's frame.
    const ROOM: usize = 1024;
    const PAGE: usize = 4096;
    let (stopper, tasks) = prepare();
    let thread = std::thread::spawn(|| {
        // SAFETY: a mapping of our own, its lowest page without access; the thread's alternate
        // stack until it exits.
        unsafe {
            let least = if cfg!(target_arch = "x86_64") { 3376 } else { 4720 };
            let frame = libc::getauxval(libc::AT_MINSIGSTKSZ).max(least) as usize;
            // The kernel aligns the frame to 64 bytes and keeps 128 clear below the interrupted
            // stack pointer.
            let size = frame + 192 + ROOM;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let mapping = libc::mmap(std::ptr::null_mut(), 8 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_eq!(libc::mprotect(mapping, PAGE, libc::PROT_NONE), 0);
            let stack = libc::stack_t { ss_sp: mapping.byte_add(PAGE), ss_flags: 0, ss_size: size };
            assert_eq!(libc::sigaltstack(&raw const stack, std::ptr::null_mut()), 0);
            TID.store(gettid(), Ordering::SeqCst);
            READY.set();
            STOP.await_set("stop");
            let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
            libc::sigaltstack(&raw const none, std::ptr::null_mut());
        }
    });
    READY.await_set("it has its stack");
    for _ in 0..20 {
        let mut stop = stopper.begin(&tasks, strangers()).unwrap();
        assert_eq!(stop.wait(GRACE, LIMIT).captured, 1);
        stop.release();
        drop(stopper.interrupt(TID.load(Ordering::SeqCst), GRACE).unwrap());
    }
    STOP.set();
    thread.join().unwrap();
}

fn withdrawing_restores_what_was_there() {
    let (stopper, tasks) = prepare();
    let signal = stopper.signal();
    let thread = std::thread::spawn(|| {
        block_signals();
        READY.set();
        STOP.await_set("stop");
        // A signal that is still pending now would kill the process.
        unblock_signals();
    });
    READY.await_set("it blocks");
    let mut stop = stopper.begin(&tasks, strangers()).unwrap();
    stop.wait(10 * MS, LIMIT);
    stop.release();
    stopper.withdraw();
    // SAFETY: the C library writes one action.
    let handler = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(signal, std::ptr::null(), &raw mut action), 0);
        action.sa_sigaction
    };
    assert_eq!(handler, libc::SIG_DFL);
    STOP.set();
    thread.join().unwrap();
    // And it can be prepared again.
    let (stopper, tasks) = prepare_again();
    captures_own(&stopper, &tasks);
}

fn a_signal_that_is_taken_is_refused() {
    extern "C" fn app(_: i32) {}
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(62, app as *const () as usize) };
    let config = |signal| Config { signal: Some(signal), ..Config::default() };
    assert_eq!(ThreadStopper::prepare(config(62)).err(), Some(PrepareError::SignalTaken(62)));
    assert_eq!(ThreadStopper::prepare(config(11)).err(), Some(PrepareError::NotRealTime(11)));
    assert_eq!(ThreadStopper::prepare(Config::default()).unwrap().signal(), 61);
}

fn names_and_states_of_threads() {
    note_strangers();
    let tasks = TaskDirectory::open().unwrap();
    let parked = Parked::start(3);
    let mut names: Vec<Vec<u8>> = parked.tids.iter().map(|tid| tasks.name(*tid).unwrap().as_bytes().to_vec()).collect();
    names.sort();
    if !support::is_emulated() {
        assert_eq!(names, [&b"worker 0"[..], b"worker 1", b"worker 2"]);
    }
    let counting = Builder::new().name("a) R (b".into()).spawn(count_until_stopped).unwrap();
    let mut found = Vec::new();
    let listing = tasks.list(&mut |tid| found.push(tid));
    assert_eq!((listing.found, listing.error), (5 + strangers().len(), None));
    assert_eq!(found.len(), listing.found);
    let is_known = |tid: &i32| parked.tids.contains(tid) || strangers().contains(tid) || *tid == this_thread();
    let loop_tid = *found.iter().find(|tid| !is_known(tid)).unwrap();
    until("it runs", || tasks.state(loop_tid) == Ok(KernelState::Running));
    assert!(tasks.state(i32::MAX).is_err());
    if !support::is_emulated() {
        until("it is seen to wait", || support::system_call(parked.tids[0]) == Some(libc::SYS_futex as u32));
        assert_eq!(support::system_call(loop_tid), None);
    }
    STOP.set();
    counting.join().unwrap();
    parked.finish();
}

fn threads_are_listed_when_no_descriptor_is_free_and_after_all_were_closed() {
    note_strangers();
    let tasks = TaskDirectory::open().unwrap();
    let parked = Parked::start(3);
    let count = 4 + strangers().len();
    assert_eq!(tasks.list(&mut |_| ()), Listing { found: count, error: None });
    // An app that closes unknown descriptors, and opens a directory of its own at that number.
    let kept = tasks.descriptor().unwrap().number();
    // SAFETY: closes and opens descriptors of this test.
    unsafe {
        let another = libc::open(c"/proc/self/fd".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
        let spare = libc::dup(kept);
        assert_eq!(libc::dup2(another, kept), kept);
        assert_eq!(tasks.list(&mut |_| ()).found, count, "not the numbers of another directory");
        assert_eq!(libc::dup2(spare, kept), kept);
    }
    set_limit(libc::RLIMIT_NOFILE as i32, 0);
    assert_eq!(tasks.list(&mut |_| ()).found, count);
    if !support::is_emulated() {
        assert!(tasks.name(parked.tids[0]).is_err(), "a name needs a descriptor");
        assert_eq!(TaskDirectory::open().err(), Some(Errno(libc::EMFILE)));
    }
    parked.finish();
}
