//! The threads besides the crashed one: asked to stop, waited for, traced where they are silent, described for the report.

use coroner_machine::memory::Memory;
use coroner_machine::registers::Registers;
use coroner_machine::rendezvous::{self, Capture, NotCaptured, Round};
use coroner_machine::threads::{Activity, KernelState, monotonic_now, this_thread_name};
use coroner_report::wire::{self, CaptureMethod, ThreadFlags, ThreadState};
use coroner_unwind::SwiftAsync;

use crate::global::Global;
use crate::pipeline::incident::Incident;

pub(crate) use coroner_machine::threads::ThreadName;

/// How long other threads may be silent before they are traced: longer than a busy machine takes to run a thread once.
const GRACE_NS: u64 = 30_000_000;
/// How long they are waited for at most.
const STOP_NS: u64 = 500_000_000;
/// How long tracing may take on top of that.
const TRACE_NS: u64 = 500_000_000;

/// The other threads, from the request to stop on.
pub(crate) struct Others(Round<'static>);

impl Others {
    /// Asks all other threads to stop; waits for none. Nothing where that can't be done.
    pub(crate) fn begin(global: &'static Global, _incident: &Incident) -> Option<Others> {
        global.os.rendezvous.begin(&global.os.tasks, &[]).map(Others)
    }

    /// Waits for them, and has the silent ones traced.
    ///
    /// Not inlined, so that the numbers of its system calls stand beside them (`xtask signal-safety` reads them there).
    #[inline(never)]
    pub(crate) fn stop(&mut self, global: &'static Global) {
        let now = monotonic_now();
        let progress = self.0.wait(GRACE_NS, now.saturating_add(STOP_NS));
        if progress.silent > 0 {
            self.0.trace(&global.os.tracer, monotonic_now().saturating_add(TRACE_NS));
        }
    }

    /// Each of them.
    pub(crate) fn threads(&self) -> impl Iterator<Item = Thread<'_>> {
        self.0.threads().map(Thread)
    }

    /// Those that found no room.
    pub(crate) fn overflow(&self) -> usize {
        self.0.overflow()
    }

    /// They stand still until the signal has been passed on, see [`super::report::finish`].
    pub(crate) fn hold(self, global: &Global) {
        // SAFETY: the owner's own field.
        unsafe { *global.os.held.get() = Some(self.0) };
    }
}

/// What the report says of the crashed thread besides its registers.
pub(crate) struct Crashed {
    pub name: ThreadName,
    pub is_main: bool,
    pub queue: Option<QueueName>,
    pub cpu_time: Option<(u64, u64)>,
    pub swift_async: SwiftAsync,
}

/// The crashed thread, which is the calling one.
pub(crate) fn crashed(_global: &Global, incident: &Incident, _memory: &mut impl Memory) -> Crashed {
    // Swift marks no frames here.
    let swift_async = SwiftAsync::Ignore;
    let is_main = incident.tid == incident.pid;
    Crashed { name: this_thread_name(), is_main, queue: None, cpu_time: None, swift_async }
}

/// The name of a dispatch queue: Linux has none.
pub(crate) enum QueueName {}

impl QueueName {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match *self {}
    }
}

/// What the report says of a thread.
pub(crate) struct Description {
    pub name: Option<ThreadName>,
    pub flags: ThreadFlags,
    pub is_main: bool,
    pub state: Option<ThreadState>,
    pub syscall: Option<i64>,
    pub queue: Option<QueueName>,
    pub cpu_time: Option<(u64, u64)>,
    pub captured_by: Option<CaptureMethod>,
    pub not_captured: Option<wire::NotCaptured>,
    pub registers: Option<Registers>,
    pub swift_async: SwiftAsync,
}

/// One of the other threads.
pub(crate) struct Thread<'a>(rendezvous::Thread<'a>);

impl Thread<'_> {
    pub(crate) fn tid(&self) -> u64 {
        self.0.tid as u64
    }

    /// Whether there are registers of it.
    pub(crate) fn is_captured(&self) -> bool {
        self.0.capture.registers().is_some()
    }

    /// What there is to say of it. `given_up` says why its registers are not to be used.
    pub(crate) fn describe(
        &self,
        global: &Global,
        incident: &Incident,
        given_up: Option<wire::NotCaptured>,
        memory: &mut impl Memory,
    ) -> Description {
        let thread = &self.0;
        let tasks = &global.os.tasks;
        let name = thread.name.or_else(|| tasks.name(thread.tid).ok());
        let mut flags = ThreadFlags::default();
        if matches!(thread.capture, Capture::HandedIn(_)) {
            flags = flags.with(ThreadFlags::CRASHED);
        }
        let registers = if given_up.is_some() { None } else { thread.capture.registers() };
        let (state, syscall) = match &registers {
            Some(registers) => match Activity::of(registers, memory) {
                Activity::InSystemCall { number } => (Some(ThreadState::BLOCKED), number.map(i64::from)),
                _ => (Some(ThreadState::RUNNING), None),
            },
            None => (tasks.state(thread.tid).ok().and_then(thread_state), None),
        };
        let not_captured = match &thread.capture {
            Capture::Not(why) => Some(reason(*why)),
            _ => given_up,
        };
        let captured_by = match &thread.capture {
            Capture::Parked(_) => Some(CaptureMethod::SIGNAL),
            Capture::HandedIn(_) => Some(CaptureMethod::CRASH_CONTEXT),
            Capture::Stopped(_) => Some(CaptureMethod::PTRACE),
            Capture::Not(_) => None,
        };
        let is_main = thread.tid == incident.pid;
        let (queue, cpu_time) = (None, None);
        let swift_async = SwiftAsync::Ignore;
        Description {
            name,
            flags,
            is_main,
            state,
            syscall,
            queue,
            cpu_time,
            captured_by,
            not_captured,
            registers,
            swift_async,
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
        NotCaptured::SignalQueueFull
        | NotCaptured::NoProcessLeft
        | NotCaptured::HelperDied
        | NotCaptured::TraceDeadline
        | NotCaptured::NoAnswer => wire::NotCaptured::NO_ANSWER,
        NotCaptured::SignalDenied | NotCaptured::HelperDenied | NotCaptured::TraceDenied => wire::NotCaptured::DENIED,
        NotCaptured::ThreadGone => wire::NotCaptured::ENDED,
        NotCaptured::TraceUnsupported => wire::NotCaptured::SIGNAL_BLOCKED,
        NotCaptured::Uninterruptible => wire::NotCaptured::UNINTERRUPTIBLE,
        NotCaptured::RegistersUnreadable => wire::NotCaptured::FAULT,
        NotCaptured::TableFull => wire::NotCaptured::LIMIT,
    }
}
