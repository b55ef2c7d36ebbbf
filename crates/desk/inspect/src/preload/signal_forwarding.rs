//! Forwards signals to the program while it runs: those that another process sends to this one. What the terminal sends goes to both.

use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};

/// Those that people and supervisors end, stop or tell a program with.
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

/// The program's process; 0 before it is there, and below when it has ended.
static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// One that came before the program was there; 0 if none did.
static EARLY: AtomicI32 = AtomicI32::new(0);

extern "C" fn forward(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let program = PROGRAM.load(Ordering::SeqCst);
    // SAFETY: the kernel gives a handler with `SA_SIGINFO` its `siginfo_t`. Async-signal-safe: memory of the frame is read.
    let code = unsafe { (*info).si_code };
    // One of the terminal's driver (`SI_KERNEL`) goes to the whole group, of which the program is.
    if code > 0 {
        return;
    }
    if program == 0 {
        EARLY.store(signal, Ordering::SeqCst);
    } else if program > 0 {
        // SAFETY: `kill` takes numbers. It is async-signal-safe (POSIX), and may set `errno`, which nobody reads after a wait that goes on.
        unsafe { libc::kill(program, signal) };
    }
}

/// Catches the signals that would end this process before the program. Those that are ignored stay so, for the program as well.
pub(super) fn begin() {
    for signal in FORWARDED {
        // SAFETY: both structures are this function's own, all zero is a `sigaction` without handler, and `forward` is async-signal-safe.
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

/// From here on they go to the process `pid`.
pub(super) fn to(pid: u32) {
    PROGRAM.store(pid as i32, Ordering::SeqCst);
    let early = EARLY.swap(0, Ordering::SeqCst);
    if early != 0 {
        // SAFETY: it takes numbers; the process is this one's child and was not waited for yet.
        unsafe { libc::kill(pid as i32, early) };
    }
}

/// The program has ended, and its number may be another's.
pub(super) fn end() {
    PROGRAM.store(-1, Ordering::SeqCst);
}

/// Ends this process by `signal`, without a core file. Returns if the signal does not end a process.
pub fn end_by_signal(signal: i32) {
    // The program has left its core file, where one was wanted.
    let no_core = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, no_core);
    // SAFETY: the structures are this function's own; all zero is a set without signals, and the default handler where `sa_sigaction` is 0.
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
