//! Why a thread's registers are missing from a report.

/// Why a thread was not captured. The numbers are part of the report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum NotCaptured {
    /// The thread did not answer the signal in time, and nothing else was tried.
    ///
    /// It blocks the signal, is starved of processor time, or waits in the kernel.
    NoAnswer = 1,
    /// The signal could not be queued: `RLIMIT_SIGPENDING` is exhausted.
    SignalQueueFull = 2,
    /// A sandbox or the kernel refused to send the signal.
    SignalDenied = 3,
    /// The thread exited meanwhile.
    ThreadGone = 4,
    /// The thread did not answer, and no process can be created for the tracing helper.
    ///
    /// `EAGAIN`: `RLIMIT_NPROC`, the pids cgroup.
    NoProcessLeft = 5,
    /// The thread did not answer, and a sandbox or the kernel refused to start the tracing helper.
    HelperDenied = 6,
    /// The thread did not answer, and this system (an emulator) doesn't support tracing.
    TraceUnsupported = 7,
    /// The thread did not answer, and tracing it was refused.
    ///
    /// The process is not dumpable; or Yama, a sandbox, or another tracer prevents it.
    TraceDenied = 8,
    /// The thread waits uninterruptibly in the kernel (state D).
    ///
    /// For a disk, a stopped server or a vfork child.
    Uninterruptible = 9,
    /// The thread neither answered nor stopped for the tracing helper in time.
    TraceDeadline = 10,
    /// The thread did not answer, and the tracing helper died or did not answer either.
    HelperDied = 11,
    /// The thread was stopped, but its registers could not be read.
    RegistersUnreadable = 12,
    /// There are more threads than the tables hold.
    TableFull = 13,
    /// The thread is a kernel thread in this process (an io_uring worker).
    ///
    /// It has no registers of the app's.
    KernelThread = 14,
    /// The thread was not sent the signal, which the app would receive (sigwaitinfo, signalfd).
    SignalUnsafe = 15,
    /// The thread was not stopped: a seccomp filter of its own might kill it for that.
    OwnFilter = 16,
}

impl core::fmt::Display for NotCaptured {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            NotCaptured::NoAnswer => "it did not answer the signal in time",
            NotCaptured::SignalQueueFull => "the signal could not be queued: RLIMIT_SIGPENDING is used up",
            NotCaptured::SignalDenied => "a sandbox or the kernel refused to send the signal",
            NotCaptured::ThreadGone => "the thread has ended",
            NotCaptured::NoProcessLeft => "it did not answer, and no process can be created to trace it",
            NotCaptured::HelperDenied => {
                "it did not answer, and a sandbox or the kernel refused to start the tracing helper"
            }
            NotCaptured::TraceUnsupported => "it did not answer, and this system doesn't support tracing",
            NotCaptured::TraceDenied => "it did not answer, and the system refused to trace it",
            NotCaptured::Uninterruptible => "it waits in the kernel and can't be interrupted",
            NotCaptured::TraceDeadline => "it neither answered nor stopped for the tracing helper in time",
            NotCaptured::HelperDied => "it did not answer, and the tracing helper died or did not answer either",
            NotCaptured::RegistersUnreadable => "its registers can't be read",
            NotCaptured::TableFull => "there are more threads than the tables can hold",
            NotCaptured::KernelThread => "it is a kernel thread",
            NotCaptured::SignalUnsafe => "it blocks or awaits signals, and might receive the one that stops it",
            NotCaptured::OwnFilter => "it has a seccomp filter of its own, which may kill it for being stopped",
        })
    }
}

impl core::error::Error for NotCaptured {}

impl NotCaptured {
    /// Whether the reason is that threads can't be traced here: a signal may still reach this one.
    pub const fn is_trace_refused(self) -> bool {
        use NotCaptured::{HelperDenied, HelperDied, NoProcessLeft, TraceDenied, TraceUnsupported};
        matches!(self, NoProcessLeft | HelperDenied | TraceUnsupported | TraceDenied | HelperDied)
    }

    /// Returns the reason with this number in a report.
    pub const fn from_number(number: u8) -> Option<NotCaptured> {
        Some(match number {
            1 => NotCaptured::NoAnswer,
            2 => NotCaptured::SignalQueueFull,
            3 => NotCaptured::SignalDenied,
            4 => NotCaptured::ThreadGone,
            5 => NotCaptured::NoProcessLeft,
            6 => NotCaptured::HelperDenied,
            7 => NotCaptured::TraceUnsupported,
            8 => NotCaptured::TraceDenied,
            9 => NotCaptured::Uninterruptible,
            10 => NotCaptured::TraceDeadline,
            11 => NotCaptured::HelperDied,
            12 => NotCaptured::RegistersUnreadable,
            13 => NotCaptured::TableFull,
            14 => NotCaptured::KernelThread,
            15 => NotCaptured::SignalUnsafe,
            16 => NotCaptured::OwnFilter,
            _ => return None,
        })
    }
}
