//! Determines whether faults of guarded loads are recovered on the calling thread.
//!
//! Guarded loads need a handler for the fault: Coroner's signal handler on Linux, its exception
//! port on Darwin. The monitor that takes these faults registers itself here ([`set_owner`]); walks
//! check whether the kernel still sends faults to it, since an app may install its own handler,
//! take the ports, or block the signals.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::os::fault_handler as system;
pub use crate::os::fault_handler::Owner;

static OWNER: AtomicUsize = AtomicUsize::new(0);

/// Sets the owner that recovers guarded loads from now on; `None` if there is none.
///
/// # Safety
/// While the kernel sends faults to the owner, it must recover guarded loads before anything else.
pub unsafe fn set_owner(owner: Option<Owner>) {
    OWNER.store(owner.map_or(0, |owner| owner as usize), Ordering::Release);
    ask_again();
}

/// Returns `true` if an owner recovers guarded loads, as long as nobody takes the faults from it.
#[inline]
pub fn has_owner() -> bool {
    OWNER.load(Ordering::Acquire) != 0
}

/// Whether the kernel sent faults to the owner at the last check.
static IS_RECEIVER: AtomicBool = AtomicBool::new(false);

/// Makes the next [`guards_loads`] query everything from the kernel.
pub fn ask_again() {
    IS_RECEIVER.store(false, Ordering::Release);
}

/// Returns `true` if faults of guarded loads are now recovered on the calling thread. The kernel is
/// asked for their receiver at the first call and at every 64th one after it: asking for each live
/// backtrace would take longer than the walk. On Linux each call also makes a system call to
/// determine whether the thread blocks the signals.
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
