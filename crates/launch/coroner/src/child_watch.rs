//! The thread that delivers the reports of children while this process lives.
//!
//! A pre-forking server may run for months, and its workers often can't create files. It gets the
//! thread when it forks; the thread sleeps until a child has finished a report, and ends when there
//! are no children any more.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use coroner_capture::finished_children::{Waited, finished, has_children, may_start_thread, wait};

use crate::installed::after_fork;
use crate::{background_thread, own_run};

/// Time to wait for the reports of further children, which may crash together.
const SETTLE: Duration = Duration::from_millis(100);

/// Whether the process has the thread.
static RUNS: AtomicBool = AtomicBool::new(false);
/// Number of finished reports whose delivery was started.
static SEEN: AtomicU32 = AtomicU32::new(0);

/// Starts the thread, unless it runs. In the parent, after a fork.
pub(crate) fn begin() {
    if RUNS.load(Ordering::Relaxed) || !own_run::delivers() || !may_start_thread() {
        return;
    }
    if finished().is_none() || RUNS.swap(true, Ordering::AcqRel) {
        return;
    }
    if background_thread::spawn("coroner-workers", watch).is_err() {
        RUNS.store(false, Ordering::Release);
    }
}

/// Notes that the calling process, a child made by fork, doesn't have its parent's thread.
pub(crate) fn forget() {
    RUNS.store(false, Ordering::Relaxed);
    SEEN.store(0, Ordering::Relaxed);
}

fn watch() {
    loop {
        match wait(SEEN.load(Ordering::Relaxed)) {
            Waited::Finished(now) => {
                SEEN.store(now, Ordering::Relaxed);
                own_run::children_finished(SETTLE);
            }
            Waited::Over => {
                RUNS.store(false, Ordering::Release);
                // A fork since the wait has found the thread running.
                if finished().is_none() || !has_children() || RUNS.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
            // Nor will another thread be able to.
            Waited::Impossible => return,
        }
    }
}

/// Gives a child that is a master itself, as after `daemon`, its own run before it forks: the
/// reports of its children are reserved in it.
pub(crate) fn settle_master() {
    if coroner_capture::is_unsettled_child() && coroner_capture::is_on_its_own() && may_start_thread() {
        let _ = after_fork();
    }
}
