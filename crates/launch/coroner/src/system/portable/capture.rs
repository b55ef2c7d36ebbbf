//! The face of crash time: what an app may ask for, and what of it is done here.
#![allow(clippy::unnecessary_wraps, reason = "as where they do something")]

pub(crate) use coroner_capture::{AlternateStacks, ForkPolicy, InstallLimits, InstallOptions, KEPT_VITALS};
pub(crate) use coroner_process::signal_set::SignalSet;

pub(crate) use super::run::Run;

/// The number of a run's first report after which the process goes on.
pub(crate) const FIRST_NON_FATAL: u32 = 9;

/// Whether the thread's say is another run's: a child made by fork has none of its own here, and says nothing of its parent.
pub(crate) fn is_unsettled_child() -> bool {
    super::run::is_child()
}

pub(crate) fn ignore_next_signal(_signal: i32) -> bool {
    false
}

/// Output is read again by crash time alone.
pub(crate) fn keep_output() {}

/// No run's files are used again.
pub(crate) fn is_unused() -> bool {
    false
}

pub(crate) fn begin_anew() {
    super::run::begin_anew();
}

pub(crate) fn uninstall() {
    super::run::uninstall();
}

pub(crate) mod app_memory {
    use std::ffi::c_void;

    /// A function that writes at most `room` bytes, and says how many.
    pub type CrashCallback = unsafe extern "C" fn(context: *mut c_void, into: *mut u8, room: usize) -> usize;

    pub(crate) const MAX_REGIONS: usize = 16;

    pub(crate) fn register(_name: &str, _address: u64, _size: usize) -> Option<usize> {
        Some(0)
    }

    pub(crate) fn unregister(_number: usize) {}

    pub(crate) fn set_callback(_callback: Option<CrashCallback>, _context: *mut c_void) {}
}

/// A panic that is caught and after which the thread aborts: an abort is not noticed here.
pub(crate) mod caught_panic {
    pub(crate) fn unwinds() {}
}

pub(crate) mod exception {
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    use std::time::Instant;

    use coroner_capture::Budget;
    use coroner_process::registers::Registers;
    use coroner_report::run_state::{CrashRecord, Scalar};
    use coroner_report::wire::{Exception, Monitor};

    use super::super::process::threads::this_thread;
    use super::super::report::{self, What};
    use super::super::run;
    use crate::clock::now_ns;

    /// What becomes of the process after the report.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Ending {
        Fatal,
        /// It was reported as fatal already on this thread, and has grown worse.
        FatalAgain,
        NonFatal,
    }

    /// A report has the calling thread in any case.
    #[derive(Clone, Copy)]
    pub(crate) enum Threads {
        AsInstalled,
        This,
    }

    /// So many reports may wait in the run for their delivery.
    const MAX_WAITING: u32 = 16;

    static WAITING: AtomicU32 = AtomicU32::new(0);
    static BUDGET: Budget = Budget::new();
    /// The number of the thread that dies of what is reported, and one more; 0 for none.
    static DYING: AtomicU64 = AtomicU64::new(0);
    static REPORTED: AtomicBool = AtomicBool::new(false);

    pub(crate) fn begin_run() {
        WAITING.store(0, Ordering::Release);
        BUDGET.begin();
        DYING.store(0, Ordering::Release);
        REPORTED.store(false, Ordering::Release);
    }

    pub(crate) fn report(
        registers: &Registers,
        monitor: Monitor,
        exceptions: &[Exception<'_>],
        ending: Ending,
    ) -> bool {
        report_with(Threads::AsInstalled, registers, monitor, exceptions, ending)
    }

    pub(crate) fn report_with(
        _threads: Threads,
        _registers: &Registers,
        monitor: Monitor,
        exceptions: &[Exception<'_>],
        ending: Ending,
    ) -> bool {
        let Some(run) = run::current() else { return false };
        let tid = this_thread();
        let is_dying = DYING.load(Ordering::Acquire) == tid + 1;
        if exceptions.is_empty() || (is_dying && ending != Ending::FatalAgain) {
            return false;
        }
        if ending == Ending::NonFatal && !may_survive(run) {
            run.state.add_scalar(Scalar::REPORTS_LEFT_OUT, 1);
            return false;
        }
        let time_ns = now_ns();
        if ending != Ending::NonFatal {
            REPORTED.store(true, Ordering::Release);
            // First of all: the next launch makes a report of it, whatever becomes of this one.
            run.state.set_crash(&CrashRecord { monitor, tid, time_ns, ..CrashRecord::default() });
        }
        let written = report::write(run, &What { monitor, exceptions, ending, tid, time_ns });
        if let Err(error) = &written {
            log::warn!("coroner: a report can't be written: {error}");
            if ending == Ending::NonFatal {
                delivered();
            }
        }
        written.is_ok()
    }

    /// Whether one more report that the process survives is within the limits; it waits from now on.
    #[allow(deprecated, reason = "`try_update` needs Rust 1.95")]
    fn may_survive(run: &run::Current) -> bool {
        static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        let wait = |waiting: u32| (waiting < MAX_WAITING).then_some(waiting + 1);
        if WAITING.fetch_update(Ordering::AcqRel, Ordering::Acquire, wait).is_err() {
            return false;
        }
        let now = BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64;
        let is_within = BUDGET.take(run.options.non_fatal_per_hour, now);
        if !is_within {
            delivered();
        }
        is_within
    }

    /// A report does not wait any more: another may.
    #[allow(deprecated, reason = "`try_update` needs Rust 1.95")]
    pub(crate) fn delivered() {
        let _ = WAITING.fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiting| waiting.checked_sub(1));
    }

    /// Says whether the process dies of a fault.
    #[cfg(windows_crashes)]
    pub(crate) fn set_reported(is_reported: bool) {
        REPORTED.store(is_reported, Ordering::Release);
    }

    pub(crate) fn is_reported_as_fatal() -> bool {
        REPORTED.load(Ordering::Acquire)
    }

    /// The calling thread ends the process by what it reported last.
    pub(crate) fn dies() {
        DYING.store(this_thread() + 1, Ordering::Release);
    }
}

pub(crate) mod exit {
    use super::exception;
    use crate::system::portable::run;

    /// Returns `true` if the end of this process is a clean end of its run: not in a child made by fork, or after a fatal report.
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
