//! Threads that do not answer. Who watches them is normal life's (the crate `coroner`); here is the report of one: where it stands,
//! while the process goes on.
//!
//! It is the pipeline's, but that the thread that it is about is none that came here by itself: it is stopped as the others are,
//! before it is walked, and the thread that watches writes.

use coroner_machine::threads::{Tid, process_id, this_thread};
use coroner_report::wire::{Hang, Monitor};

use super::exception::{self, Ending, Uncaught};
use crate::os::report::enter_incident;
use crate::pipeline::incident::{Hung, Incident};
use crate::{global, here, monitor};

/// What the pipeline is told of every hang.
static SURVIVED: Uncaught<'static> = Uncaught { monitor: Monitor::HANG, exceptions: &[], ending: Ending::GoesOn };

/// Writes a report of another thread of this process, which does not answer. All threads but the calling one stand still while
/// it is written.
///
/// Normal life: it may be called anywhere but in a signal handler.
///
/// False where there is no report of it: Coroner is not installed, the process is a child made by fork or is dying, the thread is
/// the calling one, or the report can't be written.
pub fn report(thread: Tid, hang: Hang) -> bool {
    let Some(global) = global::get() else { return false };
    let (pid, tid) = (process_id(), this_thread());
    let is_ending = monitor::signal::is_dying(pid) || exception::is_reported_as_fatal();
    if pid != global.run.pid || thread == tid || is_ending {
        return false;
    }
    let incident = Incident::of_hang(&SURVIVED, Hung { hang, watcher: tid }, pid, thread);
    enter_incident(global, &here::here(), (pid, tid), &incident)
}
