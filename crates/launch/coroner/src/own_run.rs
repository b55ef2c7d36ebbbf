//! This process's run, for threads that leave a report or record something in it.
//!
//! All ways to wake the delivery thread are here.

use std::fs::File;
use std::io::{Seek, SeekFrom};
#[cfg(feature = "panics")]
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use coroner_report::model::{Id, Report};
#[cfg(not(target_vendor = "apple"))]
use coroner_report::run_state::ExitKind;
use coroner_report::run_state::{RunState, Scalar};

#[cfg(not(target_vendor = "apple"))]
use crate::clock::now_ns;
use crate::delivery_thread::DeliveryThread;
use crate::device_state;
use crate::store::Store;
use crate::system::capture::FIRST_NON_FATAL;
use crate::system::process::threads::process_id;

/// Time to wait for further reports after the first; a report that the end of the process makes
/// superfluous is gone by then, too.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);
/// Maximum length in bytes of a report that is read to find out whether it is a hang's.
const MAX_REPORT: u64 = 64 << 20;

/// The run of this process.
pub(crate) struct OwnRun {
    pub(crate) id: Id,
    /// The process that installed Coroner or created the run.
    ///
    /// A child created by fork has another id, and may find any lock taken.
    pub(crate) pid: i32,
    pub(crate) state: RunState<'static>,
    pub(crate) store: Store,
    /// Delivers non-fatal reports; `None` if reports wait for
    /// [`Coroner::flush`](crate::Coroner::flush).
    pub(crate) thread: Option<Arc<DeliveryThread>>,
}

/// The installed run.
static CURRENT: AtomicPtr<OwnRun> = AtomicPtr::new(ptr::null_mut());

/// Makes `run` the run in which this process's threads leave reports from now on.
pub(crate) fn activate(run: OwnRun) {
    // Never freed, because another thread may be using it: some bytes per install.
    CURRENT.store(Box::into_raw(Box::new(run)), Ordering::Release);
}

/// Makes reports wait for the next launch from now on.
pub(crate) fn deactivate() {
    CURRENT.store(ptr::null_mut(), Ordering::Release);
}

fn installed() -> Option<&'static OwnRun> {
    // SAFETY: null, or from `Box::into_raw` in `activate`, and never freed or changed.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Returns the run, if it belongs to this process and not to its parent.
fn current() -> Option<&'static OwnRun> {
    installed().filter(|run| run.pid == process_id())
}

fn ask(within: Duration) {
    if let Some(thread) = current().and_then(|run| run.thread.as_ref()) {
        thread.ask(false, within);
    }
}

/// Starts the delivery of a non-fatal report that was written or completed.
pub(crate) fn survived() {
    ask(SETTLE);
}

/// Wakes the delivery thread, which has something to do, such as reading the device's state.
pub(crate) fn wake() {
    ask(Duration::ZERO);
}

/// Returns the directory of the installed run.
#[cfg(feature = "panics")]
pub(crate) fn directory() -> Option<PathBuf> {
    installed().map(|run| run.store.path().join(crate::store::RUNS).join(run.id.to_string()))
}

/// Opens the report of the hang with that number, which was just written, for appending.
///
/// `None` if it can't be opened: the run may be in memory only.
pub(crate) fn report_of_hang(number: u8) -> Option<File> {
    let run = current()?;
    let (directory, mut reports) = run.store.reports_of(run.id).ok()?;
    reports.retain(|(number, _)| (FIRST_NON_FATAL..u32::MAX).contains(number));
    // It is the one written last, if no other thread was faster.
    reports.sort_unstable_by_key(|(number, _)| *number);
    let found = reports.into_iter().rev().take(8).find_map(|(_, name)| {
        let bytes = directory.read(&name, MAX_REPORT).ok()?;
        let report = Report::read(&bytes).ok().filter(|report| report.end.is_some())?;
        let hang = report.crash.and_then(|crash| crash.hang)?;
        (hang.number == number && hang.duration_ns.is_none()).then_some(name)
    })?;
    let mut file = directory.file(&found, true).ok()?;
    file.seek(SeekFrom::End(0)).ok()?;
    Some(file)
}

/// Records that the process ends by `_exit`, which counts as an end by `exit`, if nothing else was
/// recorded. Async-signal-safe.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn note_immediate_exit() {
    // The end of a child created by fork or vfork doesn't concern its parent.
    if let Some(run) = current().filter(|run| run.state.scalar(Scalar::EXIT) == 0) {
        run.state.set_scalar(Scalar::EXIT_TIME, now_ns());
        run.state.set_scalar(Scalar::EXIT, ExitKind::CLEAN.0.into());
    }
}

/// Records how full the disk is, unless install did.
pub(crate) fn note_storage() {
    if let Some(run) = installed().filter(|run| run.state.scalar(Scalar::DEVICE_READ) == 0) {
        device_state::note_storage(&run.state, run.store.path());
    }
}
