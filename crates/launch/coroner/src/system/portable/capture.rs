//! Replacements for the crash-time interface.
#![allow(clippy::unnecessary_wraps, reason = "the same signatures as on other systems")]

pub(crate) use coroner_capture::{AlternateStacks, ForkPolicy, InstallLimits, InstallOptions, KEPT_VITALS};
pub(crate) use coroner_process::signal_set::SignalSet;

pub(crate) use super::exception;
pub(crate) use super::report::FIRST_NON_FATAL;
pub(crate) use super::run::Run;

/// Whether this is a child created by fork, which has no run on this system and must not write to
/// its parent's.
pub(crate) fn is_unsettled_child() -> bool {
    super::run::is_child()
}

pub(crate) fn ignore_next_signal(_signal: i32) -> bool {
    false
}

/// Does nothing, because output is only read at crash time.
pub(crate) fn keep_output() {}

/// Returns `true`: a child created by fork has another process ID.
pub(crate) fn is_own_process() -> bool {
    true
}

/// Returns `false`, because a run's files are not reused.
pub(crate) fn is_unused() -> bool {
    false
}

pub(crate) fn begin_anew() {
    super::run::begin_anew();
}

pub(crate) fn uninstall() {
    #[cfg(windows_crashes)]
    super::windows_crash::disarm();
    super::run::uninstall();
}

pub(crate) mod app_memory {
    use std::ffi::c_void;

    /// A function that writes at most `room` bytes and returns how many it wrote.
    pub type CrashCallback = unsafe extern "C" fn(context: *mut c_void, into: *mut u8, room: usize) -> usize;

    pub(crate) const MAX_REGIONS: usize = 16;

    pub(crate) fn register(_name: &str, _address: u64, _size: usize) -> Option<usize> {
        Some(0)
    }

    pub(crate) fn unregister(_number: usize) {}

    /// Does nothing.
    ///
    /// # Safety
    /// None; unsafe as on other systems.
    pub(crate) unsafe fn set_callback(_callback: Option<CrashCallback>, _context: *mut c_void) {}
}

/// Does nothing, because an abort after a caught panic is not detected on this system.
pub(crate) mod caught_panic {
    pub(crate) fn unwinds() {}
}

pub(crate) mod exit {
    use super::super::run;
    use super::exception;

    /// Whether the process's end is a clean end of its run: not in a child created by fork, and not
    /// after a fatal report.
    pub(crate) fn ends_clean(_finish: fn()) -> bool {
        run::current().is_some() && !exception::is_reported_as_fatal()
    }
}

pub(crate) mod hang {
    use coroner_report::wire::Hang;

    use crate::backtrace::ThreadId;

    pub(crate) fn is_within_budget() -> bool {
        false
    }

    pub(crate) fn report(_thread: ThreadId, _hang: Hang) -> bool {
        false
    }

    pub(crate) fn left_out() {}
}
