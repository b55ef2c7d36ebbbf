//! Runs each case in a forked child of a separate process.
//!
//! A case may signal, stop, limit and break its process as it likes, and the child has only the
//! case's thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use coroner_test_support::isolated;

/// Seconds after which a case counts as hung.
const LIMIT: u32 = 120;

/// Makes a test of each function: `forked![one, other]`.
///
/// With `dynamic:` first, of functions that need a dynamic linker.
macro_rules! forked {
    (dynamic: $($name:ident),+ $(,)?) => {
        mod dynamic_cases {
            $(
                #[test]
                #[cfg_attr(target_feature = "crt-static", ignore = "a static program has no list of images")]
                fn $name() {
                    $crate::support::run(concat!(module_path!(), "::", stringify!($name)), super::$name);
                }
            )+
        }
    };
    ($($name:ident),+ $(,)?) => {
        mod cases {
            $(
                #[test]
                fn $name() {
                    $crate::support::run(concat!(module_path!(), "::", stringify!($name)), super::$name);
                }
            )+
        }
    };
}
pub(crate) use forked;

/// Runs a test's case, one at a time.
///
/// Many cases measure time, and some rely on consecutive ids of new threads.
pub(crate) fn run(test: &str, case: fn()) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    isolated(test, || {
        if let Some(failure) = in_child(case) {
            panic!("{failure}");
        }
    });
}

/// Runs a function in a forked child; returns how it failed, if it did.
pub(crate) fn in_child(case: fn()) -> Option<String> {
    // SAFETY: the child gets a copy of this process, and of the calling thread only; if there are
    // others, the case must not need their locks.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: an alarm's default action kills the process.
        unsafe { libc::alarm(LIMIT) };
        let code = if std::panic::catch_unwind(case).is_ok() { 0 } else { 101 };
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(code) };
    }
    assert!(pid > 0, "fork failed");
    let mut status = 0;
    // SAFETY: the status is ours.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {}
    if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM {
        return Some(format!("still running after {LIMIT} s"));
    }
    if libc::WIFSIGNALED(status) {
        return Some(format!("killed by signal {}", libc::WTERMSIG(status)));
    }
    (libc::WEXITSTATUS(status) != 0).then(|| format!("exit status {}", libc::WEXITSTATUS(status)))
}

/// Whether this runs under qemu-user, which translates system calls and has no ptrace.
pub(crate) fn is_emulated() -> bool {
    // The kernel reports the machine's architecture, the emulator the program's.
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|info| {
        let kernel = info.contains("GenuineIntel") || info.contains("AuthenticAMD");
        kernel != cfg!(target_arch = "x86_64")
    }) || std::fs::read_to_string("/proc/self/stat").is_ok_and(|stat| stat.contains("qemu"))
        || probe_ptrace()
}

/// Whether ptrace is not implemented.
fn probe_ptrace() -> bool {
    // SAFETY: detaching from a process that is not traced changes nothing.
    let answer = unsafe { libc::ptrace(libc::PTRACE_DETACH, 0, 0, 0) };
    answer < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS)
}

/// Waits until `is_so` returns true; panics if it doesn't within half a minute.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A flag, initially false.
#[derive(Default)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    pub(crate) const fn new() -> Self {
        Flag(AtomicBool::new(false))
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn await_set(&self, what: &str) {
        until(what, || self.is_set());
    }
}

/// Returns the calling thread's id.
pub(crate) fn gettid() -> i32 {
    // SAFETY: no arguments, no effects.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Blocks every signal for the calling thread.
pub(crate) fn block_signals() {
    // SAFETY: all zeroes is a set; the C library writes it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Unblocks every signal for the calling thread.
pub(crate) fn unblock_signals() {
    // SAFETY: as above.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Lowers a limit of this process.
pub(crate) fn set_limit(resource: i32, limit: u64) {
    let limit = libc::rlimit64 { rlim_cur: limit, rlim_max: limit };
    // SAFETY: the kernel reads one limit.
    let answer = unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, &raw const limit, 0) };
    assert_eq!(answer, 0, "prlimit: {}", std::io::Error::last_os_error());
}

/// Makes this process an ordinary user's: root is exempt from some limits and denials.
pub(crate) fn drop_root() {
    const NOBODY: u32 = 65534;
    // SAFETY: changes this process's user only.
    unsafe {
        if libc::geteuid() == 0 {
            assert_eq!(libc::setgid(NOBODY), 0);
            assert_eq!(libc::setuid(NOBODY), 0);
        }
    }
}

/// Returns the threads that existed before the case started any.
///
/// An emulator has one of its own, which doesn't answer.
pub(crate) fn strangers() -> &'static [i32] {
    let mut strangers = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task").unwrap() {
        let tid = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
        if tid != gettid() {
            strangers.push(tid);
        }
    }
    assert!(strangers.is_empty() || is_emulated(), "{strangers:?}");
    strangers.leak()
}

/// Reads the start of `/proc/self/task/TID/NAME`.
///
/// Allocates nothing: stopped threads may hold the allocator's lock.
fn task_file<'a>(tid: i32, name: &[u8], into: &'a mut [u8]) -> Option<&'a str> {
    use coroner_process::path::Path;
    let path = Path::new().push(b"/proc/self/task/").push_decimal(tid.unsigned_abs()).push(b"/").push(name);
    // SAFETY: a path; as many bytes are read as there is room for; the descriptor is this
    // function's own.
    let read = unsafe {
        let file = libc::open(path.as_c_str().as_ptr(), libc::O_RDONLY);
        let read = libc::read(file, into.as_mut_ptr().cast(), into.len());
        libc::close(file);
        read
    };
    std::str::from_utf8(into.get(..usize::try_from(read).ok()?)?).ok()
}

/// Returns the number of the system call in which a thread waits; `None` if it runs.
pub(crate) fn system_call(tid: i32) -> Option<u32> {
    task_file(tid, b"syscall", &mut [0; 24])?.split(' ').next()?.parse().ok()
}

/// Returns the signals that a thread blocks (bit 0 is signal 1).
pub(crate) fn blocked_signals(tid: i32) -> Option<u64> {
    let mut buffer = [0; 2048];
    let line = task_file(tid, b"status", &mut buffer)?.lines().find_map(|line| line.strip_prefix("SigBlk:\t"))?;
    u64::from_str_radix(line, 16).ok()
}
