//! This process's run, as threads find it that leave a report in it or note something: each way to wake the delivery thread is here.

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

/// After the first report, how long others are waited for; one that the end of the process makes superfluous is gone by then, too.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);
/// Longest report that is read to find out whether it is a hang's.
const MAX_REPORT: u64 = 64 << 20;

/// The run of this process.
pub(crate) struct OwnRun {
    pub(crate) id: Id,
    /// The process that installed Coroner or made the run: a child made by fork has another, and may find any lock taken.
    pub(crate) pid: i32,
    pub(crate) state: RunState<'static>,
    pub(crate) store: Store,
    /// Delivers what the process survives; `None` where reports wait for [`Coroner::flush`](crate::Coroner::flush).
    pub(crate) thread: Option<Arc<DeliveryThread>>,
}

/// The installed run.
static CURRENT: AtomicPtr<OwnRun> = AtomicPtr::new(ptr::null_mut());

/// Makes it the run in which this process's threads leave reports from now on.
pub(crate) fn activate(run: OwnRun) {
    // Never freed, as another thread may be using it: some bytes for each install.
    CURRENT.store(Box::into_raw(Box::new(run)), Ordering::Release);
}

/// From here on reports wait for the next launch.
pub(crate) fn deactivate() {
    CURRENT.store(ptr::null_mut(), Ordering::Release);
}

fn installed() -> Option<&'static OwnRun> {
    // SAFETY: null, or from `Box::into_raw` in `activate`, and never freed or changed.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// The run, if it is this process's and not its parent's.
fn current() -> Option<&'static OwnRun> {
    installed().filter(|run| run.pid == process_id())
}

fn ask(within: Duration) {
    if let Some(thread) = current().and_then(|run| run.thread.as_ref()) {
        thread.ask(false, within);
    }
}

/// Has a report delivered of something that this process survived, which was written or has become complete.
pub(crate) fn survived() {
    ask(SETTLE);
}

/// Wakes the delivery thread, which has something to do, such as to read how the device is.
pub(crate) fn wake() {
    ask(Duration::ZERO);
}

/// Returns the directory of the installed run.
#[cfg(feature = "panics")]
pub(crate) fn directory() -> Option<PathBuf> {
    installed().map(|run| run.store.path().join(crate::store::RUNS).join(run.id.to_string()))
}

/// Opens the report of the hang of that number, which was just written, to write behind its end. `None` where it can't be opened: the run may
/// be in memory alone.
pub(crate) fn report_of_hang(number: u8) -> Option<File> {
    let run = current()?;
    let (directory, mut reports) = run.store.reports_of(run.id).ok()?;
    reports.retain(|(number, _)| (FIRST_NON_FATAL..u32::MAX).contains(number));
    // The one that was written last has it, if no other thread was quicker.
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

/// Notes that the process ends by `_exit`, which is an end like that of `exit`, if nothing else was noted. Async-signal-safe.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn note_immediate_exit() {
    // A child made by fork or vfork that ends so says nothing of its parent.
    if let Some(run) = current().filter(|run| run.state.scalar(Scalar::EXIT) == 0) {
        run.state.set_scalar(Scalar::EXIT_TIME, now_ns());
        run.state.set_scalar(Scalar::EXIT, ExitKind::CLEAN.0.into());
    }
}

/// Notes how full the disk is, unless the install did.
pub(crate) fn note_storage() {
    if let Some(run) = installed().filter(|run| run.state.scalar(Scalar::DEVICE_READ) == 0) {
        device_state::note_storage(&run.state, run.store.path());
    }
}
