//! Options for what happens at a crash.

use crate::SignalSet;
use crate::system::capture::{AlternateStacks, ForkPolicy, InstallOptions};

use super::group::group;

group! {
    /// Options for crashes: which signals they are, which handlers run first, what a report
    /// contains.
    ///
    /// The defaults suit nearly every app. You need this
    /// * beside another crash handler or a language runtime ([`chain_first`](Self::chain_first),
    ///   [`reinstall_handlers`](Self::reinstall_handlers), [`signals`](Self::signals)),
    /// * where a report should contain less of what users typed
    ///   ([`stack_memory(0)`](Self::stack_memory)), or more for a debugger
    ///   ([`stack_memory_all`](Self::stack_memory_all)),
    /// * where threads manage signal stacks themselves
    ///   ([`alternate_stacks`](Self::alternate_stacks)).
    ///
    /// ```
    /// use coroner::{Config, Crashes};
    ///
    /// let config = Config::new("com.example.paint").crashes(Crashes::new().stack_memory(0).reinstall_handlers(true));
    /// ```
    Crashes
    fields {}
    options {
        /// Sets the signals that are crashes.
        ///
        /// Default: [`SignalSet::CRASHES`] (SEGV, BUS, ILL, FPE, ABRT, TRAP, SYS).
        signals: SignalSet = InstallOptions::DEFAULT.signals,
        /// Sets the signals that are recorded when they end the process.
        ///
        /// The run's outcome is then [`Outcome::Terminated`](crate::Outcome::Terminated) (SIGTERM)
        /// or [`Outcome::EndedBySignal`](crate::Outcome::EndedBySignal) instead of unknown. These
        /// signals are not crashes, and end the process as they would have without Coroner. A
        /// signal that is ignored or has a handler at install is left alone.
        ///
        /// Default: [`SignalSet::ENDINGS`] (TERM, INT, HUP, QUIT, PIPE, ALRM, XCPU, XFSZ, USR1,
        /// USR2), without INT if Python is in the process and not initialized: Python takes over
        /// Ctrl-C only if the signal still has its default action.
        endings: SignalSet = InstallOptions::DEFAULT.endings,
        /// Sets whether the handlers that were installed before Coroner get every fault first.
        ///
        /// Default: no.
        ///
        /// A crash is then reported only if they don't handle it. Code that a runtime compiles
        /// while the app runs (JVM, .NET, Node, wasmtime), Go code, and system calls trapped by a
        /// seccomp filter don't need this: their faults are left to their handlers anyway. It is
        /// for code that a runtime compiled ahead of time. `docs/neighbours.md` lists the best
        /// order for each kind of app.
        chain_first: bool = InstallOptions::DEFAULT.chain_first,
        /// Sets whether to take back crash signals from handlers that don't call Coroner's.
        /// Default: no.
        ///
        /// This concerns a signal that another handler took after install. That handler is then
        /// called after the report. Coroner checks when it delivers and when a breadcrumb is left,
        /// at most once a second, and in any case logs which handler has the signal.
        reinstall_handlers: bool = InstallOptions::DEFAULT.reinstall_handlers,
        /// Sets what a crash does in a child created by `fork`.
        ///
        /// Default: it is reported, as a run of its own.
        fork: ForkPolicy = InstallOptions::DEFAULT.fork,
        /// Sets which threads get an alternate signal stack. Default: all.
        ///
        /// Without one, a stack overflow can't be reported.
        alternate_stacks: AlternateStacks = InstallOptions::DEFAULT.alternate_stacks,
        /// Sets whether a report contains all threads or only the crashed one. Default: all.
        all_threads: bool = InstallOptions::DEFAULT.all_threads,
        /// Sets how many bytes of the crashed thread's stack a report contains.
        ///
        /// They start at the stack pointer and go up. With them come 256 to 512 bytes around each
        /// address that is in one of the thread's registers. This memory may contain what users
        /// typed. Default: 2048; 0 for neither.
        stack_memory: u32 = InstallOptions::DEFAULT.stack_memory,
        /// Sets whether a report contains the used parts of all threads' stacks. Default: no.
        ///
        /// A debugger or `minidump-stackwalk` can then walk a minidump made from the report as far
        /// as the report's own frames go. The limits are 64 KiB for the crashed thread, 16 KiB for
        /// each other thread, and 448 KiB for the others together. This memory may contain what
        /// users typed. The reserved file becomes larger by 576 KiB. Replaces
        /// [`stack_memory`](Self::stack_memory).
        stack_memory_all: bool = InstallOptions::DEFAULT.stack_memory_all,
        /// Sets whether the dying process looks up names for addresses in its own images.
        ///
        /// This happens after everything else is on disk. The names are used where neither the next
        /// launch nor a server finds a symbol file, above all for the system's libraries. It takes
        /// milliseconds, longer in a large program. Default: only on Apple's systems, whose
        /// libraries have their symbols only in memory.
        symbol_names: bool = cfg!(target_vendor = "apple"),
    }
}
