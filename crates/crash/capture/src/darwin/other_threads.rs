//! The threads besides the crashed one: suspended one after another by the kernel, described for
//! the report, resumed.
//!
//! Between the first suspension and the last resumption, nothing is called that could lock in user
//! space: only messages to the kernel and guarded loads.

use coroner_process::context::Context;
use coroner_process::futex_wait::darwin::wait_of;
use coroner_process::memory::Memory;
use coroner_process::threads::{self, RunState, ThreadList, Tid};
use coroner_report::wire::{self, CaptureMethod, ConcurrentCrash, ThreadState};
use coroner_unwind::SwiftAsync;
use mach2::port::mach_port_t;

use super::dispatch_queue::QueueName;
use super::mach_exception;
use super::platform_state::{Resources, Waiting};
use super::suspended_threads::{SuspendedThread, SuspendedThreads};
use crate::concurrent_crashes::CONCURRENT;
use crate::crash_context::{CrashContext, Ending};
use crate::ignored_signals;
use crate::installed::Installed;
use crate::report_lock::REPORT_LOCK;
use crate::thread_description::{Description, main_flag};
use coroner_process::exception_messages::{self, Received, Request};

/// Maximum number of messages that are received while the other threads are suspended: the port's
/// queue holds no more.
const MESSAGES: usize = 1024;

/// Maximum number of thread lists that are requested until one has no new thread: each is requested
/// when all threads of the previous ones are suspended.
const ROUNDS: usize = 4;

/// The other threads of a session. They may stay suspended when it has ended.
pub(crate) type OtherThreads<'session> = SuspendedOthers;

/// The other threads while they are suspended. Dropping it lets them continue.
pub(crate) struct SuspendedOthers {
    /// Kept until the threads continue: nothing is freed while they are suspended.
    _lists: [Option<ThreadList>; ROUNDS],
    table: &'static mut SuspendedThreads,
    overflow: usize,
    /// Whether the process continues after the report: a crash of another thread gets its own
    /// report afterwards.
    is_non_fatal: bool,
}

impl SuspendedOthers {
    /// Suspends all threads except the crashed one and Coroner's own. Returns `None` if the kernel
    /// provides no list.
    pub(crate) fn begin(
        _installed: &'static Installed,
        resources: &Resources,
        context: &CrashContext,
    ) -> Option<SuspendedOthers> {
        // SAFETY: only the primary thread uses it, one session after another, and the table is
        // unmapped when that thread has ended.
        let table = unsafe { &mut *resources.threads };
        table.count = 0;
        let mut lists = [const { None }; ROUNDS];
        let mut overflow = 0_usize;
        for place in &mut lists {
            let Ok(list) = ThreadList::take() else { break };
            let before = table.count;
            for port in list.ports() {
                // The kernel gives a port the same name each time.
                let is_known = table.entries.iter().take(before).any(|entry| entry.port == *port);
                if is_known {
                    continue;
                }
                let Some(facts) = threads::facts(*port) else { continue };
                if threads::is_left_out(facts.tid) {
                    continue;
                }
                // The hung thread is one of the others, and the one that detected the hang waits
                // here.
                if facts.tid == context.hung.map_or(context.tid, |hung| hung.watcher) {
                    continue;
                }
                let Some(entry) = table.entries.get_mut(table.count) else {
                    overflow = overflow.saturating_add(1);
                    continue;
                };
                let state = threads::activity(*port).and_then(|activity| activity.state);
                if threads::suspend(*port, &facts) {
                    let state = state.map_or(0, |state| thread_state(state).0);
                    let threads::Facts { tid, queue_at, specific, .. } = facts;
                    *entry = SuspendedThread { port: *port, state, tid, queue_at, specific };
                    table.count = table.count.saturating_add(1);
                }
            }
            *place = Some(list);
            // A thread that was created in the meantime may have created others.
            if table.count == before {
                break;
            }
        }
        let is_non_fatal = context.ending() == Ending::NonFatal;
        lists.iter().any(Option::is_some).then_some(SuspendedOthers { _lists: lists, table, overflow, is_non_fatal })
    }

    /// Adds the crashes of other threads that came before they were suspended: no more can come
    /// now.
    pub(crate) fn stop(&mut self, installed: &'static Installed) {
        if self.is_non_fatal {
            return;
        }
        let platform = &installed.platform;
        // SAFETY: the primary thread's own field.
        let waiting = unsafe { &mut *platform.waiting.get() };
        for _ in 0..MESSAGES {
            let Some(place) = waiting.iter_mut().find(|place| place.is_none()) else { return };
            match exception_messages::receive(platform.primary_port, Some(0), None) {
                Received::Exception(request) => *place = take_in(installed, request),
                Received::HandedOver { place: number, reply } => {
                    let Some(context) = platform.handed_over.take(number) else {
                        reply.answer();
                        continue;
                    };
                    let (signal, code) = context.signal.map_or((0, 0), |signal| (signal.number, signal.code));
                    add(context.tid, (signal, code), context.address);
                    *place = Some(Waiting::HandedOver { place: number, reply });
                }
                Received::Stop => platform.stopping.store(true, core::sync::atomic::Ordering::Release),
                Received::Watch => {}
                Received::Nothing => return,
            }
        }
    }

    /// Iterates over the other threads.
    pub(crate) fn threads(&self) -> impl Iterator<Item = OtherThread<'_>> {
        let entries = self.table.entries.iter().take(self.table.count);
        entries.map(|entry| OtherThread { entry, context: Context::of_thread(entry.port).ok() })
    }

    /// Returns `true`: without a list of the threads there is no `SuspendedOthers`.
    pub(crate) fn are_listed(&self) -> bool {
        true
    }

    /// Returns the number of threads that did not fit in the table.
    pub(crate) fn overflow(&self) -> usize {
        self.overflow
    }

    /// Lets the other threads continue.
    pub(crate) fn release(self) {
        drop(self);
    }

    /// Leaves the other threads suspended until the process has died of its crash.
    pub(crate) fn leave_stopped(self) {
        core::mem::forget(self);
    }
}

impl Drop for SuspendedOthers {
    fn drop(&mut self) {
        for entry in self.table.entries.iter().take(self.table.count) {
            threads::resume(entry.port);
        }
        self.table.count = 0;
        // Their ports and the lists' memory are released last, with the fields.
    }
}

/// Takes an exception of another thread, which came before that thread was suspended. Returns
/// `None` if it is answered: it is not this process's, or the thread continues after it, see
/// [`mach_exception::is_recovered`].
fn take_in(installed: &Installed, request: Request) -> Option<Waiting> {
    if !mach_exception::is_ours(&request) {
        request.answer(mach2::kern_return::KERN_FAILURE);
        return None;
    }
    if mach_exception::is_recovered(installed, &request) {
        return None;
    }
    let signal = mach_exception::signal_of(request.exception, request.codes);
    if ignored_signals::take_ignored(request.tid, signal) {
        return Some(Waiting::Ignored(request));
    }
    let is_access = request.exception == mach_exception::EXC_BAD_ACCESS;
    let address = is_access.then_some(request.codes[1] as u64);
    add(request.tid, (signal, request.codes[0] as i32), address);
    Some(Waiting::Exception(request))
}

/// Adds a crash to the report that is being written.
fn add(tid: Tid, (signal, code): (i32, i32), address: Option<u64>) {
    let crash = ConcurrentCrash { tid, signal, code, address, after_ns: Some(threads::monotonic_now()) };
    CONCURRENT.add(&crash, REPORT_LOCK.releases());
}

/// Converts a scheduler state to the report's form.
fn thread_state(state: RunState) -> ThreadState {
    match state {
        RunState::Running => ThreadState::RUNNING,
        RunState::Stopped => ThreadState::STOPPED,
        RunState::Waiting => ThreadState::BLOCKED,
        RunState::Uninterruptible => ThreadState::UNINTERRUPTIBLE,
        RunState::Halted => ThreadState::IDLE,
    }
}

/// Returns `None`: the kernel's list is the only source.
pub(crate) fn count(_resources: &Resources) -> Option<u64> {
    None
}

/// Describes the crashed thread without its registers.
pub(crate) fn crashed(installed: &Installed, context: &CrashContext, memory: &mut impl Memory) -> Description {
    let port = installed.platform.crashed.load(core::sync::atomic::Ordering::Acquire);
    let places = threads::facts(port).map_or((0, 0), |facts| (facts.queue_at, facts.specific));
    describe(installed, port, context.tid, places, memory)
}

/// Describes a thread without its registers. `queue_at` and `specific` are the addresses that lead
/// to its dispatch queue and to its own data.
fn describe(
    installed: &Installed,
    port: mach_port_t,
    tid: Tid,
    (queue_at, specific): (u64, u64),
    memory: &mut impl Memory,
) -> Description {
    let activity = threads::activity(port);
    Description {
        name: activity.map(|activity| activity.name),
        flags: main_flag(tid == installed.platform.main_thread),
        queue: QueueName::read(queue_at, installed.platform.label_offset, memory),
        cpu_time: activity.map(|activity| activity.cpu_time),
        swift_async: SwiftAsync::for_darwin_thread(memory, specific),
        port: (port != 0).then_some(port),
        ..Description::default()
    }
}

pub(crate) struct OtherThread<'a> {
    entry: &'a SuspendedThread,
    context: Option<Context>,
}

impl OtherThread<'_> {
    pub(crate) fn tid(&self) -> u64 {
        self.entry.tid
    }

    /// Returns `true` if the thread's registers were captured.
    pub(crate) fn is_captured(&self) -> bool {
        self.context.is_some()
    }

    /// Returns the thread's stack pointer, if it is suspended.
    pub(crate) fn stack_pointer(&self, installed: &Installed) -> Option<u64> {
        let handed = installed.platform.handed_over.of_thread(self.entry.tid).map(|context| context.registers);
        handed.or_else(|| self.context.map(|context| context.registers())).map(|registers| registers.sp())
    }

    /// Describes the thread. `given_up` is the reason why its registers must not be used.
    pub(crate) fn describe(
        &self,
        installed: &Installed,
        _context: &CrashContext,
        given_up: Option<wire::NotCaptured>,
        memory: &mut impl Memory,
    ) -> Description {
        let SuspendedThread { port, state, tid, queue_at, specific } = *self.entry;
        // A thread that hands its crash over waits in Coroner's handler: its registers are those of
        // the crash.
        let handed = installed.platform.handed_over.of_thread(tid).map(|context| context.registers);
        let captured_by = if handed.is_some() { CaptureMethod::CRASH_CONTEXT } else { CaptureMethod::MACH };
        let registers = handed.or_else(|| self.context.map(|context| context.registers()));
        let registers = registers.filter(|_| given_up.is_none());
        let waits = registers.as_ref().and_then(|registers| wait_of(registers, memory));
        let not_captured = match (&registers, given_up) {
            (Some(_), _) => None,
            (None, Some(reason)) => Some(reason),
            (None, None) => Some(wire::NotCaptured::ENDED),
        };
        Description {
            state: (state != 0).then_some(ThreadState(state)),
            syscall: waits.map(|(number, _)| number),
            futex: waits.map(|(_, wait)| wait),
            captured_by: registers.is_some().then_some(captured_by),
            not_captured,
            registers,
            ..describe(installed, port, tid, (queue_at, specific), memory)
        }
    }
}
