//! What a process that goes on has survived: exceptions that it handled, panics that ended a thread, hangs that are over. A server may
//! run for weeks, so these reports don't wait for the next launch: the delivery thread takes them out of the process's own run within
//! seconds.
//!
//! It is started when such a report was written, and ends when nothing waits. A report is removed from the run when all sinks have
//! finally answered; what they said before is in [`LIVE`], so that the next launch goes on from there if the process ends first.
//! Crashes are not touched: the process may be dying of them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::system::capture::FIRST_NON_FATAL;
use coroner_report::model::{Report, RunFacts};
#[cfg(not(target_vendor = "apple"))]
use coroner_report::run_state::ExitKind;
use coroner_report::run_state::{RunState, Scalar};
use coroner_report::wire::Monitor;

use super::{Deliverer, all_final};
use crate::clock::now_ns;
use crate::locked::locked;
use crate::naming::Naming;
use crate::store::RawRun;
use crate::store::directory::Directory;
use crate::store::progress::{Answers, LIVE, SinkState};

/// After the first report, how long others are waited for; one that the end of the process makes superfluous is gone by then, too.
pub(super) const SETTLE: Duration = Duration::from_secs(1);
/// A hang is delivered once it is over, so that its report says how long it was; one as long as this while it goes on.
const LONG_HANG: Duration = Duration::from_mins(1);

/// Longest report that is read to find out whether it is a hang's.
const MAX_REPORT: u64 = 64 << 20;

/// The deliverer of this process's run, for threads that leave a report in it.
static CURRENT: AtomicPtr<Arc<Deliverer>> = AtomicPtr::new(ptr::null_mut());

/// Makes it the deliverer of what this process survives from now on.
pub(crate) fn activate(deliverer: &Arc<Deliverer>) {
    // Never freed, as another thread may be using it: a few bytes for each install.
    CURRENT.store(Box::into_raw(Box::new(Arc::clone(deliverer))), Ordering::Release);
}

/// From here on reports wait for the next launch.
pub(crate) fn deactivate() {
    CURRENT.store(ptr::null_mut(), Ordering::Release);
}

/// A report of something that this process survived was written, or has become complete.
pub(crate) fn survived() {
    // SAFETY: null, or from `Box::into_raw` in `activate`, and never freed or changed.
    let Some(deliverer) = (unsafe { CURRENT.load(Ordering::Acquire).as_ref() }) else { return };
    // A child made by fork has left it in a run of its own, and may find any lock taken.
    if deliverer.options.at_install && deliverer.pid == crate::system::process::threads::process_id() {
        deliverer.ask(false, SETTLE);
    }
}

/// The report of the hang of that number, which was just written, to write behind its end. `None` where it can't be opened: the run may be in
/// memory alone.
pub(crate) fn report_of_hang(number: u8) -> Option<File> {
    // SAFETY: as in `survived`.
    let deliverer = unsafe { CURRENT.load(Ordering::Acquire).as_ref() }?;
    if deliverer.pid != crate::system::process::threads::process_id() {
        return None;
    }
    let (directory, mut reports) = deliverer.store.reports_of(deliverer.own).ok()?;
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

/// The delivery thread has something to do, such as to read how the device is.
pub(crate) fn wake() {
    // SAFETY: as in `survived`.
    let Some(deliverer) = (unsafe { CURRENT.load(Ordering::Acquire).as_ref() }) else { return };
    if deliverer.options.at_install && deliverer.pid == crate::system::process::threads::process_id() {
        deliverer.ask(false, Duration::ZERO);
    }
}

/// The process ends by `_exit`, which is an end like that of `exit`, if nothing else was noted. Async-signal-safe.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn note_immediate_exit() {
    // SAFETY: as in `survived`.
    let Some(deliverer) = (unsafe { CURRENT.load(Ordering::Acquire).as_ref() }) else { return };
    // A child made by fork or vfork that ends so says nothing of its parent.
    if let Some(state) = deliverer.own_state.filter(|state| state.scalar(Scalar::EXIT) == 0)
        && deliverer.pid == crate::system::process::threads::process_id()
    {
        state.set_scalar(Scalar::EXIT_TIME, now_ns());
        state.set_scalar(Scalar::EXIT, ExitKind::CLEAN.0.into());
    }
}

/// Notes how full the disk is, unless the install did.
pub(crate) fn note_storage() {
    // SAFETY: as in `survived`.
    let Some(deliverer) = (unsafe { CURRENT.load(Ordering::Acquire).as_ref() }) else { return };
    if let Some(state) = deliverer.own_state.filter(|state| state.scalar(Scalar::DEVICE_READ) == 0) {
        crate::device_state::note_storage(&state, deliverer.store.path());
    }
}

/// What was done with the process's own reports.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// Reports that wait for a sink, or for the end of their hang.
    pub(super) pending: usize,
    /// When to look again.
    pub(super) again: Option<Duration>,
}

impl Left {
    fn wait(&mut self, time: Duration) {
        self.pending += 1;
        self.again = Some(self.again.map_or(time, |again| again.min(time)));
    }
}

impl Deliverer {
    /// Delivers what this process has survived so far.
    pub(super) fn deliver_own(&self) -> Left {
        let mut left = Left::default();
        let Some(state) = self.own_state.filter(|_| !self.sinks.is_empty()) else { return left };
        // A run in memory alone has no directory.
        let Ok((directory, reports)) = self.store.reports_of(self.own) else { return left };
        let mut all = locked(&self.own_answers);
        let now = SystemTime::now();
        let mut delivered = false;
        for (number, name) in reports.into_iter().filter(|(number, _)| (FIRST_NON_FATAL..u32::MAX).contains(number)) {
            let answers = all.entry(number).or_default();
            if let Some(wait) = self.wait_of(answers, now) {
                left.wait(wait);
                continue;
            }
            let _mark = self.mark(self.own);
            let Ok(raw) = self.own_report(&directory, &name, number, &state) else { continue };
            let index = raw.reports.len() - 1;
            // One that another thread is writing comes when that is done; a torn one at the next launch.
            let Some(report) = Report::read(&raw.reports[index]).ok().filter(|report| report.end.is_some()) else {
                continue;
            };
            let hang = report.crash.as_ref().and_then(|crash| crash.hang.as_ref()).map(|hang| hang.number);
            if let Some(wait) = hang.and_then(|number| hang_wait(number, &report, &raw, now)) {
                left.wait(wait);
                continue;
            }
            let naming = if self.options.symbolicate { Naming::Lines } else { Naming::None };
            // Not caught: what a panic here would leave, the next launch takes up.
            let Ok(Ok(report)) = catch_unwind(AssertUnwindSafe(|| self.read(&raw, index, naming))) else {
                log::warn!("coroner: report {number} of this run can't be processed before the next launch");
                continue;
            };
            self.ask_sinks(self.own, answers, (&raw, index, report.as_ref()), now, |_| {});
            if !all_final(&self.sinks, Some(answers)) {
                left.wait(self.wait_of(answers, now).unwrap_or(SETTLE));
                continue;
            }
            if directory.remove_file(&name).is_ok() {
                state.add_scalar(Scalar::REPORTS_DELIVERED, 1);
                match hang {
                    Some(number) => crate::hang::delivered(number),
                    None => crate::system::capture::exception::delivered(),
                }
            }
            all.remove(&number);
            self.store.set_evicted(0);
            delivered = true;
        }
        all.retain(|_, answers| !answers.is_empty());
        self.note(&directory, &all);
        if delivered {
            self.notify_left_out(&state);
        }
        left
    }

    /// The report of that number, in the place that it has by that, with the state as it is now.
    fn own_report(
        &self,
        directory: &Directory,
        name: &OsStr,
        number: u32,
        state: &RunState<'_>,
    ) -> std::io::Result<RawRun> {
        let mut reports = vec![Vec::new(); number as usize];
        reports[number as usize - 1] = RawRun::read_report(directory, name)?;
        let (state, system) = (state.to_bytes(), Vec::new());
        Ok(RawRun {
            run: Some(self.own),
            reports,
            state,
            system,
            termination: None,
            made_of_system: None,
            minidump: None,
        })
    }

    /// How long no sink is to be asked, though one has not finally answered.
    fn wait_of(&self, answers: &Answers, now: SystemTime) -> Option<Duration> {
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let waits = self.sinks.iter().map(|sink| match answers.get(sink.name()) {
            Some(said) if said.is_final() => Duration::MAX,
            Some(said @ SinkState::Retry { not_before, .. }) if !said.may_be_asked(now) => {
                Duration::from_secs(*not_before).saturating_sub(since_epoch)
            }
            // One that panics or wants to be asked at once is asked a little later.
            Some(SinkState::Retry { tries, .. }) if *tries >= self.options.attempts => Duration::from_hours(1),
            _ => Duration::ZERO,
        });
        waits.min().filter(|wait| !wait.is_zero()).map(|wait| wait.clamp(SETTLE, Duration::from_hours(24)))
    }

    /// What the sinks said of reports that stay, for the next launch.
    #[allow(clippy::unused_self)] // As `record`.
    fn note(&self, directory: &Directory, all: &BTreeMap<u32, Answers>) {
        let name = OsStr::new(LIVE);
        let noted = if all.is_empty() {
            directory.remove_file(name).or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })
        } else {
            serde_json::to_vec(all).map_err(std::io::Error::from).and_then(|json| directory.write_quickly(name, &json))
        };
        if let Err(error) = noted {
            log::warn!("coroner: what sinks said of this run's reports can't be noted: {error}");
        }
    }

    /// Notifies the sinks how many reports were left out, once.
    fn notify_left_out(&self, state: &RunState<'_>) {
        let left_out = state.scalar(Scalar::REPORTS_LEFT_OUT);
        let new = left_out.saturating_sub(state.scalar(Scalar::LEFT_OUT_NOTIFIED));
        if new > 0 {
            state.set_scalar(Scalar::LEFT_OUT_NOTIFIED, left_out);
            self.notify_sinks(|sink| sink.reports_left_out(new));
        }
    }
}

/// How long to wait for the end of a hang; `None` where it is over, or is long already.
fn hang_wait(number: u8, report: &Report, raw: &RawRun, now: SystemTime) -> Option<Duration> {
    let is_over = RunFacts::read(&raw.state).is_ok_and(|facts| facts.lifecycle.hang_durations_ns.contains_key(&number));
    let since = report.crash.as_ref().filter(|crash| !is_over && crash.monitor == Monitor::HANG)?.time.0;
    let age = Duration::from_nanos((now.duration_since(UNIX_EPOCH).ok()?.as_nanos() as u64).saturating_sub(since));
    LONG_HANG.checked_sub(age).filter(|wait| !wait.is_zero())
}
