//! The tracing helper stops threads that don't answer, or reports why it can't.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::{self, Flag, block_signals, gettid, set_limit, until};
use coroner_process::memory::LoadGuarded;
use coroner_process::stop_the_world::{Capture, Config, NotCaptured, StoppedThreads, ThreadStopper};
use coroner_process::threads::{Activity, KernelState, TaskDirectory, monotonic_now};
use coroner_process::tracer::Tracer;
use coroner_process::vitals::debugged;

const MS: u64 = 1_000_000;
const PAGE: usize = 4096;

support::forked![
    threads_that_block_signals_are_stopped_and_go_on,
    a_hundred_silent_threads_are_stopped_at_once,
    the_app_sees_no_child,
    no_process_left_is_a_reason,
    a_process_that_may_not_be_traced_is_a_reason,
    a_sandbox_that_kills_for_ptrace_is_a_reason,
    a_sandbox_that_denies_clone_is_a_reason,
    a_thread_that_waits_for_a_vfork_child_is_uninterruptible,
    another_tracer_is_a_reason,
    an_ignored_sigchld_changes_nothing,
    no_helper_outlives_a_process_that_leaves_its_threads_stopped,
    a_table_that_is_too_small_leaves_the_rest_silent,
    one_tracing_at_a_time,
    calls_of_traced_threads_go_on,
    a_signal_during_a_tracing_ends_the_call_as_ever,
    threads_that_start_meanwhile_are_traced,
    threads_that_may_not_be_traced_are_sent_the_signal,
    without_a_signal_threads_are_traced,
    the_helper_is_not_taken_for_a_debugger,
];

static COUNTER: AtomicU64 = AtomicU64::new(0);
static BLOCKED: AtomicU64 = AtomicU64::new(0);
static TID: AtomicI32 = AtomicI32::new(0);
static STOP: Flag = Flag::new();

#[inline(never)]
fn count_until_stopped() {
    while !STOP.is_set() {
        COUNTER.fetch_add(1, Ordering::Relaxed);
    }
}

/// Starts a thread that blocks every signal and counts.
fn start_counting() -> JoinHandle<()> {
    let thread = std::thread::spawn(|| {
        block_signals();
        TID.store(gettid(), Ordering::SeqCst);
        count_until_stopped();
    });
    until("it counts", || COUNTER.load(Ordering::Relaxed) > 1000);
    thread
}

/// Starts threads that block every signal and sleep.
fn start_sleeping(count: u64) -> Vec<JoinHandle<()>> {
    let threads = (0..count).map(|_| {
        std::thread::spawn(|| {
            block_signals();
            BLOCKED.fetch_add(1, Ordering::SeqCst);
            while !STOP.is_set() {
                std::thread::park_timeout(Duration::from_millis(50));
            }
        })
    });
    let threads = threads.collect();
    until("all block", || BLOCKED.load(Ordering::SeqCst) == count);
    threads
}

fn finish(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    STOP.set();
    for thread in threads {
        thread.thread().unpark();
        thread.join().unwrap();
    }
}

struct Prepared {
    stopper: ThreadStopper,
    tasks: TaskDirectory,
    tracer: Tracer,
    strangers: &'static [i32],
}

impl Prepared {
    fn new() -> Self {
        Prepared {
            stopper: ThreadStopper::prepare(Config::default()).unwrap(),
            tasks: TaskDirectory::open().unwrap(),
            tracer: Tracer::prepare(256, PAGE).unwrap(),
            strangers: support::strangers(),
        }
    }

    /// Begins a stop in which no thread answers the signal, and traces it.
    fn stop(&self) -> StoppedThreads<'_> {
        let mut stop = self.stopper.begin(&self.tasks, self.strangers).unwrap();
        stop.wait(10 * MS, 500 * MS);
        stop.trace(&self.tracer, monotonic_now() + 500 * MS);
        stop
    }

    /// Returns the only reason of a stop with one thread.
    fn reason(&self) -> NotCaptured {
        let stop = self.stop();
        let captures: Vec<_> = stop.threads().map(|thread| thread.capture).collect();
        let [Capture::Not(reason)] = &captures[..] else { panic!("{captures:?}") };
        *reason
    }
}

fn threads_that_block_signals_are_stopped_and_go_on() {
    let prepared = Prepared::new();
    let counting = start_counting();
    let sleeping = start_sleeping(3);
    if support::is_emulated() {
        let stop = prepared.stop();
        assert_eq!(stop.threads().count(), 4);
        for thread in stop.threads() {
            assert!(matches!(thread.capture, Capture::Not(NotCaptured::TraceUnsupported)), "{thread:?}");
        }
        stop.release();
        return finish(sleeping.into_iter().chain([counting]));
    }
    let first = count_until_stopped as *const () as u64;
    for _ in 0..20 {
        let mut stop = prepared.stop();
        let progress = stop.progress();
        assert_eq!((progress.captured, progress.silent), (4, 0));
        let before = COUNTER.load(Ordering::SeqCst);
        for thread in stop.threads() {
            let Capture::Traced(registers) = thread.capture else { panic!("{:?}", thread.capture) };
            assert_eq!(prepared.tasks.state(thread.tid), Ok(KernelState::Traced));
            // SAFETY: the thread is in code that it was running.
            let activity = Activity::of(registers, &mut unsafe { LoadGuarded::new() });
            if thread.tid == TID.load(Ordering::SeqCst) {
                assert_eq!(activity, Activity::Running);
                if !cfg!(debug_assertions) {
                    assert!((first..first + 256).contains(&registers.pc));
                }
            } else {
                // A wait with a timeout that was interrupted before continues with another call,
                // and it may have been entering or leaving the call when it was stopped.
                let expected = [libc::SYS_futex, libc::SYS_restart_syscall]
                    .map(|number| Activity::InSystemCall { number: Some(number as u32) });
                assert!(expected.contains(&activity) || activity == Activity::Running, "{activity:?}");
            }
        }
        std::thread::sleep(Duration::from_micros(300));
        assert_eq!(COUNTER.load(Ordering::SeqCst), before, "it stands still");
        assert_eq!(stop.trace(&prepared.tracer, u64::MAX), progress, "once a stop");
        stop.release();
        until("it goes on", || COUNTER.load(Ordering::SeqCst) > before);
    }
    finish(sleeping.into_iter().chain([counting]));
}

fn a_hundred_silent_threads_are_stopped_at_once() {
    if support::is_emulated() {
        return;
    }
    let prepared = Prepared::new();
    let threads = start_sleeping(100);
    let mut stop = prepared.stopper.begin(&prepared.tasks, prepared.strangers).unwrap();
    assert_eq!(stop.wait(5 * MS, 500 * MS).silent, 100);
    assert_eq!(stop.trace(&prepared.tracer, monotonic_now() + 2000 * MS).captured, 100);
    stop.release();
    finish(threads);
}

fn the_app_sees_no_child() {
    extern "C" fn on_child(_: i32) {
        COUNTER.fetch_add(1, Ordering::SeqCst);
    }
    // SAFETY: the handler counts.
    unsafe { libc::signal(libc::SIGCHLD, on_child as *const () as usize) };
    let prepared = Prepared::new();
    let threads = start_sleeping(2);
    for _ in 0..10 {
        let stop = prepared.stop();
        // The app waits for any child of its own while the helper exists.
        let mut status = 0;
        // SAFETY: the status is ours.
        assert_eq!(unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) }, -1, "there is none");
        stop.release();
    }
    // SAFETY: as above.
    assert_eq!(unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) }, -1, "it was reaped");
    assert_eq!(COUNTER.load(Ordering::SeqCst), 0, "no SIGCHLD");
    finish(threads);
}

fn no_process_left_is_a_reason() {
    if support::is_emulated() {
        return;
    }
    let prepared = Prepared::new();
    let threads = start_sleeping(1);
    support::drop_root();
    set_limit(libc::RLIMIT_NPROC as i32, 0);
    assert_eq!(prepared.reason(), NotCaptured::NoProcessLeft);
    assert_eq!(prepared.reason(), NotCaptured::NoProcessLeft, "and again");
    finish(threads);
}

fn a_process_that_may_not_be_traced_is_a_reason() {
    if support::is_emulated() {
        return;
    }
    // Root may trace everything. Must precede other threads: Android's C library changes only the
    // calling one.
    support::drop_root();
    let prepared = Prepared::new();
    let threads = start_sleeping(1);
    let set_dumpable = |dumpable: usize| {
        // SAFETY: changes an attribute of this process.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, dumpable, 0, 0, 0) }, 0);
    };
    set_dumpable(0);
    assert_eq!(prepared.reason(), NotCaptured::TraceDenied);
    set_dumpable(1);
    let stop = prepared.stop();
    assert_eq!(stop.progress().captured, 1, "what was wrong was that");
    stop.release();
    finish(threads);
}

/// Makes the kernel apply `action` to a system call, for this process and its children.
fn filter(number: i64, action: u32) {
    // From <linux/bpf_common.h>; the libc crate has no names for them on Android.
    const LOAD_NUMBER: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JUMP_IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let statement = |code: u16, k: u32| libc::sock_filter { code, jt: 0, jf: 0, k };
    let program = [
        // The number is the first word of `seccomp_data`.
        statement(LOAD_NUMBER, 0),
        libc::sock_filter { code: JUMP_IF_EQUAL, jt: 0, jf: 1, k: number as u32 },
        statement(RETURN, action),
        statement(RETURN, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel reads the program.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        // All threads at once.
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
        let answer = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program);
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    }
}

fn a_sandbox_that_kills_for_ptrace_is_a_reason() {
    if support::is_emulated() {
        return;
    }
    let prepared = Prepared::new();
    let threads = start_sleeping(1);
    for action in [libc::SECCOMP_RET_TRAP, libc::SECCOMP_RET_KILL_PROCESS] {
        filter(libc::SYS_ptrace, action);
        let begun = monotonic_now();
        assert_eq!(prepared.reason(), NotCaptured::HelperDied);
        assert!(monotonic_now() - begun < 400 * MS, "its death is noticed before the deadline");
    }
    finish(threads);
}

fn a_sandbox_that_denies_clone_is_a_reason() {
    if support::is_emulated() {
        return;
    }
    let prepared = Prepared::new();
    let threads = start_sleeping(1);
    filter(libc::SYS_clone, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    assert_eq!(prepared.reason(), NotCaptured::HelperDenied);
    finish(threads);
}

fn a_thread_that_waits_for_a_vfork_child_is_uninterruptible() {
    if support::is_emulated() {
        return;
    }
    let prepared = Prepared::new();
    let thread = std::thread::spawn(|| {
        TID.store(gettid(), Ordering::SeqCst);
        // For its parent, which sleeps until the child exits, this is a vfork; but the child has
        // its own memory.
        // SAFETY: the child makes system calls only.
        unsafe {
            let pid = libc::syscall(libc::SYS_clone, libc::CLONE_VFORK | libc::SIGCHLD, 0, 0, 0, 0) as i32;
            if pid == 0 {
                let time = libc::timespec { tv_sec: 0, tv_nsec: 700_000_000 };
                libc::syscall(libc::SYS_nanosleep, &raw const time, 0);
                libc::_exit(0);
            }
            libc::waitpid(pid, std::ptr::null_mut(), 0)
        }
    });
    let tid = || TID.load(Ordering::SeqCst);
    until("it waits for its child", || tid() != 0 && prepared.tasks.state(tid()) == Ok(KernelState::DiskSleep));
    let mut stop = prepared.stopper.begin(&prepared.tasks, prepared.strangers).unwrap();
    assert_eq!(stop.wait(10 * MS, 50 * MS).silent, 1);
    stop.trace(&prepared.tracer, monotonic_now() + 50 * MS);
    let captures: Vec<_> = stop.threads().map(|thread| thread.capture).collect();
    assert!(matches!(captures[..], [Capture::Not(NotCaptured::Uninterruptible)]), "{captures:?}");
    stop.release();
    thread.join().unwrap();
}

fn another_tracer_is_a_reason() {
    if support::is_emulated() {
        return;
    }
    let prepared = Prepared::new();
    let threads = start_sleeping(1);
    let mut tid = 0;
    prepared.tasks.list(&mut |each| {
        if each != gettid() {
            tid = each;
        }
    });
    // A debugger traces it.
    // SAFETY: the child makes system calls only, until it is killed.
    let debugger = unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::ptrace(0x4206, tid, 0, 0);
            loop {
                libc::pause();
            }
        }
        pid
    };
    let traced = || std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap().contains("TracerPid:\t0");
    until("it is traced", || !traced());
    assert_eq!(prepared.reason(), NotCaptured::TraceDenied);
    // SAFETY: our own child.
    unsafe {
        libc::kill(debugger, libc::SIGKILL);
        libc::waitpid(debugger, std::ptr::null_mut(), 0);
    }
    finish(threads);
}

fn an_ignored_sigchld_changes_nothing() {
    if support::is_emulated() {
        return;
    }
    // SAFETY: ignoring a signal runs nothing.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let prepared = Prepared::new();
    let threads = start_sleeping(5);
    for _ in 0..5 {
        let begun = monotonic_now();
        let stop = prepared.stop();
        assert_eq!(stop.progress().captured, 5);
        assert!(monotonic_now() - begun < 400 * MS, "the stops are noticed before the deadline");
        stop.release();
    }
    finish(threads);
}

fn no_helper_outlives_a_process_that_leaves_its_threads_stopped() {
    if support::is_emulated() {
        return;
    }
    // Orphans are reparented to us.
    // SAFETY: changes an attribute of this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }, 0);
    let failure = support::in_child(|| {
        let prepared = Prepared::new();
        let _threads = start_sleeping(3);
        let stop = prepared.stop();
        assert_eq!(stop.progress().captured, 3);
        stop.leave_stopped();
    });
    assert_eq!(failure, None);
    let begun = monotonic_now();
    // SAFETY: a status is not asked for.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL) } > 0 {}
    assert!(monotonic_now() - begun < 2000 * MS, "the helper ended with its process");
}

fn a_table_that_is_too_small_leaves_the_rest_silent() {
    if support::is_emulated() {
        return;
    }
    let prepared = Prepared { tracer: Tracer::prepare(2, PAGE).unwrap(), ..Prepared::new() };
    let threads = start_sleeping(5);
    let stop = prepared.stop();
    let progress = stop.progress();
    assert_eq!((progress.captured, progress.silent), (2, 3));
    let silent = stop.threads().filter(|thread| matches!(thread.capture, Capture::Not(NotCaptured::NoAnswer)));
    assert_eq!(silent.count(), 3);
    stop.release();
    finish(threads);
}

fn one_tracing_at_a_time() {
    let tracer = Tracer::prepare(2, PAGE).unwrap();
    let mut tracing = tracer.begin().unwrap();
    assert!(tracer.begin().is_none());
    tracing.run(monotonic_now() + MS);
    assert!(tracing.outcome(0).is_none(), "an empty list is nothing to do");
    drop(tracing);
    let mut tracing = tracer.begin().unwrap();
    assert_eq!(tracing.add(gettid()), Some(0));
    // No such thread.
    assert_eq!(tracing.add(i32::MAX), Some(1));
    assert_eq!(tracing.add(1), None, "full");
    assert!(tracing.outcome(0).is_none(), "not yet");
    drop(tracing);
    tracer.unmap();
}

/// A call that waits until a descriptor is readable; returns its result or error.
///
/// No limit is ever reached.
type Waits = fn(i32) -> Result<i64, i32>;

fn answer(answer: i64) -> Result<i64, i32> {
    if answer < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(answer) }
}

const MINUTE: i32 = 60_000;

fn epoll(descriptor: i32, limit: i32) -> Result<i64, i32> {
    // SAFETY: descriptors of this test; the kernel writes one event.
    unsafe {
        let epoll = libc::epoll_create1(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, descriptor, &raw mut event), 0);
        answer(libc::epoll_wait(epoll, &raw mut event, 1, limit).into())
    }
}

/// SAFETY of all: the kernel reads and writes values in the call's frame.
const WAITS: [(&str, Waits); 9] = [
    ("epoll_wait", |descriptor| epoll(descriptor, -1)),
    ("epoll_wait with a limit", |descriptor| epoll(descriptor, MINUTE)),
    ("poll", |descriptor| {
        let mut one = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: see `WAITS`.
        answer(unsafe { libc::poll(&raw mut one, 1, MINUTE) }.into())
    }),
    ("ppoll", |descriptor| {
        let mut one = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        let limit = libc::timespec { tv_sec: 60, tv_nsec: 0 };
        // SAFETY: see `WAITS`.
        answer(unsafe { libc::ppoll(&raw mut one, 1, &raw const limit, std::ptr::null()) }.into())
    }),
    // SAFETY: see `WAITS`.
    ("select", |descriptor| unsafe {
        let mut set: libc::fd_set = std::mem::zeroed();
        libc::FD_SET(descriptor, &raw mut set);
        let mut limit = libc::timeval { tv_sec: 60, tv_usec: 0 };
        let none = std::ptr::null_mut();
        answer(libc::select(descriptor + 1, &raw mut set, none, none, &raw mut limit).into())
    }),
    // SAFETY: see `WAITS`.
    ("recv with a limit", |descriptor| unsafe {
        let limit = libc::timeval { tv_sec: 60, tv_usec: 0 };
        let size = size_of_val(&limit) as libc::socklen_t;
        let set = libc::setsockopt(descriptor, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const limit).cast(), size);
        assert_eq!(set, 0);
        answer(libc::recv(descriptor, [0_u8; 1].as_mut_ptr().cast(), 1, 0) as i64)
    }),
    // SAFETY: see `WAITS`.
    ("read", |descriptor| answer(unsafe { libc::read(descriptor, [0_u8; 1].as_mut_ptr().cast(), 1) } as i64)),
    // SAFETY: see `WAITS`.
    ("sem_timedwait", |_| unsafe {
        let limit = libc::timespec { tv_sec: i64::MAX / 2, tv_nsec: 0 };
        answer(libc::sem_timedwait(SEMAPHORE.0.get(), &raw const limit).into())
    }),
    ("nanosleep", |_| {
        while !STOP.is_set() {
            let time = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            // SAFETY: see `WAITS`.
            answer(unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) }.into())?;
        }
        Ok(0)
    }),
];

struct Semaphore(std::cell::UnsafeCell<libc::sem_t>);
// SAFETY: a semaphore is meant for several threads.
unsafe impl Sync for Semaphore {}
// SAFETY: zeroes are a valid `sem_t`, of value 0.
static SEMAPHORE: Semaphore = Semaphore(std::cell::UnsafeCell::new(unsafe { std::mem::zeroed() }));

/// Threads that wait in those calls, and the other ends of their descriptors.
struct Waiting {
    threads: Vec<(&'static str, JoinHandle<Result<i64, i32>>)>,
    ends: Vec<i32>,
}

impl Waiting {
    fn start() -> Waiting {
        let (mut threads, mut ends) = (Vec::new(), Vec::new());
        for (name, wait) in WAITS {
            let mut pair = [0; 2];
            // SAFETY: the kernel writes two descriptors.
            assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) }, 0);
            let [one, other] = pair;
            ends.push(other);
            TID.store(0, Ordering::SeqCst);
            let thread = std::thread::spawn(move || {
                TID.store(gettid(), Ordering::SeqCst);
                wait(one)
            });
            let calls = [
                #[cfg(target_arch = "x86_64")]
                libc::SYS_epoll_wait,
                libc::SYS_epoll_pwait,
                #[cfg(target_arch = "x86_64")]
                libc::SYS_poll,
                libc::SYS_ppoll,
                #[cfg(target_arch = "x86_64")]
                libc::SYS_select,
                libc::SYS_pselect6,
                libc::SYS_recvfrom,
                libc::SYS_read,
                libc::SYS_futex,
                libc::SYS_clock_nanosleep,
                libc::SYS_nanosleep,
            ];
            until("it waits", || {
                let call = support::system_call(TID.load(Ordering::SeqCst));
                matches!(call, Some(number) if calls.contains(&i64::from(number)))
            });
            threads.push((name, thread));
        }
        Waiting { threads, ends }
    }

    /// Ends the waits; returns each call's result.
    fn end(self) -> Vec<(&'static str, Result<i64, i32>)> {
        STOP.set();
        for end in &self.ends {
            // SAFETY: a byte to a descriptor of this test, and a post to a semaphore.
            unsafe {
                assert_eq!(libc::write(*end, b"x".as_ptr().cast(), 1), 1);
                libc::sem_post(SEMAPHORE.0.get());
            }
        }
        self.threads.into_iter().map(|(name, thread)| (name, thread.join().unwrap())).collect()
    }
}

impl Prepared {
    /// Begins a stop of threads that are to continue as if nothing had happened.
    fn stop_unnoticed(&self) -> StoppedThreads<'_> {
        let mut stop = self.stopper.begin_silently(&self.tasks, self.strangers).unwrap();
        stop.trace_all(&self.tracer, monotonic_now() + 20_000 * MS);
        stop.wait(2_000 * MS, 20_000 * MS);
        stop
    }
}

fn calls_of_traced_threads_go_on() {
    if support::is_emulated() {
        return;
    }
    let prepared = Prepared::new();
    let waiting = Waiting::start();
    for _ in 0..20 {
        let stop = prepared.stop_unnoticed();
        assert_eq!(stop.progress().captured, WAITS.len());
        let in_calls = stop.threads().filter(|thread| {
            let Capture::Traced(registers) = thread.capture else { panic!("{:?}", thread.capture) };
            // SAFETY: the thread is in code that it was running.
            let activity = Activity::of(registers, &mut unsafe { LoadGuarded::new() });
            matches!(activity, Activity::InSystemCall { number: Some(_) })
        });
        // The thread that sleeps repeatedly may be between two calls.
        assert!(in_calls.count() + 1 >= WAITS.len());
        stop.release();
        std::thread::sleep(Duration::from_millis(3));
    }
    for (name, answer) in waiting.end() {
        // See docs/limits.md for the calls that the kernel doesn't restart on arm64.
        let stands = cfg!(target_arch = "aarch64") && (name.starts_with("epoll") || name.starts_with("recv"));
        assert!(answer.is_ok() || stands, "{name}: {answer:?}");
    }
}

fn a_signal_during_a_tracing_ends_the_call_as_ever() {
    if support::is_emulated() {
        return;
    }
    extern "C" fn handler(_: i32) {}
    let prepared = Prepared::new();
    // SAFETY: the handler does nothing; without SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
    let mut pair = [0; 2];
    // SAFETY: the kernel writes two descriptors.
    assert_eq!(unsafe { libc::pipe(pair.as_mut_ptr()) }, 0);
    let [read, _write] = pair;
    let thread = std::thread::spawn(move || {
        TID.store(gettid(), Ordering::SeqCst);
        epoll(read, -1)
    });
    let waits = [
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
    ];
    until("it waits", || {
        let call = support::system_call(TID.load(Ordering::SeqCst));
        matches!(call, Some(number) if waits.contains(&i64::from(number)))
    });
    let stop = prepared.stop_unnoticed();
    assert_eq!(stop.progress().captured, 1);
    // SAFETY: a signal to a thread of this process.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), TID.load(Ordering::SeqCst), libc::SIGUSR1) };
    stop.release();
    assert_eq!(thread.join().unwrap(), Err(libc::EINTR));
}

fn threads_that_start_meanwhile_are_traced() {
    if support::is_emulated() {
        return;
    }
    static STARTED: AtomicU64 = AtomicU64::new(0);
    fn start_another() {
        if STARTED.fetch_add(1, Ordering::SeqCst) < 3000 && !STOP.is_set() {
            drop(std::thread::Builder::new().stack_size(64 << 10).spawn(start_another));
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    // Exiting threads wait for a glibc lock with every signal blocked, while the thread that holds
    // it is stopped: they are traced or not captured. On a busy machine there are many.
    let prepared = Prepared { tracer: Tracer::prepare(4096, PAGE).unwrap(), ..Prepared::new() };
    let first = std::thread::spawn(start_another);
    for _ in 0..100 {
        let stop = prepared.stop_unnoticed();
        let before = STARTED.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_micros(100));
        let after = STARTED.load(Ordering::SeqCst);
        assert_eq!(after, before, "a thread runs: {:?}, {:?} in all", stop.progress(), prepared.tasks.count());
        // A thread that no listing contained while the helper worked was sent the signal.
        let missing: Vec<_> = stop.threads().filter(|thread| matches!(thread.capture, Capture::Not(_))).collect();
        assert!(missing.is_empty(), "{missing:?} of {}", stop.threads().count());
        stop.release();
        std::thread::sleep(Duration::from_micros(500));
    }
    STOP.set();
    first.join().unwrap();
}

fn threads_that_may_not_be_traced_are_sent_the_signal() {
    let prepared = Prepared::new();
    let threads = start_parked(3);
    if !support::is_emulated() {
        support::drop_root();
        set_limit(libc::RLIMIT_NPROC as i32, 0);
    }
    let stop = prepared.stop_unnoticed();
    assert_eq!(stop.threads().count(), 3);
    assert!(stop.threads().all(|thread| matches!(thread.capture, Capture::Stopped(_))));
    stop.release();
    finish(threads);
}

fn without_a_signal_threads_are_traced() {
    let mut prepared = Prepared::new();
    prepared.stopper = ThreadStopper::without_signal(Config::default()).unwrap();
    let threads = start_parked(3);
    let stop = prepared.stop();
    assert_eq!(stop.threads().count(), 3);
    let is_right = |capture: &Capture<'_>| match capture {
        Capture::Not(NotCaptured::TraceUnsupported) => support::is_emulated(),
        capture => matches!(capture, Capture::Traced(_)),
    };
    assert!(stop.threads().all(|thread| is_right(&thread.capture)));
    stop.release();
    assert_eq!(prepared.stopper.interrupt(gettid(), MS).err(), Some(NotCaptured::SignalDenied));
    finish(threads);
}

fn the_helper_is_not_taken_for_a_debugger() {
    if support::is_emulated() {
        return;
    }
    assert_eq!(debugged(), Some(false));
    let prepared = Prepared::new();
    // The kernel reports the first thread's state for a process.
    let by_another = move || {
        let stop = prepared.stop_unnoticed();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let said = debugged();
        stop.release();
        assert!(!status.contains("TracerPid:\t0\n"), "{status}");
        assert_eq!(said, None);
    };
    std::thread::spawn(by_another).join().unwrap();
    assert_eq!(debugged(), Some(false));
}

/// Starts threads that sleep and block nothing.
fn start_parked(count: u64) -> Vec<JoinHandle<()>> {
    let threads = (0..count).map(|_| {
        std::thread::spawn(|| {
            BLOCKED.fetch_add(1, Ordering::SeqCst);
            while !STOP.is_set() {
                std::thread::park_timeout(Duration::from_millis(50));
            }
        })
    });
    let threads = threads.collect();
    until("all run", || BLOCKED.load(Ordering::SeqCst) == count);
    threads
}
