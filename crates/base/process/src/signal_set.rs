//! Sets of signals, including those that crash reporters classify.

/// Linux's numbers, for systems without signals, which never receive any of them.
#[cfg(not(unix))]
mod libc {
    pub(super) const SIGHUP: i32 = 1;
    pub(super) const SIGINT: i32 = 2;
    pub(super) const SIGQUIT: i32 = 3;
    pub(super) const SIGILL: i32 = 4;
    pub(super) const SIGTRAP: i32 = 5;
    pub(super) const SIGABRT: i32 = 6;
    pub(super) const SIGBUS: i32 = 7;
    pub(super) const SIGFPE: i32 = 8;
    pub(super) const SIGUSR1: i32 = 10;
    pub(super) const SIGSEGV: i32 = 11;
    pub(super) const SIGUSR2: i32 = 12;
    pub(super) const SIGPIPE: i32 = 13;
    pub(super) const SIGALRM: i32 = 14;
    pub(super) const SIGTERM: i32 = 15;
    pub(super) const SIGXCPU: i32 = 24;
    pub(super) const SIGXFSZ: i32 = 25;
    pub(super) const SIGSYS: i32 = 31;
}

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

    /// Terminating signals that are requested or expected rather than a crash.
    ///
    /// TERM, INT, HUP, QUIT, PIPE, ALRM, XCPU, XFSZ, USR1 and USR2.
    pub const ENDINGS: SignalSet = SignalSet::EMPTY
        .with(libc::SIGTERM)
        .with(libc::SIGINT)
        .with(libc::SIGHUP)
        .with(libc::SIGQUIT)
        .with(libc::SIGPIPE)
        .with(libc::SIGALRM)
        .with(libc::SIGXCPU)
        .with(libc::SIGXFSZ)
        .with(libc::SIGUSR1)
        .with(libc::SIGUSR2);

    /// Returns the set with one more signal. Numbers outside 1..=64 change nothing.
    #[must_use]
    pub const fn with(self, signal: i32) -> SignalSet {
        SignalSet(self.0 | Self::bit(signal))
    }

    /// Returns the set without one signal.
    #[must_use]
    pub const fn without(self, signal: i32) -> SignalSet {
        SignalSet(self.0 & !Self::bit(signal))
    }

    /// Whether the signal is in the set.
    pub const fn contains(self, signal: i32) -> bool {
        self.0 & Self::bit(signal) != 0
    }

    /// Returns the set in the kernel's form.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the bit of a signal; 0 for an invalid number.
    const fn bit(signal: i32) -> u64 {
        if signal >= 1 && signal <= 64 { 1 << (signal - 1) } else { 0 }
    }
}
