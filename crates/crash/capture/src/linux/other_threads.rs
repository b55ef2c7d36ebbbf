//! The threads besides the crashed one: asked to stop, waited for, traced where they are silent, described for the report.

use coroner_process::futex_wait::FutexWait;
use coroner_process::memory::Memory;
use coroner_process::process;
use coroner_process::stop_the_world::{self, Capture, NotCaptured, StoppedThreads};
use coroner_process::threads::{Activity, KernelState, monotonic_now, this_thread_name};
use coroner_report::wire::{self, CaptureMethod, ThreadFlags, ThreadState};

use super::platform_state::PlatformState;
use crate::crash_context::{CrashContext, Ending};
use crate::installed::Installed;
use crate::thread_description::{Description, main_flag};

/// How long other threads may be silent before they are traced: longer than a busy machine takes to run a thread once.
const GRACE_NS: u64 = 30_000_000;
/// How long they are waited for at most.
const STOP_NS: u64 = 500_000_000;
/// How long tracing may take on top of that.
const TRACE_NS: u64 = 500_000_000;

/// The other threads, from the request to stop on. Dropping it lets them go.
pub(crate) struct OtherThreads {
    threads: StoppedThreads<'static>,
    /// They go on afterwards, and are not to notice: they are traced, and sent a signal only where that is not allowed.
    traced: bool,
}

impl OtherThreads {
    /// Asks all other threads to stop; waits for none. `None` if that can't be done.
    pub(crate) fn begin(installed: &'static Installed, context: &CrashContext) -> Option<OtherThreads> {
        let PlatformState { stopper, tasks, .. } = &installed.platform;
        if process::has_seccomp_filter() {
            // A filter may kill the process for asking whether it may be traced, and for a timer.
            let threads = stopper.begin(tasks, &[])?;
            let limit = u64::from(installed.options.deadline_ms).saturating_mul(1_000_000);
            stopper.watch_asker(monotonic_now().saturating_add(limit));
            return Some(OtherThreads { threads, traced: false });
        }
        let traced = context.ending() == Ending::NonFatal;
        let threads = if traced { stopper.begin_silently(tasks, &[]) } else { stopper.begin(tasks, &[]) };
        Some(OtherThreads { threads: threads?, traced })
    }

    /// Waits for them, and has the silent ones traced.
    ///
    /// Not inlined, so that the numbers of its system calls stand beside them (`xtask signal-safety` reads them there).
    #[inline(never)]
    pub(crate) fn stop(&mut self, installed: &'static Installed) {
        let tracer = &installed.platform.tracer;
        if self.traced {
            self.threads.trace_all(tracer, monotonic_now().saturating_add(TRACE_NS));
        }
        let progress = self.threads.wait(GRACE_NS, monotonic_now().saturating_add(STOP_NS));
        if progress.captured < progress.threads && !self.traced {
            self.threads.trace(tracer, monotonic_now().saturating_add(TRACE_NS));
        }
    }

    /// Each of them.
    pub(crate) fn threads(&self) -> impl Iterator<Item = OtherThread<'_>> {
        self.threads.threads().map(OtherThread)
    }

    /// Those that found no room.
    pub(crate) fn overflow(&self) -> usize {
        self.threads.overflow()
    }

    /// They go on.
    pub(crate) fn release(self) {
        self.threads.release();
    }

    /// They stay stopped for that time, or until [`resume`].
    pub(crate) fn leave_stopped_for(self, nanoseconds: u64) {
        self.threads.leave_stopped_for(nanoseconds);
    }

    /// They stay stopped until the process has died of its crash.
    pub(crate) fn leave_stopped(self) {
        self.threads.leave_stopped();
    }
}

/// The threads that were left stopped go on.
pub(crate) fn resume(installed: &Installed) {
    installed.platform.stopper.resume_all();
}

/// The crashed thread, which is the calling one, but for its registers.
pub(crate) fn crashed(_installed: &Installed, context: &CrashContext, memory: &mut impl Memory) -> Description {
    let flags = main_flag(context.tid == context.pid);
    // A signal that somebody sent may have found it in a system call.
    let is_elsewhere = context.is_memory_fault || context.uncaught.is_some();
    let activity = if is_elsewhere { Activity::Running } else { Activity::of(&context.registers, memory) };
    let (state, syscall) = doing(activity);
    let futex = syscall.and_then(|number| FutexWait::of(&context.registers, number, memory));
    Description { name: Some(this_thread_name()), flags, state, syscall, futex, ..Description::default() }
}

/// What a thread was doing, and in which system call.
fn doing(activity: Activity) -> (Option<ThreadState>, Option<i64>) {
    match activity {
        Activity::InSystemCall { number } => (Some(ThreadState::BLOCKED), number.map(i64::from)),
        _ => (Some(ThreadState::RUNNING), None),
    }
}

pub(crate) struct OtherThread<'a>(stop_the_world::Thread<'a>);

impl OtherThread<'_> {
    pub(crate) fn tid(&self) -> u64 {
        self.0.tid as u64
    }

    /// Whether there are registers of it.
    pub(crate) fn is_captured(&self) -> bool {
        self.0.capture.registers().is_some()
    }

    /// Its stack pointer, if it stands.
    pub(crate) fn stack_pointer(&self, _installed: &Installed) -> Option<u64> {
        self.0.capture.registers().map(|registers| registers.sp())
    }

    /// What there is to say of it. `given_up` says why its registers are not to be used.
    pub(crate) fn describe(
        &self,
        installed: &Installed,
        context: &CrashContext,
        given_up: Option<wire::NotCaptured>,
        memory: &mut impl Memory,
    ) -> Description {
        let thread = &self.0;
        let tasks = &installed.platform.tasks;
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
        // Swift marks no frames here, and there are no dispatch queues.
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

/// A kernel state as the report has it.
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

/// Why a thread has no registers, as the report has it.
fn reason(reason: NotCaptured) -> wire::NotCaptured {
    match reason {
        NotCaptured::SignalDenied | NotCaptured::HelperDenied | NotCaptured::TraceDenied => wire::NotCaptured::DENIED,
        NotCaptured::ThreadGone | NotCaptured::KernelThread => wire::NotCaptured::ENDED,
        NotCaptured::TraceUnsupported => wire::NotCaptured::SIGNAL_BLOCKED,
        NotCaptured::Uninterruptible => wire::NotCaptured::UNINTERRUPTIBLE,
        NotCaptured::RegistersUnreadable => wire::NotCaptured::FAULT,
        NotCaptured::TableFull => wire::NotCaptured::LIMIT,
        // `NoAnswer`, and a helper or a signal that could not be had.
        _ => wire::NotCaptured::NO_ANSWER,
    }
}
