//! Linux's part of the signal monitor: recovery, and turning a crash into a report. The crashed
//! thread writes the report itself ([`crate::linux::crash_entry`]), on Coroner's own stack.

use coroner_process::context::{Context, SignalInfo};
use coroner_process::deadline;
use coroner_process::memory::recover_guarded_load;
use coroner_process::signal_frame;
use coroner_process::threads::{Tid, process_id, this_thread, wall_now};
use coroner_report::run_state::CrashRecord;
use coroner_report::wire::Monitor;

use crate::crash_context::{Next, Reported};
use crate::forwarding::Outcome;
use crate::guarded_call;
use crate::ignored_signals;
use crate::installed::{self, Installed};
use crate::linux::crash_entry::{self, Source};
use crate::linux::{other_threads, signal_death};
use crate::report_lock::REPORT_LOCK;
use crate::session;

// The interrupted thread may have EFLAGS.AC set (bit 18, Intel SDM volume 3, 2.3), which the kernel
// leaves as it is: the handler's own unaligned accesses would fault, without end. The interrupted
// flags are in the context.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.coroner_signal_entry,\"ax\",@progbits",
    ".globl coroner_signal_entry",
    ".hidden coroner_signal_entry",
    ".type coroner_signal_entry,@function",
    "coroner_signal_entry:",
    ".cfi_startproc",
    "endbr64",
    "pushfq",
    ".cfi_adjust_cfa_offset 8",
    "and dword ptr [rsp], 0xfffbffff",
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    "jmp {entry}",
    ".cfi_endproc",
    ".size coroner_signal_entry, . - coroner_signal_entry",
    ".popsection",
    entry = sym entry,
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn coroner_signal_entry();
}

/// Returns the handler's address for the kernel.
pub(super) fn handler() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return coroner_signal_entry as *const () as usize;
    #[cfg(any(target_arch = "aarch64", miri))]
    {
        // Two casts of a function need not return the same address, and under Miri do not.
        static ENTRY: unsafe extern "C" fn(i32, *mut SignalInfo, *mut libc::c_void) = entry;
        ENTRY as *const () as usize
    }
}

/// The signal handler.
///
/// # Safety
/// Must be called by the kernel, or by a handler that chains to this one, with the kernel's
/// arguments or with the number alone.
pub(crate) unsafe extern "C" fn entry(signal: i32, info: *mut SignalInfo, context: *mut libc::c_void) {
    let here = 0_u8;
    let given = signal_frame::arguments(signal, info as u64, context as u64, &raw const here as u64);
    let Some((info, context)) = given else { return die_unseen(signal) };
    // SAFETY: the kernel's (or the chaining handler's) siginfo and ucontext, alive until this
    // returns.
    let (info, context) = unsafe { (&mut *(info as *mut SignalInfo), Context::from_pointer(context as *mut _)) };
    let faulted = matches!(info.signo, libc::SIGSEGV | libc::SIGBUS);
    if faulted && recover_guarded_load(context) {
        return;
    }
    if info.signo == libc::SIGBUS
        && info.is_fault()
        && installed::get().is_some_and(|installed| installed.replace_lost_page(info.address()))
    {
        return;
    }
    let ids = (process_id(), this_thread());
    let (pid, tid) = ids;
    if guarded_call::recover(pid, tid, context) {
        return;
    }
    if signal_death::survive(info, context, ids) {
        return;
    }
    if REPORT_LOCK.is_mine(pid, tid) {
        return crash_entry::handle_recrash(info, context);
    }
    // A deadline that came just as its report ended is ignored.
    if !deadline::is_deadline(info) {
        super::handle(info, context, &ids);
    }
}

/// Handles a call from another handler with only a signal's number, when the kernel's frame is not
/// on the stack: the signal is recorded, and the process dies as by the default action.
#[cold]
fn die_unseen(signal: i32) {
    let current = installed::get().filter(|installed| installed.is_own_process(process_id()));
    if let Some(installed) = current.filter(|installed| installed.options.signals.contains(signal)) {
        let (monitor, tid, time_ns) = (Monitor::SIGNAL, this_thread() as u64, wall_now());
        installed.run.state.set_crash(&CrashRecord { monitor, signal, tid, time_ns, ..CrashRecord::default() });
    }
    signal_death::by_default(signal);
}

/// Returns the outcome of the exception that became the signal: there are none on Linux.
pub(super) fn became(_installed: &Installed, _tid: Tid) -> Option<Reported> {
    None
}

/// Records the crash.
pub(super) fn record(installed: &Installed, info: &SignalInfo, context: &Context, ids: (i32, Tid)) -> u64 {
    crash_entry::record(installed, Source::Signal(info), context, ids, wall_now())
}

/// Writes the report.
pub(super) fn report(
    installed: &'static Installed,
    info: &SignalInfo,
    context: &Context,
    ids: (i32, Tid),
    next: Next,
) -> Reported {
    crash_entry::report(installed, Source::Signal(info), context, ids, next)
}

/// Releases the lock after the earlier handler has returned: if the process continues, so do the
/// other threads that a report left stopped. `number` is that of the crash record, 0 for none.
pub(super) fn handler_returned(installed: &Installed, (pid, tid): (i32, Tid), number: u64, outcome: Outcome) {
    if outcome == Outcome::Dies {
        signal_death::note_reported(tid, number);
    } else if let Some(owner) = REPORT_LOCK.own_again(pid, tid) {
        other_threads::resume(installed);
        session::release(owner);
    }
}

/// Returns `true` if a handler that ran first, and left the thread where it was, has dealt with the
/// signal. This is assumed of a runtime, and of a handler that dealt with crashes of this run
/// before; but not of a handler that comes first because the app chose so, since it may not
/// recognize the fault.
pub(super) fn is_dealt_with(installed: &Installed, info: &SignalInfo, context: &Context, tid: Tid) -> bool {
    !signal_death::occurs_again(info)
        || !installed.options.chain_first
        || ignored_signals::try_again(tid, context.pc(), info.address())
        || signal_death::is_repaired(info, context)
}

/// Returns `true` if the signal was sent to the whole process (`kill`), not to a thread.
pub(super) fn is_sent_to_process(info: &SignalInfo) -> bool {
    info.code == libc::SI_USER
}
