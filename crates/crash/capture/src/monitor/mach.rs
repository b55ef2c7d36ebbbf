//! The Mach exception monitor: Coroner's two threads.
//!
//! # Order of the primary thread's steps for an exception
//! 1. An exception of another task (a child inherits the ports) is refused.
//! 2. A fault of a guarded load outside a signal handler is recovered: the thread continues after
//!    it. So is a fault of an exception's `what()`, which is left.
//! 3. Handlers that must come first (managed runtimes) are called.
//! 4. The report is written ([`crate::darwin::crash_entry`]); crashes of other threads that came in
//!    the meantime are part of it.
//! 5. The exception goes to the port's earlier holder, in that holder's own form. If the holder
//!    takes it, the thread continues.
//! 6. Otherwise the kernel turns it into a signal. If the app has a handler for it, Coroner stays;
//!    if nobody does, Coroner gives everything back first, and the process dies as it would have.
//!    No thread's signal mask changes, except if the thread returns with the same exception again
//!    and again, since it blocks the signal.
//!
//! The other threads continue before an earlier holder of the port is called (5). They stay stopped
//! if the signal's default action is certain to end the process, and for a moment if the app's
//! handler is called (6).
//!
//! The secondary thread handles the primary's own faults and the deadline.

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use coroner_process::context::Context;
use coroner_process::memory::recover_guarded_load;
use coroner_process::threads::{self, facts, monotonic_now};
use mach2::kern_return::{KERN_FAILURE, KERN_SUCCESS};

use crate::crash_context::{Next, Reported};
use crate::darwin::crash_entry;
use crate::darwin::mach_exception;
use crate::darwin::other_threads::SuspendedOthers;
use crate::darwin::platform_state::{Fault, Waiting};
use crate::darwin::signal_death::give_back;
use crate::handler_kind::HandlerKind;
use crate::ignored_signals;
use crate::installed::Installed;
use crate::previous_handler;
use crate::recrash::RECRASH;
use crate::runtime_faults;
use crate::taken_signals;
use coroner_process::exception_messages::{self, Own, Received, Reply, Request};
use coroner_process::registers::Registers;
use coroner_process::signals::{bit, block_exactly};

/// Names the calling thread, for debuggers and other reporters.
fn name(name: &core::ffi::CStr) {
    // SAFETY: a NUL-terminated name; not on the crash path.
    unsafe { libc::pthread_setname_np(name.as_ptr()) };
}

/// Touches `BYTES` bytes of the calling thread's stack, so that no page has to be found for it when
/// memory is short.
#[inline(never)]
fn touch_stack<const BYTES: usize>() {
    let mut room = [0_u8; BYTES];
    core::hint::black_box(&mut room);
}

/// Entry point of the primary thread. Its argument is the [`Installed`].
pub(crate) extern "C" fn primary(installed: *mut c_void) -> *mut c_void {
    name(c"coroner.exceptions");
    // A signal to the process must reach one of the app's threads: a crash could not be handed over
    // to the thread that takes it.
    block_exactly(u32::MAX);
    touch_stack::<{ 64 << 10 }>();
    // SAFETY: `install` passed a value that lives as long as the process.
    let installed: &'static Installed = unsafe { &*installed.cast() };
    let platform = &installed.platform;
    // The other threads, while the app's handler is called.
    let mut held: Option<SuspendedOthers> = None;
    loop {
        let again = platform.take_again.load(Ordering::Acquire);
        let limit = (again || held.is_some()).then_some(FORWARDING_MS);
        let received = exception_messages::receive(platform.primary_port, limit, None);
        drop(held.take());
        if again && !platform.stopping.load(Ordering::Acquire) && !taken_signals::is_dying(installed.run.pid) {
            platform.take_again.store(false, Ordering::Release);
            let _ = platform.ports.take_again(platform.primary_port);
        }
        match received {
            Received::Exception(request) => held = on_exception(installed, &request),
            Received::HandedOver { place, reply } => held = on_handed_over(installed, place, reply),
            Received::Stop => return core::ptr::null_mut(),
            Received::Watch | Received::Nothing => {}
        }
        if platform.stopping.load(Ordering::Acquire) {
            return core::ptr::null_mut();
        }
    }
}

/// Time in milliseconds that the other threads stay stopped while the app's handler is called about
/// a crash that is already reported. The process usually dies of it, and none of them must crash in
/// between; but the handler may need them. The kernel has the same time to call an earlier holder
/// of the exception ports before Coroner takes them again.
const FORWARDING_MS: u32 = 300;

/// Handles an exception. Returns the other threads if the app's handler is called next.
fn on_exception(installed: &'static Installed, request: &Request) -> Option<SuspendedOthers> {
    if !mach_exception::is_ours(request) {
        request.answer(KERN_FAILURE);
        return None;
    }
    if mach_exception::is_recovered(installed, request) {
        return None;
    }
    let Ok(context) = Context::of_thread(request.thread) else {
        request.answer(KERN_FAILURE);
        return None;
    };
    let platform = &installed.platform;
    let number = mach_exception::signal_of(request.exception, request.codes);
    if ignored_signals::take_ignored(request.tid, number) {
        pass_on(installed, request, Reported::Not, false);
        return None;
    }
    let context = mach_exception::crash_context(request, &context);
    let is_covered = platform.ports.covered(request.exception);
    let (pc, sp, address) = (context.registers.pc, context.registers.sp(), context.address.unwrap_or(0));
    let fault = runtime_faults::Fault { signal: number, code: 0, is_raised_by_instruction: true, address, pc, sp };
    // Nothing is known about the holder of a port.
    let by_port = is_covered && installed.asks_first(&fault, (0, HandlerKind::Unknown));
    // The signal's handler is called by the signal monitor, which comes to the same decision.
    let by_signal = !is_covered
        && taken_signals::has_handler(number)
        && installed.asks_first(&fault, previous_handler::known(number));
    let asks_first = by_port || by_signal;
    if by_port {
        // Recorded in the meantime: that handler may end the process.
        let record = installed.run.state.set_crash(&context.record());
        if platform.ports.ask_before(request) == KERN_SUCCESS {
            installed.run.state.set_crash_not_fatal(record);
            request.answer(KERN_SUCCESS);
            return None;
        }
    } else if by_signal {
        // The signal monitor calls it, and reports what it does not repair.
        request.answer(KERN_FAILURE);
        return None;
    }
    // The signal that it was passed on as is blocked: the same death, which has its report.
    if let Some((reported, returns)) = platform.is_back(request.tid, &fault_of(request, Some(&context.registers))) {
        if returns >= RETURNS && taken_signals::is_ours(number) {
            unblock(installed, number);
        }
        pass_on(installed, request, reported, asks_first);
        return None;
    }
    // SAFETY: the secondary thread reads it only while this one can't continue.
    unsafe { *platform.request.get() = Some(*request) };
    let next = if is_covered { Next::RunsOn } else { next_of(number) };
    let (reported, held) = crash_entry::write(installed, &context, request.thread, next);
    // SAFETY: as above.
    unsafe { *platform.request.get() = None };
    pass_on(installed, request, reported, asks_first);
    answer_waiting(installed);
    held
}

/// Returns what follows the report of a crash that is, or becomes, `signal`; 0 for none.
fn next_of(signal: i32) -> Next {
    if taken_signals::kills(signal) {
        Next::Dies
    } else if taken_signals::has_handler(signal) {
        Next::AsksHandler
    } else {
        Next::RunsOn
    }
}

/// Handles a crash that a signal handler has handed over. Returns the same as [`on_exception`].
fn on_handed_over(installed: &'static Installed, place: u32, reply: Reply) -> Option<SuspendedOthers> {
    let handed_over = &installed.platform.handed_over;
    let mut held = None;
    if let Some(context) = handed_over.take(place) {
        let list = threads::ThreadList::take().ok();
        let found = list.as_ref().and_then(|list| {
            list.ports().iter().copied().find(|port| facts(*port).is_some_and(|facts| facts.tid == context.tid))
        });
        let next = context.signal.map_or(Next::RunsOn, |signal| next_of(signal.number));
        let reported;
        (reported, held) = crash_entry::write(installed, &context, found.unwrap_or(0), next);
        drop(list);
        handed_over.give_back(place, reported);
    }
    reply.answer();
    answer_waiting(installed);
    held
}

/// Answers the threads whose crashes came while another report was being written.
fn answer_waiting(installed: &Installed) {
    // SAFETY: the primary thread's own field.
    let waiting = unsafe { &mut *installed.platform.waiting.get() };
    for place in waiting.iter_mut() {
        match place.take() {
            Some(Waiting::Exception(request)) => pass_on(installed, &request, Reported::Elsewhere, false),
            Some(Waiting::Ignored(request)) => pass_on(installed, &request, Reported::Not, false),
            Some(Waiting::HandedOver { place, reply }) => {
                installed.platform.handed_over.give_back(place, Reported::Elsewhere);
                reply.answer();
            }
            None => {}
        }
    }
}

/// Number of times that a thread may return with an exception that was passed on as a signal before
/// the signal is unblocked. If another handler has the signal, it is never unblocked: that handler
/// may have received it each time.
const RETURNS: u32 = 8;

/// Returns the values that distinguish an exception from another one of its thread.
fn fault_of(request: &Request, registers: Option<&Registers>) -> Fault {
    let (pc, sp) = registers.map_or((0, 0), |registers| (registers.pc, registers.sp()));
    [pc, sp, request.codes[0] as u64, request.codes[1] as u64]
}

/// Passes an exception on as it would have gone without Coroner. `asked` means that the port's
/// earlier holder has already refused it.
fn pass_on(installed: &Installed, request: &Request, reported: Reported, asked: bool) {
    let platform = &installed.platform;
    let registers = Context::of_thread(request.thread).ok().map(|context| context.registers());
    let fault = fault_of(request, registers.as_ref());
    let by_the_kernel = platform.ports.only_the_kernel_can_ask(request);
    if platform.ports.covered(request.exception) && (by_the_kernel || !asked) {
        // Faults in that handler are not Coroner's: this thread waits for it.
        platform.ports.give_back(platform.primary_port);
        if by_the_kernel {
            // The thread runs into the fault once more, and the kernel calls the earlier holder. If
            // the holder refuses, the result is the same death; if the thread continues, Coroner is
            // back a moment later.
            platform.pass_on(request.tid, &fault, reported);
            platform.take_again.store(true, Ordering::Release);
            return request.answer(KERN_SUCCESS);
        }
        let answer = platform.ports.ask_before(request);
        let _ = platform.ports.take_again(platform.primary_port);
        if answer == KERN_SUCCESS {
            installed.note_handled(reported);
            return request.answer(KERN_SUCCESS);
        }
    }
    let number = mach_exception::signal_of(request.exception, request.codes);
    if taken_signals::has_handler(number) {
        // The signal that the kernel now makes of it is the same death. It is usually not blocked,
        // or the app would not rely on it: masks stay as they are, and if the thread blocks it, the
        // exception is back at once.
        platform.pass_on(request.tid, &fault, reported);
    } else {
        // The process dies of it, along with its masks.
        give_back();
        unblock(installed, number);
    }
    request.answer(KERN_FAILURE);
}

/// Unblocks the signal that the kernel is to make of an exception, on the app's threads: a blocked
/// one stays pending, and the thread would fault forever (XNU bsd/kern/kern_sig.c, `threadsignal`).
/// An `abort()` in progress on another thread blocks all signals of all threads (Libc
/// stdlib/FreeBSD/abort.c). No thread can unblock a signal of one other thread alone, so this is
/// only done if the process could not continue otherwise.
fn unblock(installed: &Installed, number: i32) {
    if number == 0 {
        return;
    }
    // For the main thread's overflow, which is a SIGBUS here, the kernel raises SIGSEGV.
    let set = bit(number) | if number == libc::SIGBUS { bit(libc::SIGSEGV) } else { 0 };
    // SAFETY: reads one set. Async-signal-safe (POSIX). Applies to all threads of the process: on
    // Darwin that distinguishes it from pthread_sigmask (bsd/kern/kern_sig.c,
    // `unblock_procsigmask`).
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, core::ptr::null_mut()) };
    // No signal may reach Coroner's threads. The other one blocks all whenever it wakes.
    block_exactly(u32::MAX);
    exception_messages::tell(installed.platform.secondary_port, Own::Watch);
}

/// Interval between attempts to end a section once the deadline has passed, in nanoseconds.
const AGAIN_NS: u64 = 1_000_000_000;

/// Entry point of the secondary thread. Its argument is the [`Installed`].
pub(crate) extern "C" fn secondary(installed: *mut c_void) -> *mut c_void {
    name(c"coroner.guard");
    touch_stack::<{ 16 << 10 }>();
    // SAFETY: as in `primary`.
    let installed: &'static Installed = unsafe { &*installed.cast() };
    let platform = &installed.platform;
    loop {
        // Each time: the primary thread may have unblocked a signal on all threads, see `unblock`.
        block_exactly(u32::MAX);
        let deadline = platform.deadline.load(Ordering::Acquire);
        let left = deadline.saturating_sub(monotonic_now());
        let timeout = (deadline != 0).then(|| (left / 1_000_000).min(60_000) as u32 + 1);
        let primary = (platform.primary_tid.load(Ordering::Acquire), platform.primary_thread.load(Ordering::Acquire));
        match exception_messages::receive(platform.secondary_port, timeout, Some(primary)) {
            Received::Exception(request) => on_recrash(installed, &request),
            Received::Stop => return core::ptr::null_mut(),
            Received::Watch | Received::HandedOver { .. } => {}
            Received::Nothing => on_deadline(installed),
        }
    }
}

/// Handles a fault of the primary thread.
fn on_recrash(installed: &Installed, request: &Request) {
    if !mach_exception::is_ours(request) {
        return request.answer(KERN_FAILURE);
    }
    let Ok(mut context) = Context::of_thread(request.thread) else { return request.answer(KERN_FAILURE) };
    let is_access = request.exception == mach_exception::EXC_BAD_ACCESS;
    let signal = mach_exception::signal_of(request.exception, request.codes);
    let address = is_access.then_some(request.codes[1] as u64);
    let is_load = is_access && recover_guarded_load(&mut context);
    // SAFETY: the primary thread writes the reports, and stands still.
    let is_left = is_load || unsafe { RECRASH.leave_section(signal, request.codes[0] as i32, address, &mut context) };
    // SAFETY: a guarded load, or a section, that continues with its error.
    if is_left && unsafe { context.set_to(request.thread) }.is_ok() {
        return request.answer(KERN_SUCCESS);
    }
    // There is nothing to continue with. The report stays as far as it was written, and the process
    // dies of what the report was about; the primary thread is left where it is.
    give_back();
    // SAFETY: the primary thread stands still for good.
    match unsafe { (*installed.platform.request.get()).take() } {
        Some(crash) => crash.answer(KERN_FAILURE),
        None => request.answer(KERN_FAILURE),
    }
}

/// Ends the section that the primary thread is in, if the deadline of its report has passed.
fn on_deadline(installed: &Installed) {
    let (deadline, primary) = (&installed.platform.deadline, &installed.platform.primary_thread);
    let primary = primary.load(Ordering::Acquire);
    let now = monotonic_now();
    let is_over = || (1..=now).contains(&deadline.load(Ordering::Acquire));
    if !is_over() || !threads::suspend_other_receiver(primary) {
        return;
    }
    // Once more, now that it stands still: the report may have ended in between.
    if is_over() {
        deadline.store(now.saturating_add(AGAIN_NS), Ordering::Release);
        // In a call to the kernel its state is not its own: then it reads the flag, or leaves its
        // section the next time.
        RECRASH.note_expired();
        if threads::leave_kernel(primary)
            && let Ok(mut context) = Context::of_thread(primary)
        {
            // SAFETY: the primary thread writes the report, and stands still.
            unsafe {
                if RECRASH.expire(&mut context) {
                    let _ = context.set_to(primary);
                }
            }
        }
    }
    threads::resume(primary);
}
