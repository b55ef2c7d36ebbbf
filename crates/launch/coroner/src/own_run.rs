//! This process's run, for threads that write a report or record something in it.
//!
//! Everything that wakes the delivery thread is in this file.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write as _};
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

use crate::bundle;
#[cfg(not(target_vendor = "apple"))]
use crate::clock::now_ns;
use crate::delivery_thread::DeliveryThread;
use crate::device_state;
use crate::store::Store;
use crate::system::capture::{self, FIRST_NON_FATAL};
use crate::system::process::threads::{process_id, this_thread};

/// Time to wait for further reports after the first. If the process ends in the meantime, a report
/// that its end makes superfluous is not delivered.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);
/// Maximum length in bytes of a report that is read to check whether it is a hang's.
const MAX_REPORT: u64 = 64 << 20;

/// The run of this process.
pub(crate) struct OwnRun {
    pub(crate) id: Id,
    /// The process that installed Coroner or created the run.
    ///
    /// A child created by fork has another id, and any lock may be taken in it.
    pub(crate) pid: i32,
    pub(crate) state: RunState<'static>,
    pub(crate) store: Store,
    /// Delivers non-fatal reports. `None` if they wait for
    /// [`Coroner::flush`](crate::Coroner::flush).
    pub(crate) thread: Option<Arc<DeliveryThread>>,
}

/// The installed run.
static CURRENT: AtomicPtr<OwnRun> = AtomicPtr::new(ptr::null_mut());

/// Sets the run in which this process's threads write reports from now on.
pub(crate) fn activate(run: OwnRun) {
    // Never freed, because another thread may be using it. It is small.
    CURRENT.store(Box::into_raw(Box::new(run)), Ordering::Release);
}

/// Leaves further reports to the next launch.
pub(crate) fn deactivate() {
    CURRENT.store(ptr::null_mut(), Ordering::Release);
}

fn installed() -> Option<&'static OwnRun> {
    // SAFETY: null, or from `Box::into_raw` in `activate`, and never freed or changed.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Returns the run if it belongs to this process and not to its parent.
fn current() -> Option<&'static OwnRun> {
    installed().filter(|run| run.pid == process_id() && capture::is_own_process())
}

/// Returns the state of the installed run; in a child without a run, its copy of the parent's.
pub(crate) fn state() -> Option<RunState<'static>> {
    installed().map(|run| run.state)
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

/// Adds the scope of this moment to the non-fatal report that the calling thread has just written,
/// and starts its delivery.
///
/// If that fails, the report gets the scope of its delivery.
pub(crate) fn survived_error() {
    let run = current().map(|run| (run, run.state.to_bytes()));
    let section = run.and_then(|(run, state)| Some((run, bundle::run_state_section(&state)?)));
    let is_own = |report: &Report| {
        report.run.is_none() && report.crash.as_ref().is_some_and(|crash| crash.tid == this_thread() as u64)
    };
    if let Some((run, section)) = section
        && let Some(mut file) = newest_report(run, is_own)
        && let Err(error) = file.write_all(&section)
    {
        log::info!("coroner: can't store the scope of a handled error: {error}");
    }
    survived();
}

/// Wakes the delivery thread for other work, such as reading the device's state.
pub(crate) fn wake() {
    ask(Duration::ZERO);
}

/// Whether a thread of this process delivers reports.
#[cfg(all(supported, not(target_vendor = "apple")))]
pub(crate) fn delivers() -> bool {
    current().is_some_and(|run| run.thread.is_some())
}

/// Starts the delivery of reports that children have finished.
#[cfg(all(supported, not(target_vendor = "apple")))]
pub(crate) fn children_finished(within: Duration) {
    if let Some(thread) = current().and_then(|run| run.thread.as_ref()) {
        thread.ask(true, within);
    }
}

/// Returns the directory of the installed run.
#[cfg(feature = "panics")]
pub(crate) fn directory() -> Option<PathBuf> {
    installed().map(|run| run.store.path().join(crate::store::RUNS).join(run.id.to_string()))
}

/// Opens the just-written report of the hang with this number for appending.
///
/// `None` if it can't be opened, for example because the run is in memory only.
pub(crate) fn report_of_hang(number: u8) -> Option<File> {
    newest_report(current()?, |report| {
        let hang = report.crash.as_ref().and_then(|crash| crash.hang.as_ref());
        hang.is_some_and(|hang| hang.number == number && hang.duration_ns.is_none())
    })
}

/// Opens the newest non-fatal report that matches for appending.
fn newest_report(run: &OwnRun, matches: impl Fn(&Report) -> bool) -> Option<File> {
    let (directory, mut reports) = run.store.reports_of(run.id).ok()?;
    reports.retain(|(number, _)| (FIRST_NON_FATAL..u32::MAX).contains(number));
    // It is the newest report, unless another thread has written one since.
    reports.sort_unstable_by_key(|(number, _)| *number);
    let found = reports.into_iter().rev().take(8).find_map(|(_, name)| {
        let bytes = directory.read(&name, MAX_REPORT).ok()?;
        let report = Report::read(&bytes).ok().filter(|report| report.end.is_some())?;
        matches(&report).then_some(name)
    })?;
    let mut file = directory.file(&found, true).ok()?;
    file.seek(SeekFrom::End(0)).ok()?;
    Some(file)
}

/// Records an exit by `_exit`, which counts like one by `exit`, unless something else was recorded.
/// Async-signal-safe.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn note_immediate_exit() {
    // The exit of a child created by fork or vfork isn't its parent's.
    if let Some(run) = current().filter(|run| run.state.scalar(Scalar::EXIT) == 0) {
        run.state.set_scalar(Scalar::EXIT_TIME, now_ns());
        run.state.set_scalar(Scalar::EXIT, ExitKind::CLEAN.0.into());
    }
}

/// Records the storage's size and free space, unless install did.
pub(crate) fn note_storage() {
    if let Some(run) = installed().filter(|run| run.state.scalar(Scalar::DEVICE_READ) == 0) {
        device_state::note_storage(&run.state, run.store.path());
    }
}
