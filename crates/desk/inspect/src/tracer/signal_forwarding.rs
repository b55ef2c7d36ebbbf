//! Forwards signals that another process sends to this one, to the program while it runs.
//!
//! The terminal's signals go to both processes anyway.

use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};

/// Signals that people and supervisors use to terminate, stop or control a program.
const FORWARDED: [libc::c_int; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGCONT,
];

/// The program's process id; 0 before it starts, negative after it ended.
static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// A signal received before the program started; 0 for none.
static EARLY: AtomicI32 = AtomicI32::new(0);

extern "C" fn forward(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let program = PROGRAM.load(Ordering::SeqCst);
    // SAFETY: with `SA_SIGINFO` the kernel passes a `siginfo_t` to the handler. Async-signal-safe:
    // it reads memory of the signal frame.
    let code = unsafe { (*info).si_code };
    // The terminal driver's signals (`SI_KERNEL`) go to the whole process group, which includes the
    // program.
    if code > 0 {
        return;
    }
    if program == 0 {
        EARLY.store(signal, Ordering::SeqCst);
    } else if program > 0 {
        // SAFETY: `kill` takes numbers. It is async-signal-safe (POSIX); it may set `errno`, which
        // the interrupted wait doesn't read.
        unsafe { libc::kill(program, signal) };
    }
}

/// Catches signals that would end this process before the program.
///
/// Ignored signals stay ignored, for the program as well.
pub(super) fn begin() {
    for signal in FORWARDED {
        // SAFETY: both structures are local variables, all zero is a `sigaction` without handler,
        // and `forward` is async-signal-safe.
        unsafe {
            let mut before: libc::sigaction = zeroed();
            if libc::sigaction(signal, null_mut(), &raw mut before) != 0 || before.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = forward as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, null_mut());
        }
    }
}

/// Forwards signals to the process `pid` from now on.
pub(super) fn forward_to(pid: u32) {
    PROGRAM.store(pid as i32, Ordering::SeqCst);
    let early = EARLY.swap(0, Ordering::SeqCst);
    if early != 0 {
        // SAFETY: it takes numbers; the process is this one's child and has not been waited for
        // yet.
        unsafe { libc::kill(pid as i32, early) };
    }
}

/// Stops forwarding: the program has ended, and its process id may be reused.
pub(super) fn end() {
    PROGRAM.store(-1, Ordering::SeqCst);
}

/// Ends this process by `signal`, without a core file.
///
/// Returns if the signal does not end a process.
pub fn end_by_signal(signal: i32) {
    // The program itself has left a core file if one is wanted.
    let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);
    // SAFETY: the structures are local variables; all zero is a set without signals, and the
    // default handler if `sa_sigaction` is 0.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &raw const action, null_mut());
        let mut only: libc::sigset_t = zeroed();
        libc::sigaddset(&raw mut only, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const only, null_mut());
        libc::raise(signal);
    }
}
