//! What a test program chooses of the system that is played, by functions that no Mac has and that it reaches by `dlsym`
//! (`darwin_host_*`; [`super::held_locks`] has one more).
//!
//! * `darwin_host_later_system`: the system is a later one. It knows EXCEPTION_IDENTITY_PROTECTED, and developer mode is off:
//!   the other behaviours hand out read ports, by which no registers can be set (XNU osfmk/kern/exception.c,
//!   exception_deliver). The task's and its threads' ports can't be sent in messages any more: they are immovable, and who
//!   tries is ended by EXC_GUARD (osfmk/ipc/ipc_right.c, ipc_right_copyin). With an argument that is not 0 the process is also
//!   one that must use protected behaviours: who asks for another is ended (osfmk/kern/ipc_tt.c,
//!   set_exception_behavior_violation). Both endings are refusals here, with their names.
//! * `darwin_host_be_traced`: `sysctl` says from now on that a debugger traces the process. No debugger is there.
//! * `darwin_host_send_as`: messages of this process carry that process's id in their trailers, as if it had sent them.
//! * `darwin_host_raise`: the kernel raises an exception on the calling thread, such as EXC_SOFTWARE, which no instruction and
//!   no call leads to without a debugger.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::host::{kernel::thread, signals::faults};

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
}
