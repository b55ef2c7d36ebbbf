//! What an app decides about crash time, before anything has happened.

use coroner_report::run_state::Limits;

/// A set of signals, one bit each (bit `n - 1` is signal `n`, as in the kernel's `sigset_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalSet(u64);

impl SignalSet {
    /// No signal.
    pub const EMPTY: SignalSet = SignalSet(0);

    /// The signals of a crash: SEGV, BUS, ILL, FPE, ABRT, TRAP and SYS.
    pub const CRASHES: SignalSet = SignalSet::EMPTY
        .with(libc::SIGSEGV)
        .with(libc::SIGBUS)
        .with(libc::SIGILL)
        .with(libc::SIGFPE)
        .with(libc::SIGABRT)
        .with(libc::SIGTRAP)
        .with(libc::SIGSYS);

    /// Signals that end a process by default and are asked for, or expected, rather than a crash: TERM, INT, HUP, QUIT, PIPE, ALRM, XCPU
    /// and USR1.
    pub const ENDINGS: SignalSet = SignalSet::EMPTY
        .with(libc::SIGTERM)
        .with(libc::SIGINT)
        .with(libc::SIGHUP)
        .with(libc::SIGQUIT)
        .with(libc::SIGPIPE)
        .with(libc::SIGALRM)
        .with(libc::SIGXCPU)
        .with(libc::SIGUSR1);

    /// The set and one more signal. Numbers outside 1..=64 change nothing.
    #[must_use]
    pub const fn with(self, signal: i32) -> SignalSet {
        SignalSet(self.0 | Self::bit(signal))
    }

    /// The set less one signal.
    #[must_use]
    pub const fn without(self, signal: i32) -> SignalSet {
        SignalSet(self.0 & !Self::bit(signal))
    }

    /// Whether the signal is in the set.
    pub const fn contains(self, signal: i32) -> bool {
        self.0 & Self::bit(signal) != 0
    }

    /// The set as the kernel has it.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The bit of one signal, 0 for a number that is no signal.
    const fn bit(signal: i32) -> u64 {
        if signal >= 1 && signal <= 64 { 1 << (signal - 1) } else { 0 }
    }
}

/// A set of Mach exceptions, one bit each (bit `n` is exception `n`, as in `exception_mask_t`). Only Darwin has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExceptionSet(u32);

impl ExceptionSet {
    /// No exception: all deaths are left to the signal monitor.
    pub const EMPTY: ExceptionSet = ExceptionSet(0);
    /// `EXC_BAD_ACCESS`: memory that is not there or may not be touched so.
    pub const BAD_ACCESS: ExceptionSet = ExceptionSet(1 << 1);
    /// `EXC_BAD_INSTRUCTION`: an undefined or privileged instruction.
    pub const BAD_INSTRUCTION: ExceptionSet = ExceptionSet(1 << 2);
    /// `EXC_ARITHMETIC`: a division by zero and its like.
    pub const ARITHMETIC: ExceptionSet = ExceptionSet(1 << 3);
    /// `EXC_SOFTWARE`: raised by software.
    pub const SOFTWARE: ExceptionSet = ExceptionSet(1 << 5);
    /// `EXC_BREAKPOINT`: a trap instruction.
    pub const BREAKPOINT: ExceptionSet = ExceptionSet(1 << 6);
    /// `EXC_GUARD`: a guarded resource was misused.
    pub const GUARD: ExceptionSet = ExceptionSet(1 << 12);

    /// All of the above.
    pub const CRASHES: ExceptionSet = ExceptionSet::BAD_ACCESS
        .with(ExceptionSet::BAD_INSTRUCTION)
        .with(ExceptionSet::ARITHMETIC)
        .with(ExceptionSet::SOFTWARE)
        .with(ExceptionSet::BREAKPOINT)
        .with(ExceptionSet::GUARD);

    /// Both sets.
    #[must_use]
    pub const fn with(self, other: ExceptionSet) -> ExceptionSet {
        ExceptionSet(self.0 | other.0)
    }

    /// The set less those of another.
    #[must_use]
    pub const fn without(self, other: ExceptionSet) -> ExceptionSet {
        ExceptionSet(self.0 & !other.0)
    }

    /// Whether all of `other` are in the set.
    pub const fn contains(self, other: ExceptionSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// The set as `exception_mask_t`.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// What happens when a child made by fork or vfork crashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForkPolicy {
    /// The child's crash is reported under a run of its own, made when it crashes.
    #[default]
    Report,
    /// The child's crash is left to whoever handled it before.
    Silent,
}

/// Which threads get an alternate signal stack, without which a stack overflow can't be reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlternateStacks {
    /// All: the installing thread, threads that exist at install (asked by a signal), and later ones, where thread
    /// creation is interposed.
    #[default]
    Everywhere,
    /// Only the installing thread and those that call [`crate::attach_current_thread`].
    Attached,
    /// None: the app looks after it.
    Leave,
}

/// What an app decides about crash time.
#[derive(Clone, Copy, Debug)]
pub struct InstallOptions {
    /// The signals that are crashes.
    pub signals: SignalSet,
    /// The Mach exceptions that are crashes (Darwin; without effect elsewhere). Under a debugger none is taken.
    pub exceptions: ExceptionSet,
    /// The signals, other than those of crashes, that are noted in the run state before the process ends of them: where nobody else has them at
    /// install (SIGTERM in any case).
    pub endings: SignalSet,
    /// Whether the handlers that were there before are asked first about every fault, and not only about those that are known to be
    /// theirs: code that a runtime compiled ahead of time needs it.
    pub chain_first: bool,
    /// Whether a signal that another handler has taken is taken back when [`look_at_signals`](crate::look_at_signals) finds it. That
    /// handler is called after the report, as one from before the install is.
    pub reinstall_handlers: bool,
    /// What becomes of a crash in a child.
    pub fork: ForkPolicy,
    /// Which threads get an alternate stack.
    pub alternate_stacks: AlternateStacks,
    /// Whether all threads are captured, or only the crashed one.
    pub all_threads: bool,
    /// Bytes of stack memory kept of the crashed thread, from its stack pointer upwards. Memory may hold what users
    /// typed; 0 keeps none.
    pub stack_memory: u32,
    /// Whether the used parts of all stacks are kept: of the crashed thread 64 KiB, of the others 16 KiB each and 448 KiB together. In the
    /// place of what [`stack_memory`](Self::stack_memory) says; the file that is reserved is larger by 576 KiB.
    pub stack_memory_all: bool,
    /// Whether names for the report's addresses are looked up in the process's own images, after everything else is written.
    pub symbol_names: bool,
    /// Milliseconds after which a stuck handler is ended with what it has.
    pub deadline_ms: u32,
    /// Bytes of disk reserved at install for the report.
    pub reserve: u32,
    /// Reports of exceptions after which the process goes on that it may write in an hour, as many of them at once; and as many of hangs.
    pub non_fatal_per_hour: u32,
    /// The signal by which other threads are stopped, or none to take a free real-time one.
    pub stop_signal: Option<i32>,
    /// What the run state can hold; its file's size follows.
    pub state: Limits,
}

impl InstallOptions {
    /// The defaults.
    pub const DEFAULT: InstallOptions = InstallOptions {
        signals: SignalSet::CRASHES,
        exceptions: ExceptionSet::CRASHES,
        endings: SignalSet::ENDINGS,
        chain_first: false,
        reinstall_handlers: false,
        fork: ForkPolicy::Report,
        alternate_stacks: AlternateStacks::Everywhere,
        all_threads: true,
        stack_memory: 2048,
        stack_memory_all: false,
        symbol_names: false,
        deadline_ms: 5000,
        reserve: 1 << 20,
        non_fatal_per_hour: 16,
        stop_signal: None,
        state: Limits::DEFAULT,
    };

    /// Bytes of disk that the report's file takes: what is reserved, and what the stacks of all threads may need.
    pub(crate) fn report_size(&self) -> u32 {
        let stacks = if self.stack_memory_all { crate::sections::stack_memory::ALL } else { 0 };
        self.reserve.saturating_add(stacks)
    }
}

impl Default for InstallOptions {
    fn default() -> Self {
        InstallOptions::DEFAULT
    }
}
