//! What a test program chooses of the system that is played, by functions that no Mac has and that it reaches by `dlsym`
//! (`darwin_host_*`; [`super::held_locks`] has one more).
//!
//! * `darwin_host_later_system`: the system is a later one. It knows EXCEPTION_IDENTITY_PROTECTED, and developer mode is off:
//!   the other behaviours hand out read ports, by which no registers can be set (XNU osfmk/kern/exception.c,
//!   exception_deliver). The task's and its threads' ports can't be sent in messages any more: they are immovable, and who
//!   tries is ended by EXC_GUARD (osfmk/ipc/ipc_right.c, ipc_right_copyin). With an argument that is not 0 the process is also
//!   one that must use protected behaviours: who asks for another is ended (osfmk/kern/ipc_tt.c,
//!   set_exception_behavior_violation). Both endings are refusals here, with their names.
//!   By `DARWIN_HOST_SYSTEM=14` in the environment it is so from the program's start, which dyld 4 makes then.
//! * `darwin_host_exceptions`: how many exceptions the kernel has raised in this process.
//! * `darwin_host_signal_mask`: the signals that a thread blocks, by its port.
//! * `darwin_host_be_traced`: `sysctl` says from now on that a debugger traces the process. No debugger is there.
//! * `darwin_host_send_as`: messages of this process carry that process's id in their trailers, as if it had sent them.
//! * `darwin_host_raise`: the kernel raises an exception on the calling thread, such as EXC_SOFTWARE, which no instruction and
//!   no call leads to without a debugger.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::host::{
    kernel::{ending::refuse, thread},
    mach::{exceptions, threads},
    signals::faults,
};

static LATER: AtomicBool = AtomicBool::new(false);
static ENFORCED: AtomicBool = AtomicBool::new(false);
static TRACED: AtomicBool = AtomicBool::new(false);
static SENDER: AtomicI32 = AtomicI32::new(0);

/// Whether the system is a later one.
pub(crate) fn is_later() -> bool {
    LATER.load(Ordering::SeqCst)
}

/// Whether exception ports must be protected.
pub(crate) fn is_enforced() -> bool {
    ENFORCED.load(Ordering::SeqCst)
}

/// Whether a debugger traces the process.
pub(crate) fn is_traced() -> bool {
    TRACED.load(Ordering::SeqCst)
}

/// The process that messages come from.
pub(crate) fn sender() -> i32 {
    match SENDER.load(Ordering::SeqCst) {
        // SAFETY: no preconditions.
        0 => unsafe { libc::getpid() },
        other => other,
    }
}

/// The variable of the environment by which the system is a later one from the start.
const SYSTEM: &str = "DARWIN_HOST_SYSTEM";

/// At the host's start.
pub(crate) fn prepare() {
    match std::env::var(SYSTEM).as_deref() {
        Err(_) | Ok("11") => {}
        Ok("14") => LATER.store(true, Ordering::SeqCst),
        Ok(other) => refuse!("{SYSTEM} is {other}, which is neither 11 nor 14"),
    }
}

extern "C" fn later_system(enforced: i32) {
    LATER.store(true, Ordering::SeqCst);
    ENFORCED.store(enforced != 0, Ordering::SeqCst);
}

extern "C" fn be_traced() {
    TRACED.store(true, Ordering::SeqCst);
}

extern "C" fn send_as(pid: i32) {
    SENDER.store(pid, Ordering::SeqCst);
}

extern "C" fn raise(exception: i32, code: i64, subcode: i64) {
    faults::raise_here(thread::current(), exception, [code, subcode]);
}

super::exports! {
    "darwin_host_later_system" => later_system,
    "darwin_host_be_traced" => be_traced,
    "darwin_host_send_as" => send_as,
    "darwin_host_raise" => raise,
    "darwin_host_exceptions" => exceptions::raised,
    "darwin_host_signal_mask" => threads::signal_mask,
}
