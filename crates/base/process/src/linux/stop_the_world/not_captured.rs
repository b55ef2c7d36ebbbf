//! Why a thread's registers are missing from a report.

/// Why a thread was not captured. The numbers are part of the report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum NotCaptured {
    /// It was asked by signal and did not answer in time (it blocks the signal, it is starved of processor time, or it
    /// waits in the kernel), and nothing else was tried.
    NoAnswer = 1,
    /// The signal could not be queued: `RLIMIT_SIGPENDING` is used up.
    SignalQueueFull = 2,
    /// A sandbox or the kernel refused to send the signal.
    SignalDenied = 3,
    /// It ended meanwhile.
    ThreadGone = 4,
    /// It did not answer, and the tracing helper could not be started because no process may be made (`EAGAIN`:
    /// `RLIMIT_NPROC`, the pids cgroup).
    NoProcessLeft = 5,
    /// It did not answer, and a sandbox or the kernel refused to start the tracing helper.
    HelperDenied = 6,
    /// It did not answer, and this system can't start a tracing helper or trace at all (an emulator).
    TraceUnsupported = 7,
    /// It did not answer, and tracing it was refused: the process is not dumpable, Yama, a sandbox, or another tracer.
    TraceDenied = 8,
    /// It waits in the kernel and can't be interrupted (state D): a disk, a stopped server, a vfork child.
    Uninterruptible = 9,
    /// It did not answer, nor stop for the tracing helper, in time.
    TraceDeadline = 10,
    /// It did not answer, and the tracing helper died or did not answer either.
    HelperDied = 11,
    /// It was stopped, but its registers could not be read.
    RegistersUnreadable = 12,
    /// More threads than the tables hold.
    TableFull = 13,
    /// It is a thread of the kernel's in this process (io_uring's workers): it has no registers of the app's.
    KernelThread = 14,
}

impl core::fmt::Display for NotCaptured {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            NotCaptured::NoAnswer => "it did not answer the signal in time",
            NotCaptured::SignalQueueFull => "the signal could not be queued: RLIMIT_SIGPENDING is used up",
            NotCaptured::SignalDenied => "a sandbox or the kernel refused to send the signal",
            NotCaptured::ThreadGone => "the thread has ended",
            NotCaptured::NoProcessLeft => "it did not answer, and no process may be made to trace it",
            NotCaptured::HelperDenied => {
                "it did not answer, and a sandbox or the kernel refused to start the tracing helper"
            }
            NotCaptured::TraceUnsupported => "it did not answer, and this system can't trace",
            NotCaptured::TraceDenied => "it did not answer, and tracing it was refused",
            NotCaptured::Uninterruptible => "it waits in the kernel and can't be interrupted",
            NotCaptured::TraceDeadline => "it neither answered nor stopped for the tracing helper in time",
            NotCaptured::HelperDied => "it did not answer, and the tracing helper died or did not answer either",
            NotCaptured::RegistersUnreadable => "its registers can't be read",
            NotCaptured::TableFull => "there are more threads than the tables hold",
            NotCaptured::KernelThread => "it is a thread of the kernel's",
        })
    }
}

impl core::error::Error for NotCaptured {}

impl NotCaptured {
    /// Whether it says that threads can't be traced here: a signal may still reach this one.
    pub const fn is_trace_refused(self) -> bool {
        use NotCaptured::{HelperDenied, HelperDied, NoProcessLeft, TraceDenied, TraceUnsupported};
        matches!(self, NoProcessLeft | HelperDenied | TraceUnsupported | TraceDenied | HelperDied)
    }

    /// The reason of that number in a report.
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
            _ => return None,
        })
    }
}
