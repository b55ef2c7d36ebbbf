//! Exit of a parent: daemon(3) forks and ends the parent by `_exit`, which runs nothing that could
//! note a clean end. Its child, which continues with its own run, notes it: if the parent forked
//! only once, and is gone when the child makes a call to Coroner.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use coroner_process::syscall::{Errno, syscall};
use coroner_process::threads::{monotonic_now, note_process_id, process_id};
use coroner_report::run_state::ProcessIdentity;

use crate::ForkPolicy;
use crate::installed::{self, Installed};
use crate::run::note_end;

/// Number of times that this process has forked.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Whether this process and its ancestors up to the one that installed are the only children of
/// their parents.
static IS_ONLY_CHILD: AtomicBool = AtomicBool::new(true);
/// When this process was forked, in nanoseconds of the monotonic clock: until it has a run, and it
/// is known whether its parent continues. 0 if it was not forked.
static FORKED: AtomicU64 = AtomicU64::new(0);
/// Install of the process whose run this process used until it got its own.
static PARENT: AtomicPtr<Installed> = AtomicPtr::new(core::ptr::null_mut());

/// A parent that lives for longer than this after the fork continues, in nanoseconds.
const MAX_PARENT_NS: u64 = 1_000_000_000;

/// Returns `true` if this process is a child made by fork that still needs [`crate::after_fork`] or
/// [`settle_parent`].
pub fn is_unsettled_child() -> bool {
    FORKED.load(Ordering::Relaxed) != 0
}

/// Returns `true` if this process, a child made by fork, is the first of its session, or the
/// process whose run it uses is gone: as after daemon(3).
pub fn is_on_its_own() -> bool {
    let Some(parent) = installed::get().filter(|parent| parent.children.may_ask()) else { return false };
    // SAFETY: both calls only ask (signal 0, kill(2)).
    let asked = unsafe { [syscall!(libc::SYS_getsid, 0), syscall!(libc::SYS_kill, parent.run.pid, 0)] };
    asked[0] == Ok(process_id() as usize) || asked[1] == Err(Errno(libc::ESRCH))
}

/// Notes that a child now has its own run, and no longer uses that of `parent`.
pub(crate) fn begin_own(parent: &'static Installed) {
    PARENT.store(core::ptr::from_ref(parent).cast_mut(), Ordering::Release);
}

/// Notes a clean end for the parent of this process, which has its own run, if the parent is gone
/// as daemon(3) leaves it. Not async-signal-safe.
pub fn settle_parent() {
    // SAFETY: null, or an install, which is never unmapped.
    let Some(parent) = (unsafe { PARENT.load(Ordering::Acquire).as_ref() }) else {
        // It could get no run: it is not tried at each call.
        FORKED.store(0, Ordering::Relaxed);
        return;
    };
    let own = ProcessIdentity::in_this_boot(process_id());
    let is_gone = parent.run.identity.lives(&own) == Some(false);
    let is_only = IS_ONLY_CHILD.load(Ordering::Relaxed);
    if is_gone && is_only {
        note_end(parent.store(), &parent.run.id, &parent.options.state.allowed());
    }
    if is_gone || !is_only || monotonic_now().saturating_sub(FORKED.load(Ordering::Relaxed)) > MAX_PARENT_NS {
        PARENT.store(core::ptr::null_mut(), Ordering::Release);
        FORKED.store(0, Ordering::Relaxed);
    }
}

/// Counts a fork, and reserves reports for children; runs in the parent.
pub(crate) unsafe extern "C" fn before_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Some(installed) = installed::get() {
        installed.prepare_child_reports();
    }
}

/// Notes the fork in the child; runs right after it.
pub(crate) fn note_fork(installed: &Installed) {
    note_process_id();
    if FORKS.swap(0, Ordering::Relaxed) != 1 {
        IS_ONLY_CHILD.store(false, Ordering::Relaxed);
    }
    if installed.options.fork == ForkPolicy::Report {
        FORKED.store(monotonic_now(), Ordering::Relaxed);
    }
}
