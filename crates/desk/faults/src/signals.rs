//! Signals that a program sends to itself, and a fault in a signal handler.
//!
//! They are sent by the C library's functions, not nix's, whose frames a report would name.

use std::hint::black_box;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

#[inline(never)]
pub(crate) fn abort_here() -> u64 {
    // SAFETY: abort may be called at any time.
    unsafe { libc::abort() }
}

/// The call that `-D_FORTIFY_SOURCE` generates for a `memcpy` into a buffer of known size.
#[cfg(any(all(target_os = "linux", target_env = "gnu"), target_os = "android"))]
#[inline(never)]
pub(crate) fn copy_too_much() -> u64 {
    unsafe extern "C" {
        fn __memcpy_chk(to: *mut u8, from: *const u8, count: usize, room: usize) -> *mut u8;
    }
    let (mut to, from) = ([0_u8; 16], [0_u8; 16]);
    // SAFETY: both buffers have 16 bytes; the function is passed 8 as the size.
    unsafe { __memcpy_chk(to.as_mut_ptr(), from.as_ptr(), black_box(16), black_box(8)) };
    u64::from(black_box(to)[0])
}

#[inline(never)]
pub(crate) fn assert_here() -> u64 {
    // The expansion of <assert.h>'s macro if the condition is false.
    // SAFETY: the strings are constant and NUL-terminated.
    #[cfg(any(all(target_os = "linux", target_env = "gnu"), target_env = "musl"))]
    unsafe {
        unsafe extern "C" {
            fn __assert_fail(
                assertion: *const libc::c_char,
                file: *const libc::c_char,
                line: libc::c_uint,
                function: *const libc::c_char,
            ) -> !;
        }
        __assert_fail(c"patient->alive".as_ptr(), c"signals.rs".as_ptr(), line!(), c"assert_here".as_ptr())
    }
    // SAFETY: as above.
    #[cfg(target_vendor = "apple")]
    unsafe {
        unsafe extern "C" {
            fn __assert_rtn(
                function: *const libc::c_char,
                file: *const libc::c_char,
                line: libc::c_int,
                assertion: *const libc::c_char,
            ) -> !;
        }
        __assert_rtn(c"assert_here".as_ptr(), c"signals.rs".as_ptr(), line!() as i32, c"patient->alive".as_ptr())
    }
    // SAFETY: as above.
    #[cfg(target_os = "android")]
    unsafe {
        unsafe extern "C" {
            fn __assert2(
                file: *const libc::c_char,
                line: libc::c_int,
                function: *const libc::c_char,
                assertion: *const libc::c_char,
            ) -> !;
        }
        __assert2(c"signals.rs".as_ptr(), line!() as i32, c"assert_here".as_ptr(), c"patient->alive".as_ptr())
    }
}

#[inline(never)]
pub(crate) fn panic_abort() -> u64 {
    panic_in_c_function(black_box(1)).wrapping_add(1)
}

/// Panics in a function with the C calling convention, which Rust turns into an abort.
#[inline(never)]
extern "C" fn panic_in_c_function(patients: u64) -> u64 {
    assert_eq!(patients, 0, "the waiting room is not empty");
    patients
}

/// Sends SIGSEGV repeatedly.
///
/// Rust's own SIGSEGV handler restores the default action and returns, so that the faulting
/// instruction faults again. A sent signal has no such instruction: the first one is lost and the
/// second kills.
#[inline(never)]
pub(crate) fn kill_segv() -> u64 {
    // Any thread may receive it, and a second signal is lost while the first is pending: pause
    // between them.
    for _ in 0..100 {
        // SAFETY: sends a signal to this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGSEGV) };
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    0
}

#[inline(never)]
pub(crate) fn raise_fpe() -> u64 {
    // SAFETY: sends a signal to this thread.
    unsafe { libc::raise(libc::SIGFPE) as u64 }
}

/// Filters `personality`, which this program doesn't need, and calls it.
///
/// If the system doesn't support filters (qemu's user mode), raises only the signal.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline(never)]
pub(crate) fn bad_system_call() -> u64 {
    if crate::seccomp::filter(&[libc::SYS_personality], crate::seccomp::Action::Trap).is_err() {
        // SAFETY: sends a signal to this thread.
        return unsafe { libc::raise(libc::SIGSYS) as u64 };
    }
    // SAFETY: this call only queries, and the filter traps it.
    unsafe { libc::syscall(libc::SYS_personality, 0xffff_ffff_u64) as u64 }
}

#[inline(never)]
pub(crate) fn in_signal_handler() -> u64 {
    let action = SigAction::new(SigHandler::Handler(on_usr1), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler faults, which is what it is for.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.expect("SIGUSR1 can be handled");
    // SAFETY: sends a signal to this thread.
    unsafe { libc::raise(libc::SIGUSR1) as u64 }
}

#[inline(never)]
extern "C" fn on_usr1(_signal: libc::c_int) {
    black_box(crate::memory::null_store());
}
