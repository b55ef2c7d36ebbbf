//! Whether faults of guarded loads are recovered on the calling thread.
//!
//! Guarded loads need somebody who handles the fault: Coroner's signal handler on Linux, its exception port on Darwin. The monitor
//! that takes these faults names itself here ([`set_owner`]); walks ask whether the kernel still sends faults to it, since an app may
//! install a handler of its own, take the ports, or block the signals.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::os::fault_handler as system;
pub use crate::os::fault_handler::Owner;

static OWNER: AtomicUsize = AtomicUsize::new(0);

/// Says who recovers guarded loads from now on; `None`: nobody does.
pub fn set_owner(owner: Option<Owner>) {
    OWNER.store(owner.map_or(0, |owner| owner as usize), Ordering::Release);
    ask_again();
}

/// Whether somebody recovers guarded loads, as long as nobody takes the faults from it.
#[inline]
pub fn has_owner() -> bool {
    OWNER.load(Ordering::Acquire) != 0
}

/// Whether the kernel sent faults to the owner when it was asked last.
static IS_RECEIVER: AtomicBool = AtomicBool::new(false);

/// Lets the next [`guards_loads`] ask the kernel all that it wants to know.
pub fn ask_again() {
    IS_RECEIVER.store(false, Ordering::Release);
}

/// Whether faults of guarded loads are recovered on the calling thread now. The kernel is asked to whom it sends them at the first
/// call and at every 64th after it: to ask for each live backtrace would cost more than the walk. On Linux it costs a system call,
/// too, whether the thread blocks the signals.
pub fn guards_loads() -> bool {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let owner = OWNER.load(Ordering::Acquire);
    if owner == 0 {
        return false;
    }
    if CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(64) || !IS_RECEIVER.load(Ordering::Acquire) {
        IS_RECEIVER.store(system::receives_faults(owner as Owner), Ordering::Release);
    }
    IS_RECEIVER.load(Ordering::Acquire) && !system::blocks_faults()
}
