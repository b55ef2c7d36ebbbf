//! Installation, delivery, and the last run's outcome.

use std::ffi::c_char;
use std::time::Duration;

use coroner::InstallError;

use crate::config::Config;
use crate::sized::{self, SizedStruct};
use crate::status::{Status, fail, guarded};

/// A run's outcome.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// No earlier run.
    FirstLaunch = 0,
    /// The app exited.
    CleanExit = 1,
    /// The app was terminated by SIGTERM.
    Terminated = 2,
    /// The app crashed.
    Crashed = 3,
    /// Coroner was uninstalled during the run.
    Uninstalled = 4,
    /// The app ended without a trace: killed, out of memory, or a power failure.
    Unknown = 5,
    /// The app was not responding when it was terminated.
    Hung = 6,
    /// The system killed the app to free memory.
    OutOfMemory = 7,
    /// The user quit or force-stopped the app.
    EndedByUser = 8,
    /// The system terminated the app for another reason.
    EndedBySystem = 9,
    /// A signal that isn't a crash terminated the app: Ctrl-C, a hangup, an alarm.
    EndedBySignal = 10,
    /// The machine rebooted or lost power.
    SystemRestart = 11,
    /// The kernel killed the app at its CPU time limit.
    CpuLimit = 12,
    /// The app ended while a debugger was attached.
    Debugged = 13,
}

/// The last run's outcome, filled in by coroner_last_run.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastRun {
    /// `sizeof(coroner_last_run_info)`, set by the caller. Fields beyond it are not filled in.
    pub size: usize,
    /// The outcome.
    pub outcome: Outcome,
    /// The event id of the run's report as 32 hexadecimal digits and a NUL; empty if there is no
    /// report.
    pub event_id: [c_char; 33],
    /// Milliseconds from install to the crash, or to the hang's report; 0 for other outcomes.
    pub ran_for_ms: u64,
}

// SAFETY: the size is the first field, and 0 is valid for an outcome and for numbers.
unsafe impl SizedStruct for LastRun {
    const NAME: &'static str = "coroner_last_run_info";
    const MIN_SIZE: usize = std::mem::offset_of!(LastRun, ran_for_ms);
}

/// Returns the installed Coroner, or [`Status::NotInstalled`].
pub(crate) fn installed() -> Result<coroner::Coroner, Status> {
    coroner::installed().ok_or_else(|| fail(Status::NotInstalled, "Coroner is not installed"))
}

/// Installs Coroner: from now on a crash of this process leaves a report in the store.
///
/// Call it once, as early in main as possible. It frees the configuration, even on failure. It
/// doesn't wait for threads or the network, and starts a thread only if an earlier run left
/// something to deliver.
///
/// # Safety
/// `config` must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_install(config: *mut Config) -> Status {
    if config.is_null() {
        return fail(Status::InvalidArgument, "`config` is NULL");
    }
    // SAFETY: from `Box::into_raw` in `coroner_config_new`, and freed once, as the caller promises.
    let config = unsafe { Box::from_raw(config) };
    guarded(|| {
        let config = config
            .into_whole()
            .ok_or_else(|| fail(Status::InvalidArgument, "`config` is incomplete: an earlier call with it failed"))?;
        match coroner::install(config) {
            Ok(_) => Ok(()),
            Err(error @ InstallError::AlreadyInstalled) => Err(fail(Status::AlreadyInstalled, error.to_string())),
            Err(error @ InstallError::NoStoreDirectory) => Err(fail(Status::InvalidArgument, error.to_string())),
            Err(error) => Err(fail(Status::System, error.to_string())),
        }
    })
}

/// Restores the previous signal handlers and ends this run.
///
/// Coroner can be installed again afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_uninstall() -> Status {
    guarded(|| {
        installed()?.uninstall();
        Ok(())
    })
}

/// Starts a new run for this process, a child created by fork that continues on its own.
///
/// For daemons and the workers of a pre-forking server. Call it in the child after fork or daemon,
/// before it starts threads. Does nothing in a process that installed Coroner itself.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_after_fork() -> Status {
    guarded(|| coroner::after_fork().map(|_| ()).map_err(|error| fail(Status::System, error.to_string())))
}

/// Gives the calling thread an alternate signal stack, so that its stack overflow can be reported.
///
/// For threads that did not get one automatically.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_attach_current_thread() -> Status {
    guarded(|| coroner::attach_current_thread().map_err(|error| fail(Status::System, error.to_string())))
}

/// Passes the calling thread's next signal with this number to the earlier handlers.
///
/// No report is written for it. For a managed runtime that is about to raise the signal on purpose.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_ignore_next_signal(signal: i32) -> Status {
    guarded(|| {
        installed()?;
        if coroner::ignore_next_signal(signal) {
            Ok(())
        } else {
            Err(fail(Status::Full, "can't ignore the next signal: too many threads have requested it at once"))
        }
    })
}

/// Marks the run as cleanly exited, for apps that end neither by exit nor by returning from main.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_mark_clean_exit() -> Status {
    guarded(|| {
        installed()?.mark_clean_exit();
        Ok(())
    })
}

/// Delivers all reports in the store; waits at most `timeout_ms` milliseconds.
///
/// Returns CORONER_STATUS_TIMED_OUT if some are not delivered by then.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_flush(timeout_ms: u32) -> Status {
    guarded(|| {
        if installed()?.flush(Duration::from_millis(timeout_ms.into())) {
            Ok(())
        } else {
            Err(fail(Status::TimedOut, "timed out: some reports are not delivered yet"))
        }
    })
}

/// Adds a MetricKit payload, an `MXDiagnosticPayload`'s `JSONRepresentation`; starts delivery.
///
/// A crash is matched with the run of its process and completes that run's report or, if there is
/// none, becomes its report. A hang, a slow launch, and excessive CPU time or disk writes each
/// become a report. Adding the same payload at each launch is harmless.
/// coroner_add_metric_kit_payloads in coroner_apple.h takes the payloads that MetricKit passes to
/// the app. The bytes are copied.
///
/// Returns CORONER_STATUS_INVALID_ARGUMENT if the JSON is not such a payload, CORONER_STATUS_SYSTEM
/// if the store can't be written or the library was built without the feature `system-reports`.
///
/// # Safety
/// `json` must point to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_add_metric_kit_payload(json: *const u8, length: usize) -> Status {
    guarded(|| {
        if json.is_null() {
            return Err(fail(Status::InvalidArgument, "`json` is NULL"));
        }
        let coroner = installed()?;
        // SAFETY: not null, and `length` bytes, as the caller promises.
        let json = unsafe { std::slice::from_raw_parts(json, length) };
        let reports = metric_kit_reports(json)?;
        coroner.add_system_reports(reports).map_err(|error| fail(Status::System, error.to_string()))
    })
}

#[cfg(feature = "system-reports")]
fn metric_kit_reports(json: &[u8]) -> Result<Vec<coroner::SystemReport>, Status> {
    coroner::metric_kit_reports(json).map_err(|error| fail(Status::InvalidArgument, error.to_string()))
}

#[cfg(not(feature = "system-reports"))]
fn metric_kit_reports(_json: &[u8]) -> Result<Vec<coroner::SystemReport>, Status> {
    Err(fail(Status::System, "this library was built without the feature `system-reports`"))
}

/// Fills in how the last run ended. Set `last_run->size` first.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_last_run(last_run: *mut LastRun) -> Status {
    guarded(|| {
        if last_run.is_null() {
            return Err(fail(Status::InvalidArgument, "`last_run` is NULL"));
        }
        let last = installed()?.last_run();
        let outcome = match last.outcome {
            coroner::Outcome::FirstLaunch => Outcome::FirstLaunch,
            coroner::Outcome::CleanExit => Outcome::CleanExit,
            coroner::Outcome::Terminated => Outcome::Terminated,
            coroner::Outcome::Crashed => Outcome::Crashed,
            coroner::Outcome::Uninstalled => Outcome::Uninstalled,
            coroner::Outcome::Hung => Outcome::Hung,
            coroner::Outcome::OutOfMemory => Outcome::OutOfMemory,
            coroner::Outcome::EndedByUser => Outcome::EndedByUser,
            coroner::Outcome::EndedBySystem => Outcome::EndedBySystem,
            coroner::Outcome::EndedBySignal => Outcome::EndedBySignal,
            coroner::Outcome::SystemRestart => Outcome::SystemRestart,
            coroner::Outcome::CpuLimit => Outcome::CpuLimit,
            coroner::Outcome::Debugged => Outcome::Debugged,
            _ => Outcome::Unknown,
        };
        let mut event_id = [0; 33];
        if let Some(id) = last.event_id {
            for (byte, digit) in event_id.iter_mut().zip(id.to_string().bytes()) {
                *byte = digit as c_char;
            }
        }
        let ran_for_ms = last.ran_for.map_or(0, |ran_for| ran_for.as_millis() as u64);
        let known = LastRun { size: size_of::<LastRun>(), outcome, event_id, ran_for_ms };
        // SAFETY: not null, and as many bytes as its `size`, as the caller promises.
        unsafe { sized::write(last_run, &known) }
    })
}
