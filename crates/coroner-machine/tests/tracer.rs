//! Threads that do not answer are stopped by the tracing helper, or there is a reason why not.

mod support;

use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use coroner_machine::memory::LoadGuarded;
use coroner_machine::rendezvous::{Capture, Config, NotCaptured, Rendezvous, Round};
use coroner_machine::threads::{Activity, KernelState, TaskDirectory, monotonic_now};
use coroner_machine::tracer::Tracer;
use support::{Flag, block_signals, gettid, set_limit, until};

const MS: u64 = 1_000_000;
const PAGE: usize = 4096;

fn main() -> ExitCode {
    support::run(cases![
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
    ])
}

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

/// A thread that blocks every signal and counts.
fn start_counting() -> JoinHandle<()> {
    let thread = std::thread::spawn(|| {
        block_signals();
        TID.store(gettid(), Ordering::SeqCst);
        count_until_stopped();
    });
    until("it counts", || COUNTER.load(Ordering::Relaxed) > 1000);
    thread
}

/// Threads that block every signal and sleep.
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
    rendezvous: Rendezvous,
    tasks: TaskDirectory,
    tracer: Tracer,
    strangers: &'static [i32],
}

impl Prepared {
    fn new() -> Self {
        Prepared {
            rendezvous: Rendezvous::prepare(Config::default()).unwrap(),
            tasks: TaskDirectory::open().unwrap(),
            tracer: Tracer::prepare(256, PAGE).unwrap(),
            strangers: support::strangers(),
        }
    }

    /// A round in which nobody answers the signal, traced.
    fn round(&self) -> Round<'_> {
        let mut round = self.rendezvous.begin(&self.tasks, self.strangers).unwrap();
        round.wait(10 * MS, monotonic_now() + 500 * MS);
        round.trace(&self.tracer, monotonic_now() + 500 * MS);
        round
    }

    /// The one reason of a round with one thread.
    fn reason(&self) -> NotCaptured {
        let round = self.round();
        let captures: Vec<_> = round.threads().map(|thread| thread.capture).collect();
        let [Capture::Not(reason)] = &captures[..] else { panic!("{captures:?}") };
        *reason
    }
}

fn threads_that_block_signals_are_stopped_and_go_on() {
    let prepared = Prepared::new();
    let counting = start_counting();
    let sleeping = start_sleeping(3);
    if support::is_emulated() {
        let round = prepared.round();
        assert_eq!(round.threads().count(), 4);
        for thread in round.threads() {
            assert!(matches!(thread.capture, Capture::Not(NotCaptured::TraceUnsupported)), "{thread:?}");
        }
        round.release();
        return finish(sleeping.into_iter().chain([counting]));
    }
    let first = count_until_stopped as *const () as u64;
    for _ in 0..20 {
        let mut round = prepared.round();
        let progress = round.progress();
        assert_eq!((progress.captured, progress.silent), (4, 0));
        let before = COUNTER.load(Ordering::SeqCst);
        for thread in round.threads() {
            let Capture::Stopped(registers) = thread.capture else { panic!("{:?}", thread.capture) };
            assert_eq!(prepared.tasks.state(thread.tid), Ok(KernelState::Traced));
            // SAFETY: the thread stands in code that it was running.
            let activity = Activity::of(registers, &mut unsafe { LoadGuarded::new() });
            if thread.tid == TID.load(Ordering::SeqCst) {
                assert_eq!(activity, Activity::Running);
                if !cfg!(debug_assertions) {
                    assert!((first..first + 256).contains(&registers.pc));
                }
            } else {
                // A wait with a timeout that was interrupted before goes on by another call, and it may have been on its way
                // in or out as it was stopped.
                let expected = [libc::SYS_futex, libc::SYS_restart_syscall]
                    .map(|number| Activity::InSystemCall { number: Some(number as u32) });
                assert!(expected.contains(&activity) || activity == Activity::Running, "{activity:?}");
            }
        }
        std::thread::sleep(Duration::from_micros(300));
        assert_eq!(COUNTER.load(Ordering::SeqCst), before, "it stands still");
        assert_eq!(round.trace(&prepared.tracer, u64::MAX), progress, "once a round");
        round.release();
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
    let mut round = prepared.rendezvous.begin(&prepared.tasks, prepared.strangers).unwrap();
    assert_eq!(round.wait(5 * MS, monotonic_now() + 500 * MS).silent, 100);
    assert_eq!(round.trace(&prepared.tracer, monotonic_now() + 2000 * MS).captured, 100);
    round.release();
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
        let round = prepared.round();
        // The app waits for any child of its own while the helper is there.
        let mut status = 0;
        // SAFETY: the status is ours.
        assert_eq!(unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) }, -1, "there is none");
        round.release();
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
    let prepared = Prepared::new();
    let threads = start_sleeping(1);
    // Root may trace everything.
    support::drop_root();
    let set_dumpable = |dumpable: usize| {
        // SAFETY: changes an attribute of this process.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, dumpable, 0, 0, 0) }, 0);
    };
    set_dumpable(0);
    assert_eq!(prepared.reason(), NotCaptured::TraceDenied);
    set_dumpable(1);
    let round = prepared.round();
    assert_eq!(round.progress().captured, 1, "what was wrong was that");
    round.release();
    finish(threads);
}

/// Has the kernel answer `action` to a system call, for this process and its children.
fn filter(number: i64, action: u32) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let program = [
        // The number is the first word of `seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf: 1,
            k: number as u32,
        },
        statement(libc::BPF_RET | libc::BPF_K, action),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
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
        // A vfork as far as its parent can tell, which sleeps until the child ends; but the child has its own memory.
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
    let mut round = prepared.rendezvous.begin(&prepared.tasks, prepared.strangers).unwrap();
    assert_eq!(round.wait(10 * MS, monotonic_now() + 50 * MS).silent, 1);
    round.trace(&prepared.tracer, monotonic_now() + 50 * MS);
    let captures: Vec<_> = round.threads().map(|thread| thread.capture).collect();
    assert!(matches!(captures[..], [Capture::Not(NotCaptured::Uninterruptible)]), "{captures:?}");
    round.release();
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
    // A debugger has it.
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
        let round = prepared.round();
        assert_eq!(round.progress().captured, 5);
        assert!(monotonic_now() - begun < 400 * MS, "the stops are noticed before the deadline");
        round.release();
    }
    finish(threads);
}

fn no_helper_outlives_a_process_that_leaves_its_threads_stopped() {
    if support::is_emulated() {
        return;
    }
    // Orphans come to us.
    // SAFETY: changes an attribute of this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }, 0);
    let failure = support::in_child(|| {
        let prepared = Prepared::new();
        let _threads = start_sleeping(3);
        let round = prepared.round();
        assert_eq!(round.progress().captured, 3);
        round.leave_parked();
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
    let round = prepared.round();
    let progress = round.progress();
    assert_eq!((progress.captured, progress.silent), (2, 3));
    let silent = round.threads().filter(|thread| matches!(thread.capture, Capture::Not(NotCaptured::NoAnswer)));
    assert_eq!(silent.count(), 3);
    round.release();
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
