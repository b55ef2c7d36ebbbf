//! The Mach exception monitor: Coroner's two threads.
//!
//! # What the primary thread does with an exception, in this order
//! 1. One of another task (a child inherits the ports) is refused.
//! 2. A fault of a guarded load in normal life is made good: the thread goes on behind it.
//!    So is a fault of an exception's `what()`, which is left.
//! 3. Handlers that are to come first (managed runtimes) are asked.
//! 4. The report is written ([`crate::darwin::report`]); crashes of other threads that came meanwhile are part of it.
//! 5. The exception goes to whoever held the port before, in that one's own form. If it takes it, the thread goes on.
//! 6. Else the kernel makes a signal of it. If a handler of the app waits for that, Coroner stays, and the other threads stand
//!    still a moment longer; if nobody does, Coroner gives everything back first, and the process dies as it would have.
//!
//! The secondary thread sees to the primary's own faults and to the deadline.

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use coroner_machine::context::Context;
use coroner_machine::memory::make_good;
use coroner_machine::threads::{self, facts, monotonic_now};
use coroner_report::wire::{Fault, SectionKind};
use mach2::kern_return::{KERN_FAILURE, KERN_SUCCESS};

use crate::darwin::action::{bit, block_exactly};
use crate::darwin::install::give_back;
use crate::darwin::machinery::Waiting;
use crate::darwin::messages::{self, Received, Reply, Request};
use crate::darwin::others;
use crate::darwin::report;
use crate::global::Global;
use crate::ignore;
use crate::monitor::{cpp_exception, signal};
use crate::pipeline::FAULTED;

/// Names the calling thread, for debuggers and other reporters.
fn name(name: &core::ffi::CStr) {
    // SAFETY: a NUL-terminated name; normal life.
    unsafe { libc::pthread_setname_np(name.as_ptr()) };
}

/// Touches so much of the calling thread's stack, so that no page has to be found for it when memory is short.
#[inline(never)]
fn touch_stack<const BYTES: usize>() {
    let mut room = [0_u8; BYTES];
    core::hint::black_box(&mut room);
}

/// The primary thread. Its argument is the [`Global`].
pub(crate) extern "C" fn primary(global: *mut c_void) -> *mut c_void {
    name(c"coroner.exceptions");
    // A signal to the process is to find a thread of the app's: a crash could not be handed over to the thread that takes it.
    block_exactly(u32::MAX);
    touch_stack::<{ 64 << 10 }>();
    // SAFETY: `install` gave it what lives as long as the process.
    let global: &'static Global = unsafe { &*global.cast() };
    loop {
        // SAFETY: this thread's own field.
        let holds = unsafe { (*global.os.held.get()).is_some() };
        let again = global.os.take_again.load(Ordering::Acquire);
        let received = messages::receive(global.os.primary_port, (holds || again).then_some(PATIENCE_MS), None);
        others::let_go(global);
        if again && !global.os.stopping.load(Ordering::Acquire) && !signal::is_dying(global.run.pid) {
            global.os.take_again.store(false, Ordering::Release);
            let _ = global.os.ports.take_again(global.os.primary_port);
        }
        match received {
            Received::Exception(request) => on_exception(global, &request),
            Received::Handed { place, reply } => on_handed(global, place, reply),
            Received::Stop => return core::ptr::null_mut(),
            Received::Watch | Received::Nothing => {}
        }
        if global.os.stopping.load(Ordering::Acquire) {
            others::let_go(global);
            return core::ptr::null_mut();
        }
    }
}

/// How long the other threads are held while a handler of the app deals with a crash that is reported: most often the process
/// dies of it, and none of them is to crash, or to mend anything, in between. A handler that takes long may need them.
const PATIENCE_MS: u32 = 300;

fn on_exception(global: &'static Global, request: &Request) {
    if !report::is_ours(request) {
        return request.answer(KERN_FAILURE);
    }
    let Ok(mut context) = Context::of_thread(request.thread) else { return request.answer(KERN_FAILURE) };
    if request.exception == report::EXC_BAD_ACCESS && make_good(&mut context) {
        // SAFETY: a guarded load, which goes on with its error.
        let set = unsafe { context.set_to(request.thread) };
        return request.answer(if set.is_ok() { KERN_SUCCESS } else { KERN_FAILURE });
    }
    if cpp_exception::leave(global.run.pid, request.tid, &mut context) {
        // SAFETY: it goes on where the code of the app's that faulted was called.
        let set = unsafe { context.set_to(request.thread) };
        return request.answer(if set.is_ok() { KERN_SUCCESS } else { KERN_FAILURE });
    }
    let number = report::signal_of(request.exception, request.codes);
    if ignore::take_ignored(request.tid, number) {
        return pass_on(global, request, false);
    }
    if global.setup.chain_first {
        if global.os.ports.covered(request.exception) {
            if global.os.ports.ask_before(request) == KERN_SUCCESS {
                return request.answer(KERN_SUCCESS);
            }
        } else if number != 0 && signal::has_handler(number) {
            // The signal monitor asks it, and reports what it does not repair.
            return request.answer(KERN_FAILURE);
        }
    }
    let incident = report::incident(request, &context);
    // SAFETY: the secondary thread reads it only while this one can't go on.
    unsafe { *global.os.request.get() = Some(*request) };
    let reported = report::write(global, &incident, request.thread);
    // SAFETY: as above.
    unsafe { *global.os.request.get() = None };
    pass_on(global, request, reported);
    answer_waiting(global);
}

fn on_handed(global: &'static Global, place: u32, reply: Reply) {
    if let Some(incident) = global.os.handed.take(place) {
        let list = threads::ThreadList::take().ok();
        let found = list.as_ref().and_then(|list| {
            list.ports().iter().copied().find(|port| facts(*port).is_some_and(|facts| facts.tid == incident.tid))
        });
        report::write(global, &incident, found.unwrap_or(0));
        drop(list);
        global.os.handed.give_back(place);
        if !incident.signal.is_some_and(|signal| signal::has_handler(signal.number)) {
            others::let_go(global);
        }
    }
    reply.answer();
    answer_waiting(global);
}

/// Answers those whose crashes came while another's report was written, of which they are part.
fn answer_waiting(global: &Global) {
    // SAFETY: the primary thread's own field.
    let waiting = unsafe { &mut *global.os.waiting.get() };
    for place in waiting.iter_mut() {
        match place.take() {
            Some(Waiting::Exception(request)) => {
                pass_on(global, &request, true);
            }
            Some(Waiting::Handed { place, reply }) => {
                global.os.handed.give_back(place);
                reply.answer();
            }
            None => {}
        }
    }
}

/// Lets an exception go where it would have gone without Coroner.
fn pass_on(global: &Global, request: &Request, reported: bool) {
    let os = &global.os;
    let by_the_kernel = os.ports.only_the_kernel_can_ask(request);
    if os.ports.covered(request.exception) && (by_the_kernel || !global.setup.chain_first) {
        others::let_go(global);
        // What goes wrong in that handler is not Coroner's: this thread waits for it.
        os.ports.give_back(os.primary_port);
        if by_the_kernel {
            // The thread runs into it once more, and the kernel asks the earlier holder. What it makes of it if that one
            // refuses is the same death; if the thread goes on, Coroner is back a moment later.
            os.pass_on(request.tid);
            os.take_again.store(true, Ordering::Release);
            return request.answer(KERN_SUCCESS);
        }
        let answer = os.ports.ask_before(request);
        let _ = os.ports.take_again(os.primary_port);
        if answer == KERN_SUCCESS {
            if reported {
                global.note_survived(global.run.pid);
            }
            return request.answer(KERN_SUCCESS);
        }
    }
    let number = report::signal_of(request.exception, request.codes);
    if number != 0 && signal::has_handler(number) {
        // The signal that the kernel makes of it now is the same death.
        os.pass_on(request.tid);
    } else {
        others::let_go(global);
        give_back();
    }
    unblock(number);
    request.answer(KERN_FAILURE);
}

/// Opens the signal that the kernel is to make of an exception, on the threads of the app: one that is blocked stays pending, and
/// the thread would fault for ever (XNU bsd/kern/kern_sig.c, `threadsignal`). An `abort()` in flight on another thread blocks
/// all signals of all threads (Libc stdlib/FreeBSD/abort.c).
fn unblock(number: i32) {
    if number == 0 {
        return;
    }
    // The kernel makes a SIGSEGV of the main thread's overflow, which is a SIGBUS here.
    let set = bit(number) | if number == libc::SIGBUS { bit(libc::SIGSEGV) } else { 0 };
    // SAFETY: reads one set. Async-signal-safe (POSIX). Of all threads of the process: on Darwin that is what tells it from
    // pthread_sigmask (bsd/kern/kern_sig.c, `unblock_procsigmask`).
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, core::ptr::null_mut()) };
    // No signal is to find this thread.
    block_exactly(u32::MAX);
}

/// How often a section is ended once the deadline has passed.
const AGAIN_NS: u64 = 1_000_000_000;

/// The secondary thread. Its argument is the [`Global`].
pub(crate) extern "C" fn secondary(global: *mut c_void) -> *mut c_void {
    name(c"coroner.guard");
    block_exactly(u32::MAX);
    touch_stack::<{ 16 << 10 }>();
    // SAFETY: as in `primary`.
    let global: &'static Global = unsafe { &*global.cast() };
    let os = &global.os;
    loop {
        let writing = os.writing.load(Ordering::Acquire);
        let left = os.deadline.load(Ordering::Acquire).saturating_sub(monotonic_now());
        let timeout = writing.then(|| (left / 1_000_000).min(60_000) as u32 + 1);
        let primary = (os.primary_tid.load(Ordering::Acquire), os.primary_thread.load(Ordering::Acquire));
        match messages::receive(os.secondary_port, timeout, Some(primary)) {
            Received::Exception(request) => on_own_fault(global, &request),
            Received::Stop => return core::ptr::null_mut(),
            Received::Watch | Received::Handed { .. } => {}
            Received::Nothing => {
                if os.writing.load(Ordering::Acquire) && monotonic_now() >= os.deadline.load(Ordering::Acquire) {
                    os.deadline.store(monotonic_now().saturating_add(AGAIN_NS), Ordering::Release);
                    on_deadline(global);
                }
            }
        }
    }
}

/// A fault of the primary thread.
fn on_own_fault(global: &Global, request: &Request) {
    if !report::is_ours(request) {
        return request.answer(KERN_FAILURE);
    }
    let Ok(mut context) = Context::of_thread(request.thread) else { return request.answer(KERN_FAILURE) };
    let is_access = request.exception == report::EXC_BAD_ACCESS;
    let mut mended = is_access && make_good(&mut context);
    if !mended && global.os.writing.load(Ordering::Acquire) {
        let fault = Fault {
            section: SectionKind(0),
            signal: report::signal_of(request.exception, request.codes),
            code: request.codes[0] as i32,
            address: is_access.then_some(request.codes[1] as u64),
            pc: Some(context.pc()),
            tid: None,
        };
        let scratch = global.scratch.get();
        // SAFETY: the primary thread, which owns the scratch, stands still; it never continues where it was, so that what it
        // held of the scratch does not matter. Only single fields are touched, through the raw pointer.
        mended = unsafe {
            (&raw mut (*scratch).fault).write(Some(fault));
            (*(&raw const (*scratch).point)).recover(&mut context, FAULTED)
        };
    }
    // SAFETY: a guarded load, or a section, that goes on with its error.
    if mended && unsafe { context.set_to(request.thread) }.is_ok() {
        return request.answer(KERN_SUCCESS);
    }
    // There is nothing to go on with. The report stands as far as it was written, and the process dies of what it was about;
    // the primary thread is left where it is.
    give_back();
    // SAFETY: the primary thread stands still for good.
    match unsafe { (*global.os.request.get()).take() } {
        Some(crash) => crash.answer(KERN_FAILURE),
        None => request.answer(KERN_FAILURE),
    }
}

/// Ends the section that the primary thread is in.
fn on_deadline(global: &Global) {
    let primary = global.os.primary_thread.load(Ordering::Acquire);
    let scratch = global.scratch.get();
    // SAFETY: a flag that the primary thread reads as it goes; a single field, through the raw pointer.
    unsafe { (&raw mut (*scratch).expired).write_volatile(true) };
    if !threads::suspend(primary) {
        return;
    }
    // In a call to the kernel its state is not its own: then the next time.
    if threads::leave_kernel(primary)
        && let Ok(mut context) = Context::of_thread(primary)
    {
        // SAFETY: the primary thread stands still, see `on_own_fault`.
        unsafe {
            if (*(&raw const (*scratch).point)).recover(&mut context, FAULTED) {
                let _ = context.set_to(primary);
            }
        }
    }
    threads::resume(primary);
}
