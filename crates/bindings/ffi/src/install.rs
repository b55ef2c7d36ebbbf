//! Installing, and what became of the last run.

use std::ffi::c_char;
use std::time::Duration;

use coroner::InstallError;

use crate::config::Config;
use crate::sized::{self, SizedStruct};
use crate::status::{Status, fail, guarded};

/// How a run ended.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// There was no run before this one.
    FirstLaunch = 0,
    /// The app ended by itself.
    CleanExit = 1,
    /// It was asked to end by SIGTERM.
    Terminated = 2,
    /// It crashed.
    Crashed = 3,
    /// Coroner was uninstalled while it ran.
    Uninstalled = 4,
    /// It ended without a trace: killed, out of memory, power failure.
    Unknown = 5,
    /// It did not answer when it was ended.
    Hung = 6,
    /// The system ended it to have its memory.
    OutOfMemory = 7,
    /// Its user ended it.
    EndedByUser = 8,
    /// The system ended it for another reason.
    EndedBySystem = 9,
    /// It ended by a signal that ends a process by default and is no crash: Ctrl-C, a hangup, an alarm.
    EndedBySignal = 10,
    /// The machine was started again: a reboot, a power failure.
    SystemRestart = 11,
    /// The kernel killed it at the limit of its processor time.
    CpuLimit = 12,
    /// It was ended while a debugger was attached.
    Debugged = 13,
}

/// How the last run ended, filled in by coroner_last_run.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastRun {
    /// `sizeof(coroner_last_run_info)`, which the caller sets: no field after it is filled in.
    pub size: usize,
    /// How it ended.
    pub outcome: Outcome,
    /// The event id of its report as 32 hexadecimal digits and a NUL; empty if it left none.
    pub event_id: [c_char; 33],
    /// Milliseconds from install to the crash, or to the report of the hang; 0 if it ended otherwise.
    pub ran_for_ms: u64,
}

// SAFETY: its size comes first, and an outcome and numbers may be 0.
unsafe impl SizedStruct for LastRun {
    const NAME: &'static str = "coroner_last_run_info";
    const LEAST: usize = std::mem::offset_of!(LastRun, ran_for_ms);
}

/// The installed Coroner, or the status for there being none.
pub(crate) fn installed() -> Result<coroner::Coroner, Status> {
    coroner::installed().ok_or_else(|| fail(Status::NotInstalled, "Coroner is not installed"))
}

/// Installs Coroner: from here on a crash of this process leaves a report in the store. Call it once, as early in main as can
/// be. The configuration is used up, and freed, however it goes.
///
/// It waits for no thread and no network, and starts a thread only if there is something of an earlier run to deliver.
///
/// # Safety
/// `config` is from `coroner_config_new`, and is not used afterwards.
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
            .ok_or_else(|| fail(Status::InvalidArgument, "`config` was damaged by a failed call"))?;
        match coroner::install(config) {
            Ok(_) => Ok(()),
            Err(error @ InstallError::AlreadyInstalled) => Err(fail(Status::AlreadyInstalled, error.to_string())),
            Err(error @ InstallError::NoStoreDirectory) => Err(fail(Status::InvalidArgument, error.to_string())),
            Err(error) => Err(fail(Status::System, error.to_string())),
        }
    })
}

/// Gives the signals back to who had them before, and ends this run. Coroner can be installed again afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_uninstall() -> Status {
    guarded(|| {
        installed()?.uninstall();
        Ok(())
    })
}

/// Gives this process, a child made by fork that goes on as a process of its own (a daemon, a worker of a pre-forking server), a run of
/// its own. Call it in the child after fork or daemon, before it starts threads. Does nothing in a process that installed Coroner itself.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_after_fork() -> Status {
    guarded(|| coroner::after_fork().map(|_| ()).map_err(|error| fail(Status::System, error.to_string())))
}

/// Gives the calling thread an alternate signal stack, so that its stack overflow can be reported: for threads that did not
/// get one by themselves.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_attach_current_thread() -> Status {
    guarded(|| coroner::attach_current_thread().map_err(|error| fail(Status::System, error.to_string())))
}

/// Leaves the next signal with this number, of the calling thread, to the handlers that were there before Coroner: for a
/// managed runtime that is about to raise it on purpose.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_ignore_next_signal(signal: i32) -> Status {
    guarded(|| {
        installed()?;
        if coroner::ignore_next_signal(signal) {
            Ok(())
        } else {
            Err(fail(Status::Full, "too many threads have asked for it at once"))
        }
    })
}

/// Notes that the app has ended well, for apps that then leave otherwise than by exit or the end of main.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_mark_clean_exit() -> Status {
    guarded(|| {
        installed()?.mark_clean_exit();
        Ok(())
    })
}

/// Delivers what is in the store, and waits for it, at most that many milliseconds. CORONER_STATUS_TIMED_OUT if something is
/// left.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_flush(timeout_ms: u32) -> Status {
    guarded(|| {
        if installed()?.flush(Duration::from_millis(timeout_ms.into())) {
            Ok(())
        } else {
            Err(fail(Status::TimedOut, "something is left to deliver"))
        }
    })
}

/// Takes what MetricKit says of the app: the JSON of an `MXDiagnosticPayload` (`JSONRepresentation`), and starts delivery. Each crash is put to the run of
/// its process, and completes that one's report or is one; each hang, slow launch, and excess of processor time or disk writes is a report; the same may be given at each launch. `coroner_apple.h` has a function that takes payloads as the app gets
/// them. Nothing is kept of the memory.
///
/// CORONER_STATUS_INVALID_ARGUMENT if it is no such JSON; CORONER_STATUS_SYSTEM if the store can't be written, or the library was built without the feature
/// `system-reports`.
///
/// # Safety
/// `json` points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_add_metric_kit_payload(json: *const u8, length: usize) -> Status {
    guarded(|| {
        if json.is_null() {
            return Err(fail(Status::InvalidArgument, "`json` is NULL"));
        }
        let coroner = installed()?;
        // SAFETY: not null, and so many bytes as the caller promises.
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

/// Fills in how the last run ended, if `last_run->size` is set.
///
/// # Safety
/// `last_run` is NULL or points to as many bytes as its `size` says.
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
            for (place, digit) in event_id.iter_mut().zip(id.to_string().bytes()) {
                *place = digit as c_char;
            }
        }
        let ran_for_ms = last.ran_for.map_or(0, |ran_for| ran_for.as_millis() as u64);
        let known = LastRun { size: size_of::<LastRun>(), outcome, event_id, ran_for_ms };
        // SAFETY: not null, and as many bytes as its size says, as the caller promises.
        unsafe { sized::write(last_run, &known) }
    })
}
