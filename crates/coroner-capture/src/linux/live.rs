//! What live backtraces share with crash time: stopping a thread, listing threads, and reads whose faults are made good.
//!
//! Normal life only. Nothing here allocates.

use coroner_machine::rendezvous::{Interrupted, NotCaptured};
use coroner_machine::syscall::syscall;
use coroner_machine::threads::Tid;
use coroner_unwind::SwiftAsync;

use super::action::bit;
use crate::{global, monitor};

pub use crate::here::{here, store_here};
pub use crate::reader::Reader;
pub use crate::stack_bounds::stack_bounds;

/// The bits of a code address that are no address: what a walk removes from return addresses.
pub fn authentication_mask() -> u64 {
    super::process::authentication_mask()
}

/// Whether Coroner is installed.
#[inline]
pub fn is_installed() -> bool {
    global::get().is_some()
}

/// What a walk of the calling thread does at marks of Swift's async frames, which its compiler makes for Apple's systems only.
pub(crate) fn swift_async() -> SwiftAsync {
    SwiftAsync::Ignore
}

/// Stops another thread of this process until the result is dropped. Be brief, and call nothing that may take a lock: the
/// thread may hold it.
///
/// # Errors
/// [`NotCaptured::NoAnswer`] after `timeout` nanoseconds or while Coroner is not installed; the rest as
/// [`coroner_machine::rendezvous::Rendezvous::interrupt`] says.
pub fn interrupt(tid: Tid, timeout: u64) -> Result<Interrupted<'static>, NotCaptured> {
    global::get().ok_or(NotCaptured::NoAnswer)?.os.rendezvous.interrupt(tid, timeout)
}

/// Calls `each` with the id of every thread of this process. False while Coroner is not installed.
pub fn threads(each: &mut impl FnMut(Tid)) -> bool {
    global::get().is_some_and(|global| global.os.tasks.list(each).error.is_none())
}

/// Whether faults of loads on this thread are made good now: Coroner's handler of SIGSEGV and SIGBUS is the first one, and the
/// thread does not block them. Costs a system call.
pub(crate) fn guards_loads() -> bool {
    global::get().is_some() && monitor::signal::is_first() && !blocks_faults()
}

/// Lets the next [`guards_loads`] ask the kernel all that it wants to know.
pub(crate) fn ask_again() {
    monitor::signal::ask_again();
}

/// Whether the calling thread blocks SIGSEGV or SIGBUS.
fn blocks_faults() -> bool {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes one 8-byte set.
    let asked = unsafe { syscall!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, 0, &raw mut mask, 8) };
    asked.is_err() || mask & (bit(libc::SIGSEGV) | bit(libc::SIGBUS)) != 0
}
