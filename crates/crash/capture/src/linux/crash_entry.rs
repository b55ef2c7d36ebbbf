//! Report entry on Linux, where the crashed thread writes its report itself: takes the report lock,
//! switches to Coroner's own stack, blocks every signal except those that the crash path itself may
//! raise, and handles the crash path's own faults.

use core::ffi::c_void;

use coroner_process::context::{Context, SignalInfo, SignalStack};
use coroner_process::deadline::{self, Deadline};
use coroner_process::process;
use coroner_process::registers::Registers;
use coroner_process::signals::{bit, block_exactly, blocked};
use coroner_process::stack::set_alternate_stack;
use coroner_process::threads::{monotonic_now, this_thread, wall_now};
use coroner_report::wire::ConcurrentCrash;

use crate::ForkPolicy;
use crate::concurrent_crashes::CONCURRENT;
use crate::crash_context::{CrashContext, Ending, Next, Reported, address_of, record_of_signal};
use crate::installed::{Claimed, Installed};
use crate::linux::signal_death::{die, note_filter};
use crate::recrash::RECRASH;
use crate::report_lock::{Claim, REPORT_LOCK, ReportOwner, WaitEnd};
use crate::report_steps;
use crate::session::{self, CrashSession};
use crate::taken_signals::{self, CRASH_PATH_SIGNALS};

/// Source of a crash.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A signal that this thread is handling.
    Signal(&'a SignalInfo),
    /// A crash that was detected outside a signal handler.
    Noticed(&'a CrashContext),
}

impl Source<'_> {
    fn is_non_fatal(self) -> bool {
        matches!(self, Source::Noticed(context) if context.ending() == Ending::NonFatal)
    }

    /// Converts the crash to the form in which another thread's report includes it.
    fn concurrent(self, tid: i32, now: u64) -> ConcurrentCrash {
        let (signal, code, address) = match self {
            Source::Signal(info) => (info.signo, info.code, address_of(info)),
            Source::Noticed(_) => (0, 0, None),
        };
        ConcurrentCrash { tid: tid as u64, signal, code, address, after_ns: Some(now) }
    }
}

/// Maximum time, in milliseconds, that the wait for another thread's report takes beyond that
/// thread's deadline.
const BEYOND_DEADLINE_MS: u32 = 2000;

/// A crash that is about to be reported on the report stack.
struct Entering<'a> {
    claimed: Claimed,
    source: Source<'a>,
    interrupted: &'a Context,
    ids: (i32, i32),
    started: u64,
    next: Next,
    /// Number of the crash record, 0 for none.
    number: u64,
    /// Wall clock time of that record, in nanoseconds since the Unix epoch.
    time_ns: u64,
    /// Outcome for the lock once the report is written.
    end: End,
    /// Number of the crash record, once there is a report.
    reported: Option<u64>,
}

/// End of a session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The lock is released.
    Released,
    /// The app's handler is called while the lock is owned.
    Forwarding,
    /// The process dies of the crash, and the lock stays owned.
    Dying,
}

/// Writes a report of the calling thread's crash, which interrupted the thread with that context,
/// or adds the crash to the report that another thread is writing.
///
/// The threads' alternate stacks are small (Rust's have 8 KiB, of which the kernel's frame takes up
/// to 3.4 KiB): nothing before the report stack uses more than a few hundred bytes.
pub(crate) fn report(
    installed: &'static Installed,
    source: Source<'_>,
    interrupted: &Context,
    ids: (i32, i32),
    next: Next,
) -> Reported {
    let started = monotonic_now();
    // Usually nobody owns the lock. This much without a jump table, which is a constant, see
    // `record`.
    let owner = if let Claim::Mine(owner) = REPORT_LOCK.claim(ids.0, ids.1, source.is_non_fatal()) {
        owner
    } else {
        match own_lock(installed, source, interrupted, ids, started) {
            Ok(owner) => owner,
            Err(elsewhere) => return elsewhere,
        }
    };
    let claimed = match installed.claim(owner) {
        Ok(claimed) => claimed,
        Err(owner) => {
            session::release(owner);
            return Reported::Not;
        }
    };
    let time_ns = wall_now();
    let number = record(installed, source, interrupted, ids, time_ns);
    let mut entering = Entering {
        claimed,
        source,
        interrupted,
        ids,
        started,
        next,
        number,
        time_ns,
        end: End::Released,
        reported: None,
    };
    // Nothing comes between leaving this stack and naming another one for signals: a signal in
    // between would be handled from the top of the alternate stack, over the context of the crash.
    let mask = block_exactly(u64::MAX);
    let stack = &raw const entering.claimed.resources().stack;
    // SAFETY: claimed, so the stack is mapped, and this thread is its only user; `on_report_stack`
    // takes an `Entering` and does not unwind.
    unsafe { (*stack).call(on_report_stack, (&raw mut entering).cast()) };
    let Entering { claimed, end, reported, .. } = entering;
    // Not before: the next owner writes its report on the same stack.
    match end {
        End::Released => session::release(claimed.into_owner()),
        End::Forwarding => session::begin_forwarding(claimed.into_owner()),
        End::Dying => {}
    }
    block_exactly(mask);
    reported.map_or(Reported::Not, Reported::Here)
}

/// Records the crash before anything else, so that the next launch can make a report of it,
/// whatever happens to this report. Returns the record's number, 0 for none.
///
/// Up to here the handler calls only functions of this crate and inlined ones, and uses no
/// constants: in a program whose table of functions' addresses or whose constants are overwritten,
/// this is what still runs.
pub(crate) fn record(
    installed: &Installed,
    source: Source<'_>,
    interrupted: &Context,
    (pid, tid): (i32, i32),
    time_ns: u64,
) -> u64 {
    if source.is_non_fatal() || !installed.is_own_process(pid) {
        return 0;
    }
    let record = match source {
        Source::Signal(info) => record_of_signal(info, interrupted, tid, time_ns),
        Source::Noticed(context) => context.record(),
    };
    installed.run.state.set_crash(&record)
}

/// Acquires the lock, or adds the crash to the report of the thread that owns it. All waits
/// together have one limit, however many reports other threads write in the meantime.
///
/// Not inlined, so that `xtask signal-safety` can identify its loop by name.
#[inline(never)]
fn own_lock(
    installed: &'static Installed,
    source: Source<'_>,
    interrupted: &Context,
    (pid, tid): (i32, i32),
    started: u64,
) -> Result<ReportOwner, Reported> {
    let limit = installed.options.deadline_ms.saturating_add(BEYOND_DEADLINE_MS);
    let until = started.saturating_add(u64::from(limit) * 1_000_000);
    loop {
        let releases = REPORT_LOCK.releases();
        match REPORT_LOCK.claim(pid, tid, source.is_non_fatal()) {
            Claim::Mine(owner) => return Ok(owner),
            // The owner's handler was entered a second time, by a signal that none of its sessions
            // expects.
            Claim::Nested => return Err(Reported::Not),
            Claim::Taken if CONCURRENT.add(&source.concurrent(tid, started), releases) => {
                // Parked with all signals blocked: the report describes this thread by the context
                // of its crash.
                let mask = block_exactly(!CRASH_PATH_SIGNALS);
                let parked = installed.platform.stopper.park_crashing_thread(interrupted);
                let end = REPORT_LOCK.wait(releases, until);
                drop(parked);
                block_exactly(mask);
                if end != WaitEnd::OwnerGone {
                    return Err(Reported::Elsewhere);
                }
            }
            Claim::Taken | Claim::TakenByNonFatal | Claim::TakenByOtherProcess => {
                if wait(installed, interrupted, releases, until) == WaitEnd::TimeOver {
                    // The next launch makes a report of the record.
                    record(installed, source, interrupted, (pid, tid), wall_now());
                    return Err(Reported::Not);
                }
            }
        }
    }
}

/// Waits for the end of the report that is being written. The signal that stops threads is not
/// blocked, every other one that the handler blocks is: the app's handlers must not find the thread
/// on this stack.
fn wait(installed: &Installed, interrupted: &Context, releases: u32, until: u64) -> WaitEnd {
    let open = bit(installed.platform.stopper.signal()) & !interrupted.signal_mask();
    let mask = block_exactly(blocked() & !open);
    let end = REPORT_LOCK.wait(releases, until);
    block_exactly(mask);
    end
}

/// Writes a report of what the calling thread, which has these IDs and registers, detected outside
/// a signal handler.
pub(crate) fn report_context(
    installed: &'static Installed,
    registers: &Registers,
    (pid, tid): (i32, i32),
    context: &CrashContext,
) -> bool {
    let silent = installed.options.fork == ForkPolicy::Silent && !installed.is_own_process(pid);
    if silent || REPORT_LOCK.is_mine(pid, tid) {
        return false;
    }
    let interrupted = Context::of_registers(registers, blocked());
    report(installed, Source::Noticed(context), &interrupted, (pid, tid), Next::RunsOn) != Reported::Not
}

/// Writes the report on Coroner's own stack.
///
/// # Safety
/// `entering` must point to an [`Entering`] that nobody else uses.
unsafe extern "C" fn on_report_stack(entering: *mut c_void) {
    // SAFETY: by the contract.
    let entering = unsafe { &mut *entering.cast::<Entering<'_>>() };
    let Entering { source, interrupted, ids, started, next, number, time_ns, .. } = *entering;
    let installed = entering.claimed.installed;
    // Tagged memory is read through untagged addresses.
    let _unchecked = installed.platform.memory_tags.unchecked();
    // Faults of the crash path are handled on a separate stack.
    let fault_stack = entering.claimed.resources().fault_stack.as_signal_stack();
    // SAFETY: claimed, so that stack is mapped until this thread has its own again, and the thread
    // is its only user.
    let before = unsafe { set_alternate_stack(&fault_stack) }.ok();
    // The crash path's own faults and its deadline, and nothing else.
    block_exactly(!CRASH_PATH_SIGNALS);
    let of_signal;
    let context = match source {
        Source::Noticed(context) => context,
        Source::Signal(info) => {
            of_signal = CrashContext::of_signal(info, interrupted, ids, time_ns);
            &of_signal
        }
    };
    let is_crash = !source.is_non_fatal();
    let is_own_run = installed.is_own_process(ids.0);
    if let Some(mut session) = CrashSession::open(&mut entering.claimed, context, started) {
        if is_crash && let Some(state) = session.child_state() {
            state.set_crash(&context.record());
        }
        write_report(&mut session, next != Next::RunsOn);
        // In a child made by vfork that dies, the lock belongs to its parent, which lives.
        match next {
            Next::Dies if is_own_run => {
                session.end_dying();
                entering.end = End::Dying;
            }
            Next::AsksHandler if is_own_run => {
                session.end_forwarding();
                entering.end = End::Forwarding;
            }
            _ => session.end(),
        }
        entering.reported = Some(number);
    }
    block_exactly(u64::MAX);
    if let Some(SignalStack { sp, flags, size }) = before {
        let stack = SignalStack { sp, flags: flags & libc::SS_DISABLE, size };
        // SAFETY: the thread's own alternate stack, as it was.
        let _ = unsafe { set_alternate_stack(&stack) };
    }
}

/// Writes the report, with Coroner's handler as the first one for signals that the crash path may
/// raise.
fn write_report(session: &mut CrashSession<'_>, dies: bool) {
    let mut displaced = taken_signals::Displaced::default();
    let mut timers = [None, None];
    report_steps::write_report(session, |session| {
        displaced = taken_signals::displace();
        let limit = session.installed.options.deadline_ms;
        RECRASH.begin_deadline(limit);
        let is_filtered = process::has_seccomp_filter();
        note_filter(is_filtered);
        if !is_filtered {
            let is_end = dies && session.context.ending() != Ending::NonFatal;
            // This thread, not the context's: for a hang that is another one.
            let timer = Deadline::start_ticking(this_thread()).ok();
            timers = [timer, if is_end { Deadline::last_resort(limit).ok() } else { None }];
        }
    });
    timers.into_iter().flatten().for_each(Deadline::stop);
    taken_signals::replace(&displaced);
}

/// Handles a signal on the thread that owns the report lock: a fault of the crash path, the
/// deadline, or a sent signal.
pub(crate) fn handle_recrash(info: &mut SignalInfo, context: &mut Context) {
    if deadline::is_deadline(info) {
        // SAFETY: this thread owns the lock, and this is its own context.
        unsafe { RECRASH.tick(context) };
        return;
    }
    if info.signo == libc::SIGSYS && info.is_fault() {
        // A seccomp filter trapped a system call of the crash path: it is treated like any other
        // error.
        context.set_result((-libc::ENOSYS) as i64 as u64);
        return;
    }
    if !info.is_fault() {
        // Another process sends a crash signal to a process that is already dying.
        return;
    }
    // SAFETY: as above.
    let left = unsafe { RECRASH.leave_section(info.signo, info.code, address_of(info), context) };
    if !left {
        // Between sections: there is nothing to continue with. The report stays as far as it was
        // written.
        _ = die(info, context);
    }
}
