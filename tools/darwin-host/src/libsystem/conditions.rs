//! Functions by which a test program configures the emulated system.
//!
//! macOS doesn't have them; a program finds them with `dlsym` (`darwin_host_*`;
//! [`super::held_locks`] has one more).
//!
//! * `darwin_host_later_system`: emulates a later system. It supports EXCEPTION_IDENTITY_PROTECTED,
//!   and developer mode is off: the other behaviors provide read ports, which can't set registers
//!   (XNU osfmk/kern/exception.c, exception_deliver). The ports of the task and its threads can't
//!   be sent in messages any more: they are immovable, and an attempt ends the process by EXC_GUARD
//!   (osfmk/ipc/ipc_right.c, ipc_right_copyin). With a nonzero argument the process must also use
//!   protected behaviors: requesting another one ends it (osfmk/kern/ipc_tt.c,
//!   set_exception_behavior_violation). Here both endings are refusals that name them. With
//!   `DARWIN_HOST_SYSTEM=14` in the environment it applies from the program's start, which is then
//!   dyld 4's.
//! * `darwin_host_exceptions`: returns the number of exceptions that the kernel has raised in this
//!   process.
//! * `darwin_host_signal_mask`: returns the signals that a thread blocks, given its port.
//! * `darwin_host_be_traced`: from now on `sysctl` reports that a debugger traces the process.
//!   There is none.
//! * `darwin_host_send_as`: this process's messages carry another process's id in their trailers,
//!   as if that process had sent them.
//! * `darwin_host_raise`: the kernel raises an exception on the calling thread, such as
//!   EXC_SOFTWARE, which no instruction and no call raises without a debugger.

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

/// Whether a later system is emulated.
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

/// Returns the process that messages appear to come from.
pub(crate) fn sender() -> i32 {
    match SENDER.load(Ordering::SeqCst) {
        // SAFETY: no preconditions.
        0 => unsafe { libc::getpid() },
        other => other,
    }
}

/// The environment variable that selects a later system from the start.
const SYSTEM: &str = "DARWIN_HOST_SYSTEM";

/// Reads the environment at the host's start.
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
