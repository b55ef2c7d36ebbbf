//! The threads besides the crashed one: asked to stop, waited for, traced if they don't respond,
//! described for the report.

use coroner_process::futex_wait::FutexWait;
use coroner_process::memory::Memory;
use coroner_process::process;
use coroner_process::stop_the_world::{self, Capture, NotCaptured, OnlyTracer, StoppedThreads};
use coroner_process::threads::{Activity, KernelState, TaskList, monotonic_now, this_thread_name};
use coroner_report::wire::{self, CaptureMethod, ThreadFlags, ThreadState};

use super::platform_state::Resources;
use crate::crash_context::{CrashContext, Ending};
use crate::installed::Installed;
use crate::thread_description::{Description, main_flag};

/// Time in nanoseconds that other threads have to respond before they are traced: longer than a
/// busy machine takes to run a thread once.
const GRACE_NS: u64 = 30_000_000;
/// Maximum time to wait for the other threads, in nanoseconds.
const STOP_NS: u64 = 500_000_000;
/// Additional time for tracing, in nanoseconds.
const TRACE_NS: u64 = 500_000_000;

/// The other threads, from the request to stop on. Dropping it lets them continue.
pub(crate) struct OtherThreads<'r> {
    threads: StoppedThreads<'r>,
    resources: &'r Resources,
    /// Whether the threads continue afterwards, and must not notice: they are traced, and a signal
    /// is sent only if that is not allowed.
    traced: bool,
    /// Keeps live backtraces from tracing the reporting thread meanwhile; dropped last.
    _only_tracer: Option<OnlyTracer>,
}

impl<'r> OtherThreads<'r> {
    /// Asks all other threads to stop, without waiting. Returns `None` if that isn't possible.
    pub(crate) fn begin(
        installed: &'static Installed,
        resources: &'r Resources,
        context: &CrashContext,
    ) -> Option<OtherThreads<'r>> {
        let (stopper, tasks) = (&installed.platform.stopper, &resources.tasks);
        let continues = context.ending() == Ending::NonFatal;
        // A filter may kill the process for asking whether it may be traced, and for a timer.
        let is_filtered = process::has_seccomp_filter();
        // Claimed while nobody is stopped yet.
        let until = || monotonic_now().saturating_add(TRACE_NS);
        let only_tracer = if continues && !is_filtered { OnlyTracer::claim(until()).ok() } else { None };
        let traced = only_tracer.is_some();
        let threads = if traced {
            stopper.begin_silently(tasks, &[])
        } else if continues {
            stopper.begin_carefully(tasks, &[])
        } else {
            stopper.begin(tasks, &[])
        };
        let threads = threads?;
        if is_filtered {
            stopper.watch_asker();
        }
        Some(OtherThreads { threads, resources, traced, _only_tracer: only_tracer })
    }

    /// Waits for the other threads, and traces those that don't respond.
    ///
    /// Not inlined, so that the numbers of its system calls are next to them (`xtask signal-safety`
    /// reads them there).
    #[inline(never)]
    pub(crate) fn stop(&mut self, _installed: &'static Installed) {
        let tracer = &self.resources.tracer;
        if self.traced {
            self.threads.trace_all(tracer, monotonic_now().saturating_add(TRACE_NS));
        }
        let progress = self.threads.wait(GRACE_NS, STOP_NS);
        if progress.captured < progress.threads && !self.traced {
            self.threads.trace(tracer, monotonic_now().saturating_add(TRACE_NS));
        }
    }

    /// Iterates over the other threads.
    pub(crate) fn threads(&self) -> impl Iterator<Item = OtherThread<'_>> {
        self.threads.threads().map(|thread| OtherThread { thread, tasks: &self.resources.tasks })
    }

    /// Returns the number of threads that did not fit in the table.
    pub(crate) fn overflow(&self) -> usize {
        self.threads.overflow()
    }

    /// Returns `false` if the kernel refused a list of the threads, so that some may be missing.
    pub(crate) fn are_listed(&self) -> bool {
        self.threads.listing().error.is_none()
    }

    /// Lets the other threads continue.
    pub(crate) fn release(self) {
        self.threads.release();
    }

    /// Leaves the other threads stopped for that time, or until [`resume`].
    pub(crate) fn leave_stopped_for(self, nanoseconds: u64) {
        self.threads.leave_stopped_for(nanoseconds);
    }

    /// Leaves the other threads stopped until the process has died of its crash.
    pub(crate) fn leave_stopped(self) {
        self.threads.leave_stopped();
    }
}

/// Returns the number of threads in the process, without a list of them.
pub(crate) fn count(resources: &Resources) -> Option<u64> {
    resources.tasks.count().ok().map(|count| count as u64)
}

/// Lets the threads that were left stopped continue.
pub(crate) fn resume(installed: &Installed) {
    installed.platform.stopper.resume_all();
}

/// Describes the crashed thread, which is the calling one, without its registers.
pub(crate) fn crashed(_installed: &Installed, context: &CrashContext, memory: &mut impl Memory) -> Description {
    let flags = main_flag(context.tid == context.pid);
    // A signal sent by another process may have interrupted it in a system call.
    let is_elsewhere = context.is_memory_fault || context.uncaught.is_some();
    let activity = if is_elsewhere { Activity::Running } else { Activity::of(&context.registers, memory) };
    let (state, syscall) = doing(activity);
    let futex = syscall.and_then(|number| FutexWait::of(&context.registers, number, memory));
    Description { name: Some(this_thread_name()), flags, state, syscall, futex, ..Description::default() }
}

/// Returns what a thread was doing, and in which system call.
fn doing(activity: Activity) -> (Option<ThreadState>, Option<i64>) {
    match activity {
        Activity::InSystemCall { number } => (Some(ThreadState::BLOCKED), number.map(i64::from)),
        _ => (Some(ThreadState::RUNNING), None),
    }
}

pub(crate) struct OtherThread<'a> {
    thread: stop_the_world::Thread<'a>,
    tasks: &'a TaskList,
}

impl OtherThread<'_> {
    pub(crate) fn tid(&self) -> u64 {
        self.thread.tid as u64
    }

    /// Returns `true` if the thread's registers were captured.
    pub(crate) fn is_captured(&self) -> bool {
        self.thread.capture.registers().is_some()
    }

    /// Returns the thread's stack pointer, if it is stopped.
    pub(crate) fn stack_pointer(&self, _installed: &Installed) -> Option<u64> {
        self.thread.capture.registers().map(|registers| registers.sp())
    }

    /// Describes the thread. `given_up` is the reason why its registers must not be used.
    pub(crate) fn describe(
        &self,
        _installed: &Installed,
        context: &CrashContext,
        given_up: Option<wire::NotCaptured>,
        memory: &mut impl Memory,
    ) -> Description {
        let OtherThread { thread, tasks } = self;
        let name = thread.name.or_else(|| tasks.name(thread.tid).ok());
        let mut flags = main_flag(thread.tid == context.pid);
        if matches!(thread.capture, Capture::Crashed(_)) {
            flags = flags.with(ThreadFlags::CRASHED);
        }
        let registers = if given_up.is_some() { None } else { thread.capture.registers() };
        let (state, syscall) = match &registers {
            Some(registers) => doing(Activity::of(registers, memory)),
            None => (tasks.state(thread.tid).ok().and_then(thread_state), None),
        };
        let futex = registers.as_ref().zip(syscall);
        let futex = futex.and_then(|(registers, number)| FutexWait::of(registers, number, memory));
        let not_captured = match &thread.capture {
            Capture::Not(why) => Some(reason(*why)),
            _ => given_up,
        };
        let captured_by = match &thread.capture {
            Capture::Stopped(_) => Some(CaptureMethod::SIGNAL),
            Capture::Crashed(_) => Some(CaptureMethod::CRASH_CONTEXT),
            Capture::Traced(_) => Some(CaptureMethod::PTRACE),
            Capture::Not(_) => None,
        };
        // On Linux, Swift marks no frames, and there are no dispatch queues.
        Description {
            name,
            flags,
            state,
            syscall,
            futex,
            captured_by,
            not_captured,
            registers,
            ..Description::default()
        }
    }
}

/// Converts a kernel state to the report's form.
fn thread_state(state: KernelState) -> Option<ThreadState> {
    Some(match state {
        KernelState::Running => ThreadState::RUNNING,
        KernelState::Sleeping => ThreadState::BLOCKED,
        KernelState::DiskSleep => ThreadState::UNINTERRUPTIBLE,
        KernelState::Stopped | KernelState::Traced => ThreadState::STOPPED,
        KernelState::Zombie | KernelState::Dead => ThreadState::ENDED,
        KernelState::Idle | KernelState::Parked => ThreadState::IDLE,
        KernelState::Unknown => return None,
    })
}

/// Converts the reason why a thread has no registers to the report's form.
fn reason(reason: NotCaptured) -> wire::NotCaptured {
    match reason {
        NotCaptured::SignalDenied | NotCaptured::HelperDenied | NotCaptured::TraceDenied | NotCaptured::OwnFilter => {
            wire::NotCaptured::DENIED
        }
        NotCaptured::ThreadGone | NotCaptured::KernelThread => wire::NotCaptured::ENDED,
        NotCaptured::TraceUnsupported | NotCaptured::SignalUnsafe => wire::NotCaptured::SIGNAL_BLOCKED,
        NotCaptured::Uninterruptible => wire::NotCaptured::UNINTERRUPTIBLE,
        NotCaptured::RegistersUnreadable => wire::NotCaptured::FAULT,
        NotCaptured::TableFull => wire::NotCaptured::LIMIT,
        // `NoAnswer`, and a helper or a signal that was not available.
        _ => wire::NotCaptured::NO_ANSWER,
    }
}
