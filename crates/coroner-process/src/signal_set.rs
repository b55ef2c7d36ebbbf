//! Sets of signals, and those that crash reporters know by kind.

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
