//! Crash session: handles one crash, from acquiring the report lock to writing the last section.
//!
//! A [`CrashSession`] can only be created while holding the report lock. It owns everything needed
//! to write one report and is passed down; sections use no globals. [`crate::report_steps`] defines
//! the order of the sections.
//!
//! The caller (`linux/crash_entry.rs` or `darwin/crash_entry.rs`) must provide a stack with enough
//! room, and a handler that calls [`crate::recrash`] for faults of this thread. Nothing here
//! allocates, locks, formats or panics; memory that the crash may have touched is read only through
//! [`coroner_process::memory::LoadGuarded`].

use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::Ordering;

use coroner_process::guarded_run;
use coroner_process::memory::LoadGuarded;
use coroner_process::syscall::{Errno, Result};
use coroner_process::threads::monotonic_now;
#[cfg(not(target_vendor = "apple"))]
use coroner_report::run_state::RunState;
use coroner_report::wire::{Phase, PhaseDuration, SectionKind};

use crate::concurrent_crashes::CONCURRENT;
use crate::crash_context::{CrashContext, Ending, Threads};
use crate::installed::{Claimed, Held, Installed};
use crate::limits::{FIRST_NON_FATAL, MAX_REPORTS};
use crate::os::other_threads::OtherThreads;
use crate::recrash::RECRASH;
use crate::report_lock::{REPORT_LOCK, ReportOwner};
use crate::run::OpenedReport;
use crate::run::ReportWriter;
use crate::workspace::Workspace;
use coroner_walk::ImageList;

/// Writing of one report. See the module.
///
/// It borrows the caller's [`Claimed`], which can be released only when the session has ended.
pub(crate) struct CrashSession<'c> {
    pub installed: &'static Installed,
    pub held: &'c Held,
    pub workspace: &'c mut Workspace,
    pub context: &'c CrashContext,
    /// Start time of the session, in nanoseconds of the monotonic clock.
    pub started: u64,
    pub report: ReportWriter,
    /// ID of the run that the report belongs to: this process's run, or a child's own.
    pub run_id: [u8; 16],
    opened: OpenedReport,
    /// The other threads, once they have been asked to stop.
    pub threads: Option<OtherThreads<'c>>,
    pub phases: Phases,
    pub counts: Counts,
    pub faults: u32,
    /// Number of concurrent crashes in the crash section when it was last written.
    pub concurrent_written: usize,
    pub is_overflow: bool,
    pub is_bad_stack_pointer: bool,
    /// Addresses of the crashed thread's stack that are in the report.
    pub stack_kept: Range<u64>,
}

/// Element counts that the report's end section records.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Elements that were dropped for lack of room or time, by section.
    pub dropped_threads: u64,
    pub dropped_images: u64,
    pub dropped_names: u64,
    pub threads: u64,
    pub captured: u64,
}

impl<'c> CrashSession<'c> {
    /// Returns `true` if the report must include the other threads' stacks.
    pub(crate) fn wants_all_threads(&self) -> bool {
        let this_one = self.context.uncaught.is_some_and(|uncaught| uncaught.threads == Threads::This);
        self.installed.options.all_threads && !this_one
    }

    /// Opens the session for `context`. Returns `None` if no report file can be opened.
    pub(crate) fn open(claimed: &'c mut Claimed, context: &'c CrashContext, started: u64) -> Option<CrashSession<'c>> {
        let installed = claimed.installed;
        let (held, workspace) = claimed.parts();
        let opened = open_report(installed, held, context).ok()?;
        let workspace = workspace?;
        RECRASH.reset();
        if let Some(names) = &mut workspace.names {
            names.clear();
        }
        // SAFETY: the lock makes this session the only user of the report's mapping.
        let report = unsafe { ReportWriter::new(opened.file) };
        Some(CrashSession {
            installed,
            held,
            workspace,
            context,
            started,
            report,
            run_id: opened.run_id,
            opened,
            threads: None,
            phases: Phases { since: started, ..Phases::default() },
            counts: Counts { threads: 1, captured: 1, ..Counts::default() },
            faults: 0,
            concurrent_written: 0,
            is_overflow: false,
            is_bad_stack_pointer: false,
            stack_kept: 0..0,
        })
    }

    /// Completes the report file.
    pub(crate) fn finish(&mut self) {
        self.opened.finish(&self.report, &self.installed.report_place(self.held));
    }

    /// Returns the state of the run that a child created for this crash.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) fn child_state(&self) -> Option<RunState<'static>> {
        self.opened.child_state(&self.installed.options.state.allowed())
    }

    /// Zeros what an earlier report of this crash left in the file.
    pub(crate) fn clear_stale(&mut self) {
        self.report.clear(core::mem::take(&mut self.opened.stale));
    }

    /// Returns the image list, or `None` while Coroner is not installed.
    pub(crate) fn images(&mut self) -> Option<&mut ImageList> {
        self.workspace.images.as_mut()
    }

    /// Ends the session of a process that dies of its crash: the other threads stay stopped, and
    /// the lock stays owned until the process ends.
    pub(crate) fn end_dying(mut self) {
        if let Some(threads) = self.threads.take() {
            threads.leave_stopped();
        }
    }

    #[cfg(not(target_vendor = "apple"))]
    /// Ends the session before the app's handler is called. The other threads stay stopped in the
    /// meantime, since the process usually dies of the crash; but not for long: the handler may
    /// need them, and may never return. The lock token is for [`begin_forwarding`].
    pub(crate) fn end_forwarding(mut self) {
        if let Some(threads) = self.threads.take() {
            threads.leave_stopped_for(FORWARDING_NS);
        }
    }

    /// Ends the session of a process that continues, and lets the other threads continue. The lock
    /// must be released by a thread that has left the stacks and the workspace that it protects.
    pub(crate) fn end(self) {
        if let Some(threads) = self.threads {
            threads.release();
        }
    }
}

#[cfg(not(target_vendor = "apple"))]
/// Time in nanoseconds that the other threads stay stopped, and the lock owned, while the app's
/// handler runs.
const FORWARDING_NS: u64 = 100_000_000;

#[cfg(not(target_vendor = "apple"))]
/// Keeps the lock owned while the app's handler runs, but at most for [`FORWARDING_NS`].
pub(crate) fn begin_forwarding(owner: ReportOwner) {
    REPORT_LOCK.begin_forwarding(owner, FORWARDING_NS);
}

/// Releases the lock; from now on, concurrent crashes are added to the next report.
pub(crate) fn release(owner: ReportOwner) {
    CONCURRENT.reopen(REPORT_LOCK.releases().wrapping_add(1));
    REPORT_LOCK.release(owner);
}

/// Opens the report file for a crash, and determines how much of an earlier report is in it.
fn open_report(installed: &Installed, held: &Held, context: &CrashContext) -> Result<OpenedReport> {
    let (place, run) = (installed.report_place(held), &held.files);
    if !installed.is_own_process(context.pid) {
        return OpenedReport::of_child(&place);
    }
    let further = |number| OpenedReport::further(&place, number);
    match context.ending() {
        Ending::NonFatal => {
            let number = installed.non_fatal_reports.fetch_add(1, Ordering::AcqRel).saturating_add(FIRST_NON_FATAL);
            further(number)
        }
        Ending::FatalAgain if installed.reports.load(Ordering::Acquire) == 1 => Ok(OpenedReport::first_again(run)),
        Ending::Fatal | Ending::FatalAgain => {
            match installed.reports.fetch_add(1, Ordering::AcqRel).saturating_add(1) {
                0 => Err(Errno(libc::EDQUOT)),
                1 => Ok(OpenedReport::first(run)),
                number => further(number.min(MAX_REPORTS)),
            }
        }
    }
}

/// Returns guarded reads for the crash path.
pub(crate) fn memory() -> LoadGuarded {
    // SAFETY: the caller of a session provides the handler, see the module.
    unsafe { LoadGuarded::new() }
}

/// Runs a part of the report so that a fault in it, or the deadline, ends only that part. Returns
/// `true` if it completed.
///
/// The part's frames are dropped without running destructors: it must hold nothing whose destructor
/// matters.
pub(crate) fn guarded<F: FnMut(&mut CrashSession<'_>)>(
    session: &mut CrashSession<'_>,
    section: SectionKind,
    tid: Option<u64>,
    piece: F,
) -> bool {
    struct Call<'t, 'a, F> {
        session: &'t mut CrashSession<'a>,
        #[cfg(feature = "fault-injection")]
        section: SectionKind,
        piece: F,
    }
    // Same ABI as `guarded_run::Function`.
    macro_rules! trampoline {
        ($abi:literal) => {
            /// # Safety
            /// `call` must point to a `Call` of this part's type.
            unsafe extern $abi fn trampoline<F: FnMut(&mut CrashSession<'_>)>(call: *mut c_void) {
                // SAFETY: by the contract.
                let call = unsafe { &mut *call.cast::<Call<'_, '_, F>>() };
                #[cfg(feature = "fault-injection")]
                crate::fault_injection::here(call.section);
                (call.piece)(call.session);
            }
        };
    }
    #[cfg(not(miri))]
    trampoline!("C");
    #[cfg(miri)]
    trampoline!("C-unwind");
    let mut call = Call {
        session,
        #[cfg(feature = "fault-injection")]
        section,
        piece,
    };
    // SAFETY: this thread owns the report lock and thus the point; the trampoline gets its own
    // call; the part's frames hold nothing to drop (by the contract of this function).
    let code = unsafe { guarded_run::run(&raw const RECRASH.point, trampoline::<F>, (&raw mut call).cast()) };
    if code == 0 {
        return true;
    }
    session.faults = session.faults.saturating_add(1);
    session.workspace.fault = RECRASH.take_fault(section, tid);
    false
}

/// Duration of each step.
#[derive(Debug, Default)]
pub(crate) struct Phases {
    durations: [PhaseDuration; 8],
    used: usize,
    since: u64,
}

impl Phases {
    /// Records the end of the step that began when the previous one ended.
    pub(crate) fn end(&mut self, phase: Phase) {
        let now = monotonic_now();
        if let Some(place) = self.durations.get_mut(self.used) {
            *place = PhaseDuration { phase, ns: now.saturating_sub(self.since) };
            self.used += 1;
        }
        self.since = now;
    }

    pub(crate) fn all(&self) -> &[PhaseDuration] {
        self.durations.get(..self.used).unwrap_or_default()
    }
}
