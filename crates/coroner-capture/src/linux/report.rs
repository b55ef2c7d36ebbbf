//! The crashed thread itself writes the report: the latch, a child's own run, Coroner's stack, every signal blocked but those
//! that the crash path itself may raise, the deadline's timer, and what becomes of the crash path's own faults.

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use coroner_machine::context::{Context, SignalInfo, SignalStack};
use coroner_machine::registers::Registers;
use coroner_machine::stack::{alternate_stack, set_alternate_stack};
use coroner_machine::threads::{monotonic_now, this_thread};
use coroner_report::wire::{Fault, SecondCrash, SectionKind};

use super::action::{bit, block_exactly, blocked, take_pending};
use super::deadline::{self, Deadline};
use super::files;
use super::latch::Claim;
use super::previous;
use crate::global::Global;
use crate::monitor::exception::{Ending, Uncaught};
use crate::monitor::signal;
use crate::pipeline::incident::Incident;
use crate::pipeline::{self, FAULTED, Task, sections};
use crate::run;
use crate::setup::ForkPolicy;

/// What became of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// This thread wrote a report of it and owns the latch: [`finish`] must be called.
    Owner,
    /// Another thread's report has it.
    Elsewhere,
    /// There is none.
    Not,
}

/// Takes one crash of the calling thread into a report, or into the report that another thread is writing.
pub(crate) fn enter(
    global: &'static Global,
    info: &SignalInfo,
    context: &mut Context,
    (pid, tid): (i32, i32),
    exception: Option<Incident>,
) -> Reported {
    let started = monotonic_now();
    let ending = exception.as_ref().map_or(Ending::Fatal, Incident::ending);
    let patience = global.setup.deadline_ms.saturating_add(2000);
    loop {
        let releases = global.os.latch.releases();
        match global.os.latch.claim(pid, tid, ending == Ending::GoesOn) {
            Claim::Mine => break,
            // The thread's last crash was left by a jump out of an earlier handler: that one is over.
            Claim::Nested => finish(global),
            Claim::Taken => {
                let told = global.seconds.tell(&SecondCrash {
                    tid: tid as u64,
                    signal: info.signo,
                    code: info.code,
                    address: info.is_fault().then(|| info.address()),
                    after_ns: Some(started),
                });
                let until = monotonic_now().saturating_add(u64::from(patience).saturating_mul(1_000_000));
                if told && global.os.rendezvous.hand_in(context, until) {
                    return Reported::Elsewhere;
                }
                // The other threads have been taken already, or there are too many crashes.
                let ended = wait(global, context, releases, patience);
                if told || !ended {
                    return if told { Reported::Elsewhere } else { Reported::Not };
                }
            }
            Claim::TakenForNow => {
                if !wait(global, context, releases, patience) {
                    return Reported::Not;
                }
            }
        }
    }
    let mut child = None;
    let (run_id, file) = if pid == global.run.pid {
        (global.run.files.id, pipeline::report_file(global, ending).ok())
    } else {
        child = run::Run::create(global.run.files.runs, global.setup.reserve, global.setup.state_size).ok();
        if let Some(run) = &child {
            copy_state(global, run.state);
        }
        (child.map_or([0; 16], |run| run.id), child.map(|run| run.report))
    };
    let Some(file) = file else {
        global.seconds.reopen();
        global.os.latch.release();
        return Reported::Not;
    };
    let incident = exception.unwrap_or_else(|| signal::incident(info, context, (pid, tid)));
    let mut task = Task::new(global, &incident, file, run_id, started);
    global.os.writing.store(true, Ordering::Release);
    // SAFETY: the latch makes this thread the stack's only user; `on_large_stack` takes a `Task` and does not unwind.
    unsafe { global.os.stack.call(on_large_stack, (&raw mut task).cast()) };
    global.os.holding.store(true, Ordering::Release);
    global.os.writing.store(false, Ordering::Release);
    match child {
        // Its file is among those.
        Some(run) => run.close(),
        // Of a file of its own, which nothing is written to any more.
        None if ending == Ending::GoesOn => files::close(file),
        None => global.note_crash(incident.monitor),
    }
    Reported::Owner
}

/// Waits for the end of the report that is being written, open to the signal that stops threads. False when the time is up.
fn wait(global: &Global, context: &Context, releases: u32, milliseconds: u32) -> bool {
    let mask = block_exactly(context.signal_mask());
    let ended = global.os.latch.wait(releases, milliseconds);
    block_exactly(mask);
    ended
}

/// Copies this run's state into another run's file.
fn copy_state(global: &Global, into: i32) {
    let length = global.setup.state_size as usize;
    let _ = files::write_at(into, core::ptr::slice_from_raw_parts(global.run.state_address as *const u8, length), 0);
}

/// Takes an exception of the calling thread, which has these registers, into a report. Normal life.
pub(crate) fn enter_uncaught(
    global: &'static Global,
    registers: &Registers,
    ids: (i32, i32),
    uncaught: &Uncaught<'_>,
) -> bool {
    // SAFETY: it is the caller's, who waits here.
    let incident = unsafe { Incident::of_exception(uncaught, registers, ids.0, ids.1) };
    enter_incident(global, registers, ids, &incident)
}

/// Takes what was noticed in normal life by the calling thread, which has these ids and registers, into a report.
pub(crate) fn enter_incident(
    global: &'static Global,
    registers: &Registers,
    ids: (i32, i32),
    incident: &Incident,
) -> bool {
    let silent = ids.0 != global.run.pid && global.setup.fork == ForkPolicy::Silent;
    if silent || global.os.is_writing(ids.0, ids.1) {
        return false;
    }
    let mut context = Context::of_registers(registers, blocked());
    let reported = enter(global, &SignalInfo::NONE, &mut context, ids, Some(*incident));
    if reported == Reported::Owner {
        // What follows is the runtime's and the app's own code, which may need the other threads.
        finish(global);
    }
    reported != Reported::Not
}

/// On Coroner's own stack.
///
/// # Safety
/// `task` points to a [`Task`] that nobody else uses.
unsafe extern "C" fn on_large_stack(task: *mut c_void) {
    // SAFETY: by the contract.
    let task = unsafe { &mut *task.cast::<Task<'_>>() };
    let global = task.global;
    // Coroner's stack is not the thread's alternate stack: a fault would be handled from that one's top, over the context
    // of the crash. It is handled on a stack of its own instead.
    let before = alternate_stack().ok();
    // SAFETY: that stack is mapped for good, and the latch makes this thread its only user.
    let _ = unsafe { set_alternate_stack(&global.os.fault_stack.as_signal_stack()) };
    let displaced = signal::displace();
    let mask = block_exactly(!signal::NEEDED);
    // This thread, and not the incident's: of a hang it is another.
    let timer = Deadline::start(this_thread(), global.setup.deadline_ms);

    sections::write_all(task);

    if let Ok(timer) = timer {
        timer.stop();
    }
    signal::replace(&displaced);
    if let Some(SignalStack { sp, flags, size }) = before {
        let stack = SignalStack { sp, flags: flags & libc::SS_DISABLE, size };
        // SAFETY: the thread's own alternate stack, as it was.
        let _ = unsafe { set_alternate_stack(&stack) };
    }
    // A write beyond RLIMIT_FSIZE raises SIGXFSZ on its thread: the process is to die of its own signal, not of that.
    if mask & bit(libc::SIGXFSZ) == 0 {
        take_pending(libc::SIGXFSZ);
    }
    block_exactly(mask);
}

/// Lets the other threads and the latch go after a report: the process goes on, or an earlier handler takes long and may
/// need them. The owner calls it, once or more.
pub(crate) fn finish(global: &Global) {
    if global.os.holding.swap(false, Ordering::AcqRel) {
        // SAFETY: the owner's own field, and the swap lets one caller in.
        let round = unsafe { (*global.os.held.get()).take() };
        if let Some(round) = round {
            round.release();
        }
        global.seconds.reopen();
        global.os.latch.release();
    }
}

/// A signal on the thread that is writing the report: a fault of the crash path, the deadline, or something sent.
pub(crate) fn own_fault(global: &Global, info: &mut SignalInfo, context: &mut Context) {
    let scratch = global.scratch.get();
    // SAFETY: this thread is the owner; the interrupted code may hold references into the scratch, so only single fields are
    // read and written here, through the raw pointer, and it never continues where it was interrupted if they change.
    let (point, fault, expired) =
        unsafe { (&raw const (*scratch).point, &raw mut (*scratch).fault, &raw mut (*scratch).expired) };
    if deadline::is_deadline(info) {
        // SAFETY: as above.
        unsafe {
            expired.write(true);
            (*point).recover(context, FAULTED);
        }
        return;
    }
    if !info.is_fault() {
        // Somebody sends a crash signal to a process that is dying already.
        return;
    }
    let what = Fault {
        section: SectionKind(0),
        signal: info.signo,
        code: info.code,
        address: Some(info.address()),
        pc: Some(context.pc()),
        tid: None,
    };
    // SAFETY: as above.
    let recovered = unsafe {
        fault.write(Some(what));
        (*point).recover(context, FAULTED)
    };
    if !recovered {
        // Between sections: there is nothing to go on with. The report stands as far as it was written.
        previous::die(info, context);
    }
}
