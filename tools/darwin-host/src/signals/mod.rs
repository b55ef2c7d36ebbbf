//! Signals: receives Linux's and delivers Darwin's to the program.
//!
//! Every host handler runs on the host's own stack ([`crate::kernel::thread`]), with all signals
//! blocked: Darwin's arm64 code keeps live data below its stack pointer (the red zone), which Linux
//! would overwrite. The program's handlers are not called from there: a frame is written to the
//! program's stack and the interrupted thread continues in `_sigtramp` ([`delivery`]).

pub(crate) mod delivery;
pub(crate) mod faults;
pub(crate) mod layout;
pub(crate) mod numbers;
pub(crate) mod standing;

use std::{mem, ptr};

use crate::host::{
    gate::{self, LinuxContext},
    kernel::{ending::refuse, lock, thread::Thread},
    loader::synthetic,
};

/// The Linux signal that stops a thread.
pub(crate) const STAND: i32 = 40;

/// Linux signals for CPU faults; the host always handles them and they are never blocked.
pub(crate) const FAULTS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGTRAP, libc::SIGFPE];

/// Installs the host's handlers.
pub(crate) fn prepare() {
    for signal in FAULTS {
        handle(signal, 0);
    }
    // Suspension does not end a system call (XNU holds the thread inside it).
    handle(STAND, libc::SA_RESTART);
    // macOS starts programs with SIGPIPE at its default; Rust's own startup code in this process
    // ignores it.
    // SAFETY: the default action has no handler, and no other thread changes signals this early.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Makes the host's handler the action of a Linux signal.
pub(crate) fn handle(signal: i32, flags: i32) {
    // SAFETY: the handler has the right signature; the action is local.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | flags;
        libc::sigfillset(&raw mut action.sa_mask);
        libc::sigaction(signal, &raw const action, ptr::null_mut());
    }
}

/// The handler of every signal that the host handles.
extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut LinuxContext) {
    // SAFETY: the kernel passes valid structures, which belong to the handler while it runs; errno
    // is this thread's.
    let (info, context, errno) = unsafe { (&*info, &mut *context, *libc::__errno_location()) };
    let thread = gate::thread_pointer();
    if thread.is_null() {
        refuse!("Linux signal {signal} on a thread of the host, at pc {:#x}", gate::pc(context));
    }
    // SAFETY: the calling thread's own record.
    let thread: &mut Thread = unsafe { &mut *thread };
    let from_cpu = FAULTS.contains(&signal) && info.si_code > 0;
    if signal == libc::SIGTRAP && synthetic::is_return_trap(gate::pc(context)) {
        delivery::finish(thread, context);
    } else if signal == STAND {
        standing::stand(thread, context);
    } else if from_cpu {
        if lock::is_mine() {
            refuse!("the host itself faulted (Linux signal {signal}) at pc {:#x}", gate::pc(context));
        }
        // SAFETY: faults carry an address.
        faults::take(thread, signal, info.si_code, unsafe { info.si_addr() } as usize, context);
    } else {
        delivery::arrived(thread, signal, info, context);
    }
    // SAFETY: errno is this thread's: a handler must not change it.
    unsafe { *libc::__errno_location() = errno };
}
