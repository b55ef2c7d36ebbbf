//! Process exits through `exit`.

use coroner_process::signals::blocked;
use coroner_process::threads::{process_id, this_thread};

use super::{exception, signal};
use crate::installed;
use crate::report_lock::REPORT_LOCK;

/// Returns `true` if the calling process's `exit` is a clean end of the run. It isn't in a child
/// made by fork, after a report of which the process dies, or in a crash: while a report is being
/// written, or while the app's handler is called about a crash on this thread. If there is no
/// report of that crash yet, it is written. `finish` is called first, except in a child. (Not
/// generic: what a generic function uses is exported, and the signal handler would find the lock
/// through a table that a dying program may have overwritten.)
pub fn ends_clean(finish: fn()) -> bool {
    let Some(installed) = installed::get() else { return false };
    let pid = process_id();
    if !installed.is_own_process(pid) {
        return false;
    }
    finish();
    let handlers = &installed.platform.running_handlers;
    if handlers.is_any() {
        let (tid, here) = (this_thread(), 0_u8);
        signal::report_before_exit(installed, (pid, tid));
        if handlers.is_by(tid, &raw const here as u64, blocked().into()).is_some() {
            return false;
        }
    }
    !exception::is_reported_as_fatal() && !REPORT_LOCK.is_busy(pid)
}
